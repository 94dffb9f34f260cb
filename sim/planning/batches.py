"""Volumes with a deadline: what a replica does of them, and how many replicas keep the deadlines.

Batch work runs on whole replicas that traffic does not need in that hour. Classes are served by
deadline, the shortest first, each in order of arrival, as a fluid in steps of an hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.planning.demand import Batch
from sim.planning.load import WEEK_H, batch_part, batch_week
from sim.planning.phases import Phases, phases, pool_names, rank_counts
from sim.planning.ready import Ready
from sim.planning.trial import mean_tokens
from sim.scenario import Scenario
from sim.simulation import Result, simulate
from workloads.named import Streams, make_requests

__all__ = ["BatchRate", "batch_rate", "deadlines_met", "replicas_for_batches"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HOUR_S = 3600.0
MOST_REPLICAS = 10**7


@dataclass(frozen=True)
class BatchRate:
    """What one replica does of a batch class when it does nothing else.

    Attributes
    ----------
    batch : Batch
        The class.
    rate_per_s : float
        Requests that leave it [request/s].
    pool_joules : dict of str to float
        Energy of a request beyond idle power, by pool ("all" without pools) [J].
    phases : Phases
        Time and energy by cause, of all requests simulated.
    tokens : dict of str to float
        Mean input, cached and output tokens of a request.
    """

    batch: Batch
    rate_per_s: float
    pool_joules: dict[str, float]
    phases: Phases
    tokens: dict[str, float]

    def hours(self, growth: Floats) -> Floats:
        """Return replica-hours of work that come in each hour of the week.

        Parameters
        ----------
        growth : ndarray, shape (...)
            Volume over that at the start.

        Returns
        -------
        ndarray, shape (..., 168)
        """
        asked = growth[..., None] * batch_week(self.batch)
        return np.asarray(asked / (self.rate_per_s * HOUR_S))


def batch_rate(scenario: Scenario, batch: Batch, count: int, seed: int, ready: Ready) -> BatchRate:
    """Simulate requests of a batch class that all wait for one replica.

    Parameters
    ----------
    scenario : Scenario
        One replica.
    batch : Batch
        The class.
    count : int
        Requests to simulate.
    seed : int
        Seed of their lengths.
    ready : Ready
        Deployments that are there already.

    Raises
    ------
    InputError
        The model or the longest request does not fit.
    """
    requests = make_requests(batch_part(batch, count), Streams.of_seed(seed))
    result = simulate(scenario, requests, deployments=ready.of(scenario, requests))
    ends = np.sort(result.requests["finish_s"].dropna().to_numpy(np.float64))
    first, last = int(0.2 * (ends.size - 1)), int(0.8 * (ends.size - 1))
    rate = (last - first) / max(ends[last] - ends[first], 1e-9)
    tokens = mean_tokens(result.requests)[batch.name]
    return BatchRate(batch, float(rate), _beyond_idle(result, count), phases(result), tokens)


def _beyond_idle(result: Result, count: int) -> dict[str, float]:
    """Return energy of a request beyond idle power, by pool [J]."""
    totals = result.totals
    idle = np.array([float(d.knobs["idle_w"][0]) for d in result.deployments])
    busy = totals["energy_j"] - totals["idle_energy_j"] - idle * totals["busy_s"]
    joules: dict[str, float] = {}
    each = busy.to_numpy(np.float64) * rank_counts(result) / count
    for name, value in zip(pool_names(result), each, strict=True):
        joules[name] = joules.get(name, 0.0) + float(value)
    return joules


def deadlines_met(free: Floats, work: Sequence[Floats], deadlines_h: Sequence[float]) -> Ints:
    """Return whether fluid service keeps all deadlines.

    Parameters
    ----------
    free : ndarray, shape (..., 168)
        Replica-hours to spare in each hour of the week.
    work : sequence of ndarray, shape (..., 168)
        Replica-hours that come in each hour, by class.
    deadlines_h : sequence of float
        Deadline of each class [h].

    Returns
    -------
    ndarray of bool, shape (...)

    Examples
    --------
    Two hours free each day, four hours of work each day: never. Eight hours free: a day is enough,
    an hour is not, since all of it comes at midnight and two replicas are free from then on.

    >>> work = np.tile([4.0] + [0.0] * 23, 7)
    >>> two, eight = np.tile([2.0] + [0.0] * 23, 7), np.tile([2.0] * 4 + [0.0] * 20, 7)
    >>> [bool(deadlines_met(f, [work], [h])) for f, h in ((two, 24), (eight, 24), (eight, 1))]
    [False, True, False]
    """
    left = np.cumsum(np.concatenate([free] * 3, axis=-1), axis=-1)
    asked = np.sum([hours.sum(axis=-1) for hours in work], axis=0)
    met = asked <= free.sum(axis=-1) * (1 + 1e-9)
    for hours, due in sorted(zip(work, deadlines_h, strict=True), key=lambda pair: pair[1]):
        came = np.cumsum(np.concatenate([hours] * 3, axis=-1), axis=-1)
        done = _served(came, left)
        met = met & _in_time(came, done, int(due))
        left = left - done
    return np.asarray(met)


def _served(came: Floats, could: Floats) -> Floats:
    """Return the cumulated output of a fluid queue, from its cumulated input and service."""
    before = np.zeros((*np.broadcast_shapes(came.shape, could.shape)[:-1], 1))
    slack = np.broadcast_to(came, (*before.shape[:-1], came.shape[-1])) - could
    least = np.minimum.accumulate(np.concatenate([before, slack], axis=-1), axis=-1)[..., 1:]
    return np.asarray(could + np.minimum(least, 0.0))


def _in_time(came: Floats, done: Floats, due: int) -> npt.NDArray[np.bool_]:
    """Return whether all that came is done `due` hours after its own hour began."""
    late = came[..., : came.shape[-1] - due + 1] - done[..., due - 1 :]
    return np.asarray((late[..., WEEK_H:] <= 1e-9).all(axis=-1))


def replicas_for_batches(
    serving: Floats, online: Ints, rates: Sequence[BatchRate], growths: Sequence[Floats]
) -> Ints:
    """Return how many replicas keep traffic's objectives and every batch deadline.

    Parameters
    ----------
    serving : ndarray, shape (..., 168)
        Replicas that traffic takes in each hour.
    online : ndarray of int, shape (...)
        Replicas that traffic takes in its busiest hour.
    rates : sequence of BatchRate
        What one replica does of each class.
    growths : sequence of ndarray, shape (...)
        Volume of each class over that at the start.

    Returns
    -------
    ndarray of int, shape (...)
        At least `online`.
    """
    shared = [(r, g) for r, g in zip(rates, growths, strict=True) if not r.batch.own_machines]
    own = [(r, g) for r, g in zip(rates, growths, strict=True) if r.batch.own_machines]
    total = _least(serving, online, shared)
    if own:
        total = total + _least(np.zeros_like(serving), np.zeros_like(online), own)
    return total


def _least(serving: Floats, online: Ints, asked: list[tuple[BatchRate, Floats]]) -> Ints:
    """Return the least replicas, at least `online`, found by bisection in each place."""
    if not asked:
        return online
    work = [rate.hours(growth) for rate, growth in asked]
    due = [rate.batch.deadline_h for rate, _ in asked]
    most = online + np.ceil(sum(w.max(axis=-1) for w in work)).astype(np.int64)
    low, high = online - 1, np.minimum(most, MOST_REPLICAS)
    while (high - low > 1).any():
        middle = (low + high) // 2
        free = np.maximum(middle[..., None] - np.ceil(serving), 0.0)
        met = deadlines_met(free, work, due)
        high, low = np.where(met, middle, high), np.where(met, low, middle)
    return np.asarray(high)
