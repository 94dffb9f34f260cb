"""What a tuning wants (objectives) and what it must keep (constraints), as metrics of a run."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from formats import InputError, did_you_mean
from sim.metrics import metrics, summary
from sim.simulation import Result
from sim.sweeping.task import COST, rented_cost

__all__ = [
    "Constraint",
    "Figures",
    "Objective",
    "figures",
    "parse_constraint",
    "parse_objective",
]

Direction = Literal["minimize", "maximize"]
Figures = dict[str, float | None]
SHORT: dict[str, tuple[str, Direction]] = {
    "goodput": ("goodput_per_s", "maximize"),
    "throughput": ("output_tokens_per_s", "maximize"),
    "cost": (COST, "minimize"),
    "energy": ("energy_per_output_token_j", "minimize"),
    "power": ("power_mean_w", "minimize"),
}
CONSTRAINT = re.compile(r"^\s*([a-z0-9_]+)\s*(<=|>=)\s*([0-9.eE+-]+)\s*$")


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and its better direction.

    Examples
    --------
    >>> Objective("ttft_p99_s", "minimize").loss(0.2)
    0.2
    >>> Objective("goodput_per_s", "maximize").loss(3.0)
    -3.0
    """

    metric: str
    direction: Direction

    def loss(self, value: float) -> float:
        """Return what is minimised."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit on a metric.

    Examples
    --------
    >>> limit = Constraint("ttft_p99_s", "<=", 0.5)
    >>> limit.violation({"ttft_p99_s": 0.4}), limit.violation({"ttft_p99_s": 0.75})
    (0.0, 0.5)
    """

    metric: str
    sign: Literal["<=", ">="]
    limit: float

    def margin(self, found: Figures) -> float:
        """Return by how much the limit is missed, relative to it; below 0 by how much it holds.

        1 where the metric is missing.
        """
        value = found.get(self.metric)
        if value is None:
            return 1.0
        over = value - self.limit if self.sign == "<=" else self.limit - value
        return over / (abs(self.limit) or 1.0)

    def violation(self, found: Figures) -> float:
        """Return by how much the limit is missed, relative to it, 0 where it holds."""
        return max(self.margin(found), 0.0)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.limit:g}"


def _metric_name(word: str, where: str) -> str:
    """Return a metric by its name, with or without the unit at its end."""
    known = [*metrics, COST]
    for suffix in ("", "_s", "_per_s", "_j", "_w"):
        if word + suffix in known:
            return word + suffix
    raise InputError(f"no metric named {word!r}", where, repair=did_you_mean(word, known))


def parse_objective(text: str) -> Objective:
    """Return an objective: goodput, throughput, cost, energy, power, or a metric (``name:max``).

    Metrics are minimised unless ``:max`` follows.

    Raises
    ------
    InputError
        No such metric or direction.

    Examples
    --------
    >>> parse_objective("goodput")
    Objective(metric='goodput_per_s', direction='maximize')
    >>> parse_objective("ttft_p99").direction
    'minimize'
    """
    word, _, way = text.strip().partition(":")
    if way not in {"", "min", "max"}:
        raise InputError(f"{way!r} is no direction", f"--objective {text}", "min, max")
    if word in SHORT and not way:
        return Objective(*SHORT[word])
    name = SHORT[word][0] if word in SHORT else _metric_name(word, "--objective")
    return Objective(name, "maximize" if way == "max" else "minimize")


def parse_constraint(text: str) -> Constraint:
    """Return a constraint such as ``ttft_p99<=0.5`` (SI units).

    Raises
    ------
    InputError
        No such metric, or not of the form METRIC<=NUMBER.

    Examples
    --------
    >>> parse_constraint("ttft_p99<=0.5")
    Constraint(metric='ttft_p99_s', sign='<=', limit=0.5)
    """
    match = CONSTRAINT.match(text)
    try:
        name, sign, number = match.groups() if match else ("", "", "")
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        allowed = "METRIC<=NUMBER, METRIC>=NUMBER"
        raise InputError(f"{text!r} is no constraint", "--constraint", allowed)
    return Constraint(_metric_name(name, "--constraint"), "<=" if sign == "<=" else ">=", limit)


def figures(result: Result) -> Figures:
    """Return every metric of a run, and the rent of a million output tokens [USD]."""
    found = {k: v for k, v in summary(result).items() if v is None or isinstance(v, int | float)}
    rate, watts = found.get("output_tokens_per_s"), found.get("power_mean_w")
    return {**found, COST: rented_cost(result, rate, watts)}
