"""Compiled loops of `hardware.kernels_schedule`; imported only where a schedule is worked out."""

import math

import numba
import numpy as np

from hardware.kernels_forms import Array

MARGIN = 1.1  # block budget of a unit over the mean load
MOST_SPLITS = 128
ROUNDING = 1e-9  # so that exactly full budgets stay so

__all__ = ["batch_time"]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _take(ends: Array, work: float) -> None:
    """Give an item to the unit that falls free first: root of a heap of the units' ends."""
    place, size = 0, ends.size
    value = ends[0] + work
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= value:
            break
        ends[place] = ends[child]
        place = child
    ends[place] = value


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _finish(
    ends: Array, blocks: Array, order: Array, heads: int, budget: float, start: float, empty: float
) -> int:
    """Work out when each unit ends, in blocks of progress; return the most splits.

    Busy units all progress alike, however memory is shared, so that items can be handed out
    without knowing the time.
    """
    most = 1
    for i in order:
        whole = math.ceil(blocks[i] - ROUNDING)
        parts = min(max(math.ceil(whole / budget - ROUNDING), 1), MOST_SPLITS)
        length = math.ceil(whole / parts - ROUNDING)
        most = max(most, parts)
        for j in range(parts):
            rest = max(blocks[i] - j * length, 0.0)
            held = min(float(length), (1.0 - empty) * rest + empty * math.ceil(rest - ROUNDING))
            for _ in range(heads):
                _take(ends, held + start)
    return most


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _busy_time(ends: Array, alone: float) -> float:
    """Return the time until the last unit ends, in blocks at the rate of all units busy."""
    units, total, before = ends.size, 0.0, 0.0
    for i in range(units):
        first = ends[0]
        _take(ends, np.inf)
        total += (first - before) * max(1.0 / alone, (units - i) / units)
        before = first
    return total


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def batch_time(
    blocks: Array,
    orders: Array,
    heads: int,
    units: int,
    start: float,
    empty: float,
    alone: float,
) -> tuple[float, int]:
    """Return (mean time over orders, most splits) of a batch, in blocks at the rate of all busy.

    Parameters
    ----------
    blocks : array (N,)
        Context of each sequence [block].
    orders : array (M, N)
        Orders in which the sequences are handed out.
    heads, units : int
        Items per split, compute units.
    start, empty : float
        Overhead of an item [block], cost of missing rows of a last block.
    alone : float
        Rate of a unit among few busy ones, over that with all busy.
    """
    total = 0.0
    for i in range(blocks.size):
        total += math.ceil(blocks[i] - ROUNDING)
    budget = max(math.ceil(total * MARGIN * heads / units - ROUNDING), 1.0)
    time, most = 0.0, 1
    for k in range(orders.shape[0]):
        ends = np.zeros(units)
        most = max(most, _finish(ends, blocks, orders[k], heads, budget, start, empty))
        time += _busy_time(ends, alone)
    return time / orders.shape[0], most
