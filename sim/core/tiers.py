"""Prefix caches below the KV pool: host memory and SSD take what the pool evicts.

A block that is evicted from the pool moves to host memory, and from there to the SSD; both keep a
block that is fetched again, and evict least recently used. Writing down is not charged: it runs
beside the steps in the other direction of the link.
"""

from sim.core.blocks import insert, lookup, request_key, touch
from sim.core.jit import compiled
from sim.core.layout import Record
from sim.core.pointers import ints

__all__ = ["cheapest_fetch", "demote", "renew"]

NOWHERE, DRAM, SSD = 0, 1, 2


@compiled
def demote(state: Record, knobs: Record, pool: Record, tiers: Record) -> None:
    """Move evicted keys down."""
    for i in range(state.n_evicted):
        key = ints(pool.evicted)[i]
        if knobs.dram_blocks > 0:
            key = insert(tiers.dram, key)
        if key != 0 and knobs.ssd_blocks > 0:
            insert(tiers.ssd, key)
    state.demoted_blocks += state.n_evicted
    state.n_evicted = 0


@compiled
def _tier_of(knobs: Record, tiers: Record, key: int) -> int:
    if knobs.dram_blocks > 0 and lookup(tiers.dram, key) >= 0:
        return DRAM
    if knobs.ssd_blocks > 0 and lookup(tiers.ssd, key) >= 0:
        return SSD
    return NOWHERE


@compiled
def _compute_s(knobs: Record, first: int, last: int) -> float:
    """Return the prefill seconds of blocks first..last - 1 of a request."""
    a, b = first * knobs.block_size, last * knobs.block_size
    pairs = 0.5 * (float(b) * (b + 1.0) - float(a) * (a + 1.0))
    return (b - a) * knobs.recompute_token_s + pairs * knobs.recompute_pair_s


@compiled
def fetch_s(knobs: Record, dram: int, ssd: int) -> float:
    """Return the seconds to fetch blocks from host memory and from SSD."""
    seconds = dram * knobs.dram_s + ssd * knobs.ssd_s
    seconds += knobs.dram_latency_s if dram > 0 else 0.0
    return seconds + (knobs.ssd_latency_s if ssd > 0 else 0.0)


@compiled
def cheapest_fetch(
    knobs: Record,
    tiers: Record,
    requests: Record,
    hashes: Record,
    index: int,
    hits: int,
    limit: int,
) -> tuple[int, int]:
    """Return how many blocks after the first `hits` to fetch from host memory and from SSD.

    The leading run that the tiers hold, cut where fetching the rest would take longer than
    computing it, unless `fetch_always`.
    """
    dram, ssd, best_dram, best_ssd, saved = 0, 0, 0, 0, 0.0
    for block in range(hits, limit):
        tier = _tier_of(knobs, tiers, request_key(requests, hashes, index, block, knobs.block_size))
        if tier == NOWHERE:
            break
        dram += tier == DRAM
        ssd += tier == SSD
        gain = _compute_s(knobs, hits, block + 1) - fetch_s(knobs, dram, ssd)
        if gain > saved or knobs.fetch_always:
            best_dram, best_ssd, saved = dram, ssd, gain
    return best_dram, best_ssd


@compiled
def renew(
    knobs: Record,
    tiers: Record,
    requests: Record,
    hashes: Record,
    index: int,
    first: int,
    last: int,
) -> None:
    """Mark the fetched blocks of a request as used, the last block first."""
    for block in range(last - 1, first - 1, -1):
        key = request_key(requests, hashes, index, block, knobs.block_size)
        if _tier_of(knobs, tiers, key) == DRAM:
            touch(tiers.dram, lookup(tiers.dram, key))
        else:
            touch(tiers.ssd, lookup(tiers.ssd, key))
