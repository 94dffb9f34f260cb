"""Which tokens go into the next step: running requests first, then waiting ones in order.

The rules are those of vLLM V1: every running request gets its next token or prompt chunk; when KV
blocks run out a victim is preempted and recomputed later; a waiting request is admitted when its
whole prompt fits the free blocks, and a step that preempts admits nothing.
"""

from sim.core.blocks import allocate, count_hits, lookup, publish, release, request_key, share
from sim.core.jit import compiled
from sim.core.layout import BlockPool, Lanes, Record, Status
from sim.core.waiting import close, pop_waiting, push_waiting

__all__ = ["fill_time", "form_batch", "give_back"]

TIMED_OUT = Status.TIMED_OUT
LAST_ADMITTED, LOWEST_PRIORITY, SHORTEST_PROGRESS = 0, 1, 2


@compiled
def give_back(
    state: Record, knobs: Record, pool: BlockPool, requests: Record, lanes: Lanes, index: int
) -> None:
    """Return all KV blocks and the slot of a request."""
    slot = requests[index].slot
    if knobs.caching:
        for i in range(lanes.held[slot] - 1, -1, -1):
            release(pool, lanes.blocks[slot, i], state)
    else:
        state.free_blocks += lanes.held[slot]
    lanes.held[slot] = 0
    lanes.slots[state.free_slots] = slot
    state.free_slots += 1
    requests[index].slot = -1


@compiled
def _grow(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    requests: Record,
    lanes: Lanes,
    index: int,
    tokens: int,
) -> None:
    """Allocate blocks so that `tokens` fit; the caller has checked the free list."""
    slot = requests[index].slot
    wanted = (tokens + knobs.block_size - 1) // knobs.block_size
    if knobs.caching:
        for i in range(lanes.held[slot], wanted):
            lanes.blocks[slot, i] = allocate(pool, state)
    elif wanted > lanes.held[slot]:
        state.free_blocks -= wanted - lanes.held[slot]
    lanes.held[slot] = max(lanes.held[slot], wanted)


@compiled
def extend(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    requests: Record,
    hashes: Record,
    lanes: Lanes,
    index: int,
    tokens: int,
) -> None:
    """Compute `tokens` more tokens of a request: allocate, and publish blocks that fill up."""
    before = requests[index].computed
    after = before + tokens
    _grow(state, knobs, pool, requests, lanes, index, after)
    requests[index].computed = after
    if knobs.caching:
        slot = requests[index].slot
        for i in range(before // knobs.block_size, after // knobs.block_size):
            key = request_key(requests, hashes, index, i, knobs.block_size)
            publish(pool, lanes.blocks[slot, i], key)


@compiled
def _missing(knobs: Record, requests: Record, lanes: Lanes, index: int, tokens: int) -> int:
    wanted = (requests[index].computed + tokens + knobs.block_size - 1) // knobs.block_size
    return wanted - lanes.held[requests[index].slot]


@compiled
def _victim(knobs: Record, state: Record, requests: Record, lanes: Lanes, first: int) -> int:
    """Return the position in `running`, at or after `first`, of the request to preempt."""
    best = first
    for place in range(first, state.n_running):
        a, b = requests[lanes.running[place]], requests[lanes.running[best]]
        if a.scheduled >= a.output_tokens:
            continue
        later = knobs.victim == LAST_ADMITTED
        lower = knobs.victim == LOWEST_PRIORITY and (a.priority, a.order_key) >= (
            b.priority,
            b.order_key,
        )
        shorter = knobs.victim == SHORTEST_PROGRESS and a.emitted <= b.emitted
        if later or lower or shorter:
            best = place
    return best


@compiled
def _preempt(
    state: Record, knobs: Record, pool: BlockPool, requests: Record, lanes: Lanes, place: int
) -> None:
    """Take a running request's blocks away; it waits again and recomputes."""
    index = lanes.running[place]
    for i in range(place, state.n_running - 1):
        lanes.running[i] = lanes.running[i + 1]
    state.n_running -= 1
    give_back(state, knobs, pool, requests, lanes, index)
    requests[index].recomputed_tokens += requests[index].computed
    requests[index].computed = 0
    requests[index].target = requests[index].prompt_tokens + requests[index].scheduled
    requests[index].preemptions += 1
    state.preempted += 1
    state.preemptions += 1
    push_waiting(state, lanes, index, requests[index].order_key)


@compiled
def _take(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    index: int,
    tokens: int,
) -> None:
    """Put `tokens` of a request into the batch; when its target is reached it emits a token."""
    requests, hashes = records
    extend(state, knobs, pool, requests, hashes, lanes, index, tokens)
    lanes.batch[state.n_batch] = index
    lanes.batch_tokens[state.n_batch] = tokens
    state.n_batch += 1
    if requests[index].computed >= requests[index].target:
        requests[index].scheduled += 1
        requests[index].target = requests[index].computed + 1
        lanes.emitting[state.n_emitting] = index
        state.n_emitting += 1


@compiled
def _chunk(knobs: Record, need: int, budget: int) -> int:
    """Return how many of the needed tokens go into this step (0: none)."""
    if need > 1 and knobs.long_prefill_token_threshold > 0:
        need = min(need, knobs.long_prefill_token_threshold)
    if need > budget:
        return budget if knobs.chunked else 0
    return need


@compiled
def _make_room(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    requests: Record,
    lanes: Lanes,
    place: int,
    tokens: int,
) -> bool:
    """Preempt until `tokens` fit for the request at `place`; False when it was the victim."""
    index = lanes.running[place]
    while _missing(knobs, requests, lanes, index, tokens) > state.free_blocks:
        victim = _victim(knobs, state, requests, lanes, place)
        gone = lanes.running[victim]
        _preempt(state, knobs, pool, requests, lanes, victim)
        if gone == index:
            return False
    return True


@compiled
def _fits_last_block(request: Record, room: int, block_size: int) -> bool:
    """Return whether a request decodes one token into a block that it holds and does not fill."""
    if request.scheduled >= request.output_tokens or request.target != request.computed + 1:
        return False
    return request.computed + 1 < room and (request.computed + 1) % block_size != 0


@compiled
def _schedule_running(
    state: Record, knobs: Record, pool: BlockPool, records: Record, lanes: Lanes, budget: int
) -> int:
    """Give every running request its next tokens; return the budget that is left.

    The short way, one decode token into a block that is there, touches no list but the batch;
    arrays are bound outside the loop because taking them from a tuple costs a reference count.
    """
    requests, running, held = records[0], lanes.running, lanes.held
    batch, batch_tokens, emitting = lanes.batch, lanes.batch_tokens, lanes.emitting
    place, size = 0, knobs.block_size
    while place < state.n_running and budget > 0:
        request = requests[running[place]]
        if _fits_last_block(request, held[request.slot] * size, size):
            request.computed += 1
            request.target += 1
            request.scheduled += 1
            batch[state.n_batch] = emitting[state.n_emitting] = running[place]
            batch_tokens[state.n_batch] = 1
            state.n_batch += 1
            state.n_emitting += 1
            budget -= 1
        elif request.scheduled < request.output_tokens:
            tokens = _chunk(knobs, request.target - request.computed, budget)
            if tokens > 0:
                if not _make_room(state, knobs, pool, requests, lanes, place, tokens):
                    break
                _take(state, knobs, pool, records, lanes, running[place], tokens)
                budget -= tokens
        place += 1
    return budget


@compiled
def _may_admit(state: Record, knobs: Record) -> bool:
    """Return whether the batching rule lets waiting requests in now."""
    return state.admitting > 0 and state.n_waiting > 0 and state.n_running < knobs.max_num_seqs


@compiled
def fill_time(state: Record, knobs: Record, requests: Record, lanes: Lanes) -> float:
    """Return when a held-back batch starts although it is not full [s]."""
    oldest = requests[lanes.waiting[0]].ready_s
    for i in range(1, state.n_waiting):
        oldest = min(oldest, requests[lanes.waiting[i]].ready_s)
    return oldest + knobs.fill_timeout_s


@compiled
def _open_batch(state: Record, knobs: Record, requests: Record, lanes: Lanes) -> bool:
    """Return whether this step may admit: always, or only into an empty, full or overdue batch."""
    if not knobs.hold:
        return True
    if state.n_running > 0 or state.n_waiting == 0:
        return False
    if state.n_waiting >= knobs.fill_size:
        return True
    return state.now >= fill_time(state, knobs, requests, lanes)


@compiled
def _admit(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    hits: int,
    tokens: int,
) -> None:
    """Move the head of the queue into the running list with its cached blocks and a first chunk."""
    requests, hashes = records
    index = pop_waiting(state, lanes)
    state.free_slots -= 1
    slot = lanes.slots[state.free_slots]
    requests[index].slot = slot
    for i in range(hits):
        key = request_key(requests, hashes, index, i, knobs.block_size)
        block = lookup(pool, key)
        share(pool, block, state)
        lanes.blocks[slot, i] = block
    lanes.held[slot] = hits
    requests[index].computed = hits * knobs.block_size
    if _brings_kv(requests[index]):
        _take_over(state, knobs, pool, records, lanes, index)
    if requests[index].preemptions == 0:
        requests[index].cached_tokens = hits * knobs.block_size
        requests[index].admitted_s = state.now
    lanes.running[state.n_running] = index
    state.n_running += 1
    if knobs.reserve > 0:
        most = requests[index].prompt_tokens + max(knobs.reserve, requests[index].output_tokens)
        _grow(state, knobs, pool, requests, lanes, index, most)
    _take(state, knobs, pool, records, lanes, index, tokens)


@compiled
def _take_over(
    state: Record, knobs: Record, pool: BlockPool, records: Record, lanes: Lanes, index: int
) -> None:
    """Allocate and publish the blocks of a KV cache that comes with a request."""
    requests, hashes = records
    given, slot = requests[index].given_tokens, requests[index].slot
    _grow(state, knobs, pool, requests, lanes, index, given)
    requests[index].computed = given
    if knobs.caching:
        for i in range(given // knobs.block_size):
            key = request_key(requests, hashes, index, i, knobs.block_size)
            publish(pool, lanes.blocks[slot, i], key)


@compiled
def _brings_kv(request: Record) -> bool:
    """Return whether a request comes with the KV cache of its prompt; preempted, it is gone."""
    return request.given_tokens > 0 and request.preemptions == 0


@compiled
def _whole_blocks(knobs: Record, request: Record) -> int:
    """Return the blocks that must be free before a request may start."""
    tokens = request.target
    if knobs.reserve > 0:
        tokens = request.prompt_tokens + max(knobs.reserve, request.output_tokens)
    return (tokens + knobs.block_size - 1) // knobs.block_size


@compiled
def _schedule_waiting(
    state: Record, knobs: Record, pool: BlockPool, records: Record, lanes: Lanes, budget: int
) -> bool:
    """Admit waiting requests in order; return True when the head waits for KV blocks."""
    requests, hashes = records
    partial = 0
    while budget > 0 and _may_admit(state, knobs):
        index = lanes.waiting[0]
        if requests[index].deadline_s < state.now and requests[index].preemptions == 0:
            pop_waiting(state, lanes)
            close(state, requests, lanes, index, TIMED_OUT, requests[index].deadline_s)
            continue
        hits, idle = 0, 0
        given = requests[index].given_tokens if _brings_kv(requests[index]) else 0
        if knobs.caching and given == 0:
            limit = (requests[index].target - 1) // knobs.block_size
            hits, idle = count_hits(pool, requests, hashes, index, limit, knobs.block_size)
        spare = state.free_blocks - idle - (knobs.watermark_blocks if state.n_running else 0)
        if _whole_blocks(knobs, requests[index]) - hits > spare:
            return True
        need = requests[index].target - hits * knobs.block_size - given
        tokens = _chunk(knobs, need, budget)
        if tokens == 0 or (tokens < need and partial >= knobs.max_num_partial_prefills):
            return False
        partial += tokens < need
        if requests[index].preemptions == 0 and knobs.caching and given == 0:
            state.hit_blocks += hits
            state.looked_up_blocks += limit
        _admit(state, knobs, pool, records, lanes, hits, tokens)
        budget -= tokens
    return False


@compiled
def form_batch(
    state: Record, knobs: Record, pool: BlockPool, records: Record, lanes: Lanes
) -> bool:
    """Fill `lanes.batch` for the next step.

    Returns
    -------
    bool
        True when the head of the queue waits for KV blocks.
    """
    state.n_batch = 0
    state.n_emitting = 0
    state.preempted = 0
    state.admitting = _open_batch(state, knobs, records[0], lanes)
    budget = knobs.max_num_batched_tokens
    if knobs.prefill_first:
        blocked = _schedule_waiting(state, knobs, pool, records, lanes, budget)
        if state.n_batch > 0:
            return blocked
        _schedule_running(state, knobs, pool, records, lanes, budget)
        return blocked
    budget = _schedule_running(state, knobs, pool, records, lanes, budget)
    if state.preempted > 0:
        return True
    return _schedule_waiting(state, knobs, pool, records, lanes, budget)
