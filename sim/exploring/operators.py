"""Operators of one step on one accelerator: FLOPs, bytes, time, and the roofs above them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hardware.kernels import load_kernels
from hardware.specs import AcceleratorSpec
from workloads.counts import (
    attention_flops,
    attention_layers,
    distinct_experts,
    expert_layers,
    kv_read_bytes,
    linear_layers,
)
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = ["Load", "memory_roofs", "operators", "peak_roofs"]

L2_SHARE = 0.4  # part of the cache that the copy behind its roof moves


@dataclass(frozen=True, slots=True)
class Load:
    """What one step computes.

    Parameters
    ----------
    batch, context : int
        Sequences that decode, and tokens of each.
    prompt : int
        Tokens of a prompt that is computed in a step of its own.
    tp : int
        Tensor-parallel ranks.
    """

    batch: int
    context: int
    prompt: int
    tp: int = 1


@dataclass(frozen=True, slots=True)
class _Row:
    phase: str
    operator: str
    flops: float
    bytes: float
    seconds: float
    precision: str


def operators(spec: AcceleratorSpec, model: ModelSpec, load: Load) -> pd.DataFrame:
    """Return the operators of a decode step and of a prompt step on one rank.

    Parameters
    ----------
    spec : AcceleratorSpec
        The accelerator.
    model : ModelSpec
        Architecture in its number formats.
    load : Load
        Sizes of the steps.

    Returns
    -------
    DataFrame
        phase (decode, prompt), operator, flops [FLOP], bytes [byte], seconds [s], precision,
        intensity [FLOP/byte], rate [FLOP/s], roof_s (time at the roof) [s], share (of its phase),
        bound (arithmetic, memory, or overhead where the kernel takes over twice its roof).

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> from workloads.models import load_model
    >>> chip, model = load_accelerator("h200-sxm"), load_model("llama-3.1-8b")
    >>> table = operators(chip, model, Load(batch=1, context=1000, prompt=2048))
    >>> table[table["phase"] == "decode"]["bound"].eq("arithmetic").any().item()
    False
    """
    rows = [*_phase(spec, model, load, "decode"), *_phase(spec, model, load, "prompt")]
    table = pd.DataFrame([{name: getattr(r, name) for name in _Row.__slots__} for r in rows])
    given = spec.peaks.given()
    half = spec.half_flops_per_s
    peak = [given[p].value if p in given else half for p in table["precision"]]
    roof = np.maximum(table["flops"] / peak, table["bytes"] / spec.memory_bytes_per_s)
    memory = table["bytes"] / spec.memory_bytes_per_s >= table["flops"] / peak
    slow = table["seconds"] > 2.0 * roof
    bound = np.where(slow, "overhead", np.where(memory, "memory", "arithmetic"))
    return table.assign(
        intensity=table["flops"] / table["bytes"],
        rate=table["flops"] / table["seconds"],
        roof_s=roof,
        share=table["seconds"] / table.groupby("phase")["seconds"].transform("sum"),
        bound=bound,
    )


def _phase(spec: AcceleratorSpec, model: ModelSpec, load: Load, phase: str) -> Iterator[_Row]:
    decode = phase == "decode"
    tokens = float(load.batch if decode else load.prompt)
    yield from _linear(spec, model, load, phase, tokens)
    yield from _experts(spec, model, load, phase, tokens)
    yield _attention(spec, model, load, phase)


def _linear(
    spec: AcceleratorSpec, model: ModelSpec, load: Load, phase: str, tokens: float
) -> Iterator[_Row]:
    """Yield the matrix products with weights."""
    kernels = load_kernels(spec)
    wanted = {"all", "logits", "decode" if phase == "decode" else "prefill"}
    read, wide = precision(model.activations).bytes, precision(model.dtype).bytes
    for gemm in (g for g in linear_layers(model, load.tp) if g.tokens in wanted):
        logits = gemm.tokens == "logits"
        rows = float(load.batch if phase == "decode" else 1) if logits else tokens
        n = gemm.n * gemm.batch
        moved = gemm.elements * precision(gemm.weights).bytes
        moved += gemm.count * rows * (gemm.k * gemm.batch * read + n * wide)
        seconds = gemm.count * float(kernels.gemm(rows, n, gemm.k, gemm.dtype))
        runs_in = {"w4a16": "bf16", "w8a16": "bf16", "sparse24_bf16": "bf16"}
        word = runs_in.get(gemm.dtype, gemm.dtype)
        name = gemm.name.replace("_", " ")
        yield _Row(phase, name, 2.0 * rows * gemm.elements, moved, seconds, word)


def _experts(
    spec: AcceleratorSpec, model: ModelSpec, load: Load, phase: str, tokens: float
) -> Iterator[_Row]:
    """Yield the routed experts of all layers as one operator."""
    kernels = load_kernels(spec)
    flops = moved = seconds = 0.0
    word = "bf16"
    for block in expert_layers(model, load.tp):
        touched = float(distinct_experts(block.experts, block.top_k, tokens))
        flops += 2.0 * tokens * block.count * block.top_k * block.expert_elements
        moved += block.count * touched * block.expert_elements * precision(block.weights).bytes
        shape = (block.experts, block.top_k, block.hidden, block.intermediate)
        seconds += block.count * float(kernels.moe(tokens, *shape, block.dtype))
        word = "bf16" if block.dtype == "w4a16" else block.dtype
    if flops:
        yield _Row(phase, "experts", flops, moved, seconds, word)


def _attention(spec: AcceleratorSpec, model: ModelSpec, load: Load, phase: str) -> _Row:
    """Return attention over all layers."""
    kernels = load_kernels(spec)
    decode = phase == "decode"
    seconds = 0.0
    for group in attention_layers(model, load.tp):
        heads, kv_heads, dim, _ = group.shape("decode" if decode else "prefill")
        layout = (heads, kv_heads, dim)
        seen = min(load.context, group.window or load.context)
        if decode:
            each = kernels.attention_decode(load.batch, seen, *layout)
        else:
            each = kernels.attention_prefill(load.prompt, 0, *layout)
        seconds += group.count * float(each)
    new, past = (1, load.context - 1) if decode else (load.prompt, 0)
    count = load.batch if decode else 1
    flops = count * float(attention_flops(model, new, past, load.tp))
    moved = count * float(kv_read_bytes(model, new + past, new, tp=load.tp))
    moved += (
        count
        * 4.0
        * new
        * sum(g.count * g.heads * g.value_dim for g in attention_layers(model, load.tp))
    )
    return _Row(phase, "attention", flops, moved, seconds, "bf16")


def peak_roofs(spec: AcceleratorSpec) -> dict[str, float]:
    """Return precision -> dense peak of an accelerator [FLOP/s]."""
    return {name: quantity.value for name, quantity in spec.peaks.given().items()}


def memory_roofs(spec: AcceleratorSpec) -> dict[str, float]:
    """Return level of memory -> bandwidth [byte/s].

    Main memory, second tier and host link as in the catalog; the shared cache at the rate of a
    copy inside it (read and written bytes), which is measured where the kernels are.
    """
    moved = spec.l2_bytes * L2_SHARE
    cache = moved / float(load_kernels(spec).copy(moved, "l2"))
    found = {"cache (L2)": cache, spec.memory.technology: spec.memory_bytes_per_s}
    if spec.memory.second_bytes_per_s:
        found[spec.memory.second_technology or "second tier"] = spec.memory.second_bytes_per_s.value
    return found | {f"host ({spec.links.host.technology})": spec.links.host.bytes_per_s.value}
