"""Errors by load: how close a measured workload was to what the engine can carry.

Capacity is simulated: the workload's own requests, repeated, with as many users as the engine has
slots, requests per second in the middle of the run. Near it a small error of the step time is a
large error of the wait (the wait grows with 1 / (1 - load)), so errors are read by region.
"""

import numpy as np
import pandas as pd

from sim.deployment import deploy
from sim.simulation import simulate
from validation.measured import MeasuredRun, MeasuredWorkload

__all__ = ["REGIONS", "by_region", "capacity_per_s", "load_of", "region"]

REGIONS = ((0.5, "below 50 %"), (0.8, "50-80 %"), (0.95, "80-95 %"), (np.inf, "95 % and overload"))
LEAST_REQUESTS = 2_000
MIDDLE = (0.2, 0.8)  # shares of the finished requests between which the rate is read


def region(load: float) -> str:
    """Return the name of the region of a load (arrival rate over capacity).

    Examples
    --------
    >>> region(0.49), region(0.8), region(1.2)
    ('below 50 %', '80-95 %', '95 % and overload')
    """
    return next(name for below, name in REGIONS if load < below)


def capacity_per_s(run: MeasuredRun, workload: MeasuredWorkload) -> float:
    """Return the requests per second that the simulated engine completes when it is full."""
    table = workload.table().drop(columns="request")
    copies = -(-LEAST_REQUESTS // len(table))
    many = pd.concat([table] * copies, ignore_index=True).assign(arrival_s=0.0)
    if "session" in many:
        copy = np.repeat(np.arange(copies), len(table)).astype(str)
        many["session"] = copy + "/" + many["session"].to_numpy(dtype=str)
    slots = int(deploy(run.scenario, 1).knobs["max_num_seqs"][0])
    loop = {"kind": "closed-loop", "concurrency": slots}
    result = simulate(run.scenario.changed({"workload.arrivals": loop}), many)
    finish = np.sort(result.requests["finish_s"].to_numpy())
    first, last = (int(share * len(finish)) for share in MIDDLE)
    return float((last - first) / (finish[last] - finish[first]))


def load_of(run: MeasuredRun, workload: MeasuredWorkload) -> float:
    """Return arrival rate over capacity of an open-loop workload [1]."""
    rate = len(workload.requests) / float(workload.requests["arrival_s"].max())
    return rate / capacity_per_s(run, workload)


def by_region(rows: pd.DataFrame, loads: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Return median absolute and signed error of every figure by region of load.

    Parameters
    ----------
    rows : DataFrame
        Rows of `validation.serving.compare`.
    loads : dict
        (run, workload) -> load.

    Returns
    -------
    DataFrame
        region, workloads, then metric, signed, median, worst; regions without a measured workload
        have no rows.
    """
    keys = list(zip(rows["run"], rows["workload"], strict=True))
    known = rows[[key in loads for key in keys]]
    known = known[known["error"].notna()]
    named = known.assign(
        region=[region(loads[key]) for key in zip(known["run"], known["workload"], strict=True)]
    )
    out = []
    for name in (name for _, name in REGIONS):
        part = named[named["region"] == name]
        for metric, group in part.groupby("metric", sort=False):
            size = group["error"].abs()
            middle = (group["error"].median(), size.median(), size.max())
            out.append((name, len(group), metric, *middle))
    columns = ["region", "workloads", "metric", "signed", "median", "worst"]
    return pd.DataFrame(out, columns=columns)
