"""Bytes of a model: weights held and read, keys and values kept and read, activations.

Vectorised over numpy arrays. With `tp` or `ep` above 1 every count is that of one rank.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workloads.experts import distinct_experts
from workloads.layers import (
    AttentionGroup,
    ExpertLayer,
    LinearLayer,
    attention_layers,
    expert_layers,
    linear_layers,
)
from workloads.models import ModelSpec
from workloads.parameters import expert_parameters, small_parameters, vision_parameters
from workloads.precision import precision

__all__ = [
    "StepBytes",
    "activation_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_read_bytes",
    "linear_bytes",
    "step_bytes",
    "weight_bytes",
    "weight_bytes_touched",
]

Array: TypeAlias = npt.NDArray[np.float64]


def kv_bytes_per_token(model: ModelSpec, kv: str | None = None, tp: int = 1) -> float:
    """Return bytes that one more token takes in the KV cache over all layers of a rank [byte].

    MHA, GQA, MQA: layers x 2 x kv_heads x head_dim; MLA: layers x (kv_lora_rank + rope_dim),
    whole on every rank. Local layers count like global ones (`kv_bytes` applies their window).
    Encoders keep none.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    kv : str, optional
        Number format of the cache; the model's own if left out.
    tp : int
        Tensor-parallel ranks.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> kv_bytes_per_token(load_model("llama-3.1-8b"))
    131072.0
    """
    return sum(count * width for count, width, _ in _kv_rows(model, kv, tp))


def kv_bytes(model: ModelSpec, tokens: npt.ArrayLike, kv: str | None = None, tp: int = 1) -> Array:
    """Return bytes that sequences of `tokens` keep cached; local layers keep a window [byte].

    Examples
    --------
    >>> from workloads.models import load_model
    >>> float(kv_bytes(load_model("llama-3.1-8b"), 100))
    13107200.0
    """
    t = np.asarray(tokens, dtype=np.float64)
    total = np.zeros(t.shape)
    for count, width, group in _kv_rows(model, kv, tp):
        kept = t if group.kept is None else np.minimum(t, group.kept)
        total = total + kept * count * width
    return np.asarray(total)


def kv_read_bytes(
    model: ModelSpec,
    context: npt.ArrayLike,
    query: npt.ArrayLike = 1,
    kv: str | None = None,
    tp: int = 1,
) -> Array:
    """Return bytes of keys and values that `query` last tokens of a `context` read [byte].

    Keys of a request are read once for its whole query. A sliding window of w reads
    min(context, w + query - 1) of them; a chunk reads from the start of the first token's chunk.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    context : array_like
        Tokens of each sequence, the query included.
    query : array_like
        Tokens that run now; 1 for decoding.
    kv : str, optional
        Number format of the cache.
    tp : int
        Tensor-parallel ranks.

    Returns
    -------
    ndarray
        Bytes, in the common shape.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> kv_read_bytes(load_model("llama-3.1-8b"), [1000, 2000]).tolist()
    [131072000.0, 262144000.0]
    """
    t, q = np.broadcast_arrays(np.asarray(context, np.float64), np.asarray(query, np.float64))
    total = np.zeros(t.shape)
    element = precision(kv or model.kv).bytes
    for count, width, group in _kv_rows(model, kv, tp):
        index = group.index
        scored = t / index.block * index.width * element if group.budget else 0.0
        read = _keys_read(group, t, q) * (width - index.cached * element)
        total = total + count * (read + scored)
    return np.asarray(total)


def _keys_read(group: AttentionGroup, context: Array, query: Array) -> Array:
    """Return the keys that a query reads; each of its tokens may pick others, up to all."""
    if group.budget:
        return np.minimum(context, group.budget * query)
    if group.window is None:
        return context
    if group.chunked:
        start = np.floor(np.maximum(context - query, 0) / group.window) * group.window
        return np.asarray(context - start)
    return np.minimum(context, group.window + group.sinks + query - 1)


def _kv_rows(model: ModelSpec, kv: str | None, tp: int) -> list[tuple[int, float, AttentionGroup]]:
    """Return (layers, bytes of a token in one layer, group); nothing for an encoder."""
    element = precision(kv or model.kv).bytes
    groups = attention_layers(model, tp) if model.kind == "decoder" else []
    return [(g.count, g.kv_width * element, g) for g in groups]


def weight_bytes(model: ModelSpec, tp: int = 1, ep: int = 1) -> float:
    """Return bytes of all weights that one rank holds [byte].

    Linear weights and experts in their own formats; embedding, lm_head, router, norms, biases
    and the image encoder in ``model.dtype``. Embedding and lm_head are split over ranks, the
    small parts and the image encoder are copied.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp, ep : int
        Tensor- and expert-parallel ranks.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> weight_bytes(load_model("llama-3.1-8b")) / 1e9
    16.060522496
    """
    blocks = expert_layers(model, tp, ep)
    experts = sum(x.count * x.experts * _expert_bytes(model, x) for x in blocks)
    rows = 0 if model.tied_embeddings and model.lm_head else model.vocab / tp
    rows += model.learned_positions
    wide = precision(model.dtype).bytes
    vision = vision_parameters(model.vision) * wide if model.vision else 0.0
    return _dense_bytes(model, tp) + experts + rows * model.hidden * wide + vision


def linear_bytes(model: ModelSpec, gemm: LinearLayer) -> float:
    """Return bytes of one GEMM's weights as stored and read.

    A sparse kernel stores what is not 0 with its place: 2 bits each in 2:4, 16 bits else.
    """
    element = precision(gemm.weights).bytes
    sparsity = model.sparsity
    if not sparsity or not sparsity.kernel or gemm.name in {"router", "lm_head"}:
        return gemm.elements * element
    place = (2.0 if sparsity.kind == "2:4" else 16.0) / 8
    return gemm.elements * min(element, (1 - sparsity.share) * (element + place))


def _expert_bytes(model: ModelSpec, block: ExpertLayer) -> float:
    biases = expert_parameters(model, block) - block.expert_elements
    stored = block.expert_elements * precision(block.weights).bytes
    return stored + biases * precision(model.dtype).bytes


def _dense_bytes(model: ModelSpec, tp: int) -> float:
    """Return bytes that every step reads: GEMM weights, lm_head, norms and biases."""
    gemms = sum(linear_bytes(model, g) for g in linear_layers(model, tp) if g.stored)
    return gemms + small_parameters(model) * precision(model.dtype).bytes


def weight_bytes_touched(
    model: ModelSpec, tokens: npt.ArrayLike, tp: int = 1, ep: int = 1, exponent: float = 0.0
) -> Array:
    """Return bytes of weights that a step of `tokens` tokens must read [byte].

    All dense weights once, the rows of the embedding that are looked up, and the expected
    number of distinct experts (the mean over expert-parallel ranks).

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

    Examples
    --------
    >>> from workloads.models import load_model
    >>> (weight_bytes_touched(load_model("qwen3-30b-a3b"), [1, 64, 4096]) / 1e9).round(1).tolist()
    [6.1, 59.5, 60.5]
    """
    t = np.asarray(tokens, dtype=np.float64)
    tables = bool(model.vocab) + bool(model.learned_positions)
    row = tables * model.hidden * precision(model.dtype).bytes
    total = _dense_bytes(model, tp) * (t > 0) + row * t
    for block in expert_layers(model, tp, ep):
        touched = distinct_experts(block.experts * ep, block.top_k, t, exponent) / ep
        total = total + block.count * touched * _expert_bytes(model, block)
    return np.asarray(total)


def activation_bytes(model: ModelSpec, tokens: npt.ArrayLike, tp: int = 1) -> Array:
    """Return bytes that GEMMs exchange through memory for `tokens` tokens [byte].

    Input and output of every GEMM once: inputs in the format of activations, outputs in
    ``model.dtype``. Attention and element-wise kernels are not in it.
    """
    t = np.asarray(tokens, dtype=np.float64)
    read, wide = precision(model.activations).bytes, precision(model.dtype).bytes
    gemms = [g for g in linear_layers(model, tp) if g.stored and g.tokens != "logits"]
    per_token = sum(g.count * (g.k * read + g.n * wide) for g in gemms)
    for x in expert_layers(model, tp):
        inner = x.intermediate * (read + (2 if x.gated else 1) * wide)
        per_token += x.count * x.top_k * (x.hidden * (read + wide) + inner)
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
        New and cached tokens of each request.
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
        float(kv_read_bytes(model, p + q, q, tp=tp).sum()),
        tokens * kv_bytes_per_token(model, tp=tp),
        float(activation_bytes(model, tokens, tp)),
    )
