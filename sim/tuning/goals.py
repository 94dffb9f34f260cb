"""What a tuning wants (objectives) and what it must keep (constraints), as metrics of a run."""

import re
from dataclasses import dataclass
from typing import Literal

from formats import InputError, did_you_mean
from hardware.costs import cost
from sim.metrics import metrics
from sim.simulation import Result

__all__ = ["Constraint", "Objective", "figures", "parse_constraint", "parse_objective"]

Direction = Literal["minimize", "maximize"]
COST = "usd_per_million_output_tokens"
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
    """A metric and its better direction."""

    metric: str
    direction: Direction

    def better(self, a: float, b: float) -> bool:
        """Return whether value a is better than value b."""
        return a > b if self.direction == "maximize" else a < b


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit on a metric."""

    metric: str
    sign: Literal["<=", ">="]
    limit: float

    def violation(self, found: dict[str, float | None]) -> float:
        """Return by how much the limit is missed, relative to it; 0 when it holds."""
        value = found.get(self.metric)
        if value is None:
            return 1.0
        over = value - self.limit if self.sign == "<=" else self.limit - value
        return max(over, 0.0) / max(abs(self.limit), 1e-12)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.limit:g}"


def _metric_name(word: str) -> str:
    """Return a metric by its name, with or without the unit at its end."""
    known = [*metrics, COST]
    if word in known:
        return word
    for suffix in ("_s", "_per_s", "_j", "_w"):
        if word + suffix in known:
            return word + suffix
    raise InputError(f"no metric named {word!r}", "--objective", repair=did_you_mean(word, known))


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
    if word in SHORT and not way:
        return Objective(*SHORT[word])
    if way not in {"", "min", "max"}:
        raise InputError(f"{way!r} is no direction", f"--objective {text}", "min, max")
    return Objective(_metric_name(word), "maximize" if way == "max" else "minimize")


def parse_constraint(text: str) -> Constraint:
    """Return a constraint such as ``ttft_p99<=0.5`` (SI units).

    Examples
    --------
    >>> parse_constraint("ttft_p99<=0.5")
    Constraint(metric='ttft_p99_s', sign='<=', limit=0.5)
    """
    match = CONSTRAINT.match(text)
    if match is None:
        raise InputError(
            f"{text!r} is no constraint", "--constraint", "METRIC<=NUMBER, METRIC>=NUMBER"
        )
    name, sign, number = match.groups()
    return Constraint(_metric_name(name), "<=" if sign == "<=" else ">=", float(number))


def figures(result: Result) -> dict[str, float | None]:
    """Return every metric of a run, and the money of an output token at the rental price."""
    from sim.metrics import summary

    found = {k: v for k, v in summary(result).items() if isinstance(v, int | float)}
    rate = found.get("output_tokens_per_s")
    hourly = cost(f"rent.{result.scenario.hardware.accelerator}").value
    hourly *= result.scenario.hardware.accelerators
    return {**found, COST: hourly / 3600 / rate * 1e6 if rate else None}
