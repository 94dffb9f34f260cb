"""A user's own measurement beside the prediction of their scenario.

One number, the speed of their host (``engine.host_slowness``), is fitted on the requests that were
sent first, half of them; the other half judges the prediction with it and without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize_scalar

from sim.exploring.bands import Band, bands_of
from sim.scenario import Scenario
from sim.simulation import Result, simulate
from validation.user_files import UserRun

__all__ = ["FIGURES", "Judged", "judge_user_run"]

SLOWNESS = (0.2, 5.0)
"""Range of the host's slowness that is searched."""
TRIALS = 12
SEEDS = 3
Mask = npt.NDArray[np.bool_]


def _ttft(table: pd.DataFrame) -> "pd.Series[float]":
    return table["first_token_s"] - table["arrival_s"]


def _tpot(table: pd.DataFrame) -> "pd.Series[float]":
    more = table[table["output_tokens"] > 1]
    return (more["finish_s"] - more["first_token_s"]) / (more["output_tokens"] - 1)


def _e2e(table: pd.DataFrame) -> "pd.Series[float]":
    return table["finish_s"] - table["arrival_s"]


Figure = Callable[[pd.DataFrame], float]
FIGURES: dict[str, Figure] = {
    "ttft_p50_s": lambda table: float(_ttft(table).median()),
    "ttft_mean_s": lambda table: float(_ttft(table).mean()),
    "ttft_p99_s": lambda table: float(_ttft(table).quantile(0.99)),
    "tpot_mean_s": lambda table: float(_tpot(table).mean()),
    "e2e_mean_s": lambda table: float(_e2e(table).mean()),
}
"""Compared figures, named as in summary.json."""
FITTED_TO = ("ttft_p50_s", "tpot_mean_s", "e2e_mean_s")


@dataclass(frozen=True)
class Judged:
    """A user's run beside its predictions.

    Attributes
    ----------
    table : DataFrame
        figure, measured, before, after (predicted without and with the fitted host) [s], of the
        half that was not fitted to; error_before, error_after; low, high (P10 and P90 of after).
    host_slowness : float
        Fitted to the other half [1].
    fitted, judged : int
        Requests of each half.
    """

    table: pd.DataFrame
    host_slowness: float
    fitted: int
    judged: int


def judge_user_run(scenario: Scenario, run: UserRun) -> Judged:
    """Fit the host on the first half of a run, and judge the second.

    Parameters
    ----------
    scenario : Scenario
        What was deployed; its workload is replaced by the measured requests.
    run : UserRun
        What was measured.

    Raises
    ------
    InputError
        The scenario cannot serve these requests.
    """
    first: Mask = np.arange(len(run.requests)) < len(run.requests) // 2
    if run.concurrency:
        loop = {"kind": "closed-loop", "concurrency": run.concurrency}
        scenario = scenario.changed({"workload.arrivals": loop})
    seen = {name: f(run.requests[first]) for name, f in FIGURES.items()}

    def loss(log_slowness: float) -> float:
        results = _simulated(scenario, run, float(np.exp(log_slowness)), (0,))
        found = _figures(results, first)
        return float(sum(abs(np.log(found[n] / seen[n])) for n in FITTED_TO if seen[n] > 0))

    ends = tuple(np.log(SLOWNESS))
    best = minimize_scalar(loss, bounds=ends, method="bounded", options={"maxiter": TRIALS})
    slowness = float(np.exp(best.x))
    before = _simulated(scenario, run, scenario.engine.host_slowness, range(SEEDS))
    after = _simulated(scenario, run, slowness, range(SEEDS))
    table = _table(run, ~first, before, after)
    return Judged(table, slowness, int(first.sum()), int((~first).sum()))


def _simulated(
    scenario: Scenario, run: UserRun, slowness: float, seeds: Sequence[int]
) -> list[Result]:
    asked = run.requests[["arrival_s", "prompt_tokens", "output_tokens"]]
    changed = {"engine.host_slowness": slowness}
    return [simulate(scenario.changed(changed | {"run.seed": s}), asked) for s in seeds]


def _figures(results: list[Result], rows: Mask) -> dict[str, float]:
    """Return the median over seeds of every figure of some of the requests."""
    tables = [r.requests[rows & (r.requests["status"] == "finished").to_numpy()] for r in results]
    return {name: float(np.median([f(t) for t in tables])) for name, f in FIGURES.items()}


def _table(run: UserRun, rows: Mask, before: list[Result], after: list[Result]) -> pd.DataFrame:
    one, two, bands = _figures(before, rows), _figures(after, rows), bands_of(after[0])
    out = []
    for name, figure in FIGURES.items():
        measured = figure(run.requests[rows])
        band = bands.get(name, Band(1.0, 1.0, 1.0))
        errors = (one[name] / measured - 1, two[name] / measured - 1) if measured else (np.nan,) * 2
        ends = (two[name] * band.low / band.value, two[name] * band.high / band.value)
        out.append((name, measured, one[name], two[name], *errors, *ends))
    columns = ["figure", "measured", "before", "after", "error_before", "error_after"]
    return pd.DataFrame(out, columns=[*columns, "low", "high"])
