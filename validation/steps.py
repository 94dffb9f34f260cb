"""Step times: predicted by the step tables, beside those of a real engine.

A step that computes prompts has no GPU time of its own in the log, because an output is seen only
after the next step was dispatched. Two kinds of judgement avoid that:

decode
    Difference of successive outputs where this step and the one before compute no prompt.
window
    Half a second that holds at least one prompt: sum of predicted steps against last minus first
    output. Windows in which the engine was idle are left out.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.deployment import Deployment
from validation.clocked import replay_clock
from validation.measured import MeasuredRun, MeasuredWorkload

__all__ = [
    "WINDOW_S",
    "judge_run",
    "judge_workload",
    "predict_steps",
    "summarise",
    "window_bounds",
]

WINDOW_S = 0.5
AS_TABULATED = {"full_clock_gain": 0.0, "capped_gain": 0.0, "throttle_per_k": 0.0}
PERCENTILE = 0.9
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def predict_steps(deployment: Deployment, workload: MeasuredWorkload) -> pd.DataFrame:
    """Predict every step of a measured workload.

    Parameters
    ----------
    deployment : Deployment
        The run's scenario, deployed.
    workload : MeasuredWorkload
        What its engine did.

    Returns
    -------
    DataFrame
        One row per step: table_s (sum of its kernels as tabulated, near the power cap), gpu_s
        (the same with the clock's state), host_s (dispatch at the mean host level), step_s (the
        larger of gpu_s and host_s) [s].

    Raises
    ------
    InputError
        The batches of the log cannot be reconstructed.
    """
    table = replay_clock(deployment, workload, None, **AS_TABULATED)["seconds"]
    gpu = replay_clock(deployment, workload)["seconds"]
    host = _dispatch(deployment, workload.steps)
    step = np.maximum(gpu, host)
    return pd.DataFrame({"table_s": table, "gpu_s": gpu, "host_s": host, "step_s": step})


def _dispatch(deployment: Deployment, steps: pd.DataFrame) -> Floats:
    """Return dispatch seconds at the mean host level, by how a step is launched."""
    knobs = deployment.knobs[0]
    level = 0.5 * (knobs["level_low"] + knobs["level_high"])
    tokens = (steps["prefill_tokens"] + steps["n_decode"]).to_numpy()
    captured = tokens <= knobs["graph_tokens"]
    whole = captured & (steps["n_prefill"] == 0).to_numpy()
    graph = knobs["graph_dispatch_s"] * (1.0 + knobs["graph_level_share"] * (level - 1.0))
    pieces = np.where(captured, knobs["piecewise_dispatch_s"], knobs["eager_dispatch_s"]) * level
    return np.asarray(np.where(whole, graph, pieces), dtype=np.float64)


def judge_workload(deployment: Deployment, workload: MeasuredWorkload) -> pd.DataFrame:
    """Return one row per judged decode step and window.

    Returns
    -------
    DataFrame
        kind (decode or window), start_s, measured_s, gpu_s, step_s (predicted), error (of gpu_s)
        and host_error (of step_s) [1].
    """
    predicted = predict_steps(deployment, workload)
    rows = pd.concat(
        [_decode_rows(workload, predicted), _window_rows(workload, predicted)], ignore_index=True
    )
    rows["error"] = rows["gpu_s"] / rows["measured_s"] - 1.0
    rows["host_error"] = rows["step_s"] / rows["measured_s"] - 1.0
    rows.insert(0, "workload", workload.name)
    rows.insert(0, "run", workload.run)
    return rows


def _decode_rows(workload: MeasuredWorkload, predicted: pd.DataFrame) -> pd.DataFrame:
    steps = workload.steps
    output = steps["t_output"].to_numpy()
    pure = (steps["n_prefill"] == 0).to_numpy() & workload.judged_steps()
    chosen = 1 + np.flatnonzero(pure[1:] & pure[:-1])
    return _rows("decode", output[chosen - 1], output[chosen], predicted.iloc[chosen])


def window_bounds(workload: MeasuredWorkload) -> tuple[Ints, Ints]:
    """Return first and last step of every half second with prompts, see the module."""
    output = workload.steps["t_output"].to_numpy()
    bounds = [(i, j) for i, j in _windows(output) if _counts(workload, i, j)]
    first, last = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
    return first, last


def _window_rows(workload: MeasuredWorkload, predicted: pd.DataFrame) -> pd.DataFrame:
    output = workload.steps["t_output"].to_numpy()
    first, last = window_bounds(workload)
    sums = predicted.cumsum().to_numpy()
    summed = pd.DataFrame(sums[last] - sums[first], columns=predicted.columns)
    return _rows("window", output[first], output[last], summed)


def _windows(output: Floats) -> Iterable[tuple[int, int]]:
    """Yield (first, last) steps of successive windows of at least `WINDOW_S`."""
    first = 0
    while True:
        last = int(np.searchsorted(output, output[first] + WINDOW_S))
        if last >= len(output):
            return
        yield first, last
        first = last


def _counts(workload: MeasuredWorkload, first: int, last: int) -> bool:
    """Return whether a window holds a prompt, no idle moment and nothing excluded."""
    inside = workload.steps.iloc[first + 1 : last + 1]
    before = workload.steps["t_output"].to_numpy()[first:last]
    idle = (inside["t_schedule"].to_numpy() > before).any()
    kept = workload.judged_steps()[first + 1 : last + 1].all()
    return bool((inside["n_prefill"] > 0).any() and kept and not idle)


def _rows(kind: str, start: Floats, end: Floats, predicted: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "kind": kind,
            "start_s": start,
            "measured_s": end - start,
            "gpu_s": predicted["gpu_s"].to_numpy(),
            "step_s": predicted["step_s"].to_numpy(),
        }
    )


def judge_run(deployment: Deployment, run: MeasuredRun) -> pd.DataFrame:
    """Return `judge_workload` of every workload of a run."""
    parts = [judge_workload(deployment, w) for w in run.workloads.values()]
    return pd.concat(parts, ignore_index=True)


def summarise(
    rows: pd.DataFrame, by: tuple[str, ...] = ("run", "workload", "kind")
) -> pd.DataFrame:
    """Return count, signed median, median and 90th percentile of the absolute error by group.

    Parameters
    ----------
    rows : DataFrame
        From `judge_workload` or `judge_run`.
    by : tuple of str
        Columns that make a group.

    Returns
    -------
    DataFrame
        Columns of `by`, count, signed, median, p90 of the GPU's time, and the same with
        ``host_`` for the larger of GPU and host [1].
    """
    groups = rows.groupby(list(by), sort=False)
    out = groups.size().rename("count").to_frame()
    for prefix, column in (("", "error"), ("host_", "host_error")):
        size = rows[column].abs().groupby([rows[c] for c in by], sort=False)
        out[f"{prefix}signed"] = groups[column].median()
        out[f"{prefix}median"] = size.median()
        out[f"{prefix}p90"] = size.quantile(PERCENTILE)
    return out.reset_index()
