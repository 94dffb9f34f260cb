"""Uneven batches in the few numbers that attention times depend on."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from hardware.kernels_forms import Array

__all__ = ["longest_context", "mean_chunk", "padded_context"]

HALF_BLOCK = 64  # tokens: contexts fill half of their last block of 128 on average
EVEN = 0.1  # spread below which contexts are so alike that they end in the same block


def padded_context(context: ArrayLike, spread: ArrayLike) -> Array:
    """Return the mean context that a kernel works on, blocks of 128 tokens filled up.

    Contexts alike (spread 0) are taken as measured tables have them, whole blocks.

    Examples
    --------
    >>> padded_context(400.0, [0.0, 0.8]).tolist()
    [400.0, 464.0]
    """
    share = np.minimum(np.asarray(spread, float) / EVEN, 1.0)
    padded: Array = np.asarray(context, float) + HALF_BLOCK * share
    return padded


def longest_context(batch: ArrayLike, context: ArrayLike, spread: ArrayLike) -> Array:
    """Return the median of the longest of `batch` lognormal contexts of a mean and spread.

    Examples
    --------
    >>> longest_context(64, 1000.0, [0.0, 1.0]).round().tolist()
    [1000.0, 4792.0]
    """
    sigma = np.sqrt(np.log1p(np.asarray(spread, float) ** 2))
    highest = ndtri(0.5 ** (1 / np.maximum(np.asarray(batch, float), 1)))
    longest: Array = np.asarray(context, float) * np.exp(sigma * highest - sigma**2 / 2)
    return np.maximum(longest, context)


def mean_chunk(q: ArrayLike, past: ArrayLike) -> tuple[float, float, int]:
    """Return (q, past, sequences) of equal prompt chunks with the same tokens and the same work.

    Work of a chunk is q (past + q/2) pairs of query and key.

    Examples
    --------
    >>> mean_chunk([512, 512], [0, 1024])
    (512.0, 512.0, 2)
    """
    chunks, seen = np.asarray(q, float), np.asarray(past, float)
    if not chunks.size:
        return 0.0, 0.0, 0
    mean = float(chunks.mean())
    work = float((chunks * (seen + chunks / 2)).sum())
    return mean, max(work / float(chunks.sum()) - mean / 2, 0.0), chunks.size
