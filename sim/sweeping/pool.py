"""Where the points of a sweep run: here, in processes, or on a Dask cluster. One interface."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from formats import InputError

__all__ = ["executor"]


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
def executor(workers: int = 1, cluster: str | None = None) -> Iterator[Executor]:
    """Give an executor for the points of a sweep.

    Parameters
    ----------
    workers : int
        Processes on this machine; 1 runs in this process.
    cluster : str, optional
        Address of a running Dask scheduler, or ``local:N`` for a local cluster of N workers.

    Raises
    ------
    InputError
        Dask is not installed, or the address does not answer.
    """
    if cluster is not None:
        yield from _dask(cluster)
    elif workers <= 1:
        yield _Here()
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield pool


def _dask(address: str) -> Iterator[Executor]:
    try:
        distributed: Any = import_module("dask.distributed")
    except ImportError:
        repair = "pip install 'roofcast[cluster]'"
        raise InputError("Dask is not installed", "--cluster", repair=repair) from None
    if not address.startswith("local:"):
        with _connected(distributed.Client, address) as client:
            yield client.get_executor()
        return
    count = _count(address)
    with (
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address=None
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client.get_executor()


def _count(address: str) -> int:
    text = address.removeprefix("local:")
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InputError(f"{address!r} is not local:N", "--cluster", "local:1 .. local:1024")
    return int(text)


def _connected(client: Any, address: str) -> Any:  # noqa: ANN401 - Dask has no types
    try:
        return client(address, timeout="10s")
    except (OSError, ValueError) as error:
        what = f"no Dask scheduler answers at {address}: {error}"
        repair = "start one with `dask scheduler`, or use local:N"
        raise InputError(what, "--cluster", repair=repair) from None
