"""The engine loop of one replica, from scheduling point to scheduling point.

`advance` takes general steps (any mix of prompts and decodes, O(batch)) and macro-steps (the same
decodes again and again, O(1) per step). Both call `run_step`, so they give the same floats.
"""

import numpy as np

from sim.core.blocks import allocate, publish, request_key
from sim.core.clock import count_gap, prefill_attention_s, run_step
from sim.core.jit import compiled
from sim.core.layout import BlockPool, Lanes, Record, Status, StepTables
from sim.core.schedule import fill_time, form_batch, give_back
from sim.core.waiting import close, ingest

__all__ = ["ROWS_FULL", "SOMETHING_DONE", "UNTIL", "advance"]

UNTIL, ROWS_FULL, SOMETHING_DONE = 0, 1, 2
# What an interrupted run of macro-steps goes on with: nothing, a new row, the newest row.
NO, PENDING, OPEN = 0, 1, 2
FINISHED = Status.FINISHED


@compiled
def _deliver(
    state: Record, knobs: Record, pool: BlockPool, requests: Record, lanes: Lanes, seen: float
) -> None:
    """Hand the tokens of the step in flight to the clients; end requests that are complete."""
    delay = knobs.client_s + knobs.client_per_request_s * state.n_running
    done_before, alike, flight = state.n_done, 0, lanes.flight
    for i in range(state.n_flight):
        index = flight[i]
        request = requests[index]
        if request.emitted == 0:
            request.first_token_s = seen + delay
        elif request.last_token_s == state.output_s:
            alike += 1
        else:
            count_gap(lanes.gaps, seen - request.last_token_s, 1)
        request.emitted += 1
        request.last_token_s = seen
        if request.emitted >= request.output_tokens:
            close(state, requests, lanes, index, FINISHED, seen + delay)
            give_back(state, knobs, pool, requests, lanes, index)
            state.finished += 1
    if alike > 0:
        count_gap(lanes.gaps, seen - state.output_s, alike)
    state.generated += state.n_flight
    if state.n_done > done_before:
        _drop_finished(state, requests, lanes)
    state.output_s = seen
    state.now = seen + knobs.bookkeeping_s + knobs.bookkeeping_per_request_s * state.n_running


@compiled
def _drop_finished(state: Record, requests: Record, lanes: Lanes) -> None:
    kept, running = 0, lanes.running
    for i in range(state.n_running):
        index = running[i]
        if requests[index].slot >= 0:
            running[kept] = index
            kept += 1
    state.n_running = kept


@compiled
def _put_in_flight(state: Record, lanes: Lanes) -> None:
    flight, emitting = lanes.flight, lanes.emitting
    for i in range(state.n_emitting):
        flight[i] = emitting[i]
    state.n_flight = state.n_emitting
    state.in_flight = 1


@compiled
def _log(
    state: Record,
    rows: Record,
    schedule_s: float,
    prefills: int,
    prefill_tokens: int,
    pairs: float,
    decodes: int,
    context: int,
) -> None:
    """Open a row of the step log and book the newest step in it."""
    row = rows[state.n_rows]
    state.n_rows += 1
    row.schedule_s = schedule_s
    row.steps = 0
    row.prefill_requests = prefills
    row.prefill_tokens = prefill_tokens
    row.prefill_attention = pairs
    row.decode_requests = decodes
    row.decode_context = context
    row.running = state.n_running
    row.waiting = state.n_waiting
    row.preempted = state.preempted
    row.gpu_s = row.host_s = row.energy_j = row.flops = row.bytes = 0.0
    _book(state, rows)


@compiled
def _book(state: Record, rows: Record) -> None:
    """Add the newest step to the newest row."""
    row = rows[state.n_rows - 1]
    row.steps += 1
    row.output_s = state.gpu_end
    row.gpu_s += state.step_s
    row.host_s += state.step_host_s
    row.energy_j += state.step_j
    row.flops += state.step_flops
    row.bytes += state.step_bytes
    row.free_blocks = state.free_blocks
    row.level = state.level
    row.window_w = state.window_w
    row.temperature_c = state.temperature_c


@compiled
def _general_step(
    tables: StepTables,
    state: Record,
    knobs: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    rows: Record,
) -> bool:
    """Form and run one step of any mix; return True when it decoded everything that runs."""
    requests, batch, batch_tokens = records[0], lanes.batch, lanes.batch_tokens
    schedule_s = state.now
    prefills, prefill_tokens, decodes, context = 0, 0, 0, 0
    pairs, attention, squares = 0.0, 0.0, 0.0
    for i in range(state.n_batch):
        request, tokens = requests[batch[i]], batch_tokens[i]
        past = request.computed - tokens
        if tokens == 1 and past >= request.prompt_tokens:
            decodes += 1
            context += past
            squares += float(past) * past
        else:
            prefills += 1
            prefill_tokens += tokens
            pairs += tokens * (past + 0.5 * (tokens + 1))
            attention += prefill_attention_s(tables, tokens, past)
    logits = state.n_emitting
    seen = run_step(
        tables,
        state,
        knobs,
        prefill_tokens,
        attention,
        pairs,
        decodes,
        context,
        squares,
        logits,
        prefills,
    )
    state.prefilled += prefill_tokens
    _log(state, rows, schedule_s, prefills, prefill_tokens, pairs, decodes, context)
    steady = prefills == 0 and decodes == state.n_running and state.preempted == 0
    if state.in_flight:
        finished = state.finished
        _deliver(state, knobs, pool, requests, lanes, seen)
        steady = steady and finished == state.finished
    else:
        state.now = schedule_s + state.step_host_s
        steady = False
    _put_in_flight(state, lanes)
    return steady


@compiled
def _steps_to_next_end(state: Record, requests: Record, lanes: Lanes) -> int:
    """Return how many steps all running requests decode before one of them takes its last.

    Zero when they are not all alike: each must have got a token from the newest output.
    """
    fewest, running = 1 << 40, lanes.running
    for i in range(state.n_running):
        request = requests[running[i]]
        if request.last_token_s != state.output_s:
            return 0
        fewest = min(fewest, request.output_tokens - request.scheduled - 1)
    return fewest


@compiled
def _fill_phases(state: Record, knobs: Record, requests: Record, lanes: Lanes) -> tuple[int, float]:
    """Count running requests by context modulo block size.

    Returns
    -------
    tuple of int and float
        Sum of contexts, and of their squares.
    """
    phase, running, held = lanes.phase, lanes.running, lanes.held
    phase[:] = 0
    context, squares, size = 0, 0.0, knobs.block_size
    for i in range(state.n_running):
        request = requests[running[i]]
        context += request.computed
        squares += float(request.computed) * request.computed
        if knobs.reserve == 0 or request.computed >= held[request.slot] * size:
            phase[request.computed % size] += 1
    return context, squares


@compiled
def _settle_blocks(
    state: Record,
    knobs: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    index: int,
    had: int,
    before: int,
) -> None:
    """Allocate the blocks that a request has grown into, and publish those that are full."""
    requests, hashes = records
    slot, size = requests[index].slot, knobs.block_size
    for j in range(had, lanes.held[slot]):
        lanes.blocks[slot, j] = allocate(pool, state)
    for j in range(before // size, requests[index].computed // size):
        key = request_key(requests, hashes, index, j, size)
        publish(pool, lanes.blocks[slot, j], key)


@compiled
def _settle(
    state: Record, knobs: Record, pool: BlockPool, records: Record, lanes: Lanes, steps: int
) -> None:
    """Book `steps` macro-steps on every running request: tokens, blocks and cache keys."""
    requests = records[0]
    size, running, held = knobs.block_size, lanes.running, lanes.held
    for i in range(state.n_running):
        request = requests[running[i]]
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
    state.generated += steps * state.n_running


@compiled
def _arrival_due(state: Record, requests: Record, lanes: Lanes) -> bool:
    if state.next_inbox >= state.n_inbox:
        return False
    return requests[lanes.inbox[state.next_inbox]].ready_s <= state.now


@compiled
def _macro_steps(
    tables: StepTables,
    state: Record,
    knobs: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    rows: Record,
    until: float,
) -> None:
    """Repeat the running decodes until something can change: arrival, end, blocks or `until`."""
    requests = records[0]
    most = _steps_to_next_end(state, requests, lanes)
    if most <= 0:
        return
    state.resume = max(state.resume, PENDING)
    n, size = state.n_running, knobs.block_size
    context, squares = _fill_phases(state, knobs, requests, lanes)
    free_before, taken, steps, level = state.free_blocks, 0, 0, state.level
    while steps < most and state.now < until and not _arrival_due(state, requests, lanes):
        new = lanes.phase[(size - steps % size) % size]
        if new > free_before - taken or state.n_rows >= rows.size:
            break
        taken += new
        state.free_blocks = free_before - taken
        schedule_s = state.now
        seen = run_step(tables, state, knobs, 0, 0.0, 0.0, n, context, squares, n)
        if (steps == 0 and state.resume != OPEN) or knobs.every_step or state.level != level:
            _log(state, rows, schedule_s, 0, 0, 0.0, n, context)
            level = state.level
        else:
            _book(state, rows)
        count_gap(lanes.gaps, seen - state.output_s, n)
        state.output_s = seen
        state.now = seen + knobs.bookkeeping_s + knobs.bookkeeping_per_request_s * n
        squares += 2.0 * context + n
        context += n
        steps += 1
        state.resume = OPEN
    if knobs.caching:
        state.free_blocks = free_before
    _settle(state, knobs, pool, records, lanes, steps)
    if state.now < until:
        state.resume = NO


@compiled
def _wait(state: Record, knobs: Record, requests: Record, lanes: Lanes, until: float) -> bool:
    """With nothing to run, jump to the next thing that can happen; False when beyond `until`."""
    next_s = np.inf
    if state.next_inbox < state.n_inbox:
        next_s = requests[lanes.inbox[state.next_inbox]].ready_s
    if state.n_waiting > 0 and knobs.hold and state.n_running == 0:
        next_s = min(next_s, fill_time(state, knobs, requests, lanes))
    if next_s >= until:
        return False
    state.now = max(state.now, next_s)
    return True


@compiled
def _idle(
    state: Record, knobs: Record, pool: BlockPool, requests: Record, lanes: Lanes, until: float
) -> bool:
    """With nothing to schedule, take the output in flight or wait; False when beyond `until`."""
    if not state.in_flight:
        return _wait(state, knobs, requests, lanes, until)
    _deliver(state, knobs, pool, requests, lanes, state.gpu_end + knobs.visible_s)
    state.in_flight = 0
    state.n_flight = 0
    return True


@compiled
def _log_has_room(state: Record, knobs: Record, rows: Record) -> bool:
    """Return whether the step log takes two more rows; without a log it starts over."""
    if not knobs.log_steps:
        state.n_rows = 0
    return state.n_rows + 2 < rows.size


@compiled
def advance(
    tables: StepTables,
    state_array: Record,
    knob_array: Record,
    pool: BlockPool,
    records: Record,
    lanes: Lanes,
    rows: Record,
    until: float,
    stop_when_done: bool,
) -> int:
    """Run the replica up to the last scheduling point before `until`.

    Parameters
    ----------
    tables, state_array, knob_array, pool, records, lanes, rows
        The replica (see `sim.core.layout`); one-element arrays for state and knobs.
    until : float
        No batch is formed at or after this time [s].
    stop_when_done : bool
        Return as soon as a request has ended, so that the caller can react to it.

    Returns
    -------
    int
        UNTIL, ROWS_FULL (make room in `rows`, call again) or SOMETHING_DONE.
    """
    state, knobs, requests = state_array[0], knob_array[0], records[0]
    if state.resume and state.now < until:
        _macro_steps(tables, state, knobs, pool, records, lanes, rows, until)
    while state.now < until:
        if not _log_has_room(state, knobs, rows):
            return ROWS_FULL
        if stop_when_done and state.n_done > 0:
            return SOMETHING_DONE
        ingest(state, knobs, requests, lanes)
        state.blocked = form_batch(state, knobs, pool, records, lanes)
        if state.n_batch == 0:
            if not _idle(state, knobs, pool, requests, lanes, until):
                break
            continue
        state.resume = NO
        steady = _general_step(tables, state, knobs, pool, records, lanes, rows)
        may_admit = (
            state.n_waiting > 0
            and not state.blocked
            and (state.n_running < knobs.max_num_seqs and not knobs.hold)
        )
        if steady and knobs.fuse and not may_admit:
            _macro_steps(tables, state, knobs, pool, records, lanes, rows, until)
    return SOMETHING_DONE if state.n_done > 0 else UNTIL
