"""KV block pool: free blocks in eviction order and a prefix cache by hash chain of full blocks.

A block that a finished request leaves keeps its key, and stays a hit, until it is handed out
again. By default the free list is least recently used first; a request gives its blocks back last
block first, so that the tail of a prompt is evicted before its head (as vLLM does). The other
orders rank a block when it becomes free: by its uses (LFU), or by the time that computing it again
would take times its uses, on a clock that ages what is not used (GreedyDual-Size-Frequency, [1]_).

References
----------
.. [1] L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
   policy", HP Laboratories report HPL-98-69, 1998.
"""

import numpy as np

from sim.core.jit import compiled
from sim.core.layout import BlockPool, Record
from sim.core.pointers import ints, ranks

__all__ = [
    "allocate",
    "count_hits",
    "insert",
    "lookup",
    "make_pool",
    "publish",
    "release",
    "request_key",
    "share",
    "touch",
]

NO_KEY = 0
HASH_TOKENS = 512  # a trace's hash_ids name blocks of this many tokens
LEAST_RECENT, LEAST_OFTEN, CHEAPEST = 0, 1, 2
SCORE, NUMBER, COST, USES, TOUCHED = 0, 1, 2, 3, 4  # columns of BlockPool.rank


def make_pool(num_blocks: int, ranked: bool = False, evicted: int = 0) -> BlockPool:
    """Return a pool of `num_blocks` free blocks without keys.

    Entry `num_blocks` of the two link arrays is the sentinel: head and tail of the free list.

    Parameters
    ----------
    num_blocks : int
        Blocks, at least 1.
    ranked : bool
        Keep the rank of every block: orders other than least recently used, and times of use.
    evicted : int
        Room for the keys of evicted blocks, 0 = they are forgotten.
    """
    n = max(num_blocks, 1)
    ring = np.arange(n + 1, dtype=np.int64)
    size = 1 << int(np.ceil(np.log2(4 * n)))
    count = n if ranked else 1
    rank = np.zeros((count, 5))
    rank[:, SCORE], rank[:, NUMBER] = -1.0, np.arange(count)
    return BlockPool(
        before=(ring - 1) % (n + 1),
        after=(ring + 1) % (n + 1),
        references=np.zeros(n, np.int64),
        key=np.zeros(n, np.int64),
        index_key=np.zeros(size, np.int64),
        index_block=np.zeros(size, np.int64),
        rank=rank,
        heap=np.arange(count, dtype=np.int64),
        spot=np.arange(count, dtype=np.int64),
        evicted=np.zeros(evicted, np.int64),
    )


@compiled
def _place(pool: Record, key: int) -> int:
    """Return the index slot that holds `key`, or the free slot where it would go."""
    mask = pool.index_size - 1
    spot = (key * 0x9E3779B97F4A7C1 >> 17) & mask
    while ints(pool.index_key)[spot] != NO_KEY and ints(pool.index_key)[spot] != key:
        spot = (spot + 1) & mask
    return spot


@compiled
def lookup(pool: Record, key: int) -> int:
    """Return the block that holds `key`, or -1."""
    spot = _place(pool, key)
    return ints(pool.index_block)[spot] if ints(pool.index_key)[spot] == key else -1


@compiled
def _forget(pool: Record, block: int) -> None:
    """Remove a block's key from the index, closing the gap that linear probing leaves."""
    mask = pool.index_size - 1
    hole = _place(pool, ints(pool.key)[block])
    ints(pool.key)[block] = NO_KEY
    spot = hole
    while True:
        spot = (spot + 1) & mask
        key = ints(pool.index_key)[spot]
        if key == NO_KEY:
            break
        home = (key * 0x9E3779B97F4A7C1 >> 17) & mask
        if (spot - home) & mask >= (spot - hole) & mask:
            ints(pool.index_key)[hole] = key
            ints(pool.index_block)[hole] = ints(pool.index_block)[spot]
            hole = spot
    ints(pool.index_key)[hole] = NO_KEY


@compiled
def _name(pool: Record, block: int, key: int) -> bool:
    """Enter a block under its key; False when another block already holds it."""
    spot = _place(pool, key)
    if ints(pool.index_key)[spot] != NO_KEY:
        return False
    ints(pool.index_key)[spot] = key
    ints(pool.index_block)[spot] = block
    ints(pool.key)[block] = key
    return True


@compiled
def publish(pool: Record, block: int, key: int, prompt: int, knobs: Record) -> None:
    """Give a full block its key, unless another block already holds it.

    Its cost is the time to compute a prompt of `prompt` tokens, per block: long prompts cost more
    for each, and all blocks of one cost alike, so that none is evicted before those behind it.
    """
    if _name(pool, block, key) and pool.ranked:
        cost = knobs.recompute_token_s + knobs.recompute_pair_s * 0.5 * (prompt + 1)
        ranks(pool.rank)[block, COST] = knobs.block_size * cost
        ranks(pool.rank)[block, USES] = 1.0


@compiled
def _unlink(pool: Record, block: int) -> None:
    ints(pool.after)[ints(pool.before)[block]] = ints(pool.after)[block]
    ints(pool.before)[ints(pool.after)[block]] = ints(pool.before)[block]


@compiled
def _append(pool: Record, block: int) -> None:
    sentinel = pool.blocks
    last = ints(pool.before)[sentinel]
    ints(pool.after)[last] = block
    ints(pool.before)[block] = last
    ints(pool.after)[block] = sentinel
    ints(pool.before)[sentinel] = block


@compiled
def _worse(pool: Record, a: int, b: int) -> bool:
    """Return whether the block at heap place a is evicted before that at b."""
    first, second = ints(pool.heap)[a], ints(pool.heap)[b]
    if ranks(pool.rank)[first, SCORE] != ranks(pool.rank)[second, SCORE]:
        return ranks(pool.rank)[first, SCORE] < ranks(pool.rank)[second, SCORE]
    return ranks(pool.rank)[first, NUMBER] < ranks(pool.rank)[second, NUMBER]


@compiled
def _exchange(pool: Record, a: int, b: int) -> None:
    first, second = ints(pool.heap)[a], ints(pool.heap)[b]
    ints(pool.heap)[a], ints(pool.heap)[b] = second, first
    ints(pool.spot)[first], ints(pool.spot)[second] = b, a


@compiled
def _heap_add(pool: Record, block: int, count: int) -> None:
    """Add a block to the heap of `count` free blocks."""
    child = count
    ints(pool.heap)[child] = block
    ints(pool.spot)[block] = child
    while child > 0 and _worse(pool, child, (child - 1) // 2):
        _exchange(pool, child, (child - 1) // 2)
        child = (child - 1) // 2


@compiled
def _heap_drop(pool: Record, block: int, count: int) -> None:
    """Take a block out of the heap of `count` free blocks."""
    place, last = ints(pool.spot)[block], count - 1
    _exchange(pool, place, last)
    child = place
    while child > 0 and child < last and _worse(pool, child, (child - 1) // 2):
        _exchange(pool, child, (child - 1) // 2)
        child = (child - 1) // 2
    while 2 * child + 1 < last:
        lower = 2 * child + 1
        if lower + 1 < last and _worse(pool, lower + 1, lower):
            lower += 1
        if not _worse(pool, lower, child):
            break
        _exchange(pool, lower, child)
        child = lower


@compiled
def _evict(pool: Record, block: int, state: Record) -> None:
    """Forget a cached block, or keep its key for the next tier."""
    if state.n_evicted < pool.evicted_size:
        ints(pool.evicted)[state.n_evicted] = ints(pool.key)[block]
        state.n_evicted += 1
    _forget(pool, block)
    state.evictions += 1


@compiled
def allocate(pool: Record, state: Record, knobs: Record) -> int:
    """Take the free block that comes first; the caller has checked that there is one."""
    if knobs.eviction == LEAST_RECENT:
        block = ints(pool.after)[pool.blocks]
        _unlink(pool, block)
    else:
        block = ints(pool.heap)[0]
        state.cache_clock = max(state.cache_clock, ranks(pool.rank)[block, SCORE])
        _heap_drop(pool, block, state.free_blocks)
    ints(pool.references)[block] = 1
    if ints(pool.key)[block] != NO_KEY:
        _evict(pool, block, state)
    state.free_blocks -= 1
    return block


@compiled
def share(pool: Record, block: int, state: Record, knobs: Record) -> None:
    """Count one more user of a cached block, taking it off the free ones if it was there."""
    if ints(pool.references)[block] == 0:
        if knobs.eviction == LEAST_RECENT:
            _unlink(pool, block)
        else:
            _heap_drop(pool, block, state.free_blocks)
        state.free_blocks -= 1
    ints(pool.references)[block] += 1
    if pool.ranked:
        ranks(pool.rank)[block, USES] += 1.0


@compiled
def _score(pool: Record, block: int, state: Record, knobs: Record) -> float:
    """Return the rank of a block that becomes free; blocks without a key go first."""
    if ints(pool.key)[block] == NO_KEY:
        return -1.0
    uses = ranks(pool.rank)[block, USES]
    if knobs.eviction == LEAST_OFTEN:
        return uses
    return state.cache_clock + uses * ranks(pool.rank)[block, COST]


@compiled
def release(pool: Record, block: int, state: Record, knobs: Record) -> None:
    """Count one user less; without users the block joins the free ones."""
    ints(pool.references)[block] -= 1
    if ints(pool.references)[block] > 0:
        return
    if pool.ranked:
        ranks(pool.rank)[block, TOUCHED] = state.now
    if knobs.eviction == LEAST_RECENT:
        _append(pool, block)
    else:
        ranks(pool.rank)[block, SCORE] = _score(pool, block, state, knobs)
        ranks(pool.rank)[block, NUMBER] = state.releases
        state.releases += 1
        _heap_add(pool, block, state.free_blocks)
    state.free_blocks += 1


@compiled
def touch(pool: Record, block: int) -> None:
    """Make a block of a lower tier the most recently used one."""
    _unlink(pool, block)
    _append(pool, block)


@compiled
def insert(pool: Record, key: int) -> int:
    """Put a key into a lower tier, or renew it; return the key that had to leave, 0 for none."""
    block = lookup(pool, key)
    if block >= 0:
        touch(pool, block)
        return NO_KEY
    block = ints(pool.after)[pool.blocks]
    gone = ints(pool.key)[block]
    if gone != NO_KEY:
        _forget(pool, block)
    touch(pool, block)
    _name(pool, block, key)
    return gone


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
    whole = first_token + block_size <= requests[owner].prompt_tokens
    if whole and first_token // HASH_TOKENS < requests[owner].hash_count:
        code = hashes[requests[owner].hash_start + first_token // HASH_TOKENS]
        return (1 << 62) | (code << 10) | (first_token % HASH_TOKENS // block_size)
    return ((owner + 1) << 24) | block


@compiled
def _expired(pool: Record, block: int, state: Record, knobs: Record) -> bool:
    if knobs.ttl_s == np.inf or ints(pool.references)[block] > 0:
        return False
    return state.now - ranks(pool.rank)[block, TOUCHED] > knobs.ttl_s


@compiled
def _forget_expired(
    pool: Record,
    requests: Record,
    hashes: Record,
    index: int,
    first: int,
    state: Record,
    knobs: Record,
) -> None:
    """Take the names of expired blocks from `first` on: the request computes them anew."""
    for block in range(first, requests[index].target // knobs.block_size):
        found = lookup(pool, request_key(requests, hashes, index, block, knobs.block_size))
        if found >= 0 and _expired(pool, found, state, knobs):
            _forget(pool, found)


@compiled
def count_hits(
    pool: Record,
    requests: Record,
    hashes: Record,
    index: int,
    limit: int,
    state: Record,
    knobs: Record,
) -> tuple[int, int]:
    """Return (leading cached blocks of a request, how many of them are free)."""
    idle = 0
    for block in range(limit):
        found = lookup(pool, request_key(requests, hashes, index, block, knobs.block_size))
        if found < 0:
            return block, idle
        if _expired(pool, found, state, knobs):
            _forget_expired(pool, requests, hashes, index, block, state, knobs)
            return block, idle
        if ints(pool.references)[found] == 0:
            idle += 1
    return limit, idle
