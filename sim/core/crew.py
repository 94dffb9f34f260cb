"""Several replicas in one compiled call: bring them to a time, look at them, hand over requests.

A crew is a list of members, each the arrays of one replica in the order that `advance` takes them.
"""

from typing import Any

import numpy as np
from numba.typed import List

from sim.core.blocks import count_hits
from sim.core.jit import PLAIN, compiled
from sim.core.layout import Record
from sim.core.loop import NEED_RULES, ROWS_FULL, advance
from sim.core.pointers import ints

__all__ = [
    "LOADS",
    "add",
    "advance_all",
    "cached_tokens",
    "crew_of",
    "look",
    "put",
    "queued_tokens",
    "step_left_s",
    "submit_one",
]

LOADS = ("waiting", "running", "free_blocks")
"""Columns that `look` fills."""
DONE, NO_ROOM = 0, 1
Crew = list if PLAIN else List


@compiled
def crew_of(member: Any) -> Any:  # noqa: ANN401 - a typed list of numba
    """Return a crew of one member."""
    crew: Any = Crew()
    crew.append(member)
    return crew


@compiled
def add(crew: Record, member: Record) -> None:
    """Add a member at the end."""
    crew.append(member)


@compiled
def put(crew: Record, place: int, member: Record) -> None:
    """Replace the member at `place`, whose arrays have been made anew."""
    crew[place] = member


@compiled
def _fewest_steps(state: Record, requests: Record, lanes: Record) -> int:
    """Return a lower bound of the steps until a request of a member ends."""
    fewest = 1 << 40
    for j in range(state.n_running):
        request = requests[ints(lanes.running)[j]]
        fewest = min(fewest, request.output_tokens - request.emitted)
    for j in range(state.n_waiting):
        request = requests[ints(lanes.waiting)[j]]
        fewest = min(fewest, request.output_tokens - request.emitted)
    for j in range(state.next_inbox, state.n_inbox):
        request = requests[ints(lanes.inbox)[j]]
        fewest = min(fewest, request.output_tokens - request.emitted)
    return fewest


@compiled
def advance_all(
    crew: Record, places: Record, until: float, keep_done: bool, quiet: Record, least_s: Record
) -> tuple[int, int]:
    """Bring the members at `places` up to a time.

    Parameters
    ----------
    crew, places : list, array
        Members, and which of them.
    until : float
        No batch is formed at or after this time [s].
    keep_done : bool
        Keep the list of ended requests for Python.
    quiet : array (members,)
        Until when no request of a member can end [s]; read and renewed here. A member is left
        alone until then: its count of requests is known. -inf brings it up in any case.
    least_s : array (members,)
        Shortest time of a step, 0 where that is not known [s].

    Returns
    -------
    tuple of int
        Place of a member that stopped on the way (attend to it, call again), or -1; and why.
    """
    for i in range(places.size):
        place = places[i]
        if quiet[place] >= until:
            continue
        tables, state_array, knobs, pool, tiers, records, lanes, rows = crew[place]
        state = state_array[0]
        if state.now < until:
            if not keep_done:
                state.n_done = 0
            status = advance(
                tables, state_array, knobs, pool, tiers, records, lanes, rows, until, False
            )
            if status in (ROWS_FULL, NEED_RULES):
                return place, status
        steps = _fewest_steps(state, records[0], lanes[0]) // (knobs[0].draft_tokens + 1)
        quiet[place] = state.now + (steps - 2) * least_s[place]
    return -1, 0


@compiled
def look(crew: Record, places: Record, now: float, loads: Record) -> None:
    """Fill `loads` (places, LOADS) with waiting and running requests and free KV blocks.

    A member has taken the output of its last step although that comes after `now`: what ends with
    it still runs and holds its blocks.
    """
    for i in range(places.size):
        _, state_array, knob_array, _, _, records, lane_array, _ = crew[places[i]]
        state, requests, done = state_array[0], records[0], ints(lane_array[0].done)
        loads[i, 0] = state.n_waiting + state.n_inbox - state.next_inbox
        loads[i, 1] = state.n_running
        loads[i, 2] = state.free_blocks
        j = state.n_done - 1
        while j >= 0 and requests[done[j]].last_token_s > now:
            loads[i, 1] += 1
            loads[i, 2] -= requests[done[j]].computed // knob_array[0].block_size + 1
            j -= 1


@compiled
def step_left_s(crew: Record, places: Record, now: float, left_s: Record) -> None:
    """Fill `left_s` (places,) with the time until the step in flight leaves the GPU [s]."""
    for i in range(places.size):
        left_s[i] = max(crew[places[i]][1][0].gpu_end - now, 0.0)


@compiled
def queued_tokens(crew: Record, places: Record, tokens: Record) -> None:
    """Fill `tokens` (places,) with the prompt tokens that each member has yet to compute."""
    for i in range(places.size):
        _, state_array, _, _, _, records, lane_array, _ = crew[places[i]]
        state, requests, lanes = state_array[0], records[0], lane_array[0]
        total = 0
        for j in range(state.next_inbox, state.n_inbox):
            total += requests[ints(lanes.inbox)[j]].target
        for j in range(state.n_waiting):
            total += requests[ints(lanes.waiting)[j]].target
        for j in range(state.n_running):
            request = requests[ints(lanes.running)[j]]
            total += max(request.target - request.computed - 1, 0)
        tokens[i] = total


@compiled
def cached_tokens(crew: Record, places: Record, index: int, tokens: Record) -> None:
    """Fill `tokens` (places,) with the leading tokens of a request that each member has cached."""
    for i in range(places.size):
        _, state, knobs, pool, _, records, _, _ = crew[places[i]]
        requests, hashes = records
        size = knobs[0].block_size
        tokens[i] = 0
        if knobs[0].caching:
            limit = (requests[index].prompt_tokens - 1) // size
            hits = count_hits(pool[0], requests, hashes, index, limit, state[0], knobs[0])
            tokens[i] = size * hits[0]


@compiled
def submit_one(crew: Record, place: int, index: int, since: float, quiet: Record) -> int:
    """Put a request into a member's inbox, in order of the time at which its engine sees it.

    That is not before `since` [s]. `quiet` is that of `advance_all`.

    Returns
    -------
    int
        DONE, or NO_ROOM: make the member's lists larger and call again.
    """
    _, state_array, knob_array, _, _, records, lane_array, _ = crew[place]
    state, knobs, requests, lanes = state_array[0], knob_array[0], records[0], lane_array[0]
    here = state.n_waiting + state.n_running + state.n_inbox - state.next_inbox + 1
    if state.n_inbox >= lanes.inbox_size or here + state.n_done >= lanes.done_size:
        return NO_ROOM
    if here >= lanes.waiting_size:
        return NO_ROOM
    request = requests[index]
    ready = max(request.arrival_s, since) + knobs.ingest_s
    ready += knobs.ingest_per_token_s * request.prompt_tokens
    request.ready_s = ready
    request.target = request.prompt_tokens + request.scheduled
    spot, inbox = state.n_inbox, ints(lanes.inbox)
    first = max(state.next_inbox, state.next_front)
    while spot > first and requests[inbox[spot - 1]].ready_s > ready:
        inbox[spot] = inbox[spot - 1]
        spot -= 1
    inbox[spot] = index
    state.n_inbox += 1
    quiet[place] = -np.inf
    return DONE
