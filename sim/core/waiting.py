"""Requests that have not started: from the inbox to the waiting heap, and out of it."""

from sim.core.jit import compiled
from sim.core.layout import Lanes, Record, Status

__all__ = ["close", "ingest", "pop_waiting", "push_waiting"]

REJECTED = Status.REJECTED


@compiled
def _before(lanes: Lanes, a: int, b: int) -> bool:
    """Return whether waiting entry a is served before entry b (ties by request index)."""
    if lanes.waiting_key[a] != lanes.waiting_key[b]:
        return lanes.waiting_key[a] < lanes.waiting_key[b]
    return lanes.waiting[a] < lanes.waiting[b]


@compiled
def _swap(lanes: Lanes, a: int, b: int) -> None:
    lanes.waiting[a], lanes.waiting[b] = lanes.waiting[b], lanes.waiting[a]
    key = lanes.waiting_key[a]
    lanes.waiting_key[a] = lanes.waiting_key[b]
    lanes.waiting_key[b] = key


@compiled
def push_waiting(state: Record, lanes: Lanes, index: int, key: float) -> None:
    """Add a request to the waiting heap."""
    child = state.n_waiting
    lanes.waiting[child] = index
    lanes.waiting_key[child] = key
    state.n_waiting += 1
    while child > 0 and _before(lanes, child, (child - 1) // 2):
        _swap(lanes, child, (child - 1) // 2)
        child = (child - 1) // 2


@compiled
def pop_waiting(state: Record, lanes: Lanes) -> int:
    """Remove and return the waiting request that is served first."""
    index = lanes.waiting[0]
    state.n_waiting -= 1
    last = state.n_waiting
    _swap(lanes, 0, last)
    parent = 0
    while 2 * parent + 1 < last:
        child = 2 * parent + 1
        if child + 1 < last and _before(lanes, child + 1, child):
            child += 1
        if not _before(lanes, child, parent):
            break
        _swap(lanes, child, parent)
        parent = child
    return index


@compiled
def close(
    state: Record, requests: Record, lanes: Lanes, index: int, status: int, when: float
) -> None:
    """End a request and put it on the list that Python reads."""
    requests[index].status = status
    requests[index].finish_s = when
    lanes.done[state.n_done] = index
    state.n_done += 1


@compiled
def ingest(state: Record, knobs: Record, requests: Record, lanes: Lanes) -> None:
    """Move requests that have reached the engine from the inbox to the waiting heap."""
    while state.next_inbox < state.n_inbox:
        index = lanes.inbox[state.next_inbox]
        if requests[index].ready_s > state.now:
            break
        state.next_inbox += 1
        if state.n_waiting >= knobs.queue_limit:
            close(state, requests, lanes, index, REJECTED, requests[index].ready_s)
        else:
            push_waiting(state, lanes, index, requests[index].order_key)
