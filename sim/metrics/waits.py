"""Where requests wait, and the throughput that would be left without the waits.

By Little's law N = X * E2E: the same number of requests in the system, without their waits W, would
give X * E2E / (E2E - W). That is the effective throughput; the difference to the throughput is what
waiting costs, and the shares say which wait it is.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from sim.metrics.base import Observed, Value, metric
from sim.metrics.rates import output_tokens_per_s, requests_per_s

__all__ = ["WAITS", "waits"]

WAITS = {
    "queue": "waiting to be admitted",
    "memory": "head of the queue waiting for free KV blocks",
    "host": "host and API work, and the GPU waiting for the host",
    "recompute": "work repeated after preemption",
    "transfer": "KV cache on its way between pools",
}


def waits(seen: Observed) -> dict[str, float]:
    """Return seconds that requests spent in each wait, summed over requests [s].

    Waits for memory are what the engine counted while the head of the queue lacked KV blocks, also
    after a preemption; the rest of the wait from arrival to the first batch is queueing. Host
    time is what reaches the engine and the client outside the steps, plus the GPU's pauses inside
    a busy period times the requests that run. Recomputation is the repeated tokens at the rate of
    a full step, times the requests that run.
    """
    admitted = seen.column("admitted_s")
    known = np.isfinite(admitted)
    idle = seen.knob("ingest_s") + seen.knob("gather_s")
    ingest = idle + seen.knob("ingest_per_token_s") * seen.column("prompt_tokens")
    queue = np.maximum(admitted - seen.column("arrival_s") - ingest, 0.0)
    outside = (ingest + seen.knob("client_s")) * known
    memory = seen.column("memory_wait_s")
    return {
        "queue": float(np.maximum(queue - memory, 0.0)[known].sum()),
        "memory": float(memory[known].sum()),
        "host": float(outside.sum()) + _host_pauses(seen),
        "recompute": _recompute(seen),
        "transfer": float(seen.column("transfer_s").sum()),
    }


def _host_pauses(seen: Observed) -> float:
    if not seen.logged:
        return float(seen.result.totals["host_wait_s"].sum()) * _running(seen)
    steps = seen.steps
    pause = np.maximum(steps["span_s"] - steps["gpu_s"], 0.0)
    return float((pause * steps["running"] * steps["share"]).sum())


def _recompute(seen: Observed) -> float:
    """Return the repeated tokens at the rate of a full step, times the requests that run."""
    linear_s = seen.result.deployment.tables.linear_s
    per_token = float(linear_s[-1]) / (linear_s.size - 1)
    return float(seen.column("recomputed_tokens").sum()) * per_token * _running(seen)


def _running(seen: Observed) -> float:
    """Return requests in a batch, mean over time and replicas, from when they come and go."""
    left = seen.requests["finish_s"].fillna(seen.window.end_s).to_numpy(np.float64)
    stay = np.minimum(left, seen.window.end_s) - seen.column("admitted_s")
    return float(np.nansum(np.maximum(stay, 0.0))) / seen.device_s


def _shares(seen: Observed) -> dict[str, float] | None:
    done = seen.requests["finish_s"].fillna(seen.window.end_s) - seen.requests["arrival_s"]
    total = float(done.clip(lower=0.0).sum())
    if total <= 0:
        return None
    return {name: min(seconds / total, 1.0) for name, seconds in waits(seen).items()}


def _share(name: str, seen: Observed) -> Value:
    shares = _shares(seen)
    return None if shares is None else shares[name]


for _name, _words in WAITS.items():
    metric(f"wait_{_name}_share", "1", f"share of request time: {_words}", "waits")(
        partial(_share, _name)
    )


def _effective(rate: Callable[[Observed], Value], seen: Observed) -> Value:
    shares, actual = _shares(seen), rate(seen)
    if shares is None or actual is None:
        return None
    return actual / max(1.0 - sum(shares.values()), 1e-3)


metric(
    "effective_output_tokens_per_s",
    "token/s",
    "output tokens per second with all waits taken out, at the same number of requests in the "
    "system (Little's law)",
    "waits",
)(partial(_effective, output_tokens_per_s))
metric(
    "effective_requests_per_s",
    "request/s",
    "requests per second with all waits taken out, likewise",
    "waits",
)(partial(_effective, requests_per_s))
