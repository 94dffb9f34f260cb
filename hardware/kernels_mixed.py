"""Uneven batches in the few numbers that attention times depend on."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from hardware.kernels_forms import Array
from hardware.kernels_schedule import Pace, imbalance, near_s

__all__ = ["longest_context", "mean_chunk", "uneven_factor"]

FEW = range(1, 25)  # sequences worked out one by one; beyond, between those of `MANY`
MANY = (28, 32, 40, 48, 64, 88, 128, 192, 256, 384, 512, 1024)
CONTEXTS = tuple(float(128 * 2 ** (i / 2)) for i in range(-2, 13))  # 64 to 8192 tokens


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


def uneven_factor(batch: Array, context: Array, spread: Array, heads: int, pace: Pace) -> Array:
    """Return by what factor lognormal contexts take longer to attend to than even ones.

    Worked out on a grid of batches and mean contexts (above 8192 tokens whole blocks matter no
    more) and interpolated per token in between.

    Parameters
    ----------
    batch, context, spread : array (N,), (C,), (S,)
        Sequences, mean KV tokens, deviation over mean of the contexts.
    heads : int
        Items per sequence.
    pace : Pace
        How fast blocks are worked off, scalars.

    Returns
    -------
    array (N, C, S)
    """
    most = int(batch.max(initial=1.0))
    known = tuple(n for n in (*FEW, *MANY) if n < 2 * most or n <= 2)
    nodes, means = np.array(known, float), np.array(CONTEXTS)
    table = imbalance(known, CONTEXTS, tuple(spread.tolist()), heads, pace)
    table = table / (nodes[:, None] * means)[:, :, None]
    sequences, near = np.maximum(batch, 1.0), np.clip(context, CONTEXTS[0], CONTEXTS[-1])
    at = _between(table, np.log2(nodes), np.log2(sequences), 0)
    at = _between(at, np.log2(means), np.log2(near), 1)
    load = sequences[:, None] * near
    factor: Array = at * (load / near_s(sequences[:, None], near, heads, pace))[:, :, None]
    factor[:, :, spread == 0] = 1.0
    return factor


def _between(table: Array, nodes: Array, at: Array, axis: int) -> Array:
    """Return linear interpolation along an axis, held constant outside its nodes."""
    if nodes.size == 1:
        return np.repeat(table, at.size, axis=axis)
    low = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, nodes.size - 2)
    share = np.clip((at - nodes[low]) / (nodes[low + 1] - nodes[low]), 0.0, 1.0)
    shape = [1] * table.ndim
    shape[axis] = at.size
    share = share.reshape(shape)
    between: Array = np.take(table, low, axis) * (1 - share) + np.take(table, low + 1, axis) * share
    return between
