"""How far step times of another machine or model lie off, from the step logs of measured runs.

Machines of one kind differ (in capped speed, in the state of their memory), and the kernels of one
model are not off by what those of another are. Each measured run is one model on one machine: the
median error of its steps is one draw. Logs of step times are read, not the latencies that bands are
judged on.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from formats import InputError
from sim.deployment import Deployment, deploy
from sim.exploring.engine_error import StepSpread
from validation.measured import MeasuredRun, MeasuredWorkload
from validation.steps import judge_workload

__all__ = ["spread_of", "step_errors"]

Z80 = 1.2816  # from one standard deviation to P10 or P90
LONGEST = 1 << 15  # tokens of a request that step tables reach
KINDS = {"few": "decode", "prompts": "window"}
"""Part of a `StepSpread` -> kind of judged steps."""


def step_errors(runs: Iterable[MeasuredRun]) -> pd.DataFrame:
    """Return the median log error of the steps of every run.

    Returns
    -------
    DataFrame
        Index run; columns decode and window (half seconds with prompts): median of log(measured /
        predicted), the larger of GPU and host predicted. Workloads whose batches cannot be
        reconstructed are left out.
    """
    found = {}
    for run in runs:
        deployment = deploy(run.scenario, LONGEST)
        parts = [_judged(deployment, w) for w in run.workloads.values()]
        rows = pd.concat([part for part in parts if len(part)], ignore_index=True)
        logs = -np.log1p(rows["host_error"])
        found[run.name] = logs.groupby(rows["kind"]).median()
    return pd.DataFrame(found).T


def _judged(deployment: Deployment, workload: MeasuredWorkload) -> pd.DataFrame:
    try:
        return judge_workload(deployment, workload)
    except InputError:
        return pd.DataFrame()


def spread_of(errors: pd.DataFrame, without: str = "") -> StepSpread:
    """Return the half-widths of step times: root mean square over runs, from P50 to P10 or P90.

    Parameters
    ----------
    errors : DataFrame
        From `step_errors`.
    without : str
        Run to leave out.

    Examples
    --------
    >>> errors = pd.DataFrame({"decode": [0.01, -0.01, 9.0], "window": [0.02, -0.02, 9.0]})
    >>> errors.index = ["a", "b", "c"]
    >>> found = spread_of(errors, "c")
    >>> round(found.few, 4), round(found.prompts, 4)
    (0.0128, 0.0256)
    """
    known = errors[errors.index != without]
    widths = {
        part: Z80 * float(np.sqrt(np.square(known[kind].dropna()).mean()))
        for part, kind in KINDS.items()
    }
    return StepSpread(**widths)
