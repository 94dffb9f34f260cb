"""Contiguous memory: free runs of blocks, handed out first fit and joined when they come back."""

from sim.core.jit import compiled
from sim.core.layout import Record
from sim.core.pointers import ints

__all__ = ["give", "take"]


@compiled
def _update_largest(state: Record, lanes: Record) -> None:
    sizes, largest = ints(lanes.extent_size), 0
    for i in range(state.n_extents):
        largest = max(largest, sizes[i])
    state.largest_free = largest


@compiled
def _drop(state: Record, lanes: Record, place: int) -> None:
    state.n_extents -= 1
    for i in range(place, state.n_extents):
        ints(lanes.extent_start)[i] = ints(lanes.extent_start)[i + 1]
        ints(lanes.extent_size)[i] = ints(lanes.extent_size)[i + 1]


@compiled
def take(state: Record, lanes: Record, size: int) -> int:
    """Return the start of a run of `size` blocks from the first free run that has room.

    The caller has checked `state.largest_free`.
    """
    place = 0
    while ints(lanes.extent_size)[place] < size:
        place += 1
    start = ints(lanes.extent_start)[place]
    ints(lanes.extent_start)[place] += size
    ints(lanes.extent_size)[place] -= size
    if ints(lanes.extent_size)[place] == 0:
        _drop(state, lanes, place)
    state.free_blocks -= size
    _update_largest(state, lanes)
    return start


@compiled
def give(state: Record, lanes: Record, start: int, size: int) -> None:
    """Take a run back, joined with its free neighbours; runs stay in order of their start."""
    starts, sizes = ints(lanes.extent_start), ints(lanes.extent_size)
    place = 0
    while place < state.n_extents and starts[place] < start:
        place += 1
    for i in range(state.n_extents, place, -1):
        starts[i] = starts[i - 1]
        sizes[i] = sizes[i - 1]
    starts[place] = start
    sizes[place] = size
    state.n_extents += 1
    for i in range(place, max(place - 2, -1), -1):
        if i + 1 < state.n_extents and starts[i] + sizes[i] == starts[i + 1]:
            sizes[i] += sizes[i + 1]
            _drop(state, lanes, i + 1)
    state.free_blocks += size
    _update_largest(state, lanes)
