"""Admission: the head of the queue joins the batch with what is cached of it and a first chunk."""

from typing import NamedTuple

from sim.core.blocks import count_hits, lookup, request_key, share
from sim.core.jit import compiled
from sim.core.kv import blocks_to_admit, compute, fits, grow, name_blocks
from sim.core.layout import Record
from sim.core.pointers import grid, ints
from sim.core.queue import remove
from sim.core.tiers import cheapest_fetch, demote, fetch_s, renew

__all__ = ["Found", "find", "free_blocks_allow", "start", "take", "valley"]


class Found(NamedTuple):
    """What exists of a waiting request's KV cache, in blocks.

    Attributes
    ----------
    hits, idle : int
        Leading blocks in the pool, and how many of them nobody uses.
    dram, ssd : int
        Blocks after them to fetch from the lower tiers.
    """

    hits: int
    idle: int
    dram: int
    ssd: int


@compiled
def find(
    state: Record,
    knobs: Record,
    pool: Record,
    tiers: Record,
    requests: Record,
    hashes: Record,
    index: int,
) -> Found:
    """Look a waiting request up in the caches; its last token is always computed."""
    if not knobs.caching or (requests[index].stored > 0 and requests[index].preemptions == 0):
        return Found(0, 0, 0, 0)
    limit = (requests[index].target - 1) // knobs.block_size
    hits, idle = count_hits(pool, requests, hashes, index, limit, state, knobs)
    dram, ssd = 0, 0
    if knobs.dram_blocks + knobs.ssd_blocks > 0 and requests[index].stored == 0:
        demote(state, knobs, pool, tiers)
        dram, ssd = cheapest_fetch(knobs, tiers, requests, hashes, index, hits, limit)
    return Found(hits, idle, dram, ssd)


@compiled
def free_blocks_allow(state: Record, knobs: Record, request: Record, found: Found) -> bool:
    """Return whether the whole prompt of a waiting request fits."""
    return fits(state, knobs, blocks_to_admit(knobs, request) - found.hits, found.idle)


@compiled
def valley(state: Record, knobs: Record, request: Record, found: Found) -> bool:
    """Return whether a background request may start: few run, and enough blocks stay free."""
    if state.n_running == 0:
        return True
    if state.n_background >= knobs.background_seqs:
        return False
    blocks = blocks_to_admit(knobs, request) - found.hits
    return state.free_blocks - found.idle - blocks >= knobs.background_free


@compiled
def known_tokens(knobs: Record, request: Record, found: Found) -> int:
    """Return the tokens of a waiting request that need not be computed."""
    cached = (found.hits + found.dram + found.ssd) * knobs.block_size
    return max(cached, request.stored)


@compiled
def _count_lookup(state: Record, knobs: Record, request: Record, found: Found) -> None:
    """Book what a request finds at its first admission."""
    size = knobs.block_size
    request.admitted_s = state.now
    request.cached_tokens = (found.hits + found.dram + found.ssd) * size
    request.dram_tokens = found.dram * size
    request.ssd_tokens = found.ssd * size
    state.extra_s += request.extra_s
    state.extra_flops += request.extra_flops
    if knobs.caching and request.stored == 0:
        state.hit_blocks += found.hits
        state.dram_hit_blocks += found.dram
        state.ssd_hit_blocks += found.ssd
        state.looked_up_blocks += (request.target - 1) // size


@compiled
def _bring_back(state: Record, knobs: Record, request: Record, found: Found) -> None:
    """Charge the copies that an admission needs: from lower tiers, or swapped blocks."""
    seconds = fetch_s(knobs, found.dram, found.ssd)
    if knobs.fetch_beside:
        state.fetch_s += seconds
    else:
        state.copy_s += seconds
    if request.stored > 0 and request.preemptions > 0:
        blocks = (request.stored + knobs.block_size - 1) // knobs.block_size
        state.swapped_blocks -= blocks
        state.copy_s += max(blocks - found.hits, 0) * knobs.swap_in_s


@compiled
def start(
    state: Record,
    knobs: Record,
    pool: Record,
    tiers: Record,
    records: Record,
    lanes: Record,
    place: int,
    found: Found,
) -> int:
    """Move a waiting request into the batch with the tokens that are known of it; return it."""
    requests, hashes = records
    index = remove(state, requests, lanes, place)
    request = requests[index]
    state.free_slots -= 1
    slot = ints(lanes.slots)[state.free_slots]
    request.slot = slot
    for i in range(found.hits):
        block = lookup(pool, request_key(requests, hashes, index, i, knobs.block_size))
        share(pool, block, state, knobs)
        grid(lanes.blocks, lanes.width)[slot, i] = block
    ints(lanes.held)[slot] = found.hits
    state.held_blocks += found.hits
    if found.dram + found.ssd > 0:
        last = found.hits + found.dram + found.ssd
        renew(knobs, tiers, requests, hashes, index, found.hits, last)
    if request.preemptions == 0:
        _count_lookup(state, knobs, request, found)
    _bring_back(state, knobs, request, found)
    known = known_tokens(knobs, request, found)
    room = known
    if knobs.reserve > 0:
        room = blocks_to_admit(knobs, request) * knobs.block_size
    grow(state, knobs, pool, requests, lanes, index, room)
    request.computed = known
    request.stored = 0
    state.kv_tokens += known
    if knobs.caching:
        name_blocks(knobs, pool, requests, hashes, lanes, index, found.hits * knobs.block_size)
    ints(lanes.running)[state.n_running] = index
    state.n_running += 1
    state.n_background += request.background
    return index


@compiled
def take(
    state: Record,
    knobs: Record,
    pool: Record,
    records: Record,
    lanes: Record,
    index: int,
    tokens: int,
) -> None:
    """Put `tokens` of a running request into the step; at its target it emits a token."""
    requests = records[0]
    compute(state, knobs, pool, records, lanes, index, tokens)
    ints(lanes.batch)[state.n_batch] = index
    ints(lanes.batch_tokens)[state.n_batch] = tokens
    ints(lanes.batch_drafts)[state.n_batch] = 0
    state.n_batch += 1
    state.kv_tokens += tokens
    request = requests[index]
    if request.background and tokens > 1:
        state.background_left -= tokens
    if request.computed >= request.target:
        request.scheduled += 1
        request.target = request.computed + 1
        ints(lanes.emitting)[state.n_emitting] = index
        ints(lanes.emitting_tokens)[state.n_emitting] = 1
        state.n_emitting += 1
