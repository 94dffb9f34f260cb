"""What the host of a serving engine costs, read off a measured step log.

The engine keeps two steps in flight. Step i + 1 is formed after the output of step i - 1 was
processed, then dispatched; the output of step i is seen when the GPU has finished it and step i + 1
is dispatched. So where a prompt step follows plain decoding, the delay of the output before it is
its dispatch time; where the engine was idle, the next step is formed right after the dispatch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from validation.batches import reconstruct
from validation.measured import MeasuredWorkload

__all__ = [
    "bookkeeping",
    "client_delays",
    "dispatches",
    "gathered",
    "idle_arrivals",
    "prompt_gpu_times",
]

BOUND_S = 3e-4  # an output later than the GPU's end by this much waited for the host
EVEN = 0.15  # successive decode gaps differ less than this
TAIL_S = 8e-3  # a prompt step that ends so long after its dispatch was bound by the GPU
AHEAD_S = 0.08  # a step formed so long before the output before it was dispatched by then
TOGETHER_S = 5e-3  # requests of a burst are not further apart
LONGEST_S = 0.5  # longer is a stall, not a dispatch
Floats = npt.NDArray[np.float64]
COLUMNS = ["start_s", "tokens", "dispatch_s", "graph_s", "lead_s"]


@dataclass(frozen=True)
class _Log:
    """Columns of a step log as arrays."""

    schedule: Floats
    output: Floats
    prefills: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    judged: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, workload: MeasuredWorkload) -> "_Log":
        steps = workload.steps
        return cls(
            steps["t_schedule"].to_numpy(),
            steps["t_output"].to_numpy(),
            steps["n_prefill"].to_numpy(),
            (steps["prefill_tokens"] + steps["n_decode"]).to_numpy(),
            workload.judged_steps(),
        )

    def decodes(self, first: int, last: int) -> bool:
        """Return whether steps first..last exist, hold no prompt and keep the GPU busy."""
        if first < 1 or last >= len(self.output):
            return False
        place = slice(first, last + 1)
        before = self.output[first - 1 : last]
        busy = (self.schedule[place] < before).all()
        return bool((self.prefills[place] == 0).all() and busy and self.judged[place].all())


def dispatches(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return the dispatch time of every prompt step where the log shows it.

    Returns
    -------
    DataFrame
        One row per step: start_s [s], tokens, dispatch_s; graph_s = dispatch of the decode step
        after it, lead_s = from its schedule to its first kernel; NaN where not seen [s].
    """
    log, rows = _Log.of(workload), []
    for i in map(int, np.flatnonzero((log.prefills > 0) & log.judged)):
        seen = _after_idle(log, i) if _idle(log, i) else _after_decodes(log, i)
        if 0.0 < seen < LONGEST_S:
            rows.append((log.schedule[i], log.tokens[i], seen, *_next_decode(log, i)))
    return pd.DataFrame(rows, columns=COLUMNS)


def _idle(log: _Log, i: int) -> bool:
    return bool(i == 0 or log.schedule[i] > log.output[i - 1])


def _after_idle(log: _Log, i: int) -> float:
    """Return dispatch seconds of a step that found an idle engine, NaN where not seen."""
    if i + 1 >= len(log.output) or log.schedule[i + 1] >= log.output[i]:
        return np.nan
    return float(log.schedule[i + 1] - log.schedule[i])


def _after_decodes(log: _Log, i: int) -> float:
    """Return dispatch seconds of a step after three decode steps, NaN where the GPU hid it."""
    if not log.decodes(i - 3, i - 1) or log.schedule[i] >= log.output[i - 1]:
        return np.nan
    gap = log.output[i - 2] - log.output[i - 3]
    if log.output[i - 1] - log.output[i - 2] - gap < BOUND_S:
        return np.nan
    return float(log.output[i - 1] - log.schedule[i])


def _next_decode(log: _Log, i: int) -> tuple[float, float]:
    """Return (dispatch, lead) of the decode step after step i, NaN where the GPU hid them."""
    if not log.decodes(i + 1, i + 3) or i == 0:
        return np.nan, np.nan
    gap, later = log.output[i + 2] - log.output[i + 1], log.output[i + 3] - log.output[i + 2]
    start = log.output[i + 1] - gap
    if abs(later / gap - 1.0) > EVEN or log.output[i] - start < BOUND_S:
        return np.nan, np.nan
    formed = log.schedule[i + 1]
    return float(log.output[i] - formed), float(start - formed)


def bookkeeping(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return output-to-next-schedule seconds of decode steps, with the number of running requests.

    Returns
    -------
    DataFrame
        Columns running and seconds.
    """
    steps, log = workload.steps, _Log.of(workload)
    wait = log.schedule[2:] - log.output[:-2]
    plain = (log.prefills[2:] == 0) & (log.prefills[1:-1] == 0) & (log.prefills[:-2] == 0)
    keep = plain & (wait > 0) & (log.schedule[2:] < log.output[1:-1]) & log.judged[2:]
    running = steps["n_running"].to_numpy()[2:]
    return pd.DataFrame({"running": running[keep], "seconds": wait[keep]})


def client_delays(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return output-to-client seconds of every first token, with the number of running requests.

    Returns
    -------
    DataFrame
        Columns running and seconds.
    """
    last = reconstruct(workload).last
    output = workload.steps["t_output"].to_numpy()[last]
    table = pd.DataFrame(
        {
            "running": workload.steps["n_running"].to_numpy()[last],
            "seconds": workload.requests["first_token_s"].to_numpy() - output,
        }
    )
    return table[workload.judged_requests()]


def idle_arrivals(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return arrival-to-schedule seconds of requests that found an idle engine.

    Returns
    -------
    DataFrame
        Columns prompt_tokens and seconds.
    """
    first, log = reconstruct(workload).first, _Log.of(workload)
    requests = workload.requests
    idle = np.array([_idle(log, i) for i in first]) & workload.judged_requests()
    alone = ~pd.Series(first).duplicated(keep=False).to_numpy()
    wait = log.schedule[first] - requests["arrival_s"].to_numpy()
    table = pd.DataFrame({"prompt_tokens": requests["prompt_tokens"], "seconds": wait})
    return table[idle & alone]


def gathered(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return for how long after a request an idle engine takes others into the same step.

    Halfway between the last request of the step and the next, where that came within `TOGETHER_S`.

    Returns
    -------
    DataFrame
        Column seconds.
    """
    first, log = reconstruct(workload).first, _Log.of(workload)
    arrival = workload.requests["arrival_s"].to_numpy()
    judged, found = workload.judged_requests(), []
    for step in np.unique(first):
        mine = np.flatnonzero(first == step)
        rest = arrival[arrival > arrival[mine].max()]
        if not (_idle(log, step) and judged[mine].all() and rest.size):
            continue
        since = np.array([arrival[mine].max(), rest.min()]) - arrival[mine].min()
        if since[1] < TOGETHER_S:
            found.append(since.mean())
    return pd.DataFrame({"seconds": found})


def prompt_gpu_times(workload: MeasuredWorkload) -> pd.DataFrame:
    """Return the GPU time of prompt steps where the log shows it.

    Where the log has GPU times, of every prompt step that took longer than its dispatch. Else of
    two kinds of prompt steps. Among decodes, with an output well after its dispatch: from the end
    of the decode before (one decode gap after the output before that) to its output. Behind
    another prompt step, formed long before that one's output: from output to output.

    Returns
    -------
    DataFrame
        Columns step (row of the log), tokens and seconds.
    """
    log = _Log.of(workload)
    prompts = np.flatnonzero((log.prefills > 0) & log.judged)
    if "gpu_ms" in workload.steps:
        gpu = workload.steps["gpu_ms"].to_numpy() * 1e-3
        host = workload.steps["host_ms"].to_numpy() * 1e-3
        found = [(i, gpu[i]) for i in prompts if gpu[i] > host[i]]
    else:
        seen = [(i, _seen_gpu_s(log, int(i))) for i in prompts]
        found = [(i, seconds) for i, seconds in seen if seconds > 0.0]
    step = np.array([i for i, _ in found], dtype=np.int64)
    seconds = np.array([s for _, s in found], dtype=np.float64)
    return pd.DataFrame({"step": step, "tokens": log.tokens[step], "seconds": seconds})


def _seen_gpu_s(log: _Log, i: int) -> float:
    """Return the GPU time of prompt step i, NaN where the outputs do not show it [s]."""
    if i < 1 or i + 1 >= len(log.output):
        return np.nan
    if _ahead(log, i) and _ahead(log, i + 1) and log.prefills[i - 1] > 0:
        return float(log.output[i] - log.output[i - 1])
    if not (log.decodes(i - 3, i - 1) and log.decodes(i + 1, i + 1)):
        return np.nan
    if log.schedule[i] >= log.output[i - 1] or log.output[i] - log.output[i - 1] < TAIL_S:
        return np.nan
    before = log.output[i - 2] - log.output[i - 3]
    return float(log.output[i] - log.output[i - 2] - before)


def _ahead(log: _Log, i: int) -> bool:
    """Return whether step i was dispatched well before the output of the step before it."""
    return bool(log.schedule[i] + AHEAD_S < log.output[i - 1])
