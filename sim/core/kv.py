"""KV memory of a request: blocks it takes, grows into, leaves, and finds again elsewhere."""

from sim.core import extents
from sim.core.blocks import allocate, publish, release, request_key
from sim.core.jit import compiled
from sim.core.layout import Record
from sim.core.pointers import grid, ints

__all__ = ["blocks_to_admit", "compute", "fits", "give_back", "grow", "missing"]


@compiled
def give_back(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record, index: int
) -> None:
    """Return all KV blocks and the slot of a running request."""
    request = requests[index]
    slot = request.slot
    if knobs.caching:
        for i in range(ints(lanes.held)[slot] - 1, -1, -1):
            release(pool, grid(lanes.blocks, lanes.width)[slot, i], state, knobs)
    elif knobs.reserve > 0:
        extents.give(state, lanes, grid(lanes.blocks, lanes.width)[slot, 0], ints(lanes.held)[slot])
    else:
        state.free_blocks += ints(lanes.held)[slot]
    state.held_blocks -= ints(lanes.held)[slot]
    state.kv_tokens -= request.computed
    state.n_background -= request.background
    ints(lanes.held)[slot] = 0
    ints(lanes.slots)[state.free_slots] = slot
    state.free_slots += 1
    request.slot = -1


@compiled
def grow(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    index: int,
    tokens: int,
) -> None:
    """Take blocks so that `tokens` fit; the caller has checked that they are free."""
    slot = requests[index].slot
    wanted = (tokens + knobs.block_size - 1) // knobs.block_size
    extra = wanted - ints(lanes.held)[slot]
    if extra <= 0:
        return
    if knobs.caching:
        for i in range(ints(lanes.held)[slot], wanted):
            grid(lanes.blocks, lanes.width)[slot, i] = allocate(pool, state, knobs)
    elif knobs.reserve > 0:
        grid(lanes.blocks, lanes.width)[slot, 0] = extents.take(state, lanes, wanted)
    else:
        state.free_blocks -= extra
    state.held_blocks += extra
    ints(lanes.held)[slot] = wanted


@compiled
def name_blocks(
    knobs: Record,
    pool: Record,
    requests: Record,
    hashes: Record,
    lanes: Record,
    index: int,
    before: int,
) -> None:
    """Publish the blocks that have filled up since `before` tokens were computed."""
    slot, size = requests[index].slot, knobs.block_size
    for i in range(before // size, requests[index].computed // size):
        key = request_key(requests, hashes, index, i, size)
        block = grid(lanes.blocks, lanes.width)[slot, i]
        publish(pool, block, key, requests[index].prompt_tokens, knobs)


@compiled
def compute(
    state: Record,
    knobs: Record,
    pool: Record,
    records: Record,
    lanes: Record,
    index: int,
    tokens: int,
) -> None:
    """Count `tokens` more tokens of a request as computed, in the blocks that they need."""
    requests, hashes = records
    before = requests[index].computed
    grow(state, knobs, pool, requests, lanes, index, before + tokens)
    requests[index].computed = before + tokens
    if knobs.caching:
        name_blocks(knobs, pool, requests, hashes, lanes, index, before)


@compiled
def missing(knobs: Record, requests: Record, lanes: Record, index: int, tokens: int) -> int:
    """Return the blocks that a running request lacks for `tokens` more tokens."""
    wanted = (requests[index].computed + tokens + knobs.block_size - 1) // knobs.block_size
    return wanted - ints(lanes.held)[requests[index].slot]


@compiled
def blocks_to_admit(knobs: Record, request: Record) -> int:
    """Return the blocks that a request must get when it starts: its prompt, or what it reserves."""
    tokens = request.target
    if knobs.reserve > 0:
        tokens = knobs.reserve + request.prompt_tokens * knobs.reserve_prompt
    return (tokens + knobs.block_size - 1) // knobs.block_size


@compiled
def fits(state: Record, knobs: Record, blocks: int, idle_hits: int) -> bool:
    """Return whether a waiting request may take `blocks`, beside cached ones that are now free."""
    spare = state.free_blocks - idle_hits
    if state.n_running > 0:
        spare -= knobs.watermark_blocks
    return blocks <= spare and (knobs.reserve == 0 or blocks <= state.largest_free)
