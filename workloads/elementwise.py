"""Element-wise kernels of one forward pass: norms, rotary, activations, sampling."""

from dataclasses import dataclass
from typing import Literal

from workloads.layers import linear_layers, split
from workloads.models import ModelSpec
from workloads.precision import kernel_dtype

__all__ = ["ElementwiseOp", "elementwise_ops"]


@dataclass(frozen=True, slots=True)
class ElementwiseOp:
    """`count` calls of a kernel that reads and writes (tokens, width) elements."""

    op: str
    width: int
    count: int
    tokens: Literal["all", "logits"] = "all"


def elementwise_ops(model: ModelSpec, tp: int = 1, greedy: bool = False) -> list[ElementwiseOp]:
    """Return the element-wise kernels of one forward pass on one rank.

    Widths are those of the kernel tables: the residual for norms, the output for gated
    activations, query plus key for rotary. Activations of routed experts belong to the expert
    kernel. ``quant_fp8_per_token`` stands before every GEMM whose input is 8 bits or less wide.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Tensor-parallel ranks.
    greedy : bool
        argmax instead of softmax and a draw.

    Returns
    -------
    list of ElementwiseOp
        Names: rms_norm_fused_add, rms_norm, rotary, silu_and_mul, act, quant_fp8_per_token,
        argmax, softmax_sample.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> [(x.op, x.width, x.count) for x in elementwise_ops(load_model("llama-3.1-8b"))][:2]
    [('rms_norm_fused_add', 4096, 65), ('rotary', 5120, 32)]
    """
    norms = model.norms_per_layer * model.layers + model.final_norm
    found = [ElementwiseOp("rms_norm_fused_add", model.hidden, norms)]
    found += _attention_ops(model, tp)
    found += _activation_ops(model, tp)
    found += _quantise_ops(model, tp)
    if model.lm_head:
        op = "argmax" if greedy else "softmax_sample"
        found.append(ElementwiseOp(op, model.vocab, 1, "logits"))
    return [x for x in found if x.count and x.width]


def _attention_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    heads, kv = model.heads // tp, max(1, model.kv_heads // tp)
    found, layers, mla = [], model.layers, model.mla
    if mla:
        ranks = mla.q_lora_rank + mla.kv_lora_rank
        found.append(ElementwiseOp("rms_norm", ranks, layers))
        width = (heads + 1) * mla.qk_rope_head_dim
    else:
        width = (heads + kv) * model.head_dim
    if model.qk_norm != "none":
        found.append(ElementwiseOp("rms_norm", width, layers))
    if model.rotary:
        found.append(ElementwiseOp("rotary", width, layers))
    return found


def _activation_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    op = "silu_and_mul" if model.gated else "act"
    found = [ElementwiseOp(op, split(model.intermediate, tp), model.dense_layer_count)]
    if model.moe:
        width = split(model.moe.shared_intermediate, tp)
        found.append(ElementwiseOp(op, width, model.expert_layer_count))
    return found


def _quantise_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    """Return one quantisation per GEMM input where activations are narrow."""
    if kernel_dtype("bf16", model.activations) in {"fp64", "fp32", "tf32", "bf16", "fp16"}:
        return []
    skip = {"router", "lm_head", "kv_b"}
    gemms = [g for g in linear_layers(model, tp) if g.stored and g.name not in skip]
    return [ElementwiseOp("quant_fp8_per_token", g.k, g.count) for g in gemms]
