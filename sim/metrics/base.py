"""What a metric is, and the part of a result that it looks at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.deployment import Deployment
from sim.metrics.window import Window, observation_window
from sim.simulation import Result
from sim.step_log import with_spans

__all__ = [
    "PERCENTILES",
    "Metric",
    "Observed",
    "distribution",
    "metric",
    "metrics",
    "weighted_percentile",
]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Value = float | int | None
Group = Literal["run", "latency", "throughput", "waits", "hardware", "cache", "energy", "fleet"]
PERCENTILES = (50, 90, 95, 99)
# column of the step log -> columns of the engines' totals, with their signs
IN_TOTALS = {
    "gpu_s": (("busy_s", 1),),
    "energy_j": (("energy_j", 1), ("idle_energy_j", -1)),
    "flops": (("flops", 1),),
    "bytes": (("bytes", 1),),
    "prefill_tokens": (("prefilled", 1),),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a result.

    Attributes
    ----------
    name : str
        Key in summary.json, with the unit as suffix.
    unit : str
        SI unit, "1" for a share.
    description : str
        What it is, in one sentence.
    group : str
        Where lists show it.
    function : callable
        `Observed` -> value; None or NaN where it does not exist.
    """

    name: str
    unit: str
    description: str
    group: Group
    function: "Callable[[Observed], Value]"


metrics: dict[str, Metric] = {}

Function = Callable[["Observed"], Value]
F = TypeVar("F", bound=Function)
Sample = Callable[["Observed"], Floats]


def metric(name: str, unit: str, description: str, group: Group) -> Callable[[F], F]:
    """Return the decorator that registers a function as a metric.

    Examples
    --------
    >>> @metric("example_s", "s", "an example", "run")
    ... def example(seen):
    ...     return 1.5
    >>> metrics.pop("example_s").unit
    's'
    """

    def register(function: F) -> F:
        metrics[name] = Metric(name, unit, description, group, function)
        return function

    return register


def distribution(
    name: str, unit: str, description: str, percentiles: Sequence[int] = PERCENTILES
) -> Callable[[Sample], Sample]:
    """Return the decorator that registers a sample as mean and percentiles.

    The metrics are called ``<name>_mean_<unit>``, ``<name>_p50_<unit>`` and so on.
    """

    def register(sample: Sample) -> Sample:
        metric(f"{name}_mean_{unit}", unit, f"mean {description}", "latency")(
            lambda seen: _mean(sample(seen))
        )
        for q in percentiles:
            words = f"{q}th percentile of {description}"
            metric(f"{name}_p{q}_{unit}", unit, words, "latency")(_percentile_of(sample, q))
        return sample

    return register


def _percentile_of(sample: Sample, q: int) -> Function:
    def value(seen: "Observed") -> Value:
        values = sample(seen)
        return float(np.percentile(values, q)) if values.size else None

    return value


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def weighted_percentile(values: Floats, weights: Floats, q: float) -> float:
    """Return the smallest value below or at which `q` % of the weight lies; NaN without weight.

    Equal to the percentile (method "inverted_cdf") of the sample in which every value is repeated
    as often as its weight says.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_percentile(np.array([1.0, 2.0, 9.0]), np.array([5.0, 4.0, 1.0]), 90)
    2.0
    """
    total = np.cumsum(weights)
    if total.size == 0 or total[-1] <= 0:
        return float("nan")
    place = int(np.searchsorted(total, total[-1] * q / 100.0 * (1 - 1e-12)))
    return float(values[min(place, values.size - 1)])


@dataclass(frozen=True)
class Observed:
    """The part of a result that metrics look at, with the arrays that several of them need.

    Parameters
    ----------
    result : Result
        A simulation.
    window : Window
        The part that counts.
    """

    result: Result
    window: Window

    @classmethod
    def of(cls, result: Result) -> "Observed":
        """Return what the warm-up rule of a result's scenario leaves."""
        return cls(result, observation_window(result.scenario, result.requests, result.steps))

    def only(self, rows: Mask) -> "Observed":
        """Return the same with some requests only; steps and hardware stay whole."""
        part = Result(**{**self.result.__dict__, "requests": self.result.requests[rows]})
        return Observed(part, self.window)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Requests that were sent and arrived inside the window."""
        table = self.result.requests
        sent = (table["replica"] >= 0) | (table["status"] != "unfinished")
        inside = table["arrival_s"].between(self.window.start_s, self.window.end_s)
        return table[sent & inside]

    @cached_property
    def finished(self) -> pd.DataFrame:
        """Those of them that got all their tokens."""
        return self.requests[self.requests["status"] == "finished"]

    def column(self, name: str) -> Floats:
        """Return a column of the requests, zeros where the table lacks it."""
        if name not in self.requests:
            return np.zeros(len(self.requests))
        return self.requests[name].to_numpy(np.float64)

    @property
    def replicas(self) -> int:
        """Replicas of the deployment."""
        return len(self.result.totals)

    @cached_property
    def deployments(self) -> list[Deployment]:
        """What each replica is made of, by number."""
        return self.result.deployments or [self.result.deployment] * self.replicas

    @cached_property
    def ranks(self) -> Floats:
        """Accelerators of each replica, shape (replicas,)."""
        if self.result.deployments:
            each = [made.parallel.accelerators for made in self.deployments]
            return np.array(each, dtype=np.float64)
        hardware = self.result.scenario.hardware
        return np.full(self.replicas, hardware.accelerators / hardware.replicas)

    @cached_property
    def held_s(self) -> Floats:
        """Seconds of the window that each replica's accelerators were held [s], (replicas,)."""
        if self.result.fleet is None:
            return np.full(self.replicas, self.window.span_s)
        held = [self.result.fleet.on_s(end) for end in (self.window.end_s, self.window.start_s)]
        return np.asarray(held[0] - held[1])

    def knob(self, name: str) -> float:
        """Return a parameter of the engine loop, of the first pool."""
        return float(self.result.deployment.knobs[name][0])

    def knobs(self, name: str) -> Floats:
        """Return a parameter of each replica's engine loop, shape (replicas,)."""
        return np.array([float(made.knobs[name][0]) for made in self.deployments])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Rows of the step log with ``begin_s``, ``span_s`` and their share inside the window."""
        table = with_spans(self.result.steps)
        low = np.maximum(table["begin_s"], self.window.start_s)
        high = np.minimum(table["output_s"], self.window.end_s)
        return table.assign(share=((high - low) / table["span_s"]).clip(0.0, 1.0))

    @property
    def logged(self) -> bool:
        """Whether the run kept a step log."""
        return len(self.result.steps) > 0

    def step_sums(self, name: str) -> Floats:
        """Return the sum of a column of the step log inside the window, shape (replicas,).

        Without a log it comes from the engines' totals for a whole run, and is NaN otherwise.
        """
        if self.logged:
            weights = self.steps[name] * self.steps["share"]
            sums = np.bincount(self.steps["replica"], weights, minlength=self.replicas)
            return sums.astype(np.float64)
        if name not in IN_TOTALS or not self.window.whole:
            return np.full(self.replicas, np.nan)
        totals = self.result.totals
        parts = [sign * totals[column].to_numpy(np.float64) for column, sign in IN_TOTALS[name]]
        return np.asarray(np.sum(parts, axis=0))

    def step_sum(self, name: str) -> float:
        """Return the sum of `step_sums` over replicas."""
        return float(self.step_sums(name).sum())

    def step_most(self, name: str) -> float | None:
        """Return the largest value of a column of the step log inside the window."""
        inside = self.steps.loc[self.steps["share"] > 0, name]
        return float(inside.max()) if len(inside) else None

    @cached_property
    def device_s(self) -> float:
        """Seconds that replicas were held inside the window, all together [s]."""
        return max(float(self.held_s.sum()), 1e-9)

    @cached_property
    def accelerator_s(self) -> float:
        """Seconds that accelerators were held inside the window, all together [s]."""
        return max(float(self.held_s @ self.ranks), 1e-9)
