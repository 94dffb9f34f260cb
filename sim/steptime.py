"""Step time: kernels of the hardware joined with the shapes of a model, tabulated once.

An engine step runs a batch of tokens through the model once; its GPU time is the sum of its
kernels. Up to the largest captured CUDA graph a batch is padded to the next graph size. Tables
hold one rank of the replica with its collectives, by what all ranks together run: the tokens of a
step are shared by micro-batches and data-parallel ranks (see `sim.parallelism`).
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hardware.kernels import KernelModel, widened
from sim.attention_steps import AttentionSteps
from sim.communication import Communication, expert_imbalance
from sim.core.layout import StepTables
from sim.engines import GpuExtras
from sim.parallelism import Parallelism, rank_experts, weight_bytes_touched_by_rank
from workloads.counts import (
    LinearLayer,
    elementwise_ops,
    kv_bytes_per_token,
    linear_flops_per_token,
    linear_layers,
    lm_head_flops,
)
from workloads.elementwise import Fusion
from workloads.models import ModelSpec
from workloads.precision import precision
from workloads.traffic import linear_bytes

__all__ = [
    "GRAPH_SIZES",
    "Batching",
    "StepTimeModel",
    "decode_contexts",
    "graph_sizes",
    "prompt_grid",
    "shared",
]

Array = npt.NDArray[np.float64]
HALF = 16  # bits
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
        Tokens and sequences of a step on one rank, tokens of a request.
    graphs : ndarray
        Captured batch sizes; empty = no CUDA graphs, no padding.
    logits : int
        Most tokens of a step that need logits, where these are more than its sequences.
    """

    max_tokens: int
    max_seqs: int
    longest: int
    graphs: npt.NDArray[np.int64]
    logits: int = 0

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


def decode_contexts(batching: Batching) -> Array:
    """Return the mean contexts of the tables of decode attention [token]."""
    return _octaves(batching.longest, CONTEXTS_PER_OCTAVE)


def prompt_grid(batching: Batching) -> tuple[Array, Array]:
    """Return chunks and pasts of the table of prompt attention, to broadcast [token]."""
    chunks = _octaves(batching.max_tokens, CHUNKS_PER_OCTAVE)
    pasts = _octaves(batching.longest, PASTS_PER_OCTAVE)
    return chunks[:, None], pasts[None, :] - 1.0


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
    parallel : Parallelism
        Ranks of the replica.
    popularity : float
        Zipf exponent of the experts' popularity.
    communication : Communication, optional
        Collectives of a step; None = one rank.
    fusion : {"compiled", "kernels", "none"}
        How element-wise operations are fused (`workloads.elementwise`).
    fused_attention : bool
        FlashAttention, or separate products and softmax.
    """

    kernels: KernelModel
    model: ModelSpec
    extras: GpuExtras
    parallel: Parallelism = field(default_factory=Parallelism)
    popularity: float = 0.0
    communication: Communication | None = None
    fusion: Fusion = "compiled"
    fused_attention: bool = True

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.parallel.tp

    @property
    def wide(self) -> KernelModel:
        """Kernels on what is not quantised: 32-bit elements move twice the bytes of 16-bit ones."""
        if precision(self.model.dtype).bits <= HALF:
            return self.kernels
        return replace(self.kernels, chip=widened(self.kernels.chip, self.model.dtype))

    @property
    def products(self) -> KernelModel:
        """Kernels of matrix products, with sums in the model's format."""
        held = precision(self.model.accumulation).bytes
        if held == self.kernels.chip.sum_bytes:
            return self.kernels
        return replace(self.kernels, chip=replace(self.kernels.chip, sum_bytes=held))

    def linear_s(self, rows: Array) -> Array:
        """Return seconds of all kernels that work token by token, without output head and experts.

        Parameters
        ----------
        rows : ndarray
            Tokens of one micro-batch on one data-parallel rank; context ranks share them.
        """
        tokens = np.ceil(rows / self.parallel.cp)
        total = np.zeros_like(tokens)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "all":
                total += gemm.count * self._gemm_s(gemm, tokens)
        total = self._elementwise_s(total, tokens)
        return total + (self.communication.layers_s(rows) if self.communication else 0.0)

    def _gemm_s(self, gemm: LinearLayer, rows: Array) -> Array:
        """Return seconds of one product; scales of packed weights, or zeros left out, count."""
        stored = None
        if gemm.dtype.endswith("a16") or ((sparse := self.model.sparsity) and sparse.kernel):
            stored = linear_bytes(self.model, gemm) / gemm.elements
        seconds = self.products.gemm(rows, gemm.n, gemm.k, gemm.dtype, stored)
        return seconds * self.product_factor(gemm.dtype)

    def product_factor(self, dtype: str) -> float:
        """Return the time of the engine's matrix products of layers over that of the tables [1]."""
        return self.extras.products_8bit.value if dtype == "fp8" else 1.0

    @property
    def elementwise_left(self) -> float:
        """Share of the time of layers' element-wise kernels that the engine's fusions leave [1]."""
        extras = self.extras
        return (extras.elementwise if self.tp == 1 else extras.elementwise_summed).value

    def experts_s(self, tokens: Array, rows: Array) -> Array:
        """Return seconds of routed experts of `tokens`, run in a graph of `rows`.

        Both count all data-parallel ranks of a micro-batch together: the experts serve them all.

        Rows that pad a graph are stale tokens with experts of their own, some of them new.
        """
        total = np.zeros_like(tokens)
        share = self.extras.padding_experts.value
        effective = tokens + share * (rows - tokens)
        busiest = expert_imbalance(self.model, self.parallel.ep, self.popularity, effective)
        for block in rank_experts(self.model, self.parallel):
            top_k = max(1, block.top_k // self.parallel.ep)
            own = effective * busiest * block.top_k / (self.parallel.ep * top_k)
            total += block.count * self.extras.expert_routing_per_layer.value
            total += block.count * self.kernels.moe(
                np.maximum(own, 1.0),
                block.experts,
                top_k,
                block.hidden,
                block.intermediate,
                block.dtype,
                self.popularity,
            )
        return total + (
            self.communication.experts_s(effective, busiest) if self.communication else 0.0
        )

    def _elementwise_s(self, total: Array, tokens: Array) -> Array:
        left = self.elementwise_left
        for op in elementwise_ops(self.model, self.tp, fusion=self.fusion):
            if op.tokens == "all":
                seconds = self.wide.elementwise(op.op, tokens, op.width)
                total += left * op.count * seconds
        return total

    def head_s(self, sequences: Array) -> Array:
        """Return seconds of output projection and sampling."""
        total = np.zeros_like(sequences)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "logits":
                total += gemm.count * self.products.gemm(sequences, gemm.n, gemm.k, gemm.dtype)
        for op in elementwise_ops(self.model, self.tp, greedy=True, fusion=self.fusion):
            if op.tokens == "logits":
                total += op.count * self.wide.elementwise(op.op, sequences, op.width)
        return total + (self.communication.head_s(sequences) if self.communication else 0.0)

    @property
    def attention(self) -> AttentionSteps:
        """Attention of one rank."""
        return AttentionSteps(self.wide, self.model, self.tp, self.fused_attention)

    def decode_attention_s(self, sequences: Array, context: Array, query: int = 1) -> Array:
        """Return attention seconds of `query` tokens for each of `sequences` at a mean context."""
        total = self.attention.decode_s(sequences, context / self.parallel.cp, query)
        if self.attention.kv_word == "fp8":
            total = total * self.extras.decode_attention_8bit.value
        per_sequence = self.extras.attention_per_sequence.value * sequences
        extra = (self.extras.attention_per_layer.value + per_sequence) * self.model.layers
        merged = self.communication.merge_s(sequences) if self.communication else 0.0
        return total + extra + merged

    def uneven(self, sequences: Array, contexts: Array) -> Array:
        """Return the relative extra of decode attention where contexts differ."""
        return self.attention.uneven(sequences, contexts)

    def beside(self, sequences: Array, contexts: Array) -> Array:
        """Return the relative extra of decode attention in steps that compute prompts as well."""
        return self.attention.beside(sequences, contexts)

    def prefill_attention_s(self, chunk: Array, past: Array) -> Array:
        """Return attention seconds of a prompt chunk over its past."""
        total = self.attention.prefill_s(chunk, past) / self.parallel.cp
        return total + (self.communication.ring_s(chunk, past, total) if self.communication else 0)

    def prefill_parts_s(self, chunk: Array, past: Array) -> tuple[Array, Array]:
        """Return what a prompt chunk adds to a step's attention, and what the call takes once [s].

        The second is at most what a chunk alone takes: both add up to it.
        """
        alone = self.prefill_attention_s(chunk, past)
        added = self.attention.prefill_added_s(chunk, past) / self.parallel.cp
        added = np.minimum(added, alone)
        return added, alone - added

    def flops_per_pair(self) -> float:
        """Return FLOPs of one query-key pair over all layers [FLOP]."""
        return self.attention.flops_per_pair()

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
        parallel = self.parallel
        stages = parallel.rounds() * parallel.stretch(self.model.layers)
        sequences, shares = shared(batching.max_seqs * parallel.dp, parallel.units)
        asking = max(batching.max_seqs * parallel.dp, batching.logits)
        contexts, logits = decode_contexts(batching), shared(asking, parallel.units)
        decode = stages * self.decode_attention_s(sequences[:, None], contexts[None, :])
        prefill, call = self.prefill_parts_s(*prompt_grid(batching))
        grids = [0.0, CONTEXTS_PER_OCTAVE, 0.0, CHUNKS_PER_OCTAVE, 0.0, PASTS_PER_OCTAVE]
        return StepTables(
            head_s=_from_zero(self._head_rounds_s(*logits)),
            decode_s=np.vstack([np.zeros(contexts.size), decode[shares]]),
            prefill_s=np.ascontiguousarray(stages * prefill),
            prefill_call_s=np.ascontiguousarray(stages * call),
            uneven=_from_zero(self.uneven(sequences, contexts)[shares]),
            beside=self._beside(sequences, contexts, shares),
            bounds=np.array(grids, dtype=np.float64),
            counts=self._counts(),
            **self._token_tables(batching, stages),
        )

    def _beside(self, sequences: Array, contexts: Array, shares: npt.NDArray[np.int64]) -> Array:
        """Return `beside` by the sequences of all ranks, without entries where there is none."""
        extra = self.beside(sequences, contexts)
        return _from_zero(extra[shares]) if extra.size else extra

    def _head_rounds_s(self, sequences: Array, shares: npt.NDArray[np.int64]) -> Array:
        """Return seconds of the output head by sequences: the last stage has it once per batch."""
        parallel = self.parallel
        count = np.arange(1.0, shares.size + 1.0)
        rounds = np.minimum(np.ceil(count / parallel.dp), max(parallel.batches, parallel.pp))
        return np.asarray(self.head_s(sequences)[shares] * rounds)

    def _token_tables(self, batching: Batching, stages: float) -> dict[str, Array]:
        """Return the tables that run over the tokens of a step: seconds, weight bytes, share."""
        parallel = self.parallel
        most = batching.max_tokens + -(-batching.max_seqs // parallel.batches)
        total = most * parallel.units if parallel.units > 1 else batching.max_tokens
        tokens, shares = shared(total, parallel.units)
        rows = batching.padded(tokens)
        unique, where = np.unique(rows, return_inverse=True)
        linear = stages * self.linear_s(unique)[where]
        experts = np.zeros(1)
        if self.communication is not None and self.communication.exchanges:
            served, parts = shared(total, parallel.batches)
            experts = stages * _from_zero(self.experts_s(served, served)[parts])
        else:
            linear = linear + stages * self.experts_s(tokens, rows)
        touched = weight_bytes_touched_by_rank(self.model, parallel, tokens, self.popularity)
        return {
            "linear_s": _from_zero(linear[shares]),
            "linear_bytes": _from_zero(touched[shares]),
            "compute_share": _from_zero(self._compute_share(rows, linear)[shares]),
            "shared_s": experts,
        }

    def _counts(self) -> Array:
        """Return FLOPs and bytes of one rank per token, logit and query-key pair of the replica."""
        ranks = self.parallel.accelerators / self.parallel.tp
        kv = kv_bytes_per_token(self.model, tp=self.tp)
        linear = linear_flops_per_token(self.model, self.tp)
        head, pair = lm_head_flops(self.model, self.tp), self.flops_per_pair()
        return np.array([linear, head, pair, kv]) / ranks


def shared(total: int, units: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return what each of `units` has of 1 .. total, without repeats, and where each stands."""
    share = np.ceil(np.arange(1.0, total + 1.0) / units)
    values = np.arange(1.0, share[-1] + 1.0)
    return values, share.astype(np.int64) - 1


def _from_zero(values: Array) -> Array:
    """Return the values with a leading 0 for an empty step."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), values])
