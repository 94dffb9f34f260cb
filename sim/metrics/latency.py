"""Latencies of requests: TTFT, TPOT, ITL, E2E, queueing."""

import numpy as np

from sim.core.layout import ITL_BINS_PER_E, itl_bin_edges
from sim.metrics.base import (
    PERCENTILES,
    Floats,
    Function,
    Observed,
    Value,
    distribution,
    metric,
    weighted_percentile,
)

__all__ = ["e2e_s", "itl_bin_centres", "queue_s", "tpot_s", "ttft_s"]


@distribution("ttft", "s", "time to first token (first token - arrival)")
def ttft_s(seen: Observed) -> Floats:
    """Return time to first token of every request that got one [s]."""
    waits = seen.column("first_token_s") - seen.column("arrival_s")
    return waits[np.isfinite(waits)]


@distribution("tpot", "s", "time per output token ((E2E - TTFT) / (output tokens - 1))")
def tpot_s(seen: Observed) -> Floats:
    """Return time per output token of finished requests with two or more tokens [s]."""
    done = seen.finished[seen.finished["output_tokens"] > 1]
    spread = done["finish_s"] - done["first_token_s"]
    return (spread / (done["output_tokens"] - 1)).to_numpy(np.float64)


@distribution("e2e", "s", "end-to-end latency (last token - arrival)")
def e2e_s(seen: Observed) -> Floats:
    """Return arrival to last token of finished requests [s]."""
    return (seen.finished["finish_s"] - seen.finished["arrival_s"]).to_numpy(np.float64)


@distribution("queue", "s", "wait from arrival to the first batch", (50, 99))
def queue_s(seen: Observed) -> Floats:
    """Return arrival to first admission of every admitted request [s]."""
    waits = seen.column("admitted_s") - seen.column("arrival_s")
    return waits[np.isfinite(waits)]


def itl_bin_centres() -> Floats:
    """Return the geometric centres of the inter-token-latency bins [s]; bins are 0.5 % wide."""
    return np.asarray(itl_bin_edges() * np.exp(0.5 / ITL_BINS_PER_E))


@metric("itl_mean_s", "s", "mean gap between successive tokens of finished requests", "latency")
def itl_mean_s(seen: Observed) -> Value:
    """Return the token-weighted mean of the gaps between tokens [s]."""
    gaps = float((seen.finished["output_tokens"] - 1).sum())
    total = float((seen.finished["finish_s"] - seen.finished["first_token_s"]).sum())
    return total / gaps if gaps else None


def _itl_percentile(q: int) -> Function:
    def value(seen: Observed) -> Value:
        return weighted_percentile(itl_bin_centres(), seen.result.gaps, q)

    return value


for _q in PERCENTILES:
    metric(
        f"itl_p{_q}_s",
        "s",
        f"{_q}th percentile of gaps between successive tokens, whole run, within 0.25 %",
        "latency",
    )(_itl_percentile(_q))
