"""Element-wise kernels of one forward pass: norms, rotary, activations, cache writes, sampling."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from workloads.layers import LinearLayer, check_tp, linear_layers, split
from workloads.models import ModelSpec
from workloads.precision import WIDE, precision, unit

__all__ = ["ElementwiseOp", "Fusion", "elementwise_ops"]

Fusion: TypeAlias = Literal["compiled", "kernels", "none"]
UNQUANTISED = frozenset({"router", "lm_head", "kv_b", "kv_a"})
AFTER_NORM = frozenset({"qkv", "qkv_a", "q_proj", "gate_up", "up", "shared_gate_up", "shared_up"})
AFTER_ACTIVATION = frozenset({"down", "shared_down"})


@dataclass(frozen=True, slots=True)
class ElementwiseOp:
    """`count` calls of a kernel over (tokens, width) elements.

    Parameters
    ----------
    op : str
        Kernel whose traffic per element it has: rms_norm_fused_add (4 passes over a 16-bit
        element), silu_and_mul (3), rotary (2, in place), quant_fp8_per_token, argmax,
        softmax_sample, add (3), and the kernels that a compiler makes (``*_compiled``).
    width : int
        Elements of a token: the residual for norms, the output for gated activations, query
        plus key for rotary, key plus value for cache writes, the vocabulary for sampling
        [element].
    count : int
        Calls in one forward pass.
    tokens : {"all", "logits"}
        Rows: every token of the step, or those whose logits are needed.
    name : str
        What it is in the model: norm, qk_norm, latent_norm, rotary, activation, quantise, cache,
        sample.
    """

    op: str
    width: int
    count: int
    tokens: Literal["all", "logits"] = "all"
    name: str = ""


def elementwise_ops(
    model: ModelSpec, tp: int = 1, greedy: bool = False, fusion: Fusion = "kernels"
) -> list[ElementwiseOp]:
    """Return the element-wise kernels of one forward pass on one rank.

    ``kernels`` counts hand-written kernels: every norm of the residual fused with the addition
    before it, gate and product in one; norms of q and k and of MLA latents, and activations
    without a gate, read and write each element once, as rotary does; ``quant_fp8_per_token``
    stands before every GEMM whose input is 8 bits or less wide. ``compiled`` counts what an
    engine's compiler makes of them: quantisation joins the norm or activation before it; cache
    writes and the sampler are those of the engine. ``none`` counts eager operations, each one a
    pass over memory. Activations of routed experts belong to the expert kernel, and routing too.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Tensor-parallel ranks.
    greedy : bool
        argmax instead of softmax and a draw; ``compiled`` has one sampler for both.
    fusion : {"compiled", "kernels", "none"}
        How operations are fused.

    Returns
    -------
    list of ElementwiseOp
        In order of execution within a layer; sampling last.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> [(x.op, x.width, x.count) for x in elementwise_ops(load_model("llama-3.1-8b"))][:2]
    [('rms_norm_fused_add', 4096, 65), ('rotary', 5120, 32)]
    >>> narrow = load_model("llama-3.1-8b").model_copy(update={"activations": "fp8"})
    >>> [(x.op, x.count) for x in elementwise_ops(narrow, fusion="compiled")][:3]
    [('norm_quant_compiled', 64), ('norm_compiled', 1), ('rotary_compiled', 32)]
    """
    check_tp(model, tp)
    makers = {"compiled": _compiled_ops, "kernels": _kernel_ops, "none": _eager_ops}
    return [x for x in makers[fusion](model, tp, greedy) if x.count and x.width]


def _kernel_ops(model: ModelSpec, tp: int, greedy: bool) -> list[ElementwiseOp]:
    found = [ElementwiseOp("rms_norm_fused_add", model.hidden, _norms(model), name="norm")]
    found += [ElementwiseOp("rotary", *part) for part in _attention_parts(model, tp)]
    op = "silu_and_mul" if model.gated else "rotary"
    found += [ElementwiseOp(op, w, n, name="activation") for w, n in _activations(model, tp)]
    quant = "quant_fp8_per_token"
    found += [ElementwiseOp(quant, g.k, g.count, name="quantise") for g in _quantised(model, tp)]
    return found + _sampling(model, "argmax" if greedy else "softmax_sample")


def _compiled_ops(model: ModelSpec, tp: int, _: bool) -> list[ElementwiseOp]:
    quantised = _quantised(model, tp)
    joined = min(sum(g.count for g in quantised if g.name in AFTER_NORM), _norms(model))
    found = [
        ElementwiseOp("norm_quant_compiled", model.hidden, joined, name="norm"),
        ElementwiseOp("norm_compiled", model.hidden, _norms(model) - joined, name="norm"),
    ]
    ops = {"rotary": "rotary_compiled", "qk_norm": "qk_norm_compiled"}
    for width, count, tokens, name in _attention_parts(model, tp):
        op = ops.get(name, "qk_norm_compiled")
        found.append(ElementwiseOp(op, width, count, tokens, name))
    found.append(_cache_write(model, tp))
    narrow = any(g.name in AFTER_ACTIVATION for g in quantised)
    op = "silu_quant_compiled" if narrow else "silu_compiled"
    op = op if model.gated else "rotary_compiled"
    found += [ElementwiseOp(op, w, n, name="activation") for w, n in _activations(model, tp)]
    alone = [g for g in quantised if g.name not in AFTER_NORM | AFTER_ACTIVATION]
    found += [ElementwiseOp("quant_compiled", g.k, g.count, name="quantise") for g in alone]
    return found + _sampling(model, "sample")


def _eager_ops(model: ModelSpec, tp: int, greedy: bool) -> list[ElementwiseOp]:
    """Return eager operations: rotary as 2 products, a sum and a copy; gates apart."""
    found = [ElementwiseOp("rms_norm_add_unfused", model.hidden, _norms(model), name="norm")]
    for width, count, tokens, name in _attention_parts(model, tp):
        if name == "rotary":
            found.append(ElementwiseOp("rotary", width, count, tokens, name))
            found.append(ElementwiseOp("add", width, 3 * count, tokens, name))
        else:
            found.append(ElementwiseOp("rms_norm_add_unfused", width, count, tokens, name))
    found.append(_cache_write(model, tp))
    for width, count in _activations(model, tp):
        found.append(ElementwiseOp("rotary", width, count, name="activation"))
        gates = count if model.gated else 0
        found.append(ElementwiseOp("add", width, gates, name="activation"))
    for gemm in _quantised(model, tp):
        found.append(ElementwiseOp("rotary", gemm.k, gemm.count, name="quantise"))
        found.append(ElementwiseOp("quant_fp8_per_token", gemm.k, gemm.count, name="quantise"))
    return found + _sampling(model, "argmax" if greedy else "softmax_sample")


def _norms(model: ModelSpec) -> int:
    return model.norms_per_layer * model.layers + model.final_norm


def _attention_parts(
    model: ModelSpec, tp: int
) -> list[tuple[int, int, Literal["all", "logits"], str]]:
    """Return (width, calls, rows, name) of what stands between the products of attention."""
    heads, kv = model.heads // tp, max(1, model.kv_heads // tp)
    found: list[tuple[int, int, Literal["all", "logits"], str]] = []
    layers, mla = model.layers, model.mla
    if mla:
        found.append((mla.q_lora_rank + mla.kv_lora_rank, layers, "all", "latent_norm"))
        width = (heads + 1) * mla.qk_rope_head_dim
    else:
        width = (heads + kv) * model.head_dim
    if model.qk_norm != "none":
        found.append((width, layers, "all", "qk_norm"))
    if model.rotary:
        found.append((width, layers, "all", "rotary"))
    return found


def _cache_write(model: ModelSpec, tp: int) -> ElementwiseOp:
    """Return the write of keys and values into the cache, none for an encoder."""
    mla, kv = model.mla, max(1, model.kv_heads // tp)
    width = mla.kv_lora_rank + mla.qk_rope_head_dim if mla else 2 * kv * model.head_dim
    layers = model.layers if model.kind == "decoder" else 0
    op = "kv_write_fp8" if precision(model.kv).bits <= 8 else "kv_write"
    return ElementwiseOp(op, width, layers, name="cache")


def _activations(model: ModelSpec, tp: int) -> list[tuple[int, int]]:
    """Return (width, calls) of the activations of dense blocks and shared experts."""
    widths = [(model.intermediate, model.dense_layer_count)]
    if model.moe:
        widths.append((model.moe.shared_intermediate, model.expert_layer_count))
    return [(split(width, tp), count) for width, count in widths]


def _quantised(model: ModelSpec, tp: int) -> list[LinearLayer]:
    """Return the GEMMs whose input is quantised: all where activations are narrow."""
    if unit(model.activations) in WIDE:
        return []
    return [g for g in linear_layers(model, tp) if g.stored and g.name not in UNQUANTISED]


def _sampling(model: ModelSpec, op: str) -> list[ElementwiseOp]:
    return [ElementwiseOp(op, model.vocab, 1, "logits", "sample")] if model.lm_head else []
