"""FLOPs, bytes and parameters of a model: pure functions, vectorised over numpy arrays.

One multiply-add counts as 2 FLOPs. Per-step functions take arrays with one entry per request:
`query` tokens run in this step and `past` tokens already cached.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workloads.experts import distinct_experts
from workloads.layers import (
    AttentionGroup,
    ElementwiseOp,
    ExpertLayer,
    LinearLayer,
    attention_layers,
    elementwise_ops,
    expert_layers,
    linear_layers,
)
from workloads.models import ModelSpec, Vision
from workloads.precision import precision

__all__ = [
    "AttentionGroup",
    "ElementwiseOp",
    "ExpertLayer",
    "LinearLayer",
    "ParameterCounts",
    "StepBytes",
    "StepFlops",
    "activation_bytes",
    "attended_keys",
    "attention_flops",
    "attention_layers",
    "elementwise_ops",
    "expert_layers",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_read_bytes",
    "linear_flops_per_token",
    "linear_layers",
    "lm_head_flops",
    "parameters",
    "step_bytes",
    "step_flops",
    "vision_flops",
    "weight_bytes",
    "weight_bytes_touched",
]

Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model [parameter].

    Parameters
    ----------
    total : int
        All that are stored; a tied embedding counts once.
    active : int
        Those one token uses: `top_k` experts instead of all.
    embedding : int
        Rows of the input embedding and of a position table.
    lm_head : int
        The output matrix; 0 if it is the embedding.
    linear, experts, other : int
        Dense GEMM weights, routed experts, and norms, biases, sinks and the like.
    vision : int
        Image encoder and projector.
    """

    total: int
    active: int
    embedding: int
    lm_head: int
    linear: int
    experts: int
    other: int
    vision: int

    @property
    def active_without_input(self) -> int:
        """Active parameters without an untied input embedding, as some publishers count."""
        return self.active - (self.embedding if self.lm_head else 0)


def parameters(model: ModelSpec) -> ParameterCounts:
    """Return the parameter counts of a model, exact from its shapes.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> parameters(load_model("llama-3.1-8b")).total
    8030261248
    """
    gemms = [g for g in linear_layers(model) if g.stored]
    linear = sum(g.elements for g in gemms if g.name != "lm_head")
    embedding = (model.vocab + model.learned_positions) * model.hidden
    head = 0 if model.tied_embeddings or not model.lm_head else model.vocab * model.hidden
    vision = _vision_parameters(model.vision) if model.vision else 0
    blocks = expert_layers(model)
    experts = sum(x.count * x.experts * _expert_size(model, x) for x in blocks)
    idle = sum(x.count * (x.experts - x.top_k) * _expert_size(model, x) for x in blocks)
    other = _norms(model) + _biases(model) + model.extra_parameters
    total = linear + experts + embedding + head + other + vision
    return ParameterCounts(total, total - idle, embedding, head, linear, experts, other, vision)


def _expert_size(model: ModelSpec, block: ExpertLayer) -> int:
    """Return parameters of one expert in one layer, biases included."""
    biased = bool(model.moe and model.moe.expert_bias)
    width = (2 if model.gated else 1) * block.intermediate + block.hidden
    return block.expert_elements + biased * width


def _norms(model: ModelSpec) -> int:
    parts = 1 + model.norm_bias
    whole = (model.norms_per_layer * model.layers + model.final_norm) * model.hidden * parts
    if model.mla:
        return whole + model.layers * (model.mla.q_lora_rank + model.mla.kv_lora_rank)
    per_layer = {
        "none": 0,
        "head": 2 * model.head_dim,
        "full": (model.heads + model.kv_heads) * model.head_dim,
    }[model.qk_norm]
    return whole + model.layers * per_layer


def _biases(model: ModelSpec) -> int:
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    mlp = (2 if model.gated else 1) * model.intermediate + model.hidden
    per_layer = model.qkv_bias * qkv + model.o_bias * model.hidden + model.sinks * model.heads
    found = model.layers * per_layer + model.mlp_bias * mlp * model.dense_layer_count
    if model.moe:
        router = model.moe.router_bias * model.moe.experts
        found += model.expert_layer_count * (router + model.moe.shared_gate * model.hidden)
    return found


def linear_flops_per_token(model: ModelSpec, tp: int = 1, phase: str = "decode") -> float:
    """Return FLOPs of all GEMMs but lm_head for one token, routed experts included [FLOP].

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Ranks; the count is that of one rank.
    phase : {"decode", "prefill"}
        Only MLA differs: absorbed projections for decoding, kv_b for prompts (new tokens).

    Examples
    --------
    >>> from workloads.models import load_model
    >>> linear_flops_per_token(load_model("llama-3.1-8b")) / 1e9
    13.958643712
    """
    dense = sum(g.elements for g in linear_layers(model, tp) if g.tokens in {"all", phase})
    routed = sum(x.count * x.top_k * x.expert_elements for x in expert_layers(model, tp))
    return 2.0 * (dense + routed)


def lm_head_flops(model: ModelSpec, tp: int = 1) -> float:
    """Return FLOPs of the logits of one token [FLOP]."""
    return 2.0 * sum(g.elements for g in linear_layers(model, tp) if g.tokens == "logits")


def attended_keys(
    query: npt.ArrayLike,
    past: npt.ArrayLike,
    window: int | None = None,
    chunked: bool = False,
    causal: bool = True,
) -> Array:
    """Return the keys that `query` new tokens after `past` cached ones look at, summed.

    Token i of the query (from 1) sees past + i keys, at most `window`; in chunked attention it
    sees (past + i - 1) mod window + 1; without causality it sees all of past + query.

    Parameters
    ----------
    query, past : array_like
        Tokens of each request, any common shape.
    window : int, optional
        Keys seen at most.
    chunked, causal : bool
        Kind of mask.

    Returns
    -------
    ndarray
        Query-key pairs.

    Examples
    --------
    >>> attended_keys([4, 1], [0, 99]).tolist(), float(attended_keys(4, 0, window=2))
    ([10.0, 100.0], 7.0)
    """
    q, p = np.asarray(query, dtype=np.float64), np.asarray(past, dtype=np.float64)
    if not causal:
        reach = p + q if window is None else np.minimum(p + q, window)
        return np.asarray(q * reach)
    total = _keys_up_to(p + q, window, chunked) - _keys_up_to(p, window, chunked)
    return np.asarray(total)


def _keys_up_to(tokens: Array, window: int | None, chunked: bool) -> Array:
    """Return keys seen by the first `tokens` tokens of a sequence together."""
    if window is None:
        return np.asarray(tokens * (tokens + 1) / 2)
    if chunked:
        whole, rest = np.divmod(tokens, window)
        return np.asarray(whole * window * (window + 1) / 2 + rest * (rest + 1) / 2)
    head = np.minimum(tokens, window)
    return np.asarray(head * (head + 1) / 2 + (tokens - head) * window)


def attention_flops(
    model: ModelSpec, query: npt.ArrayLike, past: npt.ArrayLike, tp: int = 1
) -> Array:
    """Return FLOPs of the scores and of the weighted sum over all layers [FLOP].

    2 x heads x (head_dim + value_dim) for each query-key pair; the masked half is not counted.
    A query of one token counts in MLA's absorbed form.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    query, past : array_like
        New and cached tokens of each request, any common shape.
    tp : int
        Ranks; the count is that of one rank.

    Returns
    -------
    ndarray
        FLOPs, in the common shape.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> float(attention_flops(load_model("llama-3.1-8b"), 1, 999)) / 1e9
    0.524288
    """
    total = np.zeros(np.broadcast(np.asarray(query), np.asarray(past)).shape)
    for g in attention_layers(model, tp):
        keys = attended_keys(query, past, g.window, g.chunked, g.causal)
        costs = []
        for phase in ("decode", "prefill"):
            heads, _, dim, value = g.shape("decode" if phase == "decode" else "prefill")
            costs.append(2.0 * heads * (dim + value))
        per_key = np.where(np.asarray(query) == 1, *costs)
        total = total + g.count * keys * per_key
    return np.asarray(total)


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one step on one rank [FLOP]."""

    linear: float
    attention: float
    lm_head: float

    @property
    def total(self) -> float:
        """Sum of all three [FLOP]."""
        return self.linear + self.attention + self.lm_head


def step_flops(
    model: ModelSpec,
    query: npt.ArrayLike,
    past: npt.ArrayLike,
    logits: float | None = None,
    tp: int = 1,
) -> StepFlops:
    """Return the FLOPs of one step over a batch.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    query, past : array_like, shape (requests,)
        New and cached tokens of each request.
    logits : float, optional
        Tokens whose logits are computed; one per request if left out.
    tp : int
        Ranks; the count is that of one rank.
    """
    q = np.atleast_1d(np.asarray(query, dtype=np.float64))
    p = np.broadcast_to(np.asarray(past, dtype=np.float64), q.shape)
    single = float(np.count_nonzero(q == 1))
    linear = single * linear_flops_per_token(model, tp)
    linear += (float(q.sum()) - single) * linear_flops_per_token(model, tp, "prefill")
    rows = float(q.size) if logits is None else logits
    attention = float(attention_flops(model, q, p, tp).sum())
    return StepFlops(linear, attention, rows * lm_head_flops(model, tp))


def kv_bytes_per_token(model: ModelSpec, kv: str | None = None, tp: int = 1) -> float:
    """Return bytes that one more token takes in the KV cache over all layers of a rank [byte].

    MHA, GQA, MQA: layers x 2 x kv_heads x head_dim; MLA: layers x (kv_lora_rank + rope_dim).
    Encoders keep none.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> kv_bytes_per_token(load_model("llama-3.1-8b"))
    131072.0
    """
    if model.kind == "encoder":
        return 0.0
    element = precision(kv or model.kv).bytes
    return element * sum(g.count * g.kv_width for g in attention_layers(model, tp))


def kv_bytes(model: ModelSpec, tokens: npt.ArrayLike, kv: str | None = None, tp: int = 1) -> Array:
    """Return bytes that sequences of `tokens` keep cached; local layers keep a window [byte]."""
    return _kv(model, tokens, kv, tp, model.kind == "decoder")


def kv_read_bytes(
    model: ModelSpec, context: npt.ArrayLike, kv: str | None = None, tp: int = 1
) -> Array:
    """Return bytes read from the cache to decode one token at each `context` length [byte].

    Examples
    --------
    >>> from workloads.models import load_model
    >>> kv_read_bytes(load_model("llama-3.1-8b"), [1000, 2000]).tolist()
    [131072000.0, 262144000.0]
    """
    return _kv(model, context, kv, tp, model.kind == "decoder")


def _kv(model: ModelSpec, tokens: npt.ArrayLike, kv: str | None, tp: int, cached: bool) -> Array:
    t = np.asarray(tokens, dtype=np.float64)
    total, element = np.zeros(t.shape), precision(kv or model.kv).bytes
    for g in attention_layers(model, tp) if cached else []:
        seen = t if g.window is None else np.minimum(t, g.window)
        total = total + seen * g.count * g.kv_width * element
    return np.asarray(total)


def weight_bytes(model: ModelSpec, tp: int = 1, ep: int = 1) -> float:
    """Return bytes of all weights that one rank holds [byte].

    Linear weights and experts in their own formats; embedding, lm_head, router, norms, biases
    in ``model.dtype``. Embedding and lm_head are split over ranks, norms are copied.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> weight_bytes(load_model("llama-3.1-8b")) / 1e9
    16.060522496
    """
    experts = sum(
        x.count * x.experts * _expert_bytes(model, x) for x in expert_layers(model, tp, ep)
    )
    embedding = model.vocab * model.hidden / tp * precision(model.dtype).bytes
    return _dense_bytes(model, tp) + experts + (0.0 if model.tied_embeddings else embedding)


def _linear_bytes(model: ModelSpec, gemm: LinearLayer) -> float:
    """Return bytes of one GEMM's weights as a kernel reads them, zeros left out if it can."""
    dense = gemm.elements * precision(gemm.weights).bytes
    sparsity = model.sparsity
    if not sparsity or not sparsity.kernel or gemm.name in {"router", "lm_head"}:
        return dense
    index_bits = 2.0 if sparsity.kind == "2:4" else 16.0
    kept = (1 - sparsity.share) * gemm.elements
    return min(dense, kept * (precision(gemm.weights).bytes + index_bits / 8))


def _expert_bytes(model: ModelSpec, block: ExpertLayer) -> float:
    biases = _expert_size(model, block) - block.expert_elements
    return (
        block.expert_elements * precision(block.weights).bytes
        + biases * precision(model.dtype).bytes
    )


def _dense_bytes(model: ModelSpec, tp: int) -> float:
    """Return bytes of what every step reads: GEMM weights, lm_head, norms, biases, vision out."""
    gemms = sum(_linear_bytes(model, g) for g in linear_layers(model, tp) if g.stored)
    small = _norms(model) + _biases(model) + model.extra_parameters
    small += model.learned_positions * model.hidden
    vision = _vision_parameters(model.vision) if model.vision else 0
    return gemms + (small + vision) * precision(model.dtype).bytes


def weight_bytes_touched(
    model: ModelSpec, tokens: npt.ArrayLike, tp: int = 1, ep: int = 1, exponent: float = 0.0
) -> Array:
    """Return bytes of weights that a step of `tokens` tokens must read [byte].

    All dense weights once, the rows of the embedding that are looked up, and the expected
    number of distinct experts.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tokens : array_like
        Tokens of the step, any shape; 0 reads nothing.
    tp, ep : int
        Tensor- and expert-parallel ranks.
    exponent : float
        Zipf exponent of the experts' popularity; 0 is uniform.

    Returns
    -------
    ndarray
        Bytes, in the shape of `tokens`.
    """
    t = np.asarray(tokens, dtype=np.float64)
    vision = _vision_parameters(model.vision) if model.vision else 0
    fixed = _dense_bytes(model, tp) - vision * precision(model.dtype).bytes
    rows = t * model.hidden * precision(model.dtype).bytes
    total = fixed * (t > 0) + (rows if model.vocab else 0.0)
    for block, moe in zip(expert_layers(model, tp, ep), [model.moe], strict=False):
        if moe:
            touched = distinct_experts(moe.experts, moe.top_k, t, exponent) / ep
            total = total + block.count * touched * _expert_bytes(model, block)
    return np.asarray(total)


def activation_bytes(model: ModelSpec, tokens: npt.ArrayLike, tp: int = 1) -> Array:
    """Return bytes that kernels exchange through memory for `tokens` tokens [byte].

    Input and output of every GEMM once, in the format of activations; outputs in ``dtype``.
    """
    t = np.asarray(tokens, dtype=np.float64)
    read, wide = precision(model.activations).bytes, precision(model.dtype).bytes
    per_token = 0.0
    for g in linear_layers(model, tp):
        if g.stored and g.tokens != "logits":
            per_token += g.count * (g.k * read + g.n * wide)
    for x in expert_layers(model, tp):
        inner = (3 if x.gated else 2) * x.intermediate
        per_token += x.count * x.top_k * (x.hidden * (read + wide) + inner * wide)
    return np.asarray(t * per_token)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one step has to move on one rank [byte]."""

    weights: float
    kv_read: float
    kv_write: float
    activations: float

    @property
    def total(self) -> float:
        """Weights and KV, what MBU counts; activations may stay on chip [byte]."""
        return self.weights + self.kv_read + self.kv_write


def step_bytes(
    model: ModelSpec,
    query: npt.ArrayLike,
    past: npt.ArrayLike,
    tp: int = 1,
    ep: int = 1,
    exponent: float = 0.0,
) -> StepBytes:
    """Return the bytes of one step over a batch.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    query, past : array_like, shape (requests,)
        New and cached tokens of each request. Keys of a request are read once for its query.
    tp, ep : int
        Tensor- and expert-parallel ranks.
    exponent : float
        Zipf exponent of the experts' popularity; 0 is uniform.
    """
    q = np.atleast_1d(np.asarray(query, dtype=np.float64))
    p = np.broadcast_to(np.asarray(past, dtype=np.float64), q.shape)
    tokens = float(q.sum())
    return StepBytes(
        float(weight_bytes_touched(model, tokens, tp, ep, exponent)),
        float(kv_read_bytes(model, p + q, tp=tp).sum()),
        tokens * kv_bytes_per_token(model, tp=tp),
        float(activation_bytes(model, tokens, tp)),
    )


def _vision_parameters(vision: Vision) -> int:
    mlp = (3 if vision.gated else 2) * vision.hidden * vision.intermediate
    block = 4 * vision.hidden**2 + mlp + 2 * vision.hidden
    patches = 3 * vision.patch**2 * vision.hidden + vision.patches * vision.hidden
    return vision.layers * block + patches + vision.projector


def vision_flops(vision: Vision, images: npt.ArrayLike) -> Array:
    """Return FLOPs of the encoder and projector for each number of images [FLOP]."""
    mlp = (3 if vision.gated else 2) * vision.hidden * vision.intermediate
    linear = 2.0 * vision.patches * vision.layers * (4 * vision.hidden**2 + mlp)
    attention = 4.0 * vision.patches**2 * vision.hidden * vision.layers
    embed = 2.0 * vision.patches * 3 * vision.patch**2 * vision.hidden
    projector = 2.0 * vision.tokens * vision.projector
    one = linear + attention + embed + projector
    return np.asarray(np.asarray(images, dtype=np.float64) * one)
