"""Who gives up KV memory when it runs out, and how: recompute, or swap to host memory."""

from sim.core.jit import compiled
from sim.core.kv import fits, give_back, missing
from sim.core.layout import Record
from sim.core.pointers import ints
from sim.core.queue import enqueue

__all__ = ["displace", "make_room"]

LAST_ADMITTED, LOWEST_PRIORITY, SHORTEST_PROGRESS = 0, 1, 2


@compiled
def _goes_first(knobs: Record, a: Record, b: Record) -> bool:
    """Return whether a, which stands behind b in the batch, is preempted before b."""
    if a.background != b.background:
        return a.background > b.background
    if knobs.victim == LOWEST_PRIORITY:
        return (a.priority, a.order_key) >= (b.priority, b.order_key)
    if knobs.victim == SHORTEST_PROGRESS:
        return a.emitted <= b.emitted
    return True


@compiled
def _victim(knobs: Record, state: Record, requests: Record, lanes: Record, first: int) -> int:
    """Return the place in `running` of the request to preempt; one that is ending stays.

    The last admitted stands at or after `first`, any other may stand anywhere.
    """
    start = first
    if knobs.victim != LAST_ADMITTED or state.n_background > 0:
        start = 0
    best = -1
    for place in range(start, state.n_running):
        a = requests[ints(lanes.running)[place]]
        if a.scheduled >= a.output_tokens:
            continue
        if best < 0 or _goes_first(knobs, a, requests[ints(lanes.running)[best]]):
            best = place
    return best


@compiled
def _remove(address: int, place: int, count: int) -> None:
    """Take an entry out of the list at an address."""
    values = ints(address)
    for i in range(place, count - 1):
        values[i] = values[i + 1]


@compiled
def _unschedule(state: Record, requests: Record, lanes: Record, index: int) -> int:
    """Take a request out of the step being formed; return the tokens that it had there."""
    request = requests[index]
    for i in range(state.n_emitting - 1, -1, -1):
        if ints(lanes.emitting)[i] == index:
            given = ints(lanes.emitting_tokens)[i]
            _remove(lanes.emitting, i, state.n_emitting)
            _remove(lanes.emitting_tokens, i, state.n_emitting)
            state.n_emitting -= 1
            request.scheduled -= given
            request.target = request.computed - given + 1
            break
    for i in range(state.n_batch - 1, -1, -1):
        if ints(lanes.batch)[i] == index:
            tokens = ints(lanes.batch_tokens)[i]
            _remove(lanes.batch, i, state.n_batch)
            _remove(lanes.batch_tokens, i, state.n_batch)
            _remove(lanes.batch_drafts, i, state.n_batch)
            state.n_batch -= 1
            request.computed -= tokens
            state.kv_tokens -= tokens
            return tokens
    return 0


@compiled
def _put_away(state: Record, knobs: Record, request: Record) -> bool:
    """Copy a request's KV blocks to host memory, where there is room."""
    blocks = (request.computed + knobs.block_size - 1) // knobs.block_size
    if state.swapped_blocks + blocks > knobs.swap_blocks or request.computed == 0:
        return False
    request.stored = request.computed
    request.swaps += 1
    state.swaps += 1
    state.swapped_blocks += blocks
    state.copy_s += blocks * knobs.swap_out_s
    return True


@compiled
def _preempt(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record, place: int
) -> None:
    """Take a running request's blocks away; it waits again."""
    index = ints(lanes.running)[place]
    request = requests[index]
    _remove(lanes.running, place, state.n_running)
    state.n_running -= 1
    swapped = _put_away(state, knobs, request)
    give_back(state, knobs, pool, requests, lanes, index)
    if not swapped:
        request.recomputed_tokens += request.computed
        request.target = request.prompt_tokens + request.scheduled
    request.computed = 0
    request.preemptions += 1
    state.preempted += 1
    state.preemptions += 1
    enqueue(state, requests, lanes, index)


@compiled
def make_room(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    place: int,
    tokens: int,
) -> tuple[int, int]:
    """Preempt until `tokens` fit for the request at `place`.

    Returns
    -------
    tuple of int
        Its place now, -1 when it was itself preempted; and the tokens of this step that others
        gave back.
    """
    index, returned = ints(lanes.running)[place], 0
    while missing(knobs, requests, lanes, index, tokens) > state.free_blocks:
        victim = _victim(knobs, state, requests, lanes, place)
        gone = ints(lanes.running)[victim]
        if victim < place:
            returned += _unschedule(state, requests, lanes, gone)
        _preempt(state, knobs, pool, requests, lanes, victim)
        if gone == index:
            return -1, returned
        place -= victim < place
    return place, returned


@compiled
def displace(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    blocks: int,
    idle_hits: int,
) -> None:
    """Preempt background requests until a waiting request that needs `blocks` can start."""
    while state.n_background > 0:
        if state.n_running < knobs.max_num_seqs and fits(state, knobs, blocks, idle_hits):
            return
        victim = _victim(knobs, state, requests, lanes, 0)
        if victim < 0 or not requests[ints(lanes.running)[victim]].background:
            return
        _preempt(state, knobs, pool, requests, lanes, victim)
        state.displaced += 1
