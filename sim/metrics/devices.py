"""How the accelerators are used: busy share, MFU, MBU, KV memory, caches."""

import numpy as np
import pandas as pd

from hardware.specs import AcceleratorSpec
from sim.deployment import Deployment
from sim.metrics.base import Observed, Value, metric
from sim.metrics.reuse import hit_share
from workloads.models import ModelSpec
from workloads.precision import kernel_dtype

__all__ = ["model_flops", "peak_flops_per_s", "peak_precision"]

WEIGHT_ONLY = {"w4a16": "bf16", "sparse24_bf16": "bf16"}


def peak_precision(spec: AcceleratorSpec, model: ModelSpec) -> str:
    """Return the precision whose peak MFU refers to: the one that the model's GEMMs run in.

    A format that the accelerator has no arithmetic for runs in its 16-bit peak, else its largest.
    """
    word = kernel_dtype(model.weights, model.activations)
    given = spec.peaks.given()
    wanted = [WEIGHT_ONLY.get(word, word), "bf16", "fp16"]
    found = [name for name in wanted if name in given]
    return found[0] if found else max(given, key=lambda name: given[name].value)


def peak_flops_per_s(seen: Observed) -> float:
    """Return the dense peak of an accelerator of the first pool at its precision [FLOP/s]."""
    return _peak(seen.result.deployment)


def _peak(made: Deployment) -> float:
    return made.spec.peak(peak_precision(made.spec, made.model))


def model_flops(seen: Observed) -> float:
    """Return FLOPs of all ranks without the linear work repeated after preemption [FLOP]."""
    repeated = np.zeros(seen.replicas)
    served = seen.column("replica").astype(np.int64)
    np.add.at(repeated, served[served >= 0], seen.column("recomputed_tokens")[served >= 0])
    per_token = np.array([float(made.tables.counts[0]) for made in seen.deployments])
    useful = np.maximum(seen.step_sums("flops") - repeated * per_token, 0.0)
    return float(useful @ seen.ranks)


@metric("busy_share", "1", "share of the time that accelerators are held: they compute", "hardware")
def busy_share(seen: Observed) -> Value:
    """Return GPU seconds over all seconds [1]."""
    return float(seen.step_sums("gpu_s") @ seen.ranks) / seen.accelerator_s


def _possible(seen: Observed, rates: list[float]) -> float:
    """Return what accelerators of these rates could have done while held."""
    return max(float((seen.held_s * seen.ranks) @ np.array(rates)), 1e-9)


@metric("mfu", "1", "model FLOPs / (time x peak FLOP/s at the precision that runs)", "hardware")
def mfu(seen: Observed) -> Value:
    """Return model FLOPs utilisation [1]."""
    return model_flops(seen) / _possible(seen, [_peak(made) for made in seen.deployments])


@metric("mbu", "1", "bytes that had to move / (time x peak bandwidth)", "hardware")
def mbu(seen: Observed) -> Value:
    """Return memory bandwidth utilisation [1]."""
    peaks = [made.spec.memory_bytes_per_s for made in seen.deployments]
    return float(seen.step_sums("bytes") @ seen.ranks) / _possible(seen, peaks)


def _while_busy(value: Value, seen: Observed) -> Value:
    busy = busy_share(seen)
    return value / busy if value is not None and busy else None


metric("mfu_busy", "1", "MFU while the accelerators compute", "hardware")(
    lambda seen: _while_busy(mfu(seen), seen)
)
metric("mbu_busy", "1", "MBU while the accelerators compute", "hardware")(
    lambda seen: _while_busy(mbu(seen), seen)
)


def _time_mean(seen: Observed, name: str) -> Value:
    if not seen.logged:
        return None
    steps = seen.steps
    return float((steps[name] * steps["span_s"] * steps["share"]).sum()) / seen.device_s


metric("running_mean", "request", "requests in a batch, mean over time and replicas", "hardware")(
    lambda seen: _time_mean(seen, "running")
)
metric("waiting_mean", "request", "requests in the queue, mean over time and replicas", "hardware")(
    lambda seen: _time_mean(seen, "waiting")
)


@metric("waiting_max", "request", "longest queue of a replica", "hardware")
def waiting_max(seen: Observed) -> Value:
    """Return the longest queue at a scheduling point [request]."""
    most = seen.step_most("waiting")
    return None if most is None else int(most)


@metric("kv_blocks", "block", "KV blocks of a replica, mean of replicas", "cache")
def kv_blocks(seen: Observed) -> Value:
    """Return the size of the KV pool [block]."""
    return round(float(seen.knobs("num_blocks").mean()))


def _kv_used(seen: Observed) -> pd.Series:
    """Return the share of its replica's blocks that are in use after each step [1]."""
    return 1.0 - seen.steps["free_blocks"] / seen.knobs("num_blocks")[seen.steps["replica"]]


@metric("kv_used_max", "1", "largest share of KV blocks in use", "cache")
def kv_used_max(seen: Observed) -> Value:
    """Return the largest share of blocks in use after a step [1]."""
    inside = _kv_used(seen)[seen.steps["share"] > 0]
    return float(inside.max()) if len(inside) else None


@metric("kv_used_mean", "1", "share of KV blocks in use, mean over time", "cache")
def kv_used_mean(seen: Observed) -> Value:
    """Return the time-weighted share of blocks in use [1]."""
    if not seen.logged:
        return None
    steps = seen.steps
    return float((_kv_used(seen) * steps["span_s"] * steps["share"]).sum()) / seen.device_s


@metric("prefix_hit_tokens", "1", "share of prompt tokens found in the prefix cache", "cache")
def prefix_hit_tokens(seen: Observed) -> Value:
    """Return cached over prompt tokens of admitted requests [1]."""
    admitted = np.isfinite(seen.column("admitted_s"))
    asked = float(seen.column("prompt_tokens")[admitted].sum())
    return float(seen.column("cached_tokens")[admitted].sum()) / asked if asked else None


@metric("prefix_hit_blocks", "1", "share of looked-up KV blocks found, whole run", "cache")
def prefix_hit_blocks(seen: Observed) -> Value:
    """Return hits over look-ups of full blocks; None where nothing was looked up [1]."""
    tiers = ("hit_blocks", "dram_hit_blocks", "ssd_hit_blocks")
    shares = [hit_share(seen, name) for name in tiers]
    return None if shares[0] is None else sum(share or 0.0 for share in shares)


metric("preemptions", "preemption", "times a running request lost its KV blocks", "cache")(
    lambda seen: int(seen.column("preemptions").sum())
)
metric("recomputed_tokens", "token", "tokens computed again after preemption", "cache")(
    lambda seen: int(seen.column("recomputed_tokens").sum())
)
