"""Macro-steps: the same decodes again and again, O(1) per step, until something can change."""

import numpy as np

from sim.core.blocks import allocate
from sim.core.clock import count_gap, pass_front, run_step
from sim.core.jit import compiled
from sim.core.kv import name_blocks
from sim.core.layout import Record, StepTables
from sim.core.log import book, log
from sim.core.pointers import floats, grid, ints
from sim.core.schedule import FREE
from sim.core.tiers import demote

__all__ = ["NO", "may_repeat", "repeat"]

# What an interrupted run of macro-steps goes on with: nothing, a new row, the newest row.
NO, PENDING, OPEN = 0, 1, 2
ENDED = 1 << 40  # steps that a request which only pads the batch would allow


@compiled
def may_repeat(state: Record, knobs: Record, lanes: Record) -> bool:
    """Return whether the next step can only be the last one again: nobody may be admitted.

    With drafts no two steps are alike. A waiting request that is no background work displaces
    one that is.
    """
    if not knobs.fuse or knobs.draft_tokens > 0 or (knobs.interactive and state.changed):
        return False
    if state.n_waiting == 0:
        return True
    if state.n_background > 0 and ints(lanes.waiting_level)[0] == 0:
        return False
    if state.n_running >= knobs.max_num_seqs:
        return True
    if knobs.hold:
        return state.fill_left == 0
    return state.blocked != FREE and not knobs.fair


@compiled
def _steps_to_next_end(state: Record, requests: Record, lanes: Record) -> int:
    """Return how many steps all running requests decode before one of them takes its last.

    Zero when they are not all alike: each must have got a token from the newest output.
    """
    fewest, running = ENDED, ints(lanes.running)
    for i in range(state.n_running):
        request = requests[running[i]]
        if request.last_token_s != state.output_s:
            if request.emitted >= request.output_tokens:
                continue
            return 0
        fewest = min(fewest, request.output_tokens - request.scheduled - 1)
    return fewest if fewest < ENDED else 0


@compiled
def _fill_phases(
    state: Record, knobs: Record, requests: Record, lanes: Record
) -> tuple[int, float]:
    """Count decoding requests by context modulo block size.

    Returns
    -------
    tuple of int and float
        Sum of contexts, and of their squares, without padding rows.
    """
    phase, running, held = ints(lanes.phase), ints(lanes.running), ints(lanes.held)
    context, squares, size = 0, 0.0, knobs.block_size
    for i in range(size):
        phase[i] = 0
    for i in range(state.n_running):
        request = requests[running[i]]
        if request.scheduled >= request.output_tokens:
            continue
        context += request.computed
        squares += float(request.computed) * request.computed
        if request.computed >= held[request.slot] * size or knobs.reserve == 0:
            phase[request.computed % size] += 1
    return context, squares


@compiled
def _settle_blocks(
    state: Record,
    knobs: Record,
    pool: Record,
    records: Record,
    lanes: Record,
    index: int,
    had: int,
    before: int,
) -> None:
    """Allocate the blocks that a request has grown into, and publish those that are full."""
    requests, hashes = records
    slot = requests[index].slot
    for j in range(had, ints(lanes.held)[slot]):
        grid(lanes.blocks, lanes.width)[slot, j] = allocate(pool, state, knobs)
    name_blocks(knobs, pool, requests, hashes, lanes, index, before)


@compiled
def _settle(
    state: Record, knobs: Record, pool: Record, records: Record, lanes: Record, steps: int
) -> None:
    """Book `steps` macro-steps on every decoding request: tokens, blocks and cache keys."""
    requests, decoding = records[0], 0
    size, running, held = knobs.block_size, ints(lanes.running), ints(lanes.held)
    for i in range(state.n_running):
        request = requests[running[i]]
        if request.scheduled >= request.output_tokens:
            continue
        before = request.computed
        after = before + steps
        request.computed = after
        request.target = after + 1
        request.scheduled += steps
        request.emitted += steps
        request.last_token_s = state.output_s
        had, wanted = held[request.slot], (after + size - 1) // size
        held[request.slot] = max(had, wanted)
        if knobs.caching and (wanted > had or after // size > before // size):
            _settle_blocks(state, knobs, pool, records, lanes, running[i], had, before)
        if knobs.fair:
            floats(lanes.served)[request.client] += knobs.output_weight * steps
        decoding += 1
    state.generated += steps * decoding


@compiled
def _arrival_due(state: Record, knobs: Record, requests: Record, lanes: Record) -> bool:
    """Return whether a request has come for the engine, or for the front end."""
    if state.next_inbox >= state.n_inbox:
        return False
    if requests[ints(lanes.inbox)[state.next_inbox]].ready_s <= state.now:
        return True
    if knobs.front_request_s <= 0.0 or state.next_front >= state.n_inbox:
        return False
    return requests[ints(lanes.inbox)[state.next_front]].ready_s <= state.now


@compiled
def _claim(state: Record, knobs: Record, blocks: int, tokens: int) -> None:
    """Count the blocks and tokens of one more step."""
    state.free_blocks -= blocks
    state.held_blocks += blocks
    state.kv_tokens += tokens
    if knobs.reserve == 0:
        state.largest_free = state.free_blocks


@compiled
def _last_start(state: Record, knobs: Record, until: float) -> float:
    """Return the time from which no macro-step may start."""
    stop = min(until, state.next_urgent_s)
    if state.n_waiting > 0:
        stop = min(stop, state.next_leave_s)
    return min(stop, state.rules_until_s) if knobs.interactive else stop


@compiled
def repeat(
    tables: StepTables,
    state: Record,
    knobs: Record,
    pool: Record,
    tiers: Record,
    records: Record,
    lanes: Record,
    rows: Record,
    until: float,
) -> None:
    """Repeat the running decodes until something can change: arrival, end, blocks or `until`."""
    requests = records[0]
    most = _steps_to_next_end(state, requests, lanes)
    if most <= 0:
        return
    state.resume = max(state.resume, PENDING)
    idle, size = state.n_padding, knobs.block_size
    n = state.n_running - idle
    context, squares = _fill_phases(state, knobs, requests, lanes)
    free_before, steps, level = state.free_blocks, 0, state.level
    stop = _last_start(state, knobs, until)
    while steps < most and state.now < stop and not _arrival_due(state, knobs, requests, lanes):
        new = ints(lanes.phase)[(size - steps % size) % size]
        if new > state.free_blocks or state.n_rows >= rows.size:
            break
        _claim(state, knobs, new, n)
        schedule_s = state.now
        seen = run_step(
            tables,
            state,
            knobs,
            0,
            0.0,
            0.0,
            n + idle,
            context + state.padding_context,
            squares + state.idle_squares,
            n + idle,
        )
        if (steps == 0 and state.resume != OPEN) or knobs.every_step or state.level != level:
            log(state, knobs, rows, schedule_s, 0, 0, 0.0, n, context)
            level = state.level
        else:
            book(state, knobs, rows)
        later = pass_front(state, knobs, seen, n) if knobs.front_token_s > 0.0 else 0.0
        count_gap(floats(lanes.gaps), seen - state.output_s + later, n)
        state.output_s = seen
        state.now = seen + knobs.bookkeeping_s + knobs.bookkeeping_per_request_s * state.n_running
        squares += 2.0 * context + n
        context += n
        steps += 1
        state.resume = OPEN
    if knobs.caching:
        state.free_blocks = free_before
    _settle(state, knobs, pool, records, lanes, steps)
    if state.n_evicted > 0:
        demote(state, knobs, pool, tiers)
    if state.now < until or state.now >= _last_start(state, knobs, np.inf):
        state.resume = NO
