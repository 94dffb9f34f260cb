"""The requests of a scenario, drawn from its own random streams or read from a trace."""

from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from formats import InputError, check
from sim.fleet import ClosedLoop
from sim.scenario import Scenario, Workload
from sim.streams import stream
from workloads.arrivals import Arrivals, arrival_table
from workloads.arrivals import ClosedLoop as ClosedLoopArrivals
from workloads.lengths import Lengths, load_lengths, sample_columns
from workloads.requests import check_requests
from workloads.traces import read_trace, scale_trace_rate, time_window

__all__ = ["make_workload"]

DEFAULT_ARRIVALS = {"kind": "poisson", "rate_per_s": 2.0}
DEFAULT_DURATION_S = 60.0


class _ArrivalChoice(BaseModel):
    arrivals: Arrivals


def make_workload(scenario: Scenario, base: Path = Path()) -> pd.DataFrame:
    """Return the requests table of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Its `[workload]` names a trace, or arrivals and lengths.
    base : Path
        Folder that a relative trace path starts from.

    Raises
    ------
    InputError
        The trace is bad, or a name or number is wrong.
    """
    workload = scenario.workload
    if workload.requests is not None:
        return _from_trace(workload, base)
    if workload.named is not None:
        return _from_name(scenario)
    return _drawn(scenario, workload.arrivals or DEFAULT_ARRIVALS, workload.lengths)


def closed_loop(scenario: Scenario, count: int) -> ClosedLoop | None:
    """Return the closed loop of a scenario's arrivals, None where arrivals are open."""
    arrivals = scenario.workload.arrivals
    if arrivals is None or arrivals.get("kind") != "closed-loop":
        return None
    process = check(arrivals, ClosedLoopArrivals, "[workload] arrivals")
    think = process.think_times(count, stream(scenario.run.seed, "think"))
    return ClosedLoop(process.concurrency, think)


def _from_trace(workload: Workload, base: Path) -> pd.DataFrame:
    table = read_trace(base / Path(str(workload.requests)), workload.format)
    if workload.window_s:
        table = time_window(table, *workload.window_s)
    if workload.rate_scale != 1.0:
        table = scale_trace_rate(table, workload.rate_scale)
    if workload.duration_s is not None:
        table = table[table["arrival_s"] < workload.duration_s]
    return table if workload.count is None else table.head(workload.count)


def _from_name(scenario: Scenario) -> pd.DataFrame:
    raise InputError("named workloads are not available yet", "[workload] named")


def _drawn(
    scenario: Scenario, arrivals: dict[str, Any], lengths: str | dict[str, Any]
) -> pd.DataFrame:
    workload, seed = scenario.workload, scenario.run.seed
    process = check({"arrivals": arrivals}, _ArrivalChoice, "[workload]").arrivals
    duration = workload.duration_s
    if duration is None and workload.count is None:
        duration = DEFAULT_DURATION_S
    table = arrival_table(process, duration, stream(seed, "arrivals"), workload.count)
    chosen = lengths if isinstance(lengths, str) else check(lengths, Lengths, "[workload] lengths")
    columns = sample_columns(load_lengths(chosen), len(table), stream(seed, "lengths"))
    return check_requests(table.assign(**columns), "[workload]")
