"""FLOPs of a model, and by one import all its other counts (layers, parameters, bytes).

Pure functions, vectorised over numpy arrays. One multiply-add counts as 2 FLOPs. Per-step
functions take arrays with one entry per request: `query` tokens run in this step and `past`
tokens already cached. With `tp` or `ep` above 1 every count is that of one rank.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from workloads.elementwise import ElementwiseOp, elementwise_ops
from workloads.experts import distinct_experts, inclusion_probabilities, zipf_popularity
from workloads.layers import (
    AttentionGroup,
    ExpertLayer,
    LinearLayer,
    attention_layers,
    expert_layers,
    linear_layers,
)
from workloads.models import ModelSpec, Vision
from workloads.parameters import ParameterCounts, parameters
from workloads.traffic import (
    StepBytes,
    activation_bytes,
    kv_bytes,
    kv_bytes_per_token,
    kv_read_bytes,
    step_bytes,
    weight_bytes,
    weight_bytes_touched,
)

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
    "distinct_experts",
    "elementwise_ops",
    "expert_layers",
    "inclusion_probabilities",
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
    "zipf_popularity",
]

Array: TypeAlias = npt.NDArray[np.float64]
Phase = Literal["prefill", "decode"]


def linear_flops_per_token(model: ModelSpec, tp: int = 1, phase: Phase = "decode") -> float:
    """Return FLOPs of all GEMMs but lm_head for one token, routed experts included [FLOP].

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Tensor-parallel ranks.
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
    sees (past + i - 1) mod window + 1; without causality it sees all of past + query, at most
    `window` (edges of a two-sided window are not cut).

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
        Tensor-parallel ranks.

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
    q, p = np.asarray(query, dtype=np.float64), np.asarray(past, dtype=np.float64)
    total = np.zeros(np.broadcast(q, p).shape)
    for g in attention_layers(model, tp):
        keys = attended_keys(q, p, g.reach, g.chunked, g.causal)
        per_key = np.where(q == 1, _flops_per_key(g, "decode"), _flops_per_key(g, "prefill"))
        total = total + g.count * (keys * per_key + _score_flops(g, q, p))
    return np.asarray(total)


def _score_flops(group: AttentionGroup, query: Array, past: Array) -> Array | float:
    """Return FLOPs of picking keys in sparse attention: every head scores every block."""
    if not group.budget:
        return 0.0
    return attended_keys(query, past) / group.index.block * 2.0 * group.index.products


def _flops_per_key(group: AttentionGroup, phase: Phase) -> float:
    heads, _, dim, value = group.shape(phase)
    return 2.0 * heads * (dim + value)


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

    MLA expands the latents of all keys, cached ones too, for every prompt chunk (kv_b).

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    query, past : array_like, shape (requests,)
        New and cached tokens of each request.
    logits : float, optional
        Tokens whose logits are computed; one per request if left out.
    tp : int
        Tensor-parallel ranks.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> step_flops(load_model("llama-3.1-8b"), query=[1, 1], past=[99, 99]).total / 1e9
    30.123491328
    """
    q = np.atleast_1d(np.asarray(query, dtype=np.float64))
    p = np.broadcast_to(np.asarray(past, dtype=np.float64), q.shape)
    decoding = q == 1
    linear = float(decoding.sum()) * linear_flops_per_token(model, tp)
    linear += float(q[~decoding].sum()) * linear_flops_per_token(model, tp, "prefill")
    expand = sum(g.elements for g in linear_layers(model, tp) if g.tokens == "prefill")
    linear += 2.0 * expand * float(p[~decoding].sum())
    rows = float(q.size) if logits is None else logits
    attention = float(attention_flops(model, q, p, tp).sum())
    return StepFlops(linear, attention, rows * lm_head_flops(model, tp))


def vision_flops(vision: Vision, images: npt.ArrayLike) -> Array:
    """Return FLOPs of the encoder and projector for each number of images [FLOP].

    Every patch passes all blocks and sees all patches of its image; the projector runs on the
    tokens that the language model sees.
    """
    width = vision.hidden
    mlp = (3 if vision.gated else 2) * width * vision.intermediate
    linear = 2.0 * vision.patches * vision.layers * (4 * width**2 + mlp)
    attention = 4.0 * vision.patches**2 * width * vision.layers
    embed = 2.0 * vision.patches * 3 * vision.patch**2 * width
    projector = 2.0 * vision.tokens * vision.projector
    return np.asarray(images, np.float64) * (linear + attention + embed + projector)
