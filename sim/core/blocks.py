"""KV block pool: a free list in eviction order and a prefix cache by hash chain of full blocks.

A block that a finished request leaves keeps its key, and stays a hit, until the free list hands it
out again. The free list is least recently used first; a request gives its blocks back last block
first, so that the tail of a prompt is evicted before its head (as vLLM does).
"""

import numpy as np

from sim.core.jit import compiled
from sim.core.layout import BlockPool, Record

__all__ = [
    "allocate",
    "count_hits",
    "lookup",
    "make_pool",
    "publish",
    "release",
    "request_key",
    "share",
]

NO_KEY = 0
HASH_TOKENS = 512  # a trace's hash_ids name blocks of this many tokens


def make_pool(num_blocks: int) -> BlockPool:
    """Return a pool of `num_blocks` free blocks without keys.

    Entry `num_blocks` of the two link arrays is the sentinel: head and tail of the free list.
    """
    n = max(num_blocks, 1)
    ring = np.arange(n + 1, dtype=np.int64)
    size = 1 << int(np.ceil(np.log2(4 * n)))
    return BlockPool(
        before=(ring - 1) % (n + 1),
        after=(ring + 1) % (n + 1),
        references=np.zeros(n, np.int64),
        key=np.zeros(n, np.int64),
        index_key=np.zeros(size, np.int64),
        index_block=np.zeros(size, np.int64),
    )


@compiled
def _place(pool: BlockPool, key: int) -> int:
    """Return the index slot that holds `key`, or the free slot where it would go."""
    mask = pool.index_key.size - 1
    spot = (key * 0x9E3779B97F4A7C1 >> 17) & mask
    while pool.index_key[spot] != NO_KEY and pool.index_key[spot] != key:
        spot = (spot + 1) & mask
    return spot


@compiled
def lookup(pool: BlockPool, key: int) -> int:
    """Return the block that holds `key`, or -1."""
    spot = _place(pool, key)
    return pool.index_block[spot] if pool.index_key[spot] == key else -1


@compiled
def _forget(pool: BlockPool, block: int) -> None:
    """Remove a block's key from the index, closing the gap that linear probing leaves."""
    mask = pool.index_key.size - 1
    hole = _place(pool, pool.key[block])
    pool.key[block] = NO_KEY
    spot = hole
    while True:
        spot = (spot + 1) & mask
        key = pool.index_key[spot]
        if key == NO_KEY:
            break
        home = (key * 0x9E3779B97F4A7C1 >> 17) & mask
        if (spot - home) & mask >= (spot - hole) & mask:
            pool.index_key[hole] = key
            pool.index_block[hole] = pool.index_block[spot]
            hole = spot
    pool.index_key[hole] = NO_KEY


@compiled
def publish(pool: BlockPool, block: int, key: int) -> None:
    """Give a full block its key, unless another block already holds it."""
    spot = _place(pool, key)
    if pool.index_key[spot] == NO_KEY:
        pool.index_key[spot] = key
        pool.index_block[spot] = block
        pool.key[block] = key


@compiled
def _unlink(pool: BlockPool, block: int) -> None:
    pool.after[pool.before[block]] = pool.after[block]
    pool.before[pool.after[block]] = pool.before[block]


@compiled
def allocate(pool: BlockPool, state: Record) -> int:
    """Take the least recently used free block; the caller has checked that there is one."""
    block = pool.after[pool.references.size]
    _unlink(pool, block)
    pool.references[block] = 1
    if pool.key[block] != NO_KEY:
        _forget(pool, block)
        state.evictions += 1
    state.free_blocks -= 1
    return block


@compiled
def share(pool: BlockPool, block: int, state: Record) -> None:
    """Count one more user of a cached block, taking it off the free list if it was there."""
    if pool.references[block] == 0:
        _unlink(pool, block)
        state.free_blocks -= 1
    pool.references[block] += 1


@compiled
def release(pool: BlockPool, block: int, state: Record) -> None:
    """Count one user less; without users the block joins the end of the free list."""
    pool.references[block] -= 1
    if pool.references[block] > 0:
        return
    sentinel = pool.references.size
    last = pool.before[sentinel]
    pool.after[last] = block
    pool.before[block] = last
    pool.after[block] = sentinel
    pool.before[sentinel] = block
    state.free_blocks += 1


@compiled
def request_key(requests: Record, hashes: Record, index: int, block: int, block_size: int) -> int:
    """Return the key of one block of a request: equal keys mean equal leading tokens.

    A request of a session repeats the leading blocks of an earlier one (`prefix_owner`); a
    request of a trace with hashes is keyed by them; all other blocks are the request's own.
    """
    owner = index
    while requests[owner].prefix_owner >= 0 and (
        (block + 1) * block_size <= requests[owner].prefix_tokens
    ):
        owner = requests[owner].prefix_owner
    first_token = block * block_size
    if first_token // HASH_TOKENS < requests[owner].hash_count:
        code = hashes[requests[owner].hash_start + first_token // HASH_TOKENS]
        return (1 << 62) | (code << 10) | (first_token % HASH_TOKENS // block_size)
    return ((owner + 1) << 24) | block


@compiled
def count_hits(
    pool: BlockPool, requests: Record, hashes: Record, index: int, limit: int, block_size: int
) -> tuple[int, int]:
    """Return (leading cached blocks of a request, how many of them are on the free list)."""
    idle = 0
    for block in range(limit):
        found = lookup(pool, request_key(requests, hashes, index, block, block_size))
        if found < 0:
            return block, idle
        if pool.references[found] == 0:
            idle += 1
    return limit, idle
