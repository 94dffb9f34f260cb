"""The engine loop of one replica, from scheduling point to scheduling point.

`advance` takes general steps (any mix of prompts and decodes, O(batch)) and macro-steps (the same
decodes again and again, O(1) per step). Both call `run_step`, so they give the same floats.
"""

import numpy as np

from sim.core.clock import balanced, count_gap, pass_front, prefill_attention_s, run_step
from sim.core.drafts import adapt, charge
from sim.core.jit import compiled
from sim.core.kv import give_back
from sim.core.layout import Record, Status, StepTables
from sim.core.log import has_room, log
from sim.core.macro import NO, may_repeat, repeat
from sim.core.pointers import floats, ints
from sim.core.queue import close, expel, ingest, promote
from sim.core.schedule import SHORT, fill_time, form_batch

__all__ = ["NEED_RULES", "ROWS_FULL", "SOMETHING_DONE", "UNTIL", "advance"]

UNTIL, ROWS_FULL, SOMETHING_DONE, NEED_RULES = 0, 1, 2, 3
GO = -1
FINISHED, CANCELLED, UNFINISHED = Status.FINISHED, Status.CANCELLED, Status.UNFINISHED


@compiled
def _leave_batch(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record, when: float
) -> None:
    """End a held batch whose last request is done: all leave together."""
    for i in range(state.n_running):
        index = ints(lanes.running)[i]
        close(state, requests, lanes, index, FINISHED, when)
        give_back(state, knobs, pool, requests, lanes, index)
    state.n_running = 0
    state.n_padding = 0
    state.padding_context = 0
    state.idle_squares = 0.0


@compiled
def _end(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    index: int,
    when: float,
) -> None:
    """End a request that has its last token, or let it pad the batch until the others are done."""
    state.finished += 1
    if not knobs.together:
        close(state, requests, lanes, index, FINISHED, when)
        give_back(state, knobs, pool, requests, lanes, index)
        return
    computed = requests[index].computed
    state.n_padding += 1
    state.padding_context += computed
    state.idle_squares += float(computed) * computed
    state.changed = 1


@compiled
def _first_token(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    index: int,
    when: float,
) -> bool:
    """Hand a first token over; False when the client has gone meanwhile."""
    request = requests[index]
    if request.status != UNFINISHED:
        return False
    if when > request.patience_s and request.slot >= 0:
        close(state, requests, lanes, index, CANCELLED, request.patience_s)
        give_back(state, knobs, pool, requests, lanes, index)
        return False
    request.first_token_s = when
    return True


@compiled
def _tidy(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    when: float,
    ended: bool,
) -> None:
    """Take those that have ended out of the batch, or end the whole batch."""
    if state.n_padding > 0 and state.n_padding == state.n_running and state.fill_left == 0:
        _leave_batch(state, knobs, pool, requests, lanes, when)
    elif ended:
        _drop_ended(state, requests, lanes)


@compiled
def _send(state: Record, knobs: Record, lanes: Record, seen: float) -> float:
    """Give the output in flight to the front end; return by how much later clients see it [s]."""
    tokens = 0
    for i in range(state.n_flight):
        tokens += ints(lanes.flight_tokens)[i]
    return pass_front(state, knobs, seen, tokens)


@compiled
def _deliver(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record, seen: float
) -> None:
    """Hand the tokens of the step in flight to the clients; end requests that are complete."""
    flight, tokens = ints(lanes.flight), ints(lanes.flight_tokens)
    done_before, alike, given = state.n_done, 0, 0
    later = _send(state, knobs, lanes, seen) if knobs.front_token_s > 0.0 else 0.0
    delay = knobs.client_s + knobs.client_per_request_s * state.n_running + state.front_lag_s
    for i in range(state.n_flight):
        index = flight[i]
        request = requests[index]
        if request.emitted == 0:
            if not _first_token(state, knobs, pool, requests, lanes, index, seen + delay):
                continue
        elif request.last_token_s == state.output_s:
            alike += 1
        elif not np.isnan(request.last_token_s):  # a token of another replica has no time here
            count_gap(floats(lanes.gaps), seen - request.last_token_s + later, 1)
        request.emitted += tokens[i]
        request.last_token_s = seen
        given += tokens[i]
        if request.emitted >= request.output_tokens:
            _end(state, knobs, pool, requests, lanes, index, seen + delay)
    state.generated += given
    if alike > 0:
        count_gap(floats(lanes.gaps), seen - state.output_s + later, alike)
    ended = state.n_done > done_before
    _tidy(state, knobs, pool, requests, lanes, seen + delay, ended)
    state.output_s = seen
    state.now = seen + knobs.bookkeeping_s + knobs.bookkeeping_per_request_s * state.n_running


@compiled
def _drop_ended(state: Record, requests: Record, lanes: Record) -> None:
    kept, running = 0, ints(lanes.running)
    for i in range(state.n_running):
        index = running[i]
        if requests[index].slot >= 0:
            running[kept] = index
            kept += 1
    state.n_running = kept


@compiled
def _cancel(state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record) -> None:
    """End running requests whose client left before the prompt was computed."""
    done_before = state.n_done
    for i in range(state.n_running):
        index = ints(lanes.running)[i]
        request = requests[index]
        if request.scheduled == 0 and request.patience_s < state.now:
            close(state, requests, lanes, index, CANCELLED, request.patience_s)
            give_back(state, knobs, pool, requests, lanes, index)
    if state.n_done > done_before:
        _drop_ended(state, requests, lanes)


@compiled
def _put_in_flight(state: Record, knobs: Record, lanes: Record) -> None:
    flight, emitting = ints(lanes.flight), ints(lanes.emitting)
    for i in range(state.n_emitting):
        flight[i] = emitting[i]
    if knobs.draft_tokens > 0:
        for i in range(state.n_emitting):
            ints(lanes.flight_tokens)[i] = ints(lanes.emitting_tokens)[i]
    state.n_flight = state.n_emitting
    state.in_flight = 1


@compiled
def _take_output(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record
) -> None:
    """Wait for the step in flight and hand its tokens over, with no other step behind it."""
    _deliver(state, knobs, pool, requests, lanes, state.gpu_end + knobs.visible_s)
    state.in_flight = 0
    state.n_flight = 0


@compiled
def _general_step(
    tables: StepTables,
    state: Record,
    knobs: Record,
    pool: Record,
    records: Record,
    lanes: Record,
    rows: Record,
) -> bool:
    """Run the step that was formed; return True when it decoded everything that runs."""
    requests, batch, batch_tokens = records[0], ints(lanes.batch), ints(lanes.batch_tokens)
    drafts = ints(lanes.batch_drafts)
    schedule_s = state.now
    prefills, prefill_tokens, decodes, context = 0, 0, 0, 0
    pairs, attention, call, squares = 0.0, 0.0, 0.0, 0.0
    for i in range(state.n_batch):
        request, tokens = requests[batch[i]], batch_tokens[i]
        past = request.computed - tokens
        one = tokens == 1 and (past >= request.prompt_tokens or knobs.receive)
        if one or drafts[i] > 0:
            decodes += 1
            context += past
            squares += float(past) * past
        else:
            prefills += 1
            prefill_tokens += tokens
            pairs += tokens * (past + 0.5 * (tokens + 1))
            each, once = prefill_attention_s(tables, tokens, past)
            attention += each
            call = max(call, once)
    idle, more = state.n_padding if decodes > 0 else 0, 0  # prompts go without padding
    if knobs.draft_tokens > 0:
        adapt(state, knobs, requests, lanes)
        prompts = balanced(knobs, prefill_tokens, prefills, 0)
        more = charge(tables, state, knobs, lanes, prompts, decodes, context)
    state.verified = more
    seen = run_step(
        tables,
        state,
        knobs,
        prefill_tokens,
        attention + call,
        pairs,
        decodes + idle,
        context + (state.padding_context if idle > 0 else 0),
        squares + (state.idle_squares if idle > 0 else 0.0),
        state.n_emitting + idle + more,
        prefills,
    )
    state.prefilled += prefill_tokens
    log(state, knobs, rows, schedule_s, prefills, prefill_tokens, pairs, decodes, context)
    steady = prefills == 0 and decodes == state.n_running - idle and state.preempted == 0
    if state.in_flight:
        finished, running = state.finished, state.n_running
        _deliver(state, knobs, pool, requests, lanes, seen)
        steady = steady and finished == state.finished and running == state.n_running
    else:
        state.now = schedule_s + state.step_host_s
        steady = False
    _put_in_flight(state, knobs, lanes)
    if knobs.in_step:
        _take_output(state, knobs, pool, requests, lanes)
    return steady


@compiled
def _wait(state: Record, knobs: Record, requests: Record, lanes: Record, until: float) -> bool:
    """With nothing to run, jump to the next thing that can happen; False when beyond `until`."""
    next_s = np.inf
    if state.next_inbox < state.n_inbox:
        next_s = requests[ints(lanes.inbox)[state.next_inbox]].ready_s + knobs.gather_s
    if state.n_waiting > 0:
        next_s = min(next_s, np.nextafter(state.next_leave_s, np.inf))
        if knobs.hold and state.n_running == 0:
            next_s = min(next_s, fill_time(state, knobs, requests, lanes))
    if next_s >= until:
        return False
    state.now = max(state.now, next_s)
    return True


@compiled
def _idle(
    state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record, until: float
) -> bool:
    """With nothing to schedule, take the output in flight or wait; False when beyond `until`."""
    if not state.in_flight:
        return _wait(state, knobs, requests, lanes, until)
    _take_output(state, knobs, pool, requests, lanes)
    return True


@compiled
def _count_blocked(state: Record) -> None:
    """Book the time since the last scheduling point as waited for memory, where it was."""
    if state.blocked == SHORT:
        state.memory_blocked_s += max(state.now - state.point_s, 0.0)
    state.point_s = state.now


@compiled
def _reach(state: Record, knobs: Record, pool: Record, requests: Record, lanes: Record) -> bool:
    """Bring queue and clocks to a scheduling point; return whether rules are needed."""
    _count_blocked(state)
    ingest(state, knobs, requests, lanes)
    promote(state, requests, lanes)
    if knobs.impatient:
        _cancel(state, knobs, pool, requests, lanes)
    _tidy(state, knobs, pool, requests, lanes, state.now, False)
    return knobs.interactive and (state.changed or state.now >= state.rules_until_s)


@compiled
def _pause(
    state: Record,
    knobs: Record,
    pool: Record,
    requests: Record,
    lanes: Record,
    rows: Record,
    stop_when_done: bool,
) -> int:
    """Come to a scheduling point; return why the loop has to stop there, GO for not at all."""
    if not has_room(state, knobs, rows):
        return ROWS_FULL
    if stop_when_done and state.n_done > 0:
        return SOMETHING_DONE
    return NEED_RULES if _reach(state, knobs, pool, requests, lanes) else GO


@compiled
def advance(
    tables: StepTables,
    state_array: Record,
    knob_array: Record,
    pool_array: Record,
    tier_array: Record,
    records: Record,
    lane_array: Record,
    rows: Record,
    until: float,
    stop_when_done: bool,
) -> int:
    """Run the replica up to the last scheduling point before `until`.

    Parameters
    ----------
    tables, state_array, knob_array, pool_array, tier_array, records, lane_array, rows
        The replica (see `sim.core.layout` and `sim.core.pointers`); arrays of one record.
    until : float
        No batch is formed at or after this time [s].
    stop_when_done : bool
        Return as soon as a request has ended, so that the caller can react to it.

    Returns
    -------
    int
        UNTIL, ROWS_FULL (make room in `rows`, call again), SOMETHING_DONE, or NEED_RULES (set the
        knobs, `rules_until_s` and `changed`, call again).
    """
    state, knobs, requests = state_array[0], knob_array[0], records[0]
    pool, tiers, lanes = pool_array[0], tier_array[0], lane_array[0]
    if state.resume and state.now < until:
        repeat(tables, state, knobs, pool, tiers, records, lanes, rows, until)
    while state.now < until:
        why = _pause(state, knobs, pool, requests, lanes, rows, stop_when_done)
        if why != GO:
            return why
        state.blocked = form_batch(state, knobs, pool, tiers, records, lanes)
        if state.n_batch == 0:
            if not _idle(state, knobs, pool, requests, lanes, until):
                break
            continue
        state.resume = NO
        steady = _general_step(tables, state, knobs, pool, records, lanes, rows)
        if steady and may_repeat(state, knobs, lanes):
            repeat(tables, state, knobs, pool, tiers, records, lanes, rows, until)
    if until < np.inf and state.next_leave_s < until:
        _count_blocked(state)
        expel(state, requests, lanes, until)
    return SOMETHING_DONE if state.n_done > 0 else UNTIL
