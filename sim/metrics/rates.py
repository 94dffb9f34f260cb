"""Counts, rates, and how many requests met their objectives."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sim.core.layout import Status
from sim.metrics.base import Floats, Function, Mask, Observed, Value, metric
from sim.objectives import DEFAULT_CLASS, given, objectives
from sim.simulation import Result

__all__ = ["Attainment", "attainments", "good", "judged", "limits", "output_tokens"]


def output_tokens(seen: Observed) -> float:
    """Return output tokens inside the window: each request's spread evenly after its first."""
    table = seen.result.requests
    table = table[table["first_token_s"].notna()]
    first = table["first_token_s"].to_numpy(np.float64)
    last = table["finish_s"].fillna(seen.window.end_s).to_numpy(np.float64)
    emitted = table["emitted_tokens"].to_numpy(np.float64)
    start, end = seen.window.start_s, seen.window.end_s
    inside = (first >= start) & (first <= end)
    overlap = np.minimum(last, end) - np.maximum(first, start)
    share = np.clip(overlap / np.maximum(last - first, 1e-12), 0.0, 1.0)
    share = np.where((last <= end) & (first >= start), 1.0, share)
    return float((inside + (emitted - 1) * share).sum())


def _prompt_tokens(seen: Observed) -> float:
    table = seen.result.requests
    inside = table["first_token_s"].between(seen.window.start_s, seen.window.end_s)
    return float(table.loc[inside, "prompt_tokens"].sum())


def _count(status: str) -> Function:
    return lambda seen: int((seen.requests["status"] == status).sum())


metric("requests", "request", "requests that arrived", "run")(lambda seen: len(seen.requests))
for _status in Status.NAMES[1:] + Status.NAMES[:1]:
    _words = f"of them {_status.replace('_', ' ')}"
    metric(_status, "request", _words, "run")(_count(_status))
metric("window_start_s", "s", "start of the part that counts (warm-up left out)", "run")(
    lambda seen: seen.window.start_s
)
metric("window_end_s", "s", "end of the part that counts (drain left out with a warm-up)", "run")(
    lambda seen: seen.window.end_s
)
metric("prompt_tokens", "token", "prompt tokens of requests that arrived", "run")(
    lambda seen: int(seen.requests["prompt_tokens"].sum())
)
metric("output_tokens", "token", "output tokens of requests that arrived", "run")(
    lambda seen: int(seen.requests["emitted_tokens"].sum())
)


@metric("requests_per_s", "request/s", "requests that finished, per second", "throughput")
def requests_per_s(seen: Observed) -> Value:
    """Return the rate of completions [request/s]."""
    done = seen.result.requests
    done = done[done["status"] == "finished"]
    inside = done["finish_s"].between(seen.window.start_s, seen.window.end_s)
    return float(inside.sum()) / seen.window.span_s


@metric("output_tokens_per_s", "token/s", "output tokens per second", "throughput")
def output_tokens_per_s(seen: Observed) -> Value:
    """Return the rate of output tokens [token/s]."""
    return output_tokens(seen) / seen.window.span_s


@metric("total_tokens_per_s", "token/s", "prompt and output tokens per second", "throughput")
def total_tokens_per_s(seen: Observed) -> Value:
    """Return the rate of all tokens; a prompt counts when its first token is out [token/s]."""
    return (output_tokens(seen) + _prompt_tokens(seen)) / seen.window.span_s


@metric(
    "output_tokens_per_s_per_accelerator", "token/s", "the same, per accelerator held", "throughput"
)
def output_tokens_per_accelerator(seen: Observed) -> Value:
    """Return the rate of output tokens of one accelerator [token/s]."""
    return output_tokens(seen) / seen.accelerator_s


def limits(seen: Observed) -> dict[str, Floats]:
    """Return ttft, tpot, e2e -> objective of each request, infinite where its class has none [s].

    A latency that no class has an objective for is left out.
    """
    classes = objectives(seen.result.scenario)
    names = seen.requests.get("class", pd.Series(DEFAULT_CLASS, index=seen.requests.index))
    found: dict[str, Floats] = {}
    for what in ("ttft", "tpot", "e2e"):
        by_class = {name: given(slo).get(what, np.inf) for name, slo in classes.items()}
        own = given(seen.result.scenario.slo).get(what, np.inf)
        if min([own, *by_class.values()]) < np.inf:
            found[what] = np.asarray(names.map(by_class).fillna(own), dtype=np.float64)
    return found


def _latencies(table: pd.DataFrame, end_s: float) -> dict[str, Floats]:
    """Return what each request's latencies are, or at least are when it has not ended [s]."""
    arrival, count = table["arrival_s"], table["output_tokens"]
    ttft = table["first_token_s"].fillna(end_s) - arrival
    spread = (table["finish_s"] - table["first_token_s"]) / (count - 1).clip(lower=1)
    found: dict[str, Any] = {
        "ttft": ttft,
        "tpot": spread.where(count > 1, 0.0).fillna(0.0),
        "e2e": table["finish_s"].fillna(end_s) - arrival,
    }
    return {name: column.to_numpy(np.float64) for name, column in found.items()}


def good(seen: Observed) -> Mask:
    """Return which requests finished and met every objective given."""
    finished = (seen.requests["status"] == "finished").to_numpy()
    return np.asarray(_met(seen) & finished)


def _met(seen: Observed) -> Mask:
    latencies = _latencies(seen.requests, seen.window.end_s)
    met = np.ones(len(seen.requests), dtype=np.bool_)
    for name, limit in limits(seen).items():
        met &= latencies[name] <= limit
    return np.asarray(met)


def judged(seen: Observed) -> Mask:
    """Return which requests can be judged: all but cancelled, and unfinished ones still in time."""
    status = seen.requests["status"].to_numpy()
    undecided = (status == "unfinished") & _met(seen)
    return np.asarray((status != "cancelled") & ~undecided)


@metric(
    "slo_attainment",
    "1",
    "share of requests that finished and met every objective; unfinished ones that are still in "
    "time are left out, rejected and late ones count as missed",
    "throughput",
)
def slo_attainment(seen: Observed) -> Value:
    """Return the share of good requests; None without objectives [1]."""
    if not limits(seen):
        return None
    count = int(judged(seen).sum())
    return float(good(seen).sum()) / count if count else None


@metric("goodput_per_s", "request/s", "requests that met every objective, per second", "throughput")
def goodput_per_s(seen: Observed) -> Value:
    """Return the rate of good requests by arrival; None without objectives [request/s]."""
    return float(good(seen).sum()) / seen.window.span_s if limits(seen) else None


class Attainment(NamedTuple):
    """How many requests of a class met its objectives, and how many should [1]."""

    traffic_class: str
    share: float
    wanted: float


def attainments(result: Result) -> list[Attainment]:
    """Return the attainment of every class that has objectives; 0 where none can be judged."""
    seen = Observed.of(result)
    table = result.requests
    names = table.get("class", pd.Series(DEFAULT_CLASS, index=table.index))
    found = []
    for name, slo in objectives(result.scenario).items():
        if given(slo):
            share = slo_attainment(seen.only((names == name).to_numpy()))
            found.append(Attainment(name, float(share or 0.0), slo.percentile / 100.0))
    return found
