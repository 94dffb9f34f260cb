"""Where the points of a sweep run: here, in processes, or on a Dask cluster. One interface."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from formats import InputError

__all__ = ["Pool", "open_pool"]

AHEAD = 2  # tasks given out per worker: one that runs, one that waits
CONNECT_S = 10.0  # how long a scheduler may take to answer [s]
JOIN_S = 60.0  # how long the first worker of a cluster may take to join [s]
COUNT_S = 2.0  # how often the workers of a cluster are counted [s]
Submit = Callable[..., Future[Any]]


@dataclass
class Pool:
    """Workers that run functions.

    Attributes
    ----------
    submit : callable
        Start a function with arguments; a `Future` comes back.
    slots : callable
        How many tasks may be given out at a time; more would only fill memory.
    lost : tuple of exception types
        What a future raises when its worker died.
    gone : tuple of exception types
        What a future raises when nobody is left who could run it.
    """

    submit: Submit
    slots: Callable[[], int]
    lost: tuple[type[Exception], ...] = ()
    gone: tuple[type[Exception], ...] = ()


class _Here(Executor):
    """Runs each task at once in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def open_pool(workers: int = 1, cluster: str | None = None) -> Iterator[Pool]:
    """Give workers for the points of a sweep.

    Parameters
    ----------
    workers : int
        Processes on this machine; 1 = this process.
    cluster : str, optional
        Address of a running Dask scheduler, or ``local:N`` for a local cluster of N workers.

    Raises
    ------
    InputError
        Dask is not installed, the address does not answer, or no worker joins.

    Examples
    --------
    >>> with open_pool() as pool:
    ...     pool.submit(max, 3, 4).result()
    4
    """
    if cluster is not None:
        yield from _dask(cluster)
    elif workers <= 1:
        yield Pool(_Here().submit, lambda: 1)
    else:
        yield from _processes(workers)


def _processes(workers: int) -> Iterator[Pool]:
    """Give processes of this machine; when the caller leaves early they are ended at once."""
    _compile_once()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet)
    try:
        yield Pool(pool.submit, lambda: AHEAD * workers, lost=(BrokenProcessPool,))
    except BaseException:
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        raise
    pool.shutdown()


def _quiet() -> None:
    """Leave an interrupt from the keyboard to the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile_once() -> None:
    """Compile the engine into the cache on disk, so that workers load it instead of compiling."""
    import pandas as pd

    from sim.scenario import Scenario
    from sim.simulation import simulate

    one = {"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [2]}
    simulate(Scenario(), pd.DataFrame(one))


def _dask(address: str) -> Iterator[Pool]:
    try:
        distributed: Any = import_module("dask.distributed")
    except ImportError:
        repair = "pip install 'roofcast[cluster]'"
        raise InputError("Dask is not installed", "--cluster", repair=repair) from None
    # losses are handled and said here; its own log would print a traceback for each
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if not address.startswith("local:"):
        with _connected(distributed.Client, address) as client:
            yield _dask_pool(distributed, client)
        return
    _compile_once()
    local = distributed.LocalCluster(
        n_workers=_count(address),
        threads_per_worker=1,
        dashboard_address=":0",  # none at all still asks for port 8787
        silence_logs="ERROR",
    )
    with local, distributed.Client(local) as client:
        yield _dask_pool(distributed, client)


def _dask_pool(distributed: Any, client: Any) -> Pool:  # noqa: ANN401 - Dask has no types
    try:
        client.wait_for_workers(1, timeout=JOIN_S)
    except TimeoutError:
        what = f"no worker has joined the Dask scheduler within {JOIN_S:g} s"
        repair = "start some with `dask worker ADDRESS --nthreads 1`"
        raise InputError(what, "--cluster", repair=repair) from None
    executor = client.get_executor(pure=False)
    killed = distributed.KilledWorker
    return Pool(executor.submit, _Threads(client), lost=(killed,), gone=(CancelledError,))


@dataclass
class _Threads:
    """Counts the threads of a cluster now and then; workers may come and go."""

    client: Any
    known: int = 1
    when: float = field(default=float("-inf"))

    def __call__(self) -> int:
        if time.monotonic() - self.when > COUNT_S:
            self.known = max(1, sum(self.client.nthreads().values()))
            self.when = time.monotonic()
        return AHEAD * self.known


def _count(address: str) -> int:
    text = address.removeprefix("local:")
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InputError(f"{address!r} is not local:N", "--cluster", "local:1 .. local:1024")
    return int(text)


def _connected(client: Any, address: str) -> Any:  # noqa: ANN401 - Dask has no types
    try:
        return client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        what = f"no Dask scheduler answers at {address}: {error}"
        repair = "start one with `dask scheduler`, or use local:N"
        raise InputError(what, "--cluster", repair=repair) from None
