"""How much one replica of a candidate can serve: the bound first, then trials on a grid of rates.

Capacity is the largest rate, on a fixed geometric grid below the bound, at which the objectives
hold, found by bisection. The grid depends on the design and the mix of requests alone, so that a
stricter objective can never find a larger capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.deployment import Deployment
from sim.planning.bound import Bound, Mix
from sim.planning.load import Load
from sim.planning.planfile import Search
from sim.planning.pooled import unit_bound
from sim.planning.ready import Ready
from sim.planning.supply import Candidate
from sim.planning.trial import Trial, run_trial
from sim.scenario import Scenario, Slo
from sim.simulation import simulate

__all__ = ["STEP", "Bench", "Capacity", "saturation_rate"]

Floats = npt.NDArray[np.float64]
STEP = 0.98  # ratio of neighbouring rates on the grid
GRID = 256
SAMPLE_S = 1000.0
OVERLOAD = 1.5  # times the bound
STAY = 6.0  # a trial lasts that many times a mean request at least


def saturation_rate(
    scenario: Scenario,
    requests: pd.DataFrame,
    deployments: Mapping[str, Deployment] | None = None,
) -> float:
    """Return the requests/s that come out of a deployment when more are always waiting.

    The middle three fifths of the requests count, in order of their end.

    Parameters
    ----------
    scenario : Scenario
        What to deploy.
    requests : DataFrame
        Requests that come faster than they can be served.
    deployments : mapping of str to Deployment, optional
        Ready-made, by name of pool.
    """
    served = simulate(scenario, requests, deployments=deployments)
    finish = served.requests["finish_s"].dropna()
    ends = np.sort(finish.to_numpy(np.float64))
    if ends.size < 5:
        return 0.0
    first, last = int(0.2 * (ends.size - 1)), int(0.8 * (ends.size - 1))
    return float((last - first) / max(ends[last] - ends[first], 1e-9))


@dataclass(frozen=True)
class Capacity:
    """What replicas that are simulated together can serve.

    Attributes
    ----------
    rate_per_s : float
        Largest rate of each replica at which all objectives hold, 0 where none does [request/s].
    at, above : Trial or None
        The trial at that rate, and the one at the next rate of the grid, which fails. None where
        the bound or the saturation rate decided without a trial.
    """

    rate_per_s: float
    at: Trial | None
    above: Trial | None


@dataclass
class Bench:
    """A candidate under test at one mix of requests.

    Parameters
    ----------
    candidate : Candidate
        What is tested.
    load : Load
        Where requests come from.
    search : Search
        Sizes of trials.
    shares : ndarray, shape (K,)
        Part of each class in the requests, sum 1.
    ready : Ready
        Deployments that trials of the candidate have built.
    """

    candidate: Candidate
    load: Load
    search: Search
    shares: Floats
    ready: Ready = field(default_factory=Ready, repr=False)
    _trials: dict[tuple[int, float, float | None], Trial] = field(default_factory=dict, repr=False)

    @cached_property
    def slos(self) -> dict[str, Slo]:
        """Objectives by class."""
        return {c.name: c.slo for c in self.load.classes}

    @cached_property
    def scenario(self) -> Scenario:
        """Scenario of one replica."""
        return Scenario().changed(self.candidate.changes() | {"run.seed": self.search.seed})

    @cached_property
    def deployments(self) -> Mapping[str, Deployment]:
        """Memory, step tables and knobs of a replica of each pool, by its name."""
        return self.ready.of(self.scenario, self.table)

    @property
    def deployment(self) -> Deployment:
        """That of the first pool."""
        return next(iter(self.deployments.values()))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A sample of the mix."""
        rate = self.search.requests / SAMPLE_S
        return self.load.sample(self.shares * rate, SAMPLE_S)

    @cached_property
    def mix(self) -> Mix:
        """Lengths of that sample."""
        return Mix.of(self.table, bool(self.deployment.knobs["caching"][0]))

    @cached_property
    def bound(self) -> Bound:
        """What the step tables allow at best."""
        return unit_bound(self.candidate, self.deployments, self.mix)

    @cached_property
    def tpot_s(self) -> float:
        """Tightest objective on the time per output token, infinite without any [s]."""
        asked = [s.tpot_s for s in self.slos.values() if s.tpot_s is not None]
        return min(asked, default=np.inf)

    @property
    def most(self) -> int:
        """Replicas, or units of several pools, that are simulated together."""
        size = sum(part.count for part in self.candidate.parts) or 1
        return max(self.search.replicas // size, 1)

    @cached_property
    def saturation(self) -> float:
        """Requests/s of one replica that always has work [request/s]."""
        return self.saturation_at(None)

    def saturation_at(self, share: float | None) -> float:
        """Return the same under a power limit, over the TDP [request/s]."""
        requests = self.overload()
        scenario = self.scenario.changed(self.candidate.scaled(1, share))
        ready = self.ready.of(scenario, requests)
        return min(saturation_rate(scenario, requests, ready), self.bound.most)

    def overload(self) -> pd.DataFrame:
        """Return requests that come faster than one replica can serve them."""
        rate = OVERLOAD * self.bound.most
        count = max(self.search.requests, 6 * self.bound.batch)
        return self.load.sample(self.shares * rate, count / rate)

    def duration_s(self, rate: float, replicas: int) -> float:
        """Return how long requests arrive in a trial [s]."""
        stay = float(self.mix.output.mean()) * float(
            np.interp(rate, self.bound.rates, self.bound.step_s)
        )
        return max(self.search.requests / (rate * replicas), STAY * stay)

    def trial(self, rate: float, replicas: int = 1, share: float | None = None) -> Trial:
        """Simulate replicas at a rate each, once for each combination.

        Parameters
        ----------
        rate : float
            Offered to each replica [request/s].
        replicas : int
            Simulated together, behind the candidate's router.
        share : float, optional
            Power limit of every accelerator over its TDP.
        """
        key = (replicas, rate, share)
        if key not in self._trials:
            duration = self.duration_s(rate, replicas)
            requests = self.load.sample(self.shares * rate * replicas, duration)
            scenario = self.scenario.changed(self.candidate.scaled(replicas, share))
            ready = self.ready.of(scenario, requests)
            trial = run_trial(scenario, requests, self.slos, duration, replicas, ready)
            self._trials[key] = trial
        return self._trials[key]

    @property
    def trials(self) -> list[Trial]:
        """All trials so far without a power limit of their own."""
        return [trial for (_, _, cap), trial in self._trials.items() if cap is None]

    @cached_property
    def grid(self) -> Floats:
        """Rates that are tried, rising [request/s]."""
        return np.asarray(self.bound.most * STEP ** np.arange(GRID - 1, -1, -1))

    def _possible(self, rate: float) -> bool:
        """Whether the bound and the saturation rate allow a rate at all."""
        return rate <= self.saturation and self.bound.tpot_s(rate) <= self.tpot_s

    def _met(self, rate: float, replicas: int) -> bool:
        return self._possible(rate) and self.trial(rate, replicas).met

    def capacity(self, replicas: int) -> Capacity:
        """Return what replicas simulated together can serve, by bisection on the grid."""
        low, high = -1, GRID
        while high - low > 1:
            middle = (low + high) // 2
            if self._met(float(self.grid[middle]), replicas):
                low = middle
            else:
                high = middle
        at = None if low < 0 else self.trial(float(self.grid[low]), replicas)
        next_rate = float(self.grid[high]) if high < GRID else self.bound.most / STEP
        above = self._trials.get((replicas, next_rate, None))
        return Capacity(0.0 if low < 0 else float(self.grid[low]), at, above)


def class_work(candidate: Candidate, load: Load, search: Search, ready: Ready) -> Floats:
    """Return the time of a replica that one request of each class takes, by the bound.

    Returns
    -------
    ndarray, shape (K,)
        Seconds of a replica per request [s].

    Raises
    ------
    InputError
        The model or the longest request does not fit, or a name of the candidate is unknown.
    """
    work = np.zeros(len(load.classes))
    for k, one in enumerate(load.classes):
        shares = np.zeros(work.size)
        shares[k] = 1.0
        try:
            work[k] = 1.0 / Bench(candidate, load, search, shares, ready).bound.most
        except InputError as e:
            raise InputError(f"{candidate.name} cannot serve {one.name}: {e}") from None
    return work
