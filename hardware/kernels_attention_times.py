"""Times of attention kernels on one accelerator."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from formats import InputError, did_you_mean
from hardware.kernels_attention import attention_unfused_decode, decode_pace, items_per_sequence
from hardware.kernels_chip import Array
from hardware.kernels_families import FAMILIES
from hardware.kernels_mixed import longest_context, uneven_factor
from hardware.kernels_schedule import near_s
from hardware.kernels_times import KernelTimes

__all__ = ["AttentionTimes"]

KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
Heads = tuple[int, int, int]


@dataclass(frozen=True)
class AttentionTimes(KernelTimes):
    """Times of attention on one accelerator; every method takes arrays and returns seconds."""

    def attention_decode(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
    ) -> Array:
        """Return the time of one layer's attention of one new token per sequence [s].

        Parameters
        ----------
        batch : array
            Sequences.
        context : array
            KV tokens of each, the new one included; the mean where they differ.
        kv_dtype : str
            bf16, fp16 or fp8. Where this accelerator has no traces with an fp8 cache, its time is
            that of a bf16 one: halving the bytes was measured to bring little in an engine.
        """
        name = self._attention("attention_decode", kv_dtype)
        return self.time(name, batch, context, heads, kv_heads, head_dim)

    def attention_beside(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        q: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
    ) -> Array:
        """Return the time of one layer's decoding in a call that computes a prompt as well [s].

        Such a call runs tiles made for prompts: with an 8-bit cache they work its blocks off more
        slowly than memory delivers them, whereas a 16-bit cache still waits for memory.

        Parameters
        ----------
        batch, context : array
            As for `attention_decode`.
        q : array
            New tokens of the prompt.
        kv_dtype : str
            Where this accelerator has no such traces, the time is that of decoding alone.
        """
        if not self.slower_beside(kv_dtype):
            return self.attention_decode(batch, context, heads, kv_heads, head_dim, kv_dtype)
        layout = (heads, kv_heads, head_dim)
        return self.time(f"attention_beside_{kv_dtype}", batch, context, q, *layout)

    def slower_beside(self, kv_dtype: str) -> bool:
        """Return whether traces of this accelerator show decoding slowed beside prompts."""
        name = f"attention_beside_{kv_dtype}"
        return name in FAMILIES and self.fidelity_of(name) == "measured"

    def attention_prefill(
        self,
        q: ArrayLike,
        past: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
        sequences: ArrayLike = 1,
    ) -> Array:
        """Return the time of one layer's causal attention of q new tokens per sequence [s].

        Parameters
        ----------
        q : array
            New tokens of each sequence.
        past : array
            Tokens already in its KV cache.
        sequences : array
            Equal sequences in one call.
        """
        layout = (heads, kv_heads, head_dim)
        return self.time(
            self._attention("attention_prefill", kv_dtype), q, past, sequences, *layout
        )

    def attention_mixed(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        q: ArrayLike,
        past: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
        *,
        chunks: ArrayLike = 1,
        spread: ArrayLike = 0.0,
        longest: ArrayLike | None = None,
    ) -> Array:
        """Return the time of decoding sequences of uneven contexts beside prompt chunks [s].

        Parameters
        ----------
        batch : array
            Decoding sequences; 0 for prompt chunks alone.
        context : array
            Their mean KV tokens.
        q, past : array
            New and cached tokens of each chunk; q of 0 for decoding alone. Unequal chunks:
            `hardware.kernels_mixed.mean_chunk`.
        chunks : array
            Number of chunks.
        spread : array
            Standard deviation over mean of the decoding contexts. Even contexts cost least.
        longest : array, optional
            Longest decoding context; by default typical of lognormal contexts.
        """
        layout = (heads, kv_heads, head_dim)
        most = longest_context(batch, context, spread) if longest is None else longest
        decoding, new = np.asarray(batch, float), np.asarray(q, float)
        sequences, mean = np.maximum(decoding, 1), np.maximum(context, 1)
        first = self.attention_decode(sequences, mean, *layout, kv_dtype)
        first = first * self._uneven_each(sequences, mean, spread, layout, kv_dtype)
        second = self.attention_prefill(np.maximum(new, 1), past, *layout, kv_dtype, chunks)
        parts = (np.where(decoding > 0, first, 0.0), np.where(new > 0, second, 0.0))
        return self.time("attention_mixed", *parts, most, new * chunks, *layout)

    def _uneven_each(
        self, batch: Array, context: ArrayLike, spread: ArrayLike, layout: Heads, kv_dtype: str
    ) -> Array:
        """Return `attention_uneven` of corresponding elements, in place of every combination."""
        each = np.broadcast_arrays(batch, np.asarray(context, float), np.asarray(spread, float))
        apart = [np.unique(values, return_inverse=True) for values in each]
        n, c, s = (values for values, _ in apart)
        grid = self.attention_uneven(n, c, s, *layout, kv_dtype)
        factor: Array = grid[tuple(place.reshape(each[0].shape) for _, place in apart)]
        return factor

    def attention_uneven(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        spread: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
    ) -> Array:
        """Return by what factor uneven contexts slow one layer's decode attention.

        Expected over lognormal contexts in random order; most where the sequences' items just
        fill the units, little for few sequences (split to fill them) and very many.

        Parameters
        ----------
        batch, context, spread : array (N,), (C,), (S,)
            Sequences, mean KV tokens, deviation over mean of the contexts.

        Returns
        -------
        array (N, C, S)
            On the time of `attention_decode` averaged over a block of 128 tokens of context.
        """
        name = self._attention("attention_decode", kv_dtype)
        fit, shape = self._fit(name), FAMILIES[name].shape(1, 1, heads, kv_heads, head_dim)
        pace = decode_pace(shape, self.chip, fit.coefficients, KV_BYTES[kv_dtype]).scalar()
        items = items_per_sequence(heads, kv_heads)
        n, c, s = (np.atleast_1d(np.asarray(v, float)) for v in (batch, context, spread))
        factor = uneven_factor(n, c, s, items, pace)
        even = near_s(n[:, None], c, items, pace)[:, :, None]
        return 1 + (factor - 1) * even / (even + fit.coefficients["launch_s"])

    def attention_unfused(
        self, q: ArrayLike, heads: int, head_dim: int, past: ArrayLike = 0.0
    ) -> Array:
        """Return the time of causal attention as separate product and softmax kernels [s].

        Scores of q new tokens over past + q keys count as those of a square of the same area.
        """
        new = np.asarray(q, float)
        side = np.sqrt(new * (new + np.asarray(past, float)))
        return self.time("attention_unfused", side, heads, head_dim)

    def attention_unfused_decode(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        query: int = 1,
    ) -> Array:
        """Return the time of `query` new tokens per sequence in separate kernels [s].

        By traffic (`hardware.kernels_attention.attention_unfused_decode`): not measured.
        """
        shape = FAMILIES["attention_decode"].shape(batch, context, heads, kv_heads, head_dim)
        fitted = self._fit("attention_unfused").coefficients
        return attention_unfused_decode(shape, self.chip, fitted, query)

    def _attention(self, name: str, kv_dtype: str) -> str:
        """Return the family of attention over a cache of a type."""
        known = ("bf16", "fp16", "fp8")
        if kv_dtype not in known:
            hint = did_you_mean(kv_dtype, known)
            raise InputError(f"no KV cache type named {kv_dtype!r}", repair=hint)
        packed = f"{name}_{kv_dtype}"
        return packed if packed in self.calibration.families else name
