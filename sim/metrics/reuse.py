"""Memory that is held but not used, and work that caches save: fragmentation, tiers, encoders."""

import numpy as np

from sim.metrics.base import Observed, Value, metric

__all__ = ["fragmentation", "hit_share", "total"]


def fragmentation(seen: Observed, unused: str) -> Value:
    """Return a time mean of a share of the KV pool; None without a step log [1].

    Parameters
    ----------
    seen : Observed
        A result.
    unused : {"internal", "external"}
        Room without tokens inside what requests hold, as a share of it; or free blocks outside
        the largest free run, as a share of the free ones.
    """
    steps = seen.steps
    if "unused_tokens" not in steps or not len(steps):
        return None
    if unused == "internal":
        held = seen.knob("num_blocks") - steps["free_blocks"]
        part, whole = steps["unused_tokens"] / seen.knob("block_size"), held
    else:
        part, whole = steps["free_blocks"] - steps["largest_free_blocks"], steps["free_blocks"]
    weight = (steps["span_s"] * steps["share"]).to_numpy(np.float64)
    total = float((whole * weight).sum())
    return float((part * weight).sum()) / total if total > 0 else None


metric(
    "kv_internal_fragmentation",
    "1",
    "share of the KV memory that requests hold without a token in it, mean over time",
    "cache",
)(lambda seen: fragmentation(seen, "internal"))
metric(
    "kv_external_fragmentation",
    "1",
    "share of the free KV memory outside its largest run, mean over time",
    "cache",
)(lambda seen: fragmentation(seen, "external"))


def total(seen: Observed, name: str) -> float:
    """Return a sum over replicas and the whole run; zero for results that do not count it."""
    return float(seen.result.totals[name].sum()) if name in seen.result.totals else 0.0


def hit_share(seen: Observed, tier: str) -> Value:
    """Return the share of looked-up blocks that one tier had; None without look-ups [1]."""
    asked = total(seen, "looked_up_blocks")
    return total(seen, tier) / asked if asked else None


for _name, _column, _words in (
    ("hbm", "hit_blocks", "the accelerator's memory"),
    ("dram", "dram_hit_blocks", "host memory"),
    ("ssd", "ssd_hit_blocks", "SSD"),
):
    metric(
        f"prefix_hit_{_name}",
        "1",
        f"share of looked-up blocks found in {_words}, whole run",
        "cache",
    )(lambda seen, column=_column: hit_share(seen, column))
metric("kv_evictions", "block", "cached blocks that were overwritten, whole run", "cache")(
    lambda seen: int(total(seen, "evictions"))
)
metric("kv_copied_s", "s", "time that steps spent on copies of KV blocks, whole run", "cache")(
    lambda seen: total(seen, "copied_s")
)
metric("swaps", "swap", "times KV blocks of a preempted request went to host memory", "cache")(
    lambda seen: int(seen.column("swaps").sum())
)
metric("encoder_s", "s", "encoder time on the accelerators", "cache")(
    lambda seen: float(seen.column("encoder_s").sum())
)
metric("encoder_saved_s", "s", "encoder time that a cache of its outputs saved", "cache")(
    lambda seen: float(seen.column("encoder_saved_s").sum())
)


@metric(
    "padding_share", "1", "share of decoded rows that pad a held batch, whole run", "throughput"
)
def padding_share(seen: Observed) -> Value:
    """Return ended requests computed along over all rows decoded [1]."""
    steps = seen.steps
    if "padding" not in steps or not len(steps):
        return None
    padding = float((steps["padding"] * steps["steps"]).sum())
    rows = padding + float((steps["decode_requests"] * steps["steps"]).sum())
    return padding / rows if rows else None
