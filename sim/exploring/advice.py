"""The next best change: every candidate is simulated on the same requests, the best is named."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from formats import RoofcastError
from sim.exploring.changes import Change, one_step_changes
from sim.exploring.estimate import estimate
from sim.exploring.money import per_million, price_of
from sim.metrics import summary
from sim.objectives import given, objectives
from sim.scenario import Scenario
from sim.simulation import Result, simulate, workload_requests

__all__ = ["GOALS", "Advice", "Goal", "Tried", "advise", "cost_of"]

Progress = Callable[[float, str], None]
MOST_REQUESTS = 600  # of the workload, for every candidate
SLACK = 0.002  # attainment that may be lost without counting as worse [1]


@dataclass(frozen=True)
class Goal:
    """What "better" means.

    Attributes
    ----------
    name, words : str
        Its key, and what the page calls it.
    figure, unit : str
        Key of `Tried.figures`, and its unit.
    smaller : bool
        Smaller is better.
    """

    name: str
    words: str
    figure: str
    unit: str
    smaller: bool

    def gain(self, before: float, after: float) -> float:
        """Return by which share a figure got better [1]; negative where it got worse."""
        if before <= 0:
            return float("inf") if (after > before) != self.smaller else 0.0
        return (before - after if self.smaller else after - before) / before


GOALS = {
    goal.name: goal
    for goal in (
        Goal("objectives", "requests that meet the objectives", "slo_attainment", "1", False),
        Goal("cost", "cost per million output tokens", "usd_per_million", "USD", True),
        Goal("ttft", "time to first token, 99th percentile", "ttft_p99_s", "s", True),
        Goal("tpot", "time per output token, mean", "tpot_mean_s", "s", True),
        Goal(
            "capacity", "requests per second that could be served", "most_per_s", "request/s", False
        ),
        Goal("energy", "energy per output token", "energy_per_output_token_j", "J", True),
    )
}


@dataclass(frozen=True)
class Tried:
    """A change and what it did.

    Attributes
    ----------
    change : Change
        What was changed.
    figures : dict of str to float
        Summary, cost and largest rate; empty where it failed.
    fault : str
        Why it cannot be run.
    """

    change: Change
    figures: dict[str, float] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True)
class Advice:
    """What was tried, and the best of it.

    Attributes
    ----------
    before : dict of str to float
        Figures of the scenario as it is.
    tried : list of Tried
        Every candidate.
    wanted : float
        Share of requests that must meet the objectives, 0 without objectives [1].
    """

    before: dict[str, float]
    tried: list[Tried]
    wanted: float

    @property
    def missed(self) -> bool:
        """Whether the scenario misses its objectives."""
        return self.before.get("slo_attainment", 1.0) < self.wanted

    def goal(self, name: str = "automatic") -> Goal:
        """Return a goal; automatic: the objectives while they are missed, then the cost."""
        if name in GOALS:
            return GOALS[name]
        if self.missed:
            return GOALS["objectives"]
        return GOALS["cost" if "usd_per_million" in self.before else "energy"]

    def ranked(self, goal: Goal) -> list[tuple[float, Tried]]:
        """Return (gain, change) of all that ran and keep the objectives, the best first."""
        start = self.before.get(goal.figure)
        if start is None:
            return []
        rows = [
            (goal.gain(start, t.figures[goal.figure]), t)
            for t in self.tried
            if goal.figure in t.figures and (goal.name == "objectives" or self._keeps(t))
        ]
        return sorted(rows, key=lambda row: (-row[0], row[1].figures.get("usd_per_million", 0.0)))

    def _keeps(self, tried: Tried) -> bool:
        """Return whether a change does not lose objectives that are met now."""
        now, then = self.before.get("slo_attainment"), tried.figures.get("slo_attainment")
        return now is None or then is None or then >= min(now, self.wanted) - SLACK

    def table(self, goal: Goal) -> pd.DataFrame:
        """Return all changes with gain and figures, the best first."""
        names = ("ttft_p99_s", "tpot_mean_s", "slo_attainment", "usd_per_million")
        rows = [
            {"change": t.change.words, "gain": gain}
            | {name: t.figures.get(name, np.nan) for name in dict.fromkeys((goal.figure, *names))}
            for gain, t in self.ranked(goal)
        ]
        return pd.DataFrame(rows)


def cost_of(scenario: Scenario, result: Result, figures: dict[str, Any], way: str) -> float | None:
    """Return the cost of a million output tokens [USD], None where no price is known."""
    price = price_of(scenario.hardware.accelerator, result.deployment.spec, way)
    if price is None:
        return None
    watts, tokens = float(figures["power_mean_w"]), float(figures["output_tokens_per_s"])
    return per_million(price, scenario.hardware.accelerators, watts, tokens)


def advise(
    scenario: Scenario,
    base: Path = Path(),
    way: str = "rented",
    progress: Progress | None = None,
    changes: list[Change] | None = None,
) -> Advice:
    """Simulate a scenario and its one-step changes on the same requests.

    Parameters
    ----------
    scenario : Scenario
        Where to start.
    base : Path
        Folder that relative paths start from.
    way : str
        "rented" or "owned", for the cost.
    progress : callable, optional
        Called with the share done [0..1] and what is being tried.
    changes : list of Change, optional
        What to try; none = `one_step_changes`.

    Raises
    ------
    InputError
        The scenario itself is wrong or does not fit.
    """
    tell = progress or (lambda _share, _text: None)
    requests = workload_requests(scenario, base).head(MOST_REQUESTS)
    before = _figures(scenario, requests, way)
    wanted = changes if changes is not None else one_step_changes(scenario)
    tried = []
    for i, change in enumerate(wanted):
        tell((i + 1) / (len(wanted) + 1), f"trying: {change.words}")
        tried.append(_try(scenario, change, requests, way))
    return Advice(before, tried, _wanted(scenario))


def _wanted(scenario: Scenario) -> float:
    limits = [slo.percentile / 100 for slo in objectives(scenario).values() if given(slo)]
    return max(limits, default=0.0)


def _try(scenario: Scenario, change: Change, requests: pd.DataFrame, way: str) -> Tried:
    try:
        return Tried(change, _figures(scenario.changed(change.keys), requests, way))
    except RoofcastError as e:
        return Tried(change, fault=str(e))


def _figures(scenario: Scenario, requests: pd.DataFrame, way: str) -> dict[str, float]:
    result = simulate(scenario, requests)
    seen = summary(result)
    found = {k: float(v) for k, v in seen.items() if isinstance(v, int | float)}
    cost = cost_of(scenario, result, seen, way)
    if cost is not None:
        found["usd_per_million"] = cost
    curve = estimate(scenario, result.deployment, requests).curve
    return found | {"most_per_s": curve.most_per_s * scenario.hardware.replicas}
