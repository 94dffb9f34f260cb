"""The saturation curve: latency and goodput by offered rate, the knee, the largest good rate.

A deployment keeps up while requests leave as fast as they come. Both rates are counted over the
later half of the time of arrivals, so that the filling of an empty system does not count. Where
more than `PILING` of the arrivals pile up, beyond chance, it is saturated; the knee is the largest
rate that was served.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.objectives import given, objectives
from sim.scenario import Scenario
from sim.sweeping.keys import change, check_scenario
from sim.sweeping.run import Progress, Runner
from sim.sweeping.task import STEADY_FROM, Task
from workloads.named import closed_loop

__all__ = ["Saturation", "saturation_curve"]

Floats = npt.NDArray[np.float64]
PILING = 0.05  # share of arrivals that is left over from which a deployment counts as saturated
SIGMAS = 3.0  # standard deviations of chance that are not yet a pile
NEAR, FINE = 1.15, 1.06  # ratio of the scales that enclose knee and good rate in the end
MOST_KNEE, MOST_GOOD, MOST = 6, 5, 14  # simulations for the knee, for the objectives, in all
FACTOR = 4.0  # first step of the search
CURVE = (0.05, 0.25, 0.5, 0.75, 0.9, 1.2)  # shares of the knee that the curve shows in any case
APART = 1.12  # ratio of scales below which two points of the curve are one
HIGHEST, LEAST_REQUESTS = 1e4, 20
LONG = 0.1  # share of the time of arrivals that requests may take at the knee


@dataclass(frozen=True)
class Saturation:
    """What a saturation curve says.

    Attributes
    ----------
    table : DataFrame
        One row per offered rate: every metric of the sweep.
    knee_per_s : float
        Rate that is served at saturation [request/s].
    good_per_s : float or None
        Largest offered rate tried at which the objectives hold, 0 where they hold at none; None
        without objectives [request/s].
    offered_per_s : float
        Rate of the scenario itself [request/s].
    saturated : bool
        The knee was reached; otherwise `knee_per_s` is the largest rate tried.
    slow_s : float or None
        Median time of a request at the knee where it is long against the run [s].
    """

    table: pd.DataFrame
    knee_per_s: float
    good_per_s: float | None
    offered_per_s: float
    saturated: bool = True
    slow_s: float | None = None

    @property
    def distance(self) -> float:
        """Largest good rate (the knee without objectives) over the offered rate; below 1 = lost."""
        limit = self.knee_per_s if self.good_per_s is None else self.good_per_s
        return limit / self.offered_per_s

    def sentence(self) -> str:
        """Return the verdict in words.

        Examples
        --------
        >>> Saturation(pd.DataFrame(), 25.0, 9.0, 12.0).sentence()
        'Saturates at 25 requests/s. Objectives hold up to 9 requests/s, 0.75 x the offered 12 \
requests/s: too much is offered.'
        """
        knee = f"{self.knee_per_s:.3g} requests/s"
        text = f"Saturates at {knee}" if self.saturated else f"Not saturated at {knee}"
        if self.slow_s is not None:
            text += f" (roughly: a request takes {self.slow_s:.3g} s there, so simulate longer)"
        offered = f"{self.distance:.2g} x the offered {self.offered_per_s:.3g} requests/s"
        if self.good_per_s is None:
            return f"{text}, {offered}."
        if self.good_per_s == 0:
            return f"{text}. Objectives do not hold at any rate tried."
        verdict = "" if self.distance >= 1 else ": too much is offered"
        good = f"{self.good_per_s:.3g} requests/s"
        return f"{text}. Objectives hold up to {good}, {offered}{verdict}."

    def facts(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "schema_version": 1,
            "verdict": self.sentence(),
            "knee_per_s": self.knee_per_s,
            "saturated": self.saturated,
            "good_per_s": self.good_per_s,
            "offered_per_s": self.offered_per_s,
            "distance": self.distance,
        }


def saturation_curve(
    scenario: Scenario,
    *,
    workers: int = 1,
    cluster: str | None = None,
    out: Path | None = None,
    base: Path = Path(),
    plugins: Iterable[Path] = (),
    progress: Progress | None = None,
) -> Saturation:
    """Find where a deployment saturates and up to which rate its objectives hold.

    The rate is scaled by `workload.rate_scale`: the knee is enclosed first, then the largest rate
    at which the objectives hold, then the rest of the curve is filled; 14 simulations at most.

    Parameters
    ----------
    scenario : Scenario
        What is deployed and asked.
    workers, cluster, out, base, plugins, progress
        See `sim.sweeping.sweep`.

    Raises
    ------
    InputError
        The scenario is wrong, or has no rate that could be scaled (a closed loop or a burst).

    Examples
    --------
    >>> found = saturation_curve(Scenario().changed({"workload.duration_s": 20.0}))
    >>> found.knee_per_s > 5 * found.offered_per_s, found.good_per_s is None
    (True, True)
    """
    check_scenario(scenario, "scenario")
    if closed_loop(scenario.workload) is not None:
        _no_rate("a closed loop has no rate that could be swept")
    with Runner(workers, cluster, out) as runner:
        work = _Curve(scenario, runner, base, tuple(plugins), progress)
        work.run([1.0])
        _find_knee(work)
        if any(given(slo) for slo in objectives(scenario).values()):
            _find_good(work)
        _fill(work)
    return work.found()


def _no_rate(what: str) -> None:
    raise InputError(what, "[workload]", repair="give it arrivals with a rate, such as poisson")


@dataclass
class _Curve:
    """The points simulated so far, by scale of the rate."""

    scenario: Scenario
    runner: Runner
    base: Path
    plugins: tuple[Path, ...]
    progress: Progress | None
    tasks: dict[float, Task] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=pd.DataFrame)

    def run(self, scales: list[float]) -> None:
        """Simulate further scales of the rate, as long as there are not too many."""
        for scale in sorted({float(f"{s:.4g}") for s in scales} - set(self.tasks)):
            if len(self.tasks) < MOST and self._lowest() <= scale <= HIGHEST:
                self.tasks[scale] = self._task(scale)
        table = self.runner.table(self.tasks.values(), len(self.tasks))
        faults = table[table["error"].notna()]
        if len(faults):
            raise InputError(str(faults["error"].iloc[0]), "sweep --rate auto")
        self.table = table.sort_values("rate_scale").reset_index(drop=True)
        if float(self.table["offered_per_s"].max()) > 1e6:
            _no_rate("the workload has no rate that could be swept: all requests come at once")
        if self.progress is not None:
            self.progress(len(self.tasks) / MOST)

    def _lowest(self) -> float:
        """Return the scale at which so few requests are left that they say nothing."""
        if self.table.empty:
            return 0.0
        return LEAST_REQUESTS / float((self.table["requests"] / self.table["rate_scale"]).max())

    def try_scale(self, scale: float) -> bool:
        """Simulate one further scale; False when it is no news or out of range."""
        before = len(self.tasks)
        self.run([scale])
        return len(self.tasks) > before

    def _task(self, scale: float) -> Task:
        whole = self.scenario.workload.rate_scale * scale
        changed = change(self.scenario, {"workload.rate_scale": whole, "run.step_log": False})
        data, files = changed.model_dump(mode="json"), tuple(str(p.resolve()) for p in self.plugins)
        return Task(len(self.tasks), {"rate_scale": scale}, data, str(self.base.resolve()), files)

    @property
    def scales(self) -> Floats:
        return np.asarray(self.table["rate_scale"], dtype=np.float64)

    def column(self, name: str) -> Floats:
        return np.asarray(self.table[name], dtype=np.float64)

    @property
    def over(self) -> npt.NDArray[np.bool_]:
        """Whether requests pile up, at each scale; true from some scale on.

        In a steady queue the number of requests in it, L, still varies from one moment to another;
        as if it were Poisson, the difference between two moments has a variance of 2 L.
        """
        came, left = self.column("steady_offered_per_s"), self.column("steady_served_per_s")
        span = (1 - STEADY_FROM) * self.column("requests") / self.column("offered_per_s")
        within = self.column("offered_per_s") * np.nan_to_num(self.column("e2e_mean_s"))
        piled = (came - left) * span > PILING * came * span + SIGMAS * np.sqrt(2 * within)
        return np.logical_and.accumulate(piled[::-1])[::-1]

    @property
    def good(self) -> npt.NDArray[np.bool_]:
        share = np.asarray(self.table["slo_attainment"], dtype=np.float64)
        return share >= np.asarray(self.table["slo_percentile"], dtype=np.float64) / 100 - 1e-12

    def found(self) -> Saturation:
        """Return what the points say."""
        table, over = self.table, self.over
        rates, served = self.column("offered_per_s"), self.column("steady_served_per_s")
        good = None
        if table["slo_attainment"].notna().any():
            place = _first(~self.good, rates.size)
            good = float(rates[place - 1]) if place else 0.0
        # below saturation as much is served as comes, and a lucky half of a run may serve more
        knee = float(np.where(over, served, np.minimum(served, rates)).max())
        own = float(rates[int(np.argmin(np.abs(self.scales - 1.0)))])
        if not over.any():
            knee = float(rates.max())
        return Saturation(table, knee, good, own, bool(over.any()), self._slow(over))

    def _slow(self, over: npt.NDArray[np.bool_]) -> float | None:
        """Return the time of a request at the knee where the run is short against it [s]."""
        place = min(_first(over, over.size), over.size - 1)
        span = self.column("requests")[place] / self.column("offered_per_s")[place]
        slow = float(self.column("e2e_p50_s")[place])
        return slow if slow > LONG * span else None


def _first(missed: npt.NDArray[np.bool_], count: int) -> int:
    """Return the place of the first point from which on something is missed."""
    return int(np.argmax(missed)) if missed.any() else count


def _find_knee(work: _Curve) -> None:
    """Enclose the scale from which on requests pile up.

    The rate served under overload is a good guess of the knee, so the search is quick from above.
    """
    for _ in range(MOST_KNEE):
        low, high = _enclosed(work.scales, work.over)
        if high / max(low, 1e-9) <= NEAR or not work.try_scale(_towards_knee(work, low, high)):
            return


def _towards_knee(work: _Curve, low: float, high: float) -> float:
    """Return the next scale to try: at the served rate, just above it, or in the middle."""
    if np.isinf(high):
        return low * FACTOR
    row = work.table.iloc[int(np.argmin(np.abs(work.scales - high)))]
    guess = high * float(row["steady_served_per_s"]) / float(row["steady_offered_per_s"])
    for scale in (guess, guess * NEAR):
        if low * 1.04 < scale < high / 1.04:
            return scale
    return float(np.sqrt(max(low, high / FACTOR**2) * high))


def _enclosed(scales: Floats, missed: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the largest scale below the first miss, and its scale; 0 and inf where none is."""
    place = _first(missed, scales.size)
    low = float(scales[place - 1]) if place else 0.0
    return low, float(scales[place]) if place < scales.size else float("inf")


def _find_good(work: _Curve) -> None:
    """Enclose the scale from which on the objectives are missed."""
    for _ in range(MOST_GOOD):
        low, high = _enclosed(work.scales, ~work.good)
        if high / max(low, 1e-9) <= FINE:
            return
        middle = low * FACTOR if np.isinf(high) else np.sqrt(max(low, high / FACTOR**2) * high)
        if not work.try_scale(float(middle)):
            return


def _fill(work: _Curve) -> None:
    """Add points where the curve has gaps."""
    found = work.found()
    knee = found.knee_per_s / max(found.offered_per_s, 1e-9)
    wanted = []
    for share in CURVE:
        scale = share * knee
        if np.all(np.abs(np.log(work.scales / scale)) > np.log(APART)):
            wanted.append(scale)
    work.run(wanted)
