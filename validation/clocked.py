"""GPU time of logged steps with the clock's state: the engine's own step model on a real log.

Every step of the log goes through `sim.core.clock.run_step` with the batch that really ran, so the
power window and the clock move as they do in a simulation, while scheduling and host are the real
engine's.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.core.clock import prefill_attention_s, run_step
from sim.core.jit import compiled
from sim.core.layout import Record, StepTables
from sim.deployment import Deployment
from sim.replica import Replica, make_records
from validation.batches import reconstruct
from validation.measured import MeasuredWorkload

__all__ = ["LoggedSteps", "logged_steps", "replay_clock"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# host times that would hold the GPU back; the log says when it really started
HOST = ("graph_dispatch_s", "piecewise_dispatch_s", "eager_dispatch_s", "visible_s")
LEADS = ("graph_lead_s", "eager_lead_s")


class LoggedSteps(NamedTuple):
    """What each logged step held, as `run_step` takes it, arrays of shape (steps,).

    `start_s` is when the batch was formed, or, where the log has GPU times (`follows`), how long
    the GPU waited after the step before [s].
    """

    start_s: Floats
    prefill_tokens: Ints
    prefill_attention_s: Floats
    pairs: Floats
    decodes: Ints
    context: Ints
    squares: Floats
    logits: Ints


def logged_steps(tables: StepTables, workload: MeasuredWorkload) -> LoggedSteps:
    """Return the steps of a measured workload.

    Raises
    ------
    InputError
        The batches cannot be reconstructed (see `validation.batches`).
    """
    steps, batches = workload.steps, reconstruct(workload)
    attention, call = np.zeros(len(steps)), np.zeros(len(steps))
    chunks = batches.chunks
    pairs = zip(chunks["tokens"].to_numpy(), chunks["past"].to_numpy(), strict=True)
    parts = np.array([prefill_attention_s(tables, *pair) for pair in pairs]).reshape(-1, 2)
    np.add.at(attention, chunks["step"].to_numpy(), parts[:, 0])
    np.maximum.at(call, chunks["step"].to_numpy(), parts[:, 1])
    complete = np.bincount(batches.last, minlength=len(steps))
    decodes = steps["n_decode"].to_numpy(np.int64)
    start = steps["t_schedule"].to_numpy()
    if "gpu_gap_ms" in steps:
        start = np.maximum(steps["gpu_gap_ms"].to_numpy(), 0.0) * 1e-3
    return LoggedSteps(
        start,
        steps["prefill_tokens"].to_numpy(np.int64),
        attention + call,
        steps["prefill_attn"].to_numpy(np.float64),
        decodes,
        steps["decode_context"].to_numpy(np.int64),
        batches.squares,
        complete + decodes,
    )


@compiled
def _replay(
    tables: StepTables,
    state_array: Record,
    knob_array: Record,
    logged: LoggedSteps,
    follows: bool,
    seconds: Record,
    joules: Record,
) -> None:
    state, knobs = state_array[0], knob_array[0]
    for i in range(len(seconds)):
        state.now = state.gpu_end + logged.start_s[i] if follows else logged.start_s[i]
        run_step(
            tables,
            state,
            knobs,
            logged.prefill_tokens[i],
            logged.prefill_attention_s[i],
            logged.pairs[i],
            logged.decodes[i],
            logged.context[i],
            logged.squares[i],
            logged.logits[i],
        )
        seconds[i] = state.step_s
        joules[i] = state.step_j


def replay_clock(
    deployment: Deployment,
    workload: MeasuredWorkload,
    logged: LoggedSteps | None = None,
    **changes: float,
) -> pd.DataFrame:
    """Return GPU seconds and joules of every logged step under the model's clock.

    Parameters
    ----------
    deployment : Deployment
        The run's scenario, deployed.
    workload : MeasuredWorkload
        What its engine did.
    logged : LoggedSteps, optional
        Its steps, where they have been made before.
    **changes : float
        Knobs to change, such as ``window_s``.

    Returns
    -------
    DataFrame
        One row per step: seconds [s] and joules [J] of its GPU work.
    """
    logged = logged or logged_steps(deployment.tables, workload)
    follows = "gpu_gap_ms" in workload.steps
    knobs = deployment.knobs.copy()
    for name in (*HOST, *(LEADS if follows else ())):
        knobs[name] = 0.0
    for name, value in changes.items():
        knobs[name] = value
    replica = Replica(deployment.tables, knobs, make_records(1)[1], 0, 1, 2)
    seconds, joules = np.zeros(len(workload.steps)), np.zeros(len(workload.steps))
    _replay(deployment.tables, replica.state, knobs, logged, follows, seconds, joules)
    return pd.DataFrame({"seconds": seconds, "joules": joules})
