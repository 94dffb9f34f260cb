"""What a setting is worth: simulated under every workload, judged against the scenario as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from formats import RoofcastError
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.tuning.goals import Constraint, Figures, Objective, figures
from sim.tuning.loads import LEAST_REQUESTS, Load
from sim.tuning.space import applied

__all__ = ["CANNOT", "PENALTY", "CannotRunError", "Evaluator", "Judged", "averaged"]

PENALTY = 1e9  # loss of a setting without a value; any other is below it
CANNOT = 10.0  # violation of a setting that cannot run at all


class CannotRunError(RoofcastError):
    """A setting cannot run."""


@dataclass(frozen=True)
class Judged:
    """A setting on the search's requests.

    Attributes
    ----------
    losses : list of float
        Per objective, in units of the scenario as it is; less is better.
    violation : float
        By how much constraints are missed, summed, relative; 0 = all hold.
    figures : dict
        Means of all metrics over the workloads.
    margins : list of float
        Per constraint, by how much it is missed under the worst workload; below 0 it holds.
    """

    losses: list[float]
    violation: float
    figures: Figures
    margins: list[float] = field(default_factory=list)

    def dominates(self, other: "Judged") -> bool:
        """Return whether this is better: in constraints, else in all objectives that differ."""
        if self.violation != other.violation:
            return self.violation < other.violation
        pairs = list(zip(self.losses, other.losses, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclass
class Evaluator:
    """Simulates and judges settings.

    Parameters
    ----------
    scenario : Scenario
        What is changed.
    loads : sequence of Load
        Workloads that a setting must serve; constraints must hold under each.
    objectives, constraints
        What counts.
    worst : bool
        Judge objectives by the worst workload, not by the mean.
    """

    scenario: Scenario
    loads: Sequence[Load]
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint] = ()
    worst: bool = False
    simulations: int = field(default=0, init=False)
    _scales: list[list[float]] = field(default_factory=list, init=False, repr=False)

    def run(
        self, setting: Mapping[str, Any], load: Load, requests: pd.DataFrame, seed: int
    ) -> Figures:
        """Return the metrics of a setting on given requests of a workload."""
        changed, _ = applied(load.of(self.scenario), setting)
        own = changed.run.model_copy(update={"seed": seed, "step_log": False})
        self.simulations += 1
        return figures(simulate(changed.model_copy(update={"run": own}), requests, base=load.base))

    def judge(self, setting: Mapping[str, Any], share: float = 1.0) -> Judged:
        """Return what a setting is worth on the leading share of the search's requests."""
        try:
            found = [self._leading(setting, load, share) for load in self.loads]
        except RoofcastError as error:
            raise CannotRunError(str(error)) from error
        return self.judged(found)

    def _leading(self, setting: Mapping[str, Any], load: Load, share: float) -> Figures:
        changed, _ = applied(load.of(self.scenario), setting)
        table = load.seen(changed)
        return self.run(setting, load, table.head(_size(table, share)), self.scenario.run.seed)

    def fewest(self, share: float) -> int:
        """Return how many requests the shortest workload has at a share of its length."""
        return min(_size(load.seen(load.of(self.scenario)), share) for load in self.loads)

    def judged(self, found: Sequence[Figures]) -> Judged:
        """Return the judgement on figures per workload."""
        violation = sum(c.violation(one) for c in self.constraints for one in found)
        losses = []
        for place, objective in enumerate(self.objectives):
            values = [one.get(objective.metric) for one in found]
            known = [v for v in values if v is not None]
            violation += len(values) - len(known)
            losses.append(self._loss(place, objective, known, len(values)))
        margins = [max(c.margin(one) for one in found) for c in self.constraints]
        return Judged(losses, violation, averaged(found), margins)

    def _loss(self, place: int, objective: Objective, known: list[float], count: int) -> float:
        if len(known) < count:
            return PENALTY
        parts = [
            objective.loss(value) / scales[place]
            for value, scales in zip(known, self.scales(), strict=True)
        ]
        return float(max(parts) if self.worst else np.mean(parts))

    def scales(self) -> list[list[float]]:
        """Return the size of each objective under each workload, with the scenario as it is."""
        if not self._scales:
            found = [self._leading({}, load, 1.0) for load in self.loads]
            self._scales = [
                [abs(one.get(o.metric) or 0.0) or 1.0 for o in self.objectives] for one in found
            ]
        return self._scales


def _size(table: pd.DataFrame, share: float) -> int:
    return min(len(table), max(LEAST_REQUESTS, round(len(table) * share)))


def averaged(found: Sequence[Figures]) -> Figures:
    """Return the mean of every metric that all have, None for the others."""
    means: Figures = {}
    for key in dict.fromkeys(k for one in found for k in one):
        values = [v for one in found if (v := one.get(key)) is not None]
        means[key] = float(np.mean(values)) if len(values) == len(found) else None
    return means
