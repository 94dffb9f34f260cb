"""Serving: what clients of a real engine saw, beside the same requests on a simulated one.

Requests keep their measured arrival, prompt, output and session; a closed loop keeps its number of
users. The host's level is random, so a prediction is the median over several seeds, with the least
and the greatest value beside it. Both sides go through the same functions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from formats import read_toml
from sim.metrics import weighted_percentile
from sim.metrics.latency import itl_bin_centres
from sim.scenario import Scenario
from sim.simulation import Result, simulate
from validation import SEEDS
from validation.measured import MeasuredRun, MeasuredWorkload

__all__ = [
    "METRICS",
    "Figure",
    "Observation",
    "compare",
    "equal_hits",
    "limits",
    "medians",
    "observe",
    "observe_result",
    "replay",
    "workload_scenario",
]

COMPARED = (
    "run",
    "workload",
    "kind",
    "metric",
    "unit",
    "measured",
    "predicted",
    "low",
    "high",
    "error",
    "limit",
)
ENERGY_FROM_S = 10.0  # shorter workloads are too short for the driver's energy counter
Floats = npt.NDArray[np.float64]


class Limit(BaseModel):
    """What one figure is held to [1]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median: float = Field(gt=0, description="median of absolute errors over open-loop workloads")
    each: float = Field(gt=0, description="any dense bf16 workload")
    each_fp8: float | None = Field(None, gt=0, description="any fp8 workload")
    rival: float | None = Field(None, gt=0, description="median error of another simulator")


class Limits(BaseModel):
    """All limits, and where the comparison comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    source: str
    rival: str
    closed: float = Field(gt=0, description="mean E2E of a static or closed-loop workload")
    metrics: dict[str, Limit]
    kernels: dict[str, dict[str, float]] = Field(
        {}, description="family -> what is held out -> median error of kernel times [1]"
    )


@lru_cache(maxsize=1)
def limits() -> Limits:
    """Return the limits of `validation/data/limits.toml`.

    Examples
    --------
    >>> limits().metrics["tpot_mean_s"].median
    0.025
    """
    return read_toml(Path(__file__).parent / "data" / "limits.toml", Limits)


@dataclass(frozen=True)
class Observation:
    """What was seen of one workload, on a real or a simulated engine.

    Attributes
    ----------
    requests : DataFrame
        Judged requests: arrival_s, first_token_s, finish_s, prompt_tokens, output_tokens,
        cached_tokens.
    tokens_per_s : float
        Output tokens of all requests over first arrival to last token [token/s].
    gaps_s, weights : ndarray
        Gaps between tokens of a request in rising order [s], and how many there were of each.
    power_w : float
        Mean watts from the workload's start to its last token [W].
    duration_s : float
        From the workload's start to its last token [s].
    preemptions : int
        Requests preempted.
    """

    requests: pd.DataFrame
    tokens_per_s: float
    gaps_s: Floats
    weights: Floats
    power_w: float
    duration_s: float
    preemptions: int


Function = Callable[[Observation], float]


@dataclass(frozen=True)
class Figure:
    """One compared figure: how it is called, its SI unit, how it is computed."""

    label: str
    unit: str
    function: Function


def _ttft(seen: Observation) -> "pd.Series[float]":
    return seen.requests["first_token_s"] - seen.requests["arrival_s"]


def _tpot_mean(seen: Observation) -> float:
    table = seen.requests[seen.requests["output_tokens"] > 1]
    spread = table["finish_s"] - table["first_token_s"]
    return float((spread / (table["output_tokens"] - 1)).mean())


def _e2e(seen: Observation) -> "pd.Series[float]":
    return seen.requests["finish_s"] - seen.requests["arrival_s"]


def _energy(seen: Observation) -> float:
    return seen.power_w * seen.duration_s if seen.duration_s >= ENERGY_FROM_S else np.nan


def _power(seen: Observation) -> float:
    return seen.power_w if seen.duration_s >= ENERGY_FROM_S else np.nan


METRICS: dict[str, Figure] = {
    "ttft_p50_s": Figure("TTFT p50", "s", lambda seen: float(_ttft(seen).quantile(0.5))),
    "ttft_mean_s": Figure("TTFT mean", "s", lambda seen: float(_ttft(seen).mean())),
    "ttft_p99_s": Figure("TTFT p99", "s", lambda seen: float(_ttft(seen).quantile(0.99))),
    "tpot_mean_s": Figure("TPOT mean", "s", _tpot_mean),
    "itl_p99_s": Figure(
        "ITL p99", "s", lambda seen: weighted_percentile(seen.gaps_s, seen.weights, 99)
    ),
    "e2e_mean_s": Figure("E2E mean", "s", lambda seen: float(_e2e(seen).mean())),
    "output_tokens_per_s": Figure("output tokens", "token/s", lambda seen: seen.tokens_per_s),
    "cached_tokens": Figure(
        "cached tokens", "token", lambda seen: float(seen.requests["cached_tokens"].sum())
    ),
    "preemptions": Figure("preemptions", "request", lambda seen: float(seen.preemptions)),
    "power_mean_w": Figure("mean power", "W", _power),
    "energy_j": Figure("energy", "J", _energy),
}


def workload_scenario(run: MeasuredRun, workload: MeasuredWorkload, seed: int) -> Scenario:
    """Return the scenario that replays a measured workload."""
    changes: dict[str, object] = {"name": f"{run.name} {workload.name}", "run.seed": seed}
    changes["engine.warm_requests"] = run.warm_requests(workload.name)
    if workload.kind == "closed":
        loop = {"kind": "closed-loop", "concurrency": workload.concurrency}
        changes["workload.arrivals"] = loop
    return run.scenario.changed(changes)


def replay(
    run: MeasuredRun, workload: MeasuredWorkload, seeds: Iterable[int] = range(SEEDS)
) -> list[Result]:
    """Simulate a measured workload, once per seed of the host's random level."""
    table = workload.table()
    return [simulate(workload_scenario(run, workload, seed), table) for seed in seeds]


def observe(workload: MeasuredWorkload) -> Observation:
    """Return what the clients, the engine and the power meter of a measured workload saw."""
    steps, requests = workload.steps, workload.requests
    gaps = np.diff(steps["t_output"].to_numpy(), prepend=np.nan)
    decoding = np.flatnonzero((steps["n_decode"] > 0).to_numpy() & workload.judged_steps())
    order = decoding[np.argsort(gaps[decoding])]
    return Observation(
        requests[workload.judged_requests()],
        _rate(requests),
        gaps[order],
        steps["n_decode"].to_numpy(np.float64)[order],
        workload.power_mean_w(),
        workload.duration_s,
        int(steps["n_preempted"].sum()),
    )


def observe_result(result: Result, workload: MeasuredWorkload) -> Observation:
    """Return what a simulation of the workload saw, of the same requests."""
    requests, totals = result.requests, result.totals
    duration = float(requests["finish_s"].max())
    return Observation(
        requests[workload.judged_requests()],
        _rate(requests),
        itl_bin_centres(),
        result.gaps,
        float(totals["energy_j"].sum()) / duration,
        duration,
        int(requests["preemptions"].sum()),
    )


def _rate(requests: pd.DataFrame) -> float:
    span = requests["finish_s"].max() - requests["arrival_s"].min()
    return float(requests["output_tokens"].sum() / span)


def equal_hits(result: Result, workload: MeasuredWorkload) -> float:
    """Return the share of requests with the measured number of cached prompt tokens [1]."""
    measured = workload.requests["cached_tokens"].to_numpy()
    return float((result.requests["cached_tokens"].to_numpy() == measured).mean())


def compare(
    workload: MeasuredWorkload, results: Sequence[Result], precision: str = "bf16"
) -> pd.DataFrame:
    """Return predicted beside measured for every figure of a workload.

    Parameters
    ----------
    workload : MeasuredWorkload
        What was measured.
    results : sequence of Result
        Its simulations, one per seed.
    precision : str
        Format of the weights, which decides the limit.

    Returns
    -------
    DataFrame
        One row per figure: metric, unit, measured, predicted (median over seeds), low, high
        (least and greatest over seeds), error (predicted / measured - 1, NaN where measured is
        0), limit (for this workload alone, NaN where there is none).
    """
    seen = observe(workload)
    if seen.requests.empty:
        return pd.DataFrame(columns=list(COMPARED))
    simulated = [observe_result(result, workload) for result in results]
    rows = []
    for name, figure in METRICS.items():
        measured = figure.function(seen)
        values = [figure.function(s) for s in simulated]
        predicted = float(np.median(values))
        error = predicted / measured - 1.0 if measured else np.nan
        limit = _limit(name, workload, precision)
        ends = (min(values), max(values))
        place = (workload.run, workload.name, workload.kind, name, figure.unit)
        rows.append((*place, measured, predicted, *ends, error, limit))
    table = pd.DataFrame(rows, columns=list(COMPARED))
    return table[table["measured"].notna()].reset_index(drop=True)


def _limit(name: str, workload: MeasuredWorkload, precision: str) -> float:
    if workload.kind != "open":
        return limits().closed if name == "e2e_mean_s" else np.nan
    limit = limits().metrics.get(name)
    if limit is None:
        return np.nan
    if precision != "bf16":
        return limit.each_fp8 or np.nan
    return limit.each


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, over open-loop workloads, the median error of every figure beside limit and rival.

    Parameters
    ----------
    rows : DataFrame
        Rows of `compare`, any number of workloads.

    Returns
    -------
    DataFrame
        metric, workloads (how many), signed, median (of absolute errors), worst, limit, rival.
    """
    judged = rows[(rows["kind"] == "open") & rows["error"].notna()]
    out = []
    for name, group in judged.groupby("metric", sort=False):
        size, limit = group["error"].abs(), limits().metrics.get(str(name))
        out.append(
            {
                "metric": name,
                "workloads": len(group),
                "signed": group["error"].median(),
                "median": size.median(),
                "worst": size.max(),
                "limit": limit.median if limit else np.nan,
                "rival": (limit.rival if limit else None) or np.nan,
            }
        )
    return pd.DataFrame(out)
