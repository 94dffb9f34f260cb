"""Finalists: the best settings against the scenario as it is, on requests that each of them sees.

Every repeat gives all of them the same requests and the same seed (common random numbers), so that
a difference between two is a difference of the settings. Intervals are those of Student's t over
the repeats, widened for the number of finalists (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from sim.tuning.evaluator import Evaluator, averaged
from sim.tuning.goals import Figures, Objective
from sim.tuning.loads import Repeat

__all__ = ["CONFIDENCE", "Finalist", "Gain", "Measured", "compare", "percent", "signed"]

CONFIDENCE = 0.95
Floats = npt.NDArray[np.float64]
Runs = list[list[Figures]]  # by repeat and workload


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent.

    Examples
    --------
    >>> percent(0.123), signed(0.123)
    ('12.3 %', '+12.3 %')
    """
    return f"{share * 100:.{digits}f} %"


def signed(share: float) -> str:
    """Return a change in percent, with its sign."""
    return f"{share * 100:+.1f} %"


@dataclass(frozen=True)
class Gain:
    """A relative improvement (0.1 = 10 %) with its confidence interval.

    Attributes
    ----------
    mean : float
        Over repeats.
    low, high : float or None
        None where a single repeat says nothing about chance.
    """

    mean: float
    low: float | None
    high: float | None

    @property
    def sure(self) -> bool:
        """Whether it is above zero beyond chance."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        mean = signed(self.mean)
        if self.low is None or self.high is None:
            return f"{mean} (one run, no interval)"
        return (
            f"{mean} ({percent(CONFIDENCE, 0)} interval {signed(self.low)} .. {signed(self.high)})"
        )


@dataclass(frozen=True)
class Measured:
    """A setting on all repeats of one part of the time.

    Attributes
    ----------
    gains : dict
        Objective -> gain over the scenario as it is; None where one of both has no value.
    gain : Gain or None
        Mean over the objectives.
    violation : float
        By how much means over the repeats miss constraints, summed; a missing value counts 1.
    figures : dict
        Means of all metrics over repeats and workloads.
    per_load : list of dict
        Means over the repeats, by workload.
    """

    gains: dict[str, Gain | None]
    gain: Gain | None
    violation: float
    figures: Figures
    per_load: list[Figures]


@dataclass(frozen=True)
class Finalist:
    """A setting that was compared.

    Attributes
    ----------
    setting : dict
        Scenario key -> value; empty = the scenario as it is.
    seen : Measured
        On the time that the search saw.
    later : Measured or None
        On the time after it; None where the workload is too short to hold some back.
    """

    setting: dict[str, Any]
    seen: Measured
    later: Measured | None

    def rank(self, objectives: Sequence[Objective]) -> tuple[float, float]:
        """Return what sorts finalists: constraints first, then the gain, then the plain value."""
        if self.seen.gain is not None:
            return self.seen.violation, -self.seen.gain.mean
        values = [self.seen.figures.get(o.metric) for o in objectives]
        losses = [o.loss(v) for o, v in zip(objectives, values, strict=True) if v is not None]
        return self.seen.violation, sum(losses) if len(losses) == len(values) else float("inf")


def compare(
    work: Evaluator, settings: Sequence[Mapping[str, Any]], repeats: Sequence[Sequence[Repeat]]
) -> list[Finalist]:
    """Return finalists in the order of their settings; gains are over the first of them.

    Parameters
    ----------
    work : Evaluator
        What simulates.
    settings : sequence of mapping
        The first is the scenario as it is.
    repeats : sequence of sequence of Repeat
        By repeat and workload.
    """
    tests = max(1, len(settings) - 1)
    seen = [_runs(work, s, repeats, later=False) for s in settings]
    found = [_measured(work, own, seen[0], tests) for own in seen]
    if any(r.later is None for row in repeats for r in row):
        return [Finalist(dict(s), m, None) for s, m in zip(settings, found, strict=True)]
    late = [_runs(work, s, repeats, later=True) for s in settings]
    after = [_measured(work, own, late[0], tests) for own in late]
    return [Finalist(dict(s), a, b) for s, a, b in zip(settings, found, after, strict=True)]


def _runs(
    work: Evaluator,
    setting: Mapping[str, Any],
    repeats: Sequence[Sequence[Repeat]],
    later: bool,
) -> Runs:
    rows: Runs = []
    for row in repeats:
        tables = [(r.later if later and r.later is not None else r.seen, r.seed) for r in row]
        pairs = zip(work.loads, tables, strict=True)
        rows.append([work.run(setting, load, table, seed) for load, (table, seed) in pairs])
    return rows


def _measured(work: Evaluator, own: Runs, other: Runs, tests: int) -> Measured:
    per_load = [averaged(list(column)) for column in zip(*own, strict=True)]
    violation = sum(c.violation(one) for c in work.constraints for one in per_load)
    violation += sum(one.get(o.metric) is None for o in work.objectives for one in per_load)
    parts = {o.metric: _gains(o, own, other, work.worst) for o in work.objectives}
    gains = {name: None if part is None else _gain(part, tests) for name, part in parts.items()}
    known = [part for part in parts.values() if part is not None]
    whole = _gain(np.mean(known, axis=0), tests) if len(known) == len(parts) else None
    return Measured(gains, whole, violation, averaged(per_load), per_load)


def _gains(objective: Objective, own: Runs, other: Runs, worst: bool) -> Floats | None:
    """Return the gain of each repeat; None where a run has no value (no value is no zero)."""
    mine, base = (
        [[one.get(objective.metric) for one in row] for row in runs] for runs in (own, other)
    )
    if any(v is None for rows in (mine, base) for row in rows for v in row):
        return None
    a, b = np.array(mine, dtype=float), np.array(base, dtype=float)
    sign = 1.0 if objective.direction == "maximize" else -1.0
    size = np.abs(b.mean(axis=0))
    relative = sign * (a - b) / np.where(size > 0, size, 1.0)
    return np.asarray(relative.min(axis=1) if worst else relative.mean(axis=1))


def _gain(parts: Floats, tests: int) -> Gain:
    """Return the mean of paired gains and its interval.

    Examples
    --------
    >>> _gain(np.array([0.1, 0.2, 0.3]), tests=1).low  # 0.2 - 4.303 x 0.1 / sqrt(3)
    -0.0484...
    """
    mean = float(parts.mean())
    if parts.size < 2:
        return Gain(mean, None, None)
    level = 1 - (1 - CONFIDENCE) / (2 * tests)
    half = float(stats.t.ppf(level, parts.size - 1) * stats.sem(parts))
    return Gain(mean, mean - half, mean + half)
