"""Rates several candidates, in this process or in a pool, and again only what has changed."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context

from sim.planning.load import Load
from sim.planning.planfile import PlanFile
from sim.planning.rated import Fault, Rating, rate
from sim.planning.supply import RANKS, Candidate

__all__ = ["fingerprint", "rate_all"]

Rated = Rating | Fault
Progress = Callable[[float, str], None]
DESIGN = {"accelerator", "model", "weights", "kv", "mode", "power_cap_w", *RANKS}
ASKED = {"traffic", "batch", "horizon", "service", "search"}


def fingerprint(candidate: Candidate, file: PlanFile) -> str:
    """Return a text that is the same where the rating of a candidate is the same."""
    design = candidate.model_dump(include=DESIGN)
    design |= candidate.offer.model_dump(include={"policies", "engine", "link"})
    design["parts"] = [
        [part.name, part.count, part.design.model_dump(include=DESIGN)] for part in candidate.parts
    ]
    return json.dumps([design, file.model_dump(include=ASKED)], sort_keys=True, default=str)


def rate_all(
    candidates: list[Candidate],
    load: Load,
    file: PlanFile,
    known: Mapping[str, Rated],
    workers: int,
    progress: Progress,
) -> list[Rated]:
    """Return the rating of each candidate, in order.

    Parameters
    ----------
    candidates, load, file
        See `rate`.
    known : mapping of str to Rating or Fault
        Earlier ratings by fingerprint.
    workers : int
        Processes; 1 = this one.
    progress : callable
        Called with the share of candidates that are done, and the name of one.
    """
    found: dict[int, Rated] = {}
    for i, candidate in enumerate(candidates):
        earlier = known.get(fingerprint(candidate, file))
        if isinstance(earlier, Rating):
            found[i] = earlier.offered(candidate)
        elif earlier is not None:
            found[i] = earlier
    left = [i for i in range(len(candidates)) if i not in found]
    with _executor(min(workers, len(left))) as pool:
        rated = _rated(pool, {i: candidates[i] for i in left}, load, file)
        for i in left:
            progress(len(found) / len(candidates), f"simulating {candidates[i].name}")
            place, one = next(rated)
            found[place] = one
    return [found[i] for i in range(len(candidates))]


def _rated(
    pool: Executor | None,
    left: dict[int, Candidate],
    load: Load,
    file: PlanFile,
) -> Iterator[tuple[int, Rated]]:
    """Yield ratings as they are ready."""
    if pool is None:
        for i, candidate in left.items():
            yield i, rate(candidate, load, file)
        return
    jobs = {pool.submit(rate, candidate, load, file): i for i, candidate in left.items()}
    for job in as_completed(jobs):
        yield jobs[job], job.result()


@contextmanager
def _executor(workers: int) -> Iterator[Executor | None]:
    """Give a pool of processes, None for one; an interrupt drops the work that is left."""
    if workers <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
