"""The queue of a replica: a heap of waiting requests, those that come and those that leave."""

import numpy as np

from sim.core.jit import compiled
from sim.core.layout import Gate, Record, Status
from sim.core.pointers import floats, ints

__all__ = ["close", "enqueue", "expel", "head", "ingest", "promote", "remove"]

FINISHED, REJECTED = Status.FINISHED, Status.REJECTED
TIMED_OUT, CANCELLED = Status.TIMED_OUT, Status.CANCELLED
REFUSED, ANSWERED = Gate.REFUSED, Gate.ANSWERED


@compiled
def _before(lanes: Record, a: int, b: int) -> bool:
    """Return whether waiting entry a is served before b: by level, key, request index."""
    if ints(lanes.waiting_level)[a] != ints(lanes.waiting_level)[b]:
        return ints(lanes.waiting_level)[a] < ints(lanes.waiting_level)[b]
    if floats(lanes.waiting_key)[a] != floats(lanes.waiting_key)[b]:
        return floats(lanes.waiting_key)[a] < floats(lanes.waiting_key)[b]
    return ints(lanes.waiting)[a] < ints(lanes.waiting)[b]


@compiled
def _swap(lanes: Record, a: int, b: int) -> None:
    ints(lanes.waiting)[a], ints(lanes.waiting)[b] = ints(lanes.waiting)[b], ints(lanes.waiting)[a]
    key = floats(lanes.waiting_key)[a]
    floats(lanes.waiting_key)[a] = floats(lanes.waiting_key)[b]
    floats(lanes.waiting_key)[b] = key
    level = ints(lanes.waiting_level)[a]
    ints(lanes.waiting_level)[a] = ints(lanes.waiting_level)[b]
    ints(lanes.waiting_level)[b] = level


@compiled
def _rise(lanes: Record, child: int) -> None:
    while child > 0 and _before(lanes, child, (child - 1) // 2):
        _swap(lanes, child, (child - 1) // 2)
        child = (child - 1) // 2


@compiled
def _sink(lanes: Record, parent: int, count: int) -> None:
    while 2 * parent + 1 < count:
        child = 2 * parent + 1
        if child + 1 < count and _before(lanes, child + 1, child):
            child += 1
        if not _before(lanes, child, parent):
            break
        _swap(lanes, child, parent)
        parent = child


@compiled
def _put(lanes: Record, requests: Record, place: int, index: int) -> None:
    ints(lanes.waiting)[place] = index
    floats(lanes.waiting_key)[place] = requests[index].order_key
    ints(lanes.waiting_level)[place] = requests[index].background


@compiled
def enqueue(state: Record, requests: Record, lanes: Record, index: int) -> None:
    """Let a request wait."""
    place = state.n_waiting
    _put(lanes, requests, place, index)
    state.n_waiting += 1
    _rise(lanes, place)
    request = requests[index]
    state.waiting_tokens += request.target - request.stored
    request.memory_wait_s -= state.memory_blocked_s
    state.next_leave_s = min(state.next_leave_s, _leave_s(request))
    if request.background:
        state.next_urgent_s = min(state.next_urgent_s, request.urgent_s)
    state.changed = 1


@compiled
def _account_exit(state: Record, request: Record) -> None:
    state.waiting_tokens -= request.target - request.stored
    request.memory_wait_s += state.memory_blocked_s
    state.changed = 1


@compiled
def remove(state: Record, requests: Record, lanes: Record, place: int) -> int:
    """Take the waiting request at `place` off the queue and return it."""
    index = ints(lanes.waiting)[place]
    state.n_waiting -= 1
    last = state.n_waiting
    _swap(lanes, place, last)
    if place < last:
        _rise(lanes, place)
        _sink(lanes, place, last)
    _account_exit(state, requests[index])
    return index


@compiled
def head(state: Record, knobs: Record, requests: Record, lanes: Record) -> int:
    """Return the place of the waiting request that is served next.

    With fair shares it is the first request of the client that was served least.
    """
    if not knobs.fair:
        return 0
    best, least = 0, np.inf
    for place in range(state.n_waiting):
        served = floats(lanes.served)[requests[ints(lanes.waiting)[place]].client]
        level = ints(lanes.waiting_level)[place] - ints(lanes.waiting_level)[best]
        if place == 0 or level < 0 or (level == 0 and served < least):
            best, least = place, served
        elif level == 0 and served == least and _before(lanes, place, best):
            best = place
    return best


@compiled
def close(
    state: Record, requests: Record, lanes: Record, index: int, status: int, when: float
) -> None:
    """End a request and put it on the list that Python reads."""
    requests[index].status = status
    requests[index].finish_s = when
    ints(lanes.done)[state.n_done] = index
    state.n_done += 1
    state.changed = 1


@compiled
def _leave_s(request: Record) -> float:
    """Return when a waiting request gives up: never admitted in time, or its client has gone."""
    limit = request.timeout_s if request.preemptions == 0 else np.inf
    return min(limit, request.patience_s) if request.scheduled == 0 else limit


@compiled
def expel(state: Record, requests: Record, lanes: Record, when: float) -> None:
    """End the waiting requests that gave up before `when`."""
    if when <= state.next_leave_s or state.n_waiting == 0:
        return
    kept, state.next_leave_s = 0, np.inf
    for place in range(state.n_waiting):
        index = ints(lanes.waiting)[place]
        request = requests[index]
        limit = _leave_s(request)
        if limit < when:
            status = CANCELLED if request.patience_s < request.timeout_s else TIMED_OUT
            close(state, requests, lanes, index, status, limit)
            _account_exit(state, request)
        else:
            _put(lanes, requests, kept, index)
            kept += 1
            state.next_leave_s = min(state.next_leave_s, limit)
    state.n_waiting = kept
    _order(state, lanes)


@compiled
def _order(state: Record, lanes: Record) -> None:
    for place in range(state.n_waiting // 2 - 1, -1, -1):
        _sink(lanes, place, state.n_waiting)


@compiled
def promote(state: Record, requests: Record, lanes: Record) -> None:
    """Treat background requests whose deadline is near as any other request."""
    if state.now < state.next_urgent_s:
        return
    state.next_urgent_s = np.inf
    for place in range(state.n_running):
        request = requests[ints(lanes.running)[place]]
        if request.background and request.urgent_s <= state.now:
            request.background = 0
            state.n_background -= 1
        elif request.background:
            state.next_urgent_s = min(state.next_urgent_s, request.urgent_s)
    for place in range(state.n_waiting):
        request = requests[ints(lanes.waiting)[place]]
        if request.background and request.urgent_s <= state.now:
            request.background = 0
            ints(lanes.waiting_level)[place] = 0
        elif request.background:
            state.next_urgent_s = min(state.next_urgent_s, request.urgent_s)
    _order(state, lanes)
    state.changed = 1


@compiled
def _lift(state: Record, requests: Record, lanes: Record, client: int) -> None:
    """Let a client that comes back start where the least served of those waiting stands.

    Without this, silence would earn credit (the lift of the virtual token counter).
    """
    least = np.inf
    for place in range(state.n_waiting):
        other = requests[ints(lanes.waiting)[place]].client
        if other == client:
            return
        least = min(least, floats(lanes.served)[other])
    if least < np.inf:
        floats(lanes.served)[client] = max(floats(lanes.served)[client], least)


@compiled
def _predicted_ttft_s(state: Record, knobs: Record, requests: Record, lanes: Record) -> float:
    """Return what a request that arrives now would wait for its first token, its prompt aside.

    The prompt tokens before it at the engine's prefill rate, or the wait of the queue's head where
    that is longer: then memory or sequences hold the queue back, not prompts.
    """
    tokens = state.waiting_tokens
    for place in range(state.n_running):
        request = requests[ints(lanes.running)[place]]
        tokens += max(request.target - request.computed - 1, 0)
    wait = 0.0
    if state.n_waiting > 0:
        wait = state.now - requests[ints(lanes.waiting)[0]].ready_s
    return max(tokens * knobs.shed_token_s, wait)


@compiled
def _refused(state: Record, knobs: Record, requests: Record, lanes: Record, index: int) -> bool:
    if requests[index].gate == REFUSED or state.n_waiting >= knobs.queue_limit:
        return True
    if knobs.shed_ttft_s == np.inf:
        return False
    own = requests[index].prompt_tokens * knobs.shed_token_s
    return own + _predicted_ttft_s(state, knobs, requests, lanes) > knobs.shed_ttft_s


@compiled
def _receive(state: Record, knobs: Record, requests: Record, lanes: Record, index: int) -> None:
    request = requests[index]
    if request.gate == ANSWERED:
        request.first_token_s = request.ready_s + knobs.answer_s
        request.emitted = request.output_tokens
        close(state, requests, lanes, index, FINISHED, request.first_token_s)
        return
    if _refused(state, knobs, requests, lanes, index):
        close(state, requests, lanes, index, REJECTED, request.ready_s)
        return
    request.output_tokens = min(request.output_tokens, knobs.output_limit)
    if request.preemptions == 0:
        request.stored = request.given_tokens
        if knobs.receive and request.given_tokens == 0:
            request.stored = request.prompt_tokens - 1
    if knobs.fair:
        _lift(state, requests, lanes, request.client)
    enqueue(state, requests, lanes, index)


@compiled
def _take_in(state: Record, knobs: Record, requests: Record, lanes: Record) -> None:
    """Let the front end take in the requests that have come, after all that it has to do."""
    while state.next_front < state.n_inbox:
        request = requests[ints(lanes.inbox)[state.next_front]]
        if request.ready_s > state.now:
            return
        work_s = knobs.front_request_s + knobs.front_prompt_s * request.prompt_tokens
        request.ready_s = state.front_s = max(state.front_s, request.ready_s) + work_s
        state.next_front += 1


@compiled
def ingest(state: Record, knobs: Record, requests: Record, lanes: Record) -> None:
    """Take the requests that have reached the engine into the queue; let others give up."""
    if knobs.front_request_s > 0.0:
        _take_in(state, knobs, requests, lanes)
    while state.next_inbox < state.n_inbox:
        index = ints(lanes.inbox)[state.next_inbox]
        if requests[index].ready_s > state.now:
            break
        state.next_inbox += 1
        expel(state, requests, lanes, requests[index].ready_s)
        _receive(state, knobs, requests, lanes, index)
    expel(state, requests, lanes, state.now)
