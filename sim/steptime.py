"""Step time: kernels of the hardware joined with the shapes of a model, tabulated once.

An engine step runs a batch of tokens through the model once; its GPU time is the sum of its
kernels. Up to the largest captured CUDA graph a batch is padded to the next graph size. Tables
hold one rank of a tensor-parallel group; collectives are added by the caller's `communicate`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware.kernels import KernelModel
from hardware.kernels_mixed import HALF_BLOCK
from sim.core.layout import StepTables
from sim.engines import GpuExtras
from workloads.counts import (
    AttentionGroup,
    attention_layers,
    elementwise_ops,
    expert_layers,
    kv_bytes_per_token,
    linear_flops_per_token,
    linear_layers,
    lm_head_flops,
    weight_bytes_touched,
)
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = ["GRAPH_SIZES", "Batching", "StepTimeModel", "graph_sizes"]

Array = npt.NDArray[np.float64]
# Ops without a table of their own run as one that moves the same bytes per element.
ALIKE = {"rms_norm": "rotary", "act": "rotary"}
TYPICAL_CONTEXT = 2048.0  # where the extra of uneven contexts is read off [token]
CONTEXTS_PER_OCTAVE, CHUNKS_PER_OCTAVE, PASTS_PER_OCTAVE = 8, 8, 4


def graph_sizes(largest: int) -> npt.NDArray[np.int64]:
    """Return the batch sizes that vLLM captures: 1, 2, 4, then by 8 to 256, then by 16 [token]."""
    sizes = [1, 2, 4, *range(8, min(largest, 256) + 1, 8), *range(272, largest + 1, 16)]
    return np.array([s for s in sizes if s <= largest], dtype=np.int64)


GRAPH_SIZES = graph_sizes(512)


@dataclass(frozen=True)
class Batching:
    """Limits that the tables must cover.

    Parameters
    ----------
    max_tokens, max_seqs, longest : int
        Tokens and sequences of a step, tokens of a request.
    graphs : ndarray
        Captured batch sizes; empty = no CUDA graphs, no padding.
    """

    max_tokens: int
    max_seqs: int
    longest: int
    graphs: npt.NDArray[np.int64]

    def padded(self, tokens: Array) -> Array:
        """Return the rows that GEMMs really run: the next graph size, or the tokens themselves."""
        if self.graphs.size == 0:
            return tokens
        place = np.searchsorted(self.graphs, tokens)
        inside = place < self.graphs.size
        return np.where(inside, self.graphs[np.minimum(place, self.graphs.size - 1)], tokens)


def _octaves(most: float, per_octave: int) -> Array:
    """Return a log2 grid from 1 to at least `most`."""
    count = int(np.ceil(np.log2(max(most, 2.0)) * per_octave)) + 2
    return np.exp2(np.arange(count) / per_octave)


@dataclass(frozen=True)
class StepTimeModel:
    """GPU time of the steps of one rank.

    Parameters
    ----------
    kernels : KernelModel
        Kernel times of the accelerator.
    model : ModelSpec
        Architecture with its number formats.
    extras : GpuExtras
        GPU time of the engine beyond its kernel tables.
    tp, ep : int
        Tensor- and expert-parallel ranks.
    popularity : float
        Zipf exponent of the experts' popularity.
    communicate : callable, optional
        Tokens -> seconds of collectives of one step.
    """

    kernels: KernelModel
    model: ModelSpec
    extras: GpuExtras
    tp: int = 1
    ep: int = 1
    popularity: float = 0.0
    communicate: Callable[[Array], Array] | None = None

    def linear_s(self, tokens: Array) -> Array:
        """Return seconds of all kernels that work token by token, without the output head."""
        total = np.zeros_like(tokens)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "all":
                total += gemm.count * self.kernels.gemm(tokens, gemm.n, gemm.k, gemm.dtype)
        return self._elementwise_s(total, tokens)

    def experts_s(self, tokens: Array, rows: Array) -> Array:
        """Return seconds of routed experts of `tokens`, run in a graph of `rows`.

        Rows that pad a graph are stale tokens with experts of their own, some of them new.
        """
        total = np.zeros_like(tokens)
        share = self.extras.padding_experts.value
        effective = tokens + share * (rows - tokens)
        for block in expert_layers(self.model, self.tp, self.ep):
            total += block.count * self.extras.expert_routing_per_layer.value
            total += block.count * self.kernels.moe(
                effective,
                block.experts,
                max(1, round(block.top_k / self.ep)),
                block.hidden,
                block.intermediate,
                block.dtype,
            )
        return total

    def _elementwise_s(self, total: Array, tokens: Array) -> Array:
        for op in elementwise_ops(self.model, self.tp):
            if op.tokens == "all":
                name = ALIKE.get(op.op, op.op)
                total += op.count * self.kernels.elementwise(name, tokens, op.width)
        return total + (self.communicate(tokens) if self.communicate else 0.0)

    def head_s(self, sequences: Array) -> Array:
        """Return seconds of output projection and sampling."""
        total = np.zeros_like(sequences)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "logits":
                total += gemm.count * self.kernels.gemm(sequences, gemm.n, gemm.k, gemm.dtype)
        for op in elementwise_ops(self.model, self.tp, greedy=True):
            if op.tokens == "logits":
                total += op.count * self.kernels.elementwise(op.op, sequences, op.width)
        return total

    def decode_attention_s(self, sequences: Array, context: Array) -> Array:
        """Return attention seconds of one token for each of `sequences` at a mean context."""
        total = np.zeros(np.broadcast(sequences, context).shape)
        for group in attention_layers(self.model, self.tp):
            heads, kv_heads, dim, _ = group.shape("decode")
            seen = np.minimum(context + 1.0, group.window or np.inf)
            total += group.count * self.kernels.attention_decode(
                sequences, seen, heads, kv_heads, dim
            )
        per_sequence = self.extras.sequence_per_layer.value * self.model.layers
        return total + per_sequence * sequences + self._absorbed_s(sequences)

    def uneven(self, sequences: Array) -> Array:
        """Return the relative extra of decode attention per unit of spread of its contexts."""
        total, even = np.zeros_like(sequences), np.zeros_like(sequences)
        for group in attention_layers(self.model, self.tp):
            heads, kv_heads, dim, _ = group.shape("decode")
            layout = (heads, kv_heads, dim)
            total += group.count * self.kernels.attention_mixed(
                sequences, TYPICAL_CONTEXT - HALF_BLOCK, 0.0, 0.0, *layout, spread=1.0
            )
            even += group.count * self.kernels.attention_decode(sequences, TYPICAL_CONTEXT, *layout)
        return np.maximum(total / even - 1.0, 0.0)

    def _absorbed_s(self, sequences: Array) -> Array:
        """Return seconds of the absorbed projections that MLA adds to decoding."""
        total = np.zeros_like(sequences)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "decode":
                n = gemm.n * gemm.batch
                total = total + gemm.count * self.kernels.gemm(sequences, n, gemm.k, gemm.dtype)
        return total

    def prefill_attention_s(self, chunk: Array, past: Array) -> Array:
        """Return attention seconds of a prompt chunk over its past."""
        total = np.zeros(np.broadcast(chunk, past).shape)
        for group in attention_layers(self.model, self.tp):
            total += group.count * self._prefill_group_s(group, chunk, past)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "prefill":
                rows = chunk + past
                total += gemm.count * self.kernels.gemm(rows, gemm.n, gemm.k, gemm.dtype)
        return total

    def _prefill_group_s(self, group: AttentionGroup, chunk: Array, past: Array) -> Array:
        heads, kv_heads, dim, _ = group.shape("prefill")
        seen = past
        if group.window:
            seen = np.minimum(past, np.maximum(group.window - chunk / 2.0, 0.0))
        return self.kernels.attention_prefill(chunk, seen, heads, kv_heads, dim)

    def flops_per_pair(self) -> float:
        """Return FLOPs of one query-key pair over all layers [FLOP]."""
        groups = attention_layers(self.model, self.tp)
        return sum(2.0 * g.count * g.heads * (g.head_dim + g.value_dim) for g in groups)

    def head_bytes(self) -> float:
        """Return bytes of the output projection's weights [byte]."""
        heads = [g for g in linear_layers(self.model, self.tp) if g.tokens == "logits"]
        return sum(g.n * g.k * g.count * precision(g.weights).bytes for g in heads)

    def _compute_share(self, rows: Array, seconds: Array) -> Array:
        """Return how compute-bound the token-wise kernels are: their share of attainable peak."""
        flops = linear_flops_per_token(self.model, self.tp) * rows
        rate = flops / np.maximum(seconds, 1e-12)
        return np.asarray(np.clip(rate / rate.max(), 0.0, 1.0))

    def tables(self, batching: Batching) -> StepTables:
        """Tabulate everything that a step needs.

        Returns
        -------
        StepTables
            Times in seconds; decode attention on (sequences, log2 context), prompt attention on
            (log2 chunk, log2 past).
        """
        tokens = np.arange(1.0, batching.max_tokens + 1.0)
        rows = batching.padded(tokens)
        unique, where = np.unique(rows, return_inverse=True)
        linear = self.linear_s(unique)[where] + self.experts_s(tokens, rows)
        sequences = np.arange(1.0, batching.max_seqs + 1.0)
        contexts = _octaves(batching.longest, CONTEXTS_PER_OCTAVE)
        chunks = _octaves(batching.max_tokens, CHUNKS_PER_OCTAVE)
        pasts = _octaves(batching.longest, PASTS_PER_OCTAVE)
        decode = self.decode_attention_s(sequences[:, None], contexts[None, :])
        prefill = self.prefill_attention_s(chunks[:, None], pasts[None, :] - 1.0)
        touched = weight_bytes_touched(self.model, tokens, self.tp, self.ep, self.popularity)
        counts = [
            linear_flops_per_token(self.model, self.tp),
            lm_head_flops(self.model, self.tp),
            self.flops_per_pair(),
            kv_bytes_per_token(self.model, tp=self.tp),
            0.0,
            HALF_BLOCK,
        ]
        grids = [0.0, CONTEXTS_PER_OCTAVE, 0.0, CHUNKS_PER_OCTAVE, 0.0, PASTS_PER_OCTAVE]
        return StepTables(
            linear_s=_from_zero(linear),
            head_s=_from_zero(self.head_s(sequences)),
            decode_s=np.vstack([np.zeros(contexts.size), decode]),
            prefill_s=np.ascontiguousarray(prefill),
            uneven=_from_zero(self.uneven(sequences)),
            bounds=np.array(grids, dtype=np.float64),
            linear_bytes=_from_zero(touched),
            compute_share=_from_zero(self._compute_share(rows, linear)),
            counts=np.array(counts),
        )


def _from_zero(values: Array) -> Array:
    """Return the values with a leading 0 for an empty step."""
    return np.concatenate([[0.0], values])
