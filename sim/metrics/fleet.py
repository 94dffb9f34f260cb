"""What failures, maintenance and scaling do: replicas up, availability, objectives meanwhile."""

import numpy as np
import pandas as pd

from sim.metrics.base import Floats, Mask, Observed, Value, metric
from sim.metrics.rates import slo_attainment

__all__ = ["accelerators_at_start", "availability", "capacity", "degraded"]


def capacity(seen: Observed) -> pd.DataFrame | None:
    """Return spans of the window with their numbers of replicas; None for a fleet never logged.

    Returns
    -------
    DataFrame
        start_s, end_s [s], up (replicas that take requests), wanted (those plus the ones that
        have failed or are restarted and have not been replaced).
    """
    fleet = seen.result.fleet
    if fleet is None:
        return None
    table = fleet.capacity_table()
    start, end = seen.window.start_s, seen.window.end_s
    since = table["time_s"].clip(start, end)
    until = table["time_s"].shift(-1, fill_value=np.inf).clip(start, end)
    spans = table.assign(start_s=since, end_s=until)[["start_s", "end_s", "up", "wanted"]]
    return spans[until > since].reset_index(drop=True)


def accelerators_at_start(seen: Observed) -> int:
    """Return the accelerators of the replicas that serve from the start [accelerator]."""
    fleet = seen.result.fleet
    if fleet is None:
        return int(seen.ranks.sum())
    first = {place for time, _, place, event in fleet.events if event == "up" and time == 0.0}
    return int(sum(seen.ranks[place] for place in first))


def _mean(seen: Observed, name: str) -> Value:
    spans = capacity(seen)
    if spans is None:
        return None
    width = spans["end_s"] - spans["start_s"]
    return float((spans[name] * width).sum()) / seen.window.span_s


metric("accelerators_mean", "accelerator", "accelerators held, mean over time", "fleet")(
    lambda seen: seen.accelerator_s / seen.window.span_s
)
metric("replicas_up_mean", "replica", "replicas that take requests, mean over time", "fleet")(
    lambda seen: _mean(seen, "up")
)


@metric("availability", "1", "replicas up over replicas wanted, mean over time", "fleet")
def availability(seen: Observed) -> Value:
    """Return the share of wanted replica time that was there; surplus does not count [1]."""
    spans = capacity(seen)
    if spans is None:
        return None
    width = spans["end_s"] - spans["start_s"]
    wanted = float((spans["wanted"] * width).sum())
    there = float((np.minimum(spans["up"], spans["wanted"]) * width).sum())
    return there / wanted if wanted else None


def _short(seen: Observed) -> pd.DataFrame:
    spans = capacity(seen)
    if spans is None:
        return pd.DataFrame({"start_s": [], "end_s": []})
    return spans[spans["up"] < spans["wanted"]]


@metric("degraded_s", "s", "time with fewer replicas up than wanted", "fleet")
def degraded_s(seen: Observed) -> Value:
    """Return how long replicas were missing [s]."""
    spans = _short(seen)
    return float((spans["end_s"] - spans["start_s"]).sum())


def degraded(seen: Observed) -> Mask:
    """Return which requests were in the system while replicas were missing."""
    arrival: Floats = seen.requests["arrival_s"].to_numpy(np.float64)
    finish = seen.requests["finish_s"].fillna(seen.window.end_s).to_numpy(np.float64)
    found = np.zeros(len(arrival), dtype=np.bool_)
    for start, end in zip(*(_short(seen)[name] for name in ("start_s", "end_s")), strict=True):
        found |= (arrival < end) & (finish > start)
    return found


@metric("requests_degraded", "request", "requests present while replicas were missing", "fleet")
def requests_degraded(seen: Observed) -> Value:
    """Return how many requests saw a failure, a repair or a restart [request]."""
    return int(degraded(seen).sum())


@metric("slo_attainment_degraded", "1", "share of these that met every objective", "fleet")
def slo_attainment_degraded(seen: Observed) -> Value:
    """Return the attainment of requests present while replicas were missing [1]."""
    there = pd.Series(degraded(seen), index=seen.requests.index)
    if not there.any():
        return None
    return slo_attainment(
        seen.only(there.reindex(seen.result.requests.index, fill_value=False).to_numpy())
    )


metric("retries", "retry", "times a request went on elsewhere after a failure", "fleet")(
    lambda seen: int(seen.column("retries").sum())
)
