"""How the accelerators are used: busy share, MFU, MBU, KV memory, caches."""

import numpy as np

from hardware.specs import AcceleratorSpec
from sim.metrics.base import Observed, Value, metric
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
    """Return the dense peak of one accelerator at the precision that runs [FLOP/s]."""
    deployment = seen.result.deployment
    return deployment.spec.peak(peak_precision(deployment.spec, deployment.model))


def model_flops(seen: Observed) -> float:
    """Return FLOPs of one rank without the linear work repeated after preemption [FLOP]."""
    repeated = float(seen.column("recomputed_tokens").sum())
    per_token = float(seen.result.deployment.tables.counts[0])
    return max(seen.step_sum("flops") - repeated * per_token, 0.0)


@metric("busy_share", "1", "share of time that the accelerators compute", "hardware")
def busy_share(seen: Observed) -> Value:
    """Return GPU seconds over all seconds [1]."""
    return seen.step_sum("gpu_s") / seen.device_s


@metric("mfu", "1", "model FLOPs / (time x peak FLOP/s at the precision that runs)", "hardware")
def mfu(seen: Observed) -> Value:
    """Return model FLOPs utilisation [1]."""
    return model_flops(seen) / (seen.device_s * peak_flops_per_s(seen))


@metric("mbu", "1", "bytes that had to move / (time x peak bandwidth)", "hardware")
def mbu(seen: Observed) -> Value:
    """Return memory bandwidth utilisation [1]."""
    peak = seen.result.deployment.spec.memory_bytes_per_s
    return seen.step_sum("bytes") / (seen.device_s * peak)


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


@metric("kv_blocks", "block", "KV blocks of a replica", "cache")
def kv_blocks(seen: Observed) -> Value:
    """Return the size of the KV pool [block]."""
    return int(seen.knob("num_blocks"))


@metric("kv_used_max", "1", "largest share of KV blocks in use", "cache")
def kv_used_max(seen: Observed) -> Value:
    """Return the largest share of blocks in use after a step [1]."""
    inside = seen.steps.loc[seen.steps["share"] > 0, "free_blocks"]
    return 1.0 - float(inside.min()) / seen.knob("num_blocks") if len(inside) else None


@metric("kv_used_mean", "1", "share of KV blocks in use, mean over time", "cache")
def kv_used_mean(seen: Observed) -> Value:
    """Return the time-weighted share of blocks in use [1]."""
    if not seen.logged:
        return None
    steps = seen.steps
    used = 1.0 - steps["free_blocks"] / seen.knob("num_blocks")
    return float((used * steps["span_s"] * steps["share"]).sum()) / seen.device_s


@metric("prefix_hit_tokens", "1", "share of prompt tokens found in the prefix cache", "cache")
def prefix_hit_tokens(seen: Observed) -> Value:
    """Return cached over prompt tokens of admitted requests [1]."""
    admitted = np.isfinite(seen.column("admitted_s"))
    asked = float(seen.column("prompt_tokens")[admitted].sum())
    return float(seen.column("cached_tokens")[admitted].sum()) / asked if asked else None


@metric("prefix_hit_blocks", "1", "share of looked-up KV blocks found, whole run", "cache")
def prefix_hit_blocks(seen: Observed) -> Value:
    """Return hits over look-ups of full blocks; None where nothing was looked up [1]."""
    asked = float(seen.result.totals["looked_up_blocks"].sum())
    return float(seen.result.totals["hit_blocks"].sum()) / asked if asked else None


metric("preemptions", "preemption", "times a running request lost its KV blocks", "cache")(
    lambda seen: int(seen.column("preemptions").sum())
)
metric("recomputed_tokens", "token", "tokens computed again after preemption", "cache")(
    lambda seen: int(seen.column("recomputed_tokens").sum())
)
