"""Which tokens go into the next step: running requests first, then waiting ones in order.

The default rules are those of vLLM V1: every running request gets its next token or prompt chunk;
when KV blocks run out a victim is preempted; a waiting request is admitted when its whole prompt
fits the free blocks, and a step that preempts admits nothing. Knobs give the other disciplines:
prompts before decodes, whole prompts only, batches that are held until all of them is done.
"""

from sim.core.admit import find, free_blocks_allow, known_tokens, start, take, valley
from sim.core.drafts import drafts_for, slots_of, take_drafts, verified
from sim.core.jit import compiled
from sim.core.kv import blocks_to_admit
from sim.core.layout import Record
from sim.core.pointers import floats, ints
from sim.core.preempt import displace, make_room
from sim.core.queue import head
from sim.core.tiers import demote

__all__ = ["FREE", "HELD_BACK", "SHORT", "fill_time", "form_batch"]

# Why the head of the queue waits: it does not (a later step may take it), KV blocks are short,
# or it may not start beside what runs (a held batch, online requests). Background work is held
# back by its rule however few blocks are free, so that a run of equal steps has one reason.
FREE, SHORT, HELD_BACK = 0, 1, 2


@compiled
def _chunk(state: Record, knobs: Record, request: Record, need: int, budget: int) -> int:
    """Return how many of the needed tokens go into this step (0: none)."""
    if need > 1:
        if knobs.long_prefill_token_threshold > 0:
            need = min(need, knobs.long_prefill_token_threshold)
        if request.background:
            need = min(need, state.background_left)
    if need > budget:
        return budget if knobs.chunked else 0
    return need


@compiled
def _fits_last_block(request: Record, room: int, block_size: int) -> bool:
    """Return whether a request decodes one token into a block that it holds and does not fill."""
    if request.scheduled >= request.output_tokens or request.target != request.computed + 1:
        return False
    return request.computed + 1 < room and (request.computed + 1) % block_size != 0


@compiled
def _schedule_running(
    state: Record, knobs: Record, pool: Record, records: Record, lanes: Record, budget: int
) -> int:
    """Give every running request its next tokens; return the budget that is left.

    The short way, one decode token into a block that is there, touches no list but the batch;
    arrays are bound outside the loop because taking them from a tuple costs a reference count.
    """
    requests, running, held = records[0], ints(lanes.running), ints(lanes.held)
    batch, batch_tokens, emitting = (
        ints(lanes.batch),
        ints(lanes.batch_tokens),
        ints(lanes.emitting),
    )
    place, size, short, plain = 0, knobs.block_size, 0, knobs.draft_tokens == 0
    while place < state.n_running and budget > 0:
        request = requests[running[place]]
        if plain and _fits_last_block(request, held[request.slot] * size, size):
            request.computed += 1
            request.target += 1
            request.scheduled += 1
            batch[state.n_batch] = emitting[state.n_emitting] = running[place]
            batch_tokens[state.n_batch] = 1
            state.n_batch += 1
            state.n_emitting += 1
            short += 1
            budget -= 1
        elif request.scheduled < request.output_tokens:
            drafted = 0 if plain else drafts_for(state, knobs, lanes, request, budget)
            tokens = _chunk(state, knobs, request, request.target - request.computed, budget)
            if tokens > 0:
                slots = slots_of(knobs, request, drafted) if drafted > 0 else tokens
                place, returned = make_room(state, knobs, pool, requests, lanes, place, slots)
                budget += returned
                if place < 0:
                    break
                if drafted > 0:
                    take_drafts(state, knobs, pool, records, lanes, running[place], drafted)
                else:
                    take(state, knobs, pool, records, lanes, running[place], tokens)
                budget -= verified(knobs, drafted) if drafted > 0 else tokens
        place += 1
    state.kv_tokens += short
    return budget


@compiled
def _schedule_prompts(
    state: Record, knobs: Record, pool: Record, records: Record, lanes: Record, budget: int
) -> int:
    """Go on with the cut prompts of running requests; return the budget that is left."""
    requests, place = records[0], 0
    while place < state.n_running and budget > 0:
        request = requests[ints(lanes.running)[place]]
        need = request.target - request.computed
        if need > 1:
            tokens = _chunk(state, knobs, request, need, budget)
            if tokens > 0:
                place, returned = make_room(state, knobs, pool, requests, lanes, place, tokens)
                budget += returned
                if place < 0:
                    break
                take(state, knobs, pool, records, lanes, ints(lanes.running)[place], tokens)
                budget -= tokens
        place += 1
    return budget


@compiled
def fill_time(state: Record, knobs: Record, requests: Record, lanes: Record) -> float:
    """Return when a held-back batch starts although it is not full [s]."""
    oldest = requests[ints(lanes.waiting)[0]].ready_s
    for i in range(1, state.n_waiting):
        oldest = min(oldest, requests[ints(lanes.waiting)[i]].ready_s)
    return oldest + knobs.fill_timeout_s


@compiled
def _open_batch(state: Record, knobs: Record, requests: Record, lanes: Record) -> None:
    """Choose the size of the next held batch when the last one is done, full or overdue."""
    if state.n_running > 0 or state.n_waiting == 0:
        state.fill_left = min(state.fill_left, state.n_waiting)
        return
    full = state.n_waiting >= knobs.fill_size
    if full or state.now >= fill_time(state, knobs, requests, lanes):
        state.fill_left = min(state.n_waiting, knobs.max_num_seqs)
    else:
        state.fill_left = 0


@compiled
def _may_admit(state: Record, knobs: Record) -> bool:
    """Return whether the batching rule lets a waiting request in now."""
    if state.n_waiting == 0 or state.n_running >= knobs.max_num_seqs:
        return False
    return not knobs.hold or state.fill_left > 0


@compiled
def _schedule_waiting(
    state: Record,
    knobs: Record,
    pool: Record,
    tiers: Record,
    records: Record,
    lanes: Record,
    budget: int,
) -> int:
    """Admit waiting requests in order; return why the next one waits."""
    requests, hashes = records
    partial = 0
    while budget > 0 and _may_admit(state, knobs):
        place = head(state, knobs, requests, lanes)
        request = requests[ints(lanes.waiting)[place]]
        found = find(state, knobs, pool, tiers, requests, hashes, ints(lanes.waiting)[place])
        if not free_blocks_allow(state, knobs, request, found):
            state.fill_left = 0
            return HELD_BACK if knobs.hold or request.background else SHORT
        if request.background and not valley(state, knobs, request, found):
            return HELD_BACK
        need = request.target - known_tokens(knobs, request, found)
        tokens = _chunk(state, knobs, request, need, budget)
        if tokens == 0 or (tokens < need and partial >= knobs.max_num_partial_prefills):
            return FREE
        partial += tokens < need
        index = start(state, knobs, pool, tiers, records, lanes, place, found)
        if knobs.fair and request.preemptions == 0:
            floats(lanes.served)[request.client] += knobs.input_weight * request.prompt_tokens
        state.fill_left -= knobs.hold
        take(state, knobs, pool, records, lanes, index, tokens)
        budget -= tokens
    return FREE


@compiled
def _make_way(
    state: Record, knobs: Record, pool: Record, tiers: Record, records: Record, lanes: Record
) -> None:
    """Preempt background requests for the head of the queue."""
    requests, hashes = records
    if state.n_background == 0 or state.n_waiting == 0:
        return
    index = ints(lanes.waiting)[head(state, knobs, requests, lanes)]
    if requests[index].background:
        return
    found = find(state, knobs, pool, tiers, requests, hashes, index)
    blocks = blocks_to_admit(knobs, requests[index]) - found.hits
    displace(state, knobs, pool, requests, lanes, blocks, found.idle)


@compiled
def _prepare(
    state: Record, knobs: Record, pool: Record, tiers: Record, records: Record, lanes: Record
) -> None:
    """Start the lists of a new step."""
    state.n_batch = 0
    state.n_emitting = 0
    state.preempted = 0
    state.displaced = 0
    state.background_left = knobs.background_tokens
    if knobs.hold:
        _open_batch(state, knobs, records[0], lanes)
    _make_way(state, knobs, pool, tiers, records, lanes)


@compiled
def _fill(
    state: Record, knobs: Record, pool: Record, tiers: Record, records: Record, lanes: Record
) -> int:
    budget = knobs.max_num_batched_tokens
    if knobs.prefill_first:
        budget = _schedule_prompts(state, knobs, pool, records, lanes, budget)
        if state.preempted > state.displaced:
            return SHORT
        blocked = _schedule_waiting(state, knobs, pool, tiers, records, lanes, budget)
        if state.n_batch == 0:
            _schedule_running(state, knobs, pool, records, lanes, budget)
        return blocked
    budget = _schedule_running(state, knobs, pool, records, lanes, budget)
    if state.preempted > state.displaced:
        return SHORT
    return _schedule_waiting(state, knobs, pool, tiers, records, lanes, budget)


@compiled
def form_batch(
    state: Record, knobs: Record, pool: Record, tiers: Record, records: Record, lanes: Record
) -> int:
    """Fill `lanes.batch` for the next step.

    Returns
    -------
    int
        Why the head of the queue waits: FREE, SHORT or HELD_BACK.
    """
    _prepare(state, knobs, pool, tiers, records, lanes)
    blocked = _fill(state, knobs, pool, tiers, records, lanes)
    if state.n_evicted > 0:
        demote(state, knobs, pool, tiers)
    if knobs.fair:
        for i in range(state.n_emitting):
            client = records[0][ints(lanes.emitting)[i]].client
            given = ints(lanes.emitting_tokens)[i]
            floats(lanes.served)[client] += knobs.output_weight * given
    if knobs.reserve == 0:
        state.largest_free = state.free_blocks
    return blocked
