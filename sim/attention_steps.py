"""Attention of one step: all layers of a rank, whatever kind of attention they have."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware.kernels import KernelModel
from hardware.kernels_attention import unfused_bytes
from hardware.kernels_schedule import WINDOW
from sim.core.layout import PROMPT_OCTAVE, PROMPTS, SPREAD_STEP, SPREADS
from workloads.counts import AttentionGroup, attention_layers, linear_layers
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = ["AttentionSteps"]

Array = npt.NDArray[np.float64]
SPREAD_NODES = SPREAD_STEP * np.arange(SPREADS)
PROMPT_NODES = np.exp2(PROMPT_OCTAVE + np.arange(PROMPTS))  # tokens
TOGETHER = 16  # prompts of a call, as many as were measured
CALL_TOKENS = 8192  # of them together
EIGHT_BITS = 1.1  # bytes of an element up to which a cache counts as 8 bits wide


@dataclass(frozen=True)
class AttentionSteps:
    """Times of attention over all layers of one rank.

    Parameters
    ----------
    kernels : KernelModel
        Kernel times of the accelerator.
    model : ModelSpec
        Architecture with its number formats.
    tp : int
        Tensor-parallel ranks.
    fused : bool
        One kernel that keeps scores on chip, or separate products and softmax through memory.
    """

    kernels: KernelModel
    model: ModelSpec
    tp: int = 1
    fused: bool = True

    @property
    def groups(self) -> list[AttentionGroup]:
        """Layers that share one attention shape."""
        return attention_layers(self.model, self.tp)

    @property
    def kv_word(self) -> str:
        """Word of the kernel table for the KV cache's format: 8 bits or less, or 16."""
        return "fp8" if precision(self.model.kv).bytes <= EIGHT_BITS else "bf16"

    def decode_s(self, sequences: Array, context: Array, query: int = 1) -> Array:
        """Return seconds of `query` new tokens for each of `sequences` at a mean context.

        Contexts are alike; steps of whole attention blocks are averaged out.

        Parameters
        ----------
        sequences, context : array
            Decoding sequences and their cached tokens, any common shape.
        query : int
            New tokens of each: more than one where drafts are verified.
        """
        total = np.zeros(np.broadcast(sequences, context).shape)
        for group in self.groups:
            for shift in WINDOW:
                seen = np.clip(context + query + shift, 1.0, group.reach or np.inf)
                each = self._decode_group_s(group, sequences, seen, query)
                total += group.count / WINDOW.size * each
            total += group.count * self._scores_s(group, sequences, context + query)
        return total + self._products_s(sequences, context, query)

    def _decode_group_s(
        self, group: AttentionGroup, sequences: Array, seen: Array, query: int
    ) -> Array:
        heads, kv_heads, dim, _ = group.shape("decode")
        if not self.fused:
            layout = (heads, kv_heads, dim)
            return self.kernels.attention_unfused_decode(sequences, seen, *layout, query)
        wide = heads * query
        return self.kernels.attention_decode(sequences, seen, wide, kv_heads, dim, self.kv_word)

    def _scores_s(self, group: AttentionGroup, sequences: Array, context: Array) -> Array | float:
        """Return seconds in which sparse attention reads what it picks keys by."""
        if not group.budget:
            return 0.0
        index = group.index
        read = sequences * context / index.block * index.width * precision(self.model.kv).bytes
        return self.kernels.copy(read, "hbm")

    def _products_s(self, sequences: Array, context: Array, query: int) -> Array:
        """Return seconds of products that latent attention adds to decoding, for all layers.

        Absorbed: two small ones per new token; else all cached latents are expanded.
        """
        total = np.zeros(np.broadcast(sequences, context).shape)
        expands = self.model.mla is not None and not self.model.mla.absorbed
        for gemm in linear_layers(self.model, self.tp):
            rows = sequences * query
            if gemm.tokens == "prefill" and expands:
                rows = sequences * (context + query)
            elif gemm.tokens != "decode":
                continue
            n = gemm.n * gemm.batch
            total = total + gemm.count * self.kernels.gemm(rows, n, gemm.k, gemm.dtype)
        return total

    def uneven(self, sequences: Array, contexts: Array) -> Array:
        """Return the relative extra of decode attention where contexts differ.

        Parameters
        ----------
        sequences, contexts : array (N,), (C,)
            Decoding sequences, their mean context.

        Returns
        -------
        array (N, C, SPREADS)
            By deviation over mean, in steps of `SPREAD_STEP`.
        """
        total = np.zeros((sequences.size, contexts.size, SPREADS))
        if not self.fused:
            return total
        even = np.zeros((sequences.size, contexts.size, 1))
        for group in self.groups:
            heads, kv_heads, dim, _ = group.shape("decode")
            reach = group.reach or np.inf
            seen = np.minimum(contexts + 1.0, reach)
            layout = (heads, kv_heads, dim, self.kv_word)
            seconds = self.kernels.attention_decode(sequences[:, None], seen, *layout)
            weight = group.count * seconds[:, :, None]
            factor = self.kernels.attention_uneven(sequences, seen, SPREAD_NODES, *layout)
            alike = np.minimum(contexts / (2.0 * reach), 1.0)[:, None]
            total += weight * (alike + (1.0 - alike) * factor)
            even = even + weight
        return np.asarray(total / even - 1.0)

    def beside(self, sequences: Array, contexts: Array) -> Array:
        """Return the relative extra of decode attention in steps that compute prompts as well.

        Parameters
        ----------
        sequences, contexts : array (N,), (C,)
            Decoding sequences, their mean context.

        Returns
        -------
        array (N, C, PROMPTS)
            By the prompts' tokens (`PROMPT_NODES`), averaged over a block of context as
            `decode_s` is; empty where the accelerator's kernels show none.
        """
        if not self.fused or not self.kernels.slower_beside(self.kv_word):
            return np.zeros((0, 0, 0))
        batch, alone, mixed = sequences[:, None, None], np.zeros(()), np.zeros(())
        for group in self.groups:
            heads, kv_heads, dim, _ = group.shape("decode")
            layout = (heads, kv_heads, dim, self.kv_word)
            for shift in WINDOW:
                seen = np.clip(contexts + 1 + shift, 1.0, group.reach or np.inf)[:, None]
                one = self.kernels.attention_decode(batch, seen, *layout)
                both = self.kernels.attention_beside(batch, seen, PROMPT_NODES, *layout)
                alone, mixed = alone + group.count * one, mixed + group.count * both
        return np.asarray(np.maximum(mixed / alone - 1.0, 0.0))

    def prefill_s(self, chunk: Array, past: Array, prompts: Array | float = 1.0) -> Array:
        """Return seconds of a prompt chunk over its past, or of several alike in one call."""
        total = np.zeros(np.broadcast(chunk, past).shape)
        for group in self.groups:
            total += group.count * self._prefill_group_s(group, chunk, past, prompts)
        for gemm in linear_layers(self.model, self.tp):
            if gemm.tokens == "prefill":
                rows = (chunk + past) * prompts
                total += gemm.count * self.kernels.gemm(rows, gemm.n, gemm.k, gemm.dtype)
        return total

    def prefill_added_s(self, chunk: Array, past: Array) -> Array:
        """Return seconds that a prompt chunk adds to a call that computes several.

        Tiles of several prompts fill the units together, and they are launched once: the slope of
        the kernel's time from half of `TOGETHER` prompts to all, fewer where prompts are long.
        Separate kernels run one after another for every prompt.
        """
        if not self.fused:
            return self.prefill_s(chunk, past)
        most = np.clip(np.round(CALL_TOKENS / chunk), 2, TOGETHER)
        half = np.floor(most / 2.0)
        more = self.prefill_s(chunk, past, most) - self.prefill_s(chunk, past, half)
        return np.maximum(more / (most - half), 0.0)

    def _prefill_group_s(
        self, group: AttentionGroup, chunk: Array, past: Array, prompts: Array | float
    ) -> Array:
        """Return seconds of one layer.

        Without causality half a chunk more of past is the same work; a chunk longer than what
        its tokens see is as many shorter ones beside each other.
        """
        heads, kv_heads, dim, _ = group.shape("prefill")
        if not self.fused:
            return self.kernels.attention_unfused(chunk, heads, dim, past)
        seen = past if group.causal else past + chunk / 2.0
        reach = float(group.reach or np.inf)
        piece = np.minimum(chunk, reach)
        seen = np.minimum(seen, reach - piece / 2.0)
        layout = (heads, kv_heads, dim, self.kv_word)
        seconds = self.kernels.attention_prefill(piece, seen, *layout, prompts * chunk / piece)
        return seconds + self._scores_s(group, np.ones_like(chunk) * prompts, chunk + past)

    def moved_unfused(self, sequences: float, context: float, query: float) -> float:
        """Return what memory moves for attention in separate kernels, over all layers [byte]."""
        total = 0.0
        for group in self.groups:
            heads, kv_heads, dim, _ = group.shape("prefill" if query > 1 else "decode")
            names = ("batch", "context", "heads", "kv_heads", "head_dim")
            values = (sequences, min(context, group.reach or np.inf), heads, kv_heads, dim)
            shape = {n: np.asarray(v, np.float64) for n, v in zip(names, values, strict=True)}
            total += group.count * float(unfused_bytes(shape, query))
        return total * precision(self.model.dtype).bytes / 2.0

    def flops_per_pair(self) -> float:
        """Return FLOPs of one query-key pair over all layers [FLOP]."""
        return sum(2.0 * g.count * g.heads * (g.head_dim + g.value_dim) for g in self.groups)
