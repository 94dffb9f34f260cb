"""Element-wise kernels of one forward pass: norms, rotary, activations, sampling."""

from dataclasses import dataclass
from typing import Literal

from workloads.layers import check_tp, linear_layers, split
from workloads.models import ModelSpec
from workloads.precision import WIDE, unit

__all__ = ["ElementwiseOp", "elementwise_ops"]


@dataclass(frozen=True, slots=True)
class ElementwiseOp:
    """`count` calls of a kernel over (tokens, width) elements.

    Parameters
    ----------
    op : str
        Kernel whose traffic per element it has: rms_norm_fused_add (4 passes over a 16-bit
        element), silu_and_mul (3), rotary (2, in place), quant_fp8_per_token, argmax,
        softmax_sample.
    width : int
        Elements of a token: the residual for norms, the output for gated activations, query
        plus key for rotary, the vocabulary for sampling [element].
    count : int
        Calls in one forward pass.
    tokens : {"all", "logits"}
        Rows: every token of the step, or those whose logits are needed.
    name : str
        What it is in the model: norm, qk_norm, latent_norm, rotary, activation, quantise, sample.
    """

    op: str
    width: int
    count: int
    tokens: Literal["all", "logits"] = "all"
    name: str = ""


def elementwise_ops(model: ModelSpec, tp: int = 1, greedy: bool = False) -> list[ElementwiseOp]:
    """Return the element-wise kernels of one forward pass on one rank.

    Every norm of the residual counts as one fused with the addition before it. Norms of q and k
    and of MLA latents, and activations without a gate, read and write each element once, as
    rotary does. Activations of routed experts belong to the expert kernel, and routing too.
    ``quant_fp8_per_token`` stands before every GEMM whose input is 8 bits or less wide.

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
        In order of execution within a layer; sampling last.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> [(x.op, x.width, x.count) for x in elementwise_ops(load_model("llama-3.1-8b"))][:2]
    [('rms_norm_fused_add', 4096, 65), ('rotary', 5120, 32)]
    """
    check_tp(model, tp)
    norms = model.norms_per_layer * model.layers + model.final_norm
    found = [ElementwiseOp("rms_norm_fused_add", model.hidden, norms, name="norm")]
    found += _attention_ops(model, tp)
    found += _activation_ops(model, tp)
    found += _quantise_ops(model, tp)
    if model.lm_head:
        op = "argmax" if greedy else "softmax_sample"
        found.append(ElementwiseOp(op, model.vocab, 1, "logits", "sample"))
    return [x for x in found if x.count and x.width]


def _attention_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    heads, kv = model.heads // tp, max(1, model.kv_heads // tp)
    found, layers, mla = [], model.layers, model.mla
    if mla:
        ranks = mla.q_lora_rank + mla.kv_lora_rank
        found.append(ElementwiseOp("rotary", ranks, layers, name="latent_norm"))
        width = (heads + 1) * mla.qk_rope_head_dim
    else:
        width = (heads + kv) * model.head_dim
    if model.qk_norm != "none":
        found.append(ElementwiseOp("rotary", width, layers, name="qk_norm"))
    if model.rotary:
        found.append(ElementwiseOp("rotary", width, layers, name="rotary"))
    return found


def _activation_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    op = "silu_and_mul" if model.gated else "rotary"
    widths = [(model.intermediate, model.dense_layer_count)]
    if model.moe:
        widths.append((model.moe.shared_intermediate, model.expert_layer_count))
    return [ElementwiseOp(op, split(w, tp), count, name="activation") for w, count in widths]


def _quantise_ops(model: ModelSpec, tp: int) -> list[ElementwiseOp]:
    """Return one quantisation per distinct GEMM input where activations are narrow."""
    if unit(model.activations) in WIDE:
        return []
    skip = {"router", "lm_head", "kv_b", "kv_a"}
    gemms = [g for g in linear_layers(model, tp) if g.stored and g.name not in skip]
    return [ElementwiseOp("quant_fp8_per_token", g.k, g.count, name="quantise") for g in gemms]
