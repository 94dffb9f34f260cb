"""One simulation of a few replicas at a given load, judged against the objectives."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.deployment import Deployment
from sim.planning.phases import Phases, phases, pool_names, rank_counts
from sim.scenario import Scenario, Slo
from sim.simulation import Result, simulate

__all__ = ["OBJECTIVES", "Judgement", "Trial", "judge", "latencies", "mean_tokens", "run_trial"]

Floats = npt.NDArray[np.float64]
OBJECTIVES = ("ttft_s", "tpot_s", "e2e_s")
EDGE = 0.2  # share of a trial's time left out at its start and at its end


@dataclass(frozen=True, slots=True)
class Judgement:
    """One objective of one class against what was simulated.

    Attributes
    ----------
    name : str
        Class of traffic.
    objective : str
        ttft_s, tpot_s or e2e_s.
    percentile : float
        Share of requests that must meet it [%].
    asked_s, found_s : float
        Objective, and that percentile of the simulated values [s].
    """

    name: str
    objective: str
    percentile: float
    asked_s: float
    found_s: float

    @property
    def spare(self) -> float:
        """Part of the objective that is left; below 0 where it is missed."""
        return 1.0 - self.found_s / self.asked_s

    def says(self) -> str:
        """Return the judgement in words.

        Examples
        --------
        >>> Judgement("chat", "ttft_s", 99, 1.0, 0.82).says()
        'TTFT p99 of chat 0.82 s of 1 s, 18 % to spare'
        """
        word = self.objective.removesuffix("_s").upper()
        head = f"{word} p{self.percentile:g} of {self.name}"
        if not np.isfinite(self.found_s):
            return f"{head} never ends, {self.asked_s:.3g} s asked"
        rest = f"{self.found_s:.3g} s of {self.asked_s:.3g} s"
        margin = f"{100 * abs(self.spare):.0f} %"
        return f"{head} {rest}, {margin} {'to spare' if self.spare >= 0 else 'too slow'}"


@dataclass(frozen=True)
class Trial:
    """What a few replicas did at a load.

    Attributes
    ----------
    rate_per_s : float
        Requests offered to each replica [request/s].
    replicas : int
        How many were simulated.
    judgements : tuple of Judgement
        Every objective of every class.
    good : dict of str to float
        Class -> share of its requests that met all objectives at once.
    met : bool
        Every class has its share.
    watts : float
        Mean power of one replica's accelerators [W].
    pool_watts : dict of str to float
        The same by pool, by name ("all" without pools) [W].
    busy : float
        Share of time that the accelerators work.
    memory_wait : float
        Share of time in which the queue's head waits for KV blocks.
    phases : Phases
        Time and energy by cause.
    tokens : dict of str to dict of str to float
        Class -> mean input, cached and output tokens of a request.
    """

    rate_per_s: float
    replicas: int
    judgements: tuple[Judgement, ...]
    good: dict[str, float]
    met: bool
    watts: float
    pool_watts: dict[str, float]
    busy: float
    memory_wait: float
    phases: Phases
    tokens: dict[str, dict[str, float]]

    @property
    def tightest(self) -> Judgement | None:
        """The objective with the least to spare, None where there is none."""
        return min(self.judgements, key=lambda j: j.spare, default=None)


def run_trial(
    scenario: Scenario,
    requests: pd.DataFrame,
    slos: Mapping[str, Slo],
    duration_s: float,
    replicas: int = 1,
    deployments: Mapping[str, Deployment] | None = None,
) -> Trial:
    """Simulate requests on a scenario and judge those in the middle of the time.

    Parameters
    ----------
    scenario : Scenario
        What to deploy, on how many replicas.
    requests : DataFrame
        Requests table with a column class.
    slos : mapping of str to Slo
        Objectives by class.
    duration_s : float
        Time of arrivals [s].
    replicas : int
        How many replicas, or units of several pools, the scenario has.
    deployments : mapping of str to Deployment, optional
        Ready-made, by name of pool.
    """
    result = simulate(scenario, requests, deployments=deployments)
    start, end = EDGE * duration_s, (1 - EDGE) * duration_s
    seen = result.requests[result.requests["arrival_s"].between(start, end)]
    judgements, good = judge(seen, slos)
    met = all(good[name] >= slos[name].percentile / 100 - 1e-12 for name in good)
    watts, busy = _power(result, start, end, replicas)
    blocked = float(result.totals["memory_blocked_s"].sum()) / replicas
    return Trial(
        rate_per_s=len(requests) / duration_s / replicas,
        replicas=replicas,
        judgements=judgements,
        good=good,
        met=met,
        watts=sum(watts.values()),
        pool_watts=watts,
        busy=busy,
        memory_wait=min(blocked / duration_s, 1.0),
        phases=phases(result),
        tokens=mean_tokens(result.requests),
    )


def mean_tokens(requests: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return mean input (not cached), cached and output tokens of a request, by class."""
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    means = requests.groupby("class")[columns].mean()
    return {
        str(name): {"input": prompt - cached, "cached": cached, "output": output}
        for name, (prompt, cached, output) in zip(means.index, means.to_numpy(), strict=True)
    }


def judge(
    requests: pd.DataFrame, slos: Mapping[str, Slo]
) -> tuple[tuple[Judgement, ...], dict[str, float]]:
    """Judge simulated requests against the objectives of their classes.

    Parameters
    ----------
    requests : DataFrame
        Columns arrival_s, first_token_s, finish_s, output_tokens, status, class.
    slos : mapping of str to Slo
        Objectives by class; a class without requests is left out.

    Returns
    -------
    judgements : tuple of Judgement
        One for each class and objective.
    good : dict of str to float
        Class -> share of requests that met all objectives [0..1].
    """
    found: list[Judgement] = []
    good: dict[str, float] = {}
    for name, slo in slos.items():
        own = requests[requests["class"] == name]
        if own.empty:
            continue
        values = latencies(own)
        asked = {o: getattr(slo, o) for o in OBJECTIVES if getattr(slo, o) is not None}
        ok = np.ones(len(own), dtype=bool)
        for objective, limit in asked.items():
            ok &= values[objective] <= limit
            at = np.quantile(values[objective], slo.percentile / 100, method="higher")
            found.append(Judgement(name, objective, slo.percentile, limit, float(at)))
        good[name] = float(ok.mean())
    return tuple(found), good


def latencies(requests: pd.DataFrame) -> dict[str, Floats]:
    """Return TTFT, TPOT and E2E of requests [s]; infinite where a request did not end."""
    arrival = requests["arrival_s"].to_numpy(np.float64)
    first = requests["first_token_s"].to_numpy(np.float64)
    finish = requests["finish_s"].to_numpy(np.float64)
    steps = np.maximum(requests["output_tokens"].to_numpy(np.float64) - 1.0, 1.0)
    ended = (requests["status"] == "finished").to_numpy()
    values = {"ttft_s": first - arrival, "tpot_s": (finish - first) / steps}
    values["e2e_s"] = finish - arrival
    return {name: np.where(ended, value, np.inf) for name, value in values.items()}


def _power(
    result: Result, start: float, end: float, replicas: int
) -> tuple[dict[str, float], float]:
    """Return watts of each pool of a replica, and the share of time that accelerators work."""
    steps, ranks = result.steps, rank_counts(result)
    inside = steps[steps["output_s"].between(start, end)].groupby("replica")
    sums = inside[["gpu_s", "energy_j"]].sum().reindex(range(ranks.size), fill_value=0.0)
    span = end - start
    busy = np.minimum(sums["gpu_s"].to_numpy(np.float64), span)
    idle = np.array([float(d.knobs["idle_w"][0]) for d in result.deployments])
    joules = sums["energy_j"].to_numpy(np.float64) + (span - busy) * idle
    watts: dict[str, float] = {}
    for name, one in zip(pool_names(result), joules * ranks / span / replicas, strict=True):
        watts[name] = watts.get(name, 0.0) + float(one)
    return watts, float((busy * ranks).sum() / (span * ranks.sum()))
