"""The saturation curve: latency and goodput by offered rate, the knee, the largest good rate."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.scenario import Scenario
from sim.sweeping.run import Progress, Task, sweep

__all__ = ["Saturation", "saturation_curve"]

Floats = npt.NDArray[np.float64]
COARSE, FINE, BRACKETS = 7, 5, 12
SATURATED = 0.95  # finished rate over offered rate below which the queue keeps growing


@dataclass(frozen=True)
class Saturation:
    """What a saturation curve says.

    Attributes
    ----------
    table : DataFrame
        One row per offered rate: every metric of the sweep.
    knee_per_s : float
        Largest offered rate that is served as it comes [request/s].
    good_per_s : float or None
        Largest offered rate at which the objectives hold; None without objectives [request/s].
    offered_per_s : float
        Rate of the scenario itself [request/s].
    """

    table: pd.DataFrame
    knee_per_s: float
    good_per_s: float | None
    offered_per_s: float

    def sentence(self) -> str:
        """Return the verdict in words."""
        text = f"saturates at {self.knee_per_s:.3g} requests/s"
        if self.good_per_s is not None:
            text += f"; objectives hold up to {self.good_per_s:.3g} requests/s"
        limit = self.knee_per_s if self.good_per_s is None else self.good_per_s
        room = limit / self.offered_per_s - 1
        if room >= 0:
            return f"{text}: {room:.0%} above the offered {self.offered_per_s:.3g} requests/s"
        return f"{text}: {-room:.0%} below the offered {self.offered_per_s:.3g} requests/s"


def saturation_curve(
    scenario: Scenario,
    *,
    workers: int = 1,
    cluster: str | None = None,
    out: Path | None = None,
    base: Path = Path(),
    progress: Progress | None = None,
) -> Saturation:
    """Find where a deployment saturates and up to which rate its objectives hold.

    The rate is scaled by `workload.rate_scale`: first doubled or halved to bracket the knee, then
    swept on a coarse log grid over the bracket, then on a fine one around both limits.

    Raises
    ------
    InputError
        The workload has no rate that could be scaled (a closed loop or a burst).
    """
    work = _Sweeper(scenario, workers, cluster, out, base)
    one = work.run([1.0])
    offered = _offered(one)
    low, high = _bracket(work)
    work.run(np.geomspace(low, high, COARSE).tolist())
    if progress:
        progress(0.5)
    for limit in (_knee(work.table()), _good(work.table())):
        if limit is not None:
            scale = limit / offered
            work.run(np.geomspace(scale * 0.93, scale * 1.25, FINE).tolist())
    if progress:
        progress(1.0)
    table = work.table()
    knee = _knee(table)
    return Saturation(table, knee or float("nan"), _good(table), offered)


@dataclass
class _Sweeper:
    scenario: Scenario
    workers: int
    cluster: str | None
    out: Path | None
    base: Path

    def __post_init__(self) -> None:
        self.rows: dict[float, Task] = {}
        self.results = pd.DataFrame()

    def run(self, scales: list[float]) -> pd.DataFrame:
        for scale in scales:
            rounded = float(f"{scale:.4g}")
            if rounded not in self.rows:
                self.rows[rounded] = self._task(rounded)
        tasks = list(self.rows.values())
        self.results = sweep(tasks, workers=self.workers, cluster=self.cluster, out=self.out)
        return self.table()

    def _task(self, scale: float) -> Task:
        whole = self.scenario.workload.rate_scale * scale
        changed = self.scenario.changed({"workload.rate_scale": whole, "run.step_log": False})
        label = {"rate_scale": scale}
        return Task(len(self.rows), label, changed.model_dump(mode="json"), str(self.base))

    def table(self) -> pd.DataFrame:
        faults = self.results[self.results["error"].notna()]
        if len(faults):
            raise InputError(str(faults["error"].iloc[0]), "sweep --rate auto")
        table = self.results.sort_values("rate_scale").reset_index(drop=True)
        return table.assign(offered_per_s=table["requests"] / _span(table))


def _span(table: pd.DataFrame) -> "pd.Series[float]":
    """Return the time over which requests arrived [s]."""
    return table["last_arrival_s"].clip(lower=1e-9)


def _offered(table: pd.DataFrame) -> float:
    rate = float(table["offered_per_s"].iloc[0])
    if not np.isfinite(rate) or rate > 1e6:
        repair = "give it arrivals with a rate"
        raise InputError(
            "the workload has no rate that could be swept", "[workload]", repair=repair
        )
    return rate


def _keeps_up(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether the deployment serves as fast as requests come.

    It does when the queue is emptied soon after the last arrival: the time from then to the end
    is small against the time of arrivals, beyond the longest time that one request took alone.
    """
    drain = table["window_end_s"] - _span(table) - table["e2e_p50_s"]
    return drain < (1 / SATURATED - 1) * _span(table)


def _bracket(work: _Sweeper) -> tuple[float, float]:
    """Return scales that enclose the knee, the lower one far below it."""
    scale = 1.0
    for _ in range(BRACKETS):
        table = work.run([scale])
        keeps = bool(_keeps_up(table[table["rate_scale"] == float(f"{scale:.4g}")]).iloc[0])
        factor = 2.0 if keeps else 0.5
        if scale * factor in work.rows:
            break
        scale *= factor
    table = work.table()
    scales = table["rate_scale"].to_numpy(np.float64)
    best = scales[_keeps_up(table).to_numpy()]
    top = 2.0 * (float(best.max()) if best.size else float(scales.min()))
    return top / 16, top


def _knee(table: pd.DataFrame) -> float | None:
    served = _rates(table, _keeps_up(table))
    return float(served.max()) if served.size else None


def _rates(table: pd.DataFrame, chosen: "pd.Series[bool]") -> Floats:
    return table["offered_per_s"].to_numpy(np.float64)[chosen.to_numpy(bool)]


def _good(table: pd.DataFrame) -> float | None:
    share = table["slo_attainment"]
    if share.isna().all():
        return None
    good = _rates(table, share >= table["slo_percentile"] / 100)
    return float(good.max()) if good.size else 0.0
