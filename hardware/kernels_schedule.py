"""How decode attention spreads over compute units: FlashAttention-3's schedule of its work items.

A sequence's context is cut into blocks of 128 tokens (96 where the cache holds 8-bit numbers); when
all sequences together would leave units idle, long ones are split. Each (sequence, KV head, split)
is an item; units take items in order, each as it falls free, and share the memory bandwidth while
they are busy. Rules: ``hopper/flash_prepare_scheduler.cu`` of
github.com/Dao-AILab/flash-attention (a block budget per unit of 1.1 times the mean load; splits
fill it).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from hardware.kernels_forms import Array

__all__ = [
    "BLOCK_TOKENS",
    "WINDOW",
    "Pace",
    "even_s",
    "imbalance",
    "lognormal_batch",
    "near_s",
    "splits_of",
    "uneven_s",
]

BLOCK_TOKENS = {2.0: 128, 1.0: 96}  # KV tokens of one block by bytes of an element
MARGIN = 1.1  # block budget of a unit over the mean load, as in `kernels_queue`
MOST_SPLITS = 128
ROUNDING = 1e-9
ORDERS = 4  # random orders of a batch over which its time is averaged
WINDOW = np.arange(-48.0, 64.0, 32.0)  # over which steps of whole blocks are averaged [token]
SIGMA_STEPS = 40  # of the bisection for a batch's width


@dataclass(frozen=True)
class Pace:
    """How fast blocks are worked off.

    Parameters
    ----------
    units : int
        Compute units, one item each at a time.
    block_s : float
        Time of one block while all units are busy [s].
    alone : float
        Rate of a unit that shares memory with few, over its rate while all are busy.
    start : float
        Overhead of an item [block].
    empty : float
        Cost of the missing rows of a context's last block, over that of filled ones.
    tokens : int
        KV tokens of a block.
    """

    units: int
    block_s: Array | float
    alone: Array | float
    start: Array | float
    empty: float
    tokens: int = 128

    def scalar(self) -> "Pace":
        """Return the same of plain numbers, which can be hashed."""
        numbers = (float(self.block_s), float(self.alone), float(self.start))
        return Pace(self.units, *numbers, self.empty, self.tokens)

    def slowness(self, busy: Array) -> Array:
        """Return the time per block with so many busy units, over that with all busy."""
        share: Array = np.maximum(1.0 / self.alone, np.minimum(busy / self.units, 1.0))
        return share


def splits_of(total: Array, blocks: Array, heads: Array, units: int) -> Array:
    """Return into how many parts a context of `blocks` is split.

    Parameters
    ----------
    total : array
        Blocks of all sequences of the batch.
    blocks : array
        Blocks of the sequence.
    heads : array
        Items per sequence before splitting (KV heads).
    units : int
        Compute units.

    Examples
    --------
    >>> splits_of(np.array([64.0, 72.0, 128.0]), np.array(8.0), np.array(8.0), 132).tolist()
    [2.0, 2.0, 1.0]
    """
    budget = np.maximum(np.ceil(total * MARGIN * heads / units - ROUNDING), 1)
    splits: Array = np.clip(np.ceil(blocks / budget - ROUNDING), 1, MOST_SPLITS)
    return splits


def even_s(batch: Array, context: Array, heads: Array, pace: Pace) -> tuple[Array, Array]:
    """Return (seconds, splits) of sequences of one context: waves of equal items, then a rest.

    Parameters
    ----------
    batch, context, heads : array
        Sequences, their KV tokens, items per sequence.
    pace : Pace
        How fast blocks are worked off.
    """
    blocks = np.ceil(context / pace.tokens - ROUNDING)
    splits = splits_of(batch * blocks, blocks, heads, pace.units)
    length = np.ceil(blocks / splits - ROUNDING)
    filled = length * (1 - (1 - pace.empty) * (1 - context / (splits * length * pace.tokens)))
    items = batch * heads * splits
    waves = np.floor(items / pace.units + ROUNDING)
    rest = items - waves * pace.units
    work = filled + pace.start
    slow = np.where(rest > 0, pace.slowness(rest), 0.0)
    seconds: Array = work * (waves + slow) * pace.block_s
    return seconds, splits


def uneven_s(contexts: ArrayLike, heads: int, pace: Pace) -> tuple[float, float]:
    """Return (seconds, most splits) of sequences of given contexts, in the order given.

    Examples
    --------
    >>> pace = Pace(132, 2e-6, 1.0, 0.0, 1.0)
    >>> even, _ = even_s(*map(np.float64, (32, 1024, 8)), pace)
    >>> round(uneven_s([1024] * 32, 8, pace)[0] / float(even), 9)
    1.0
    """
    from hardware.kernels_queue import batch_time

    blocks = np.asarray(contexts, dtype=np.float64) / pace.tokens
    order = np.arange(blocks.size)[None]
    known = pace.scalar()
    time, splits = batch_time(
        blocks, order, heads, pace.units, known.start, pace.empty, known.alone
    )
    return float(time * known.block_s), float(splits)


def lognormal_batch(batch: int, mean: float, spread: float) -> Array:
    """Return contexts whose mean and deviation over mean are those asked for, in rising order.

    Quantiles of a lognormal whose width is such that just these have the spread; a small batch
    has at most that of one long sequence among empty ones, and 0.98 of it is returned.

    Examples
    --------
    >>> c = lognormal_batch(64, 1000.0, 0.8)
    >>> round(float(c.mean())), round(float(c.std() / c.mean()), 3)
    (1000, 0.8)
    """
    from scipy.special import ndtri

    normal = ndtri((np.arange(batch) + 0.5) / batch)
    normal -= normal[-1]
    wanted = 1 + min(spread, 0.98 * np.sqrt(batch - 1)) ** 2
    low, high = 0.0, 12.0
    for _ in range(SIGMA_STEPS):
        middle = 0.5 * (low + high)
        raw = np.exp(middle * normal)
        wide = batch * float(raw @ raw) > wanted * float(raw.sum()) ** 2
        low, high = (low, middle) if wide else (middle, high)
    raw = np.exp(low * normal)
    scaled: Array = raw * (mean / raw.mean())
    return scaled


@lru_cache(maxsize=64)
def imbalance(
    batches: tuple[int, ...],
    contexts: tuple[float, ...],
    spreads: tuple[float, ...],
    heads: int,
    pace: Pace,
) -> Array:
    """Return the seconds of lognormal contexts.

    Parameters
    ----------
    batches, contexts, spreads : tuple
        Sequences, mean KV tokens, deviation over mean of the contexts.
    heads : int
        Items per sequence.
    pace : Pace
        How fast blocks are worked off, scalars.

    Returns
    -------
    array (batches, contexts, spreads)
        Mean over `ORDERS` orders of the batch; a spread of 0 is averaged over `WINDOW`.
    """
    from hardware.kernels_queue import batch_time

    random, rule = np.random.default_rng(0), (pace.start, pace.empty, pace.alone)
    table = np.empty((len(batches), len(contexts), len(spreads)))
    for i, batch in enumerate(batches):
        orders = np.array([random.permutation(batch) for _ in range(ORDERS if batch > 1 else 1)])
        for k, spread in enumerate(spreads):
            shape = lognormal_batch(batch, 1.0, spread)
            for j, mean in enumerate(contexts):
                blocks = np.maximum(np.round(shape * mean), 1.0) / pace.tokens
                table[i, j, k] = batch_time(blocks, orders, heads, pace.units, *rule)[0]
    table *= pace.block_s
    even = [k for k, spread in enumerate(spreads) if spread == 0]
    near = near_s(np.array(batches, float)[:, None], np.array(contexts), heads, pace)
    table[:, :, even] = near[:, :, None]
    return table


def near_s(batch: Array, context: Array, heads: int, pace: Pace) -> Array:
    """Return the seconds of even contexts, averaged over one block round their mean."""
    near = np.maximum(np.asarray(context)[..., None] + WINDOW, 1.0)
    one = np.asarray(batch)[..., None]
    averaged: Array = even_s(one, near, np.asarray(float(heads)), pace)[0].mean(axis=-1)
    return averaged
