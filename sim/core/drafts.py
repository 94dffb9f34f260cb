"""Speculative decoding in the loop: how many tokens are drafted, which are right, what it takes.

Which drafts are right is drawn when a step is formed, from a counter-based stream that depends on
the request and on how many of its tokens there are: the same request has the same luck in any
batch. The loop learns the result at once, as an asynchronous engine learns it on the accelerator.
"""

from sim.core.clock import grid_place, uniform
from sim.core.jit import compiled
from sim.core.kv import compute, grow
from sim.core.layout import Record, StepTables
from sim.core.pointers import floats, ints

__all__ = ["adapt", "charge", "drafts_for", "slots_of", "take_drafts", "verified"]

DRAFTS = 5  # stream of random numbers
POSITIONS, DRAFTED = 1 << 21, 1 << 5  # output tokens of a request, drafts of a step at most


@compiled
def verified(knobs: Record, drafted: int) -> int:
    """Return the tokens that the target computes for a request with so many drafts."""
    return 1 + max(knobs.draft_candidates, drafted) if drafted > 0 else 1


@compiled
def drafts_for(state: Record, knobs: Record, lanes: Record, request: Record, budget: int) -> int:
    """Return the tokens to draft for a running request, 0 for one that computes a prompt."""
    if request.scheduled == 0 or request.target != request.computed + 1:
        return 0
    drafted = ints(lanes.draft_lengths)[state.n_running]
    if knobs.draft_adaptive:
        drafted = min(drafted, request.draft_length)
    if verified(knobs, drafted) > budget:
        drafted = 0 if knobs.draft_candidates > 0 else budget - 1
    return drafted


@compiled
def slots_of(knobs: Record, request: Record, drafted: int) -> int:
    """Return the KV slots of a step: rejected tokens use them too, none beyond the last token."""
    left = request.prompt_tokens + request.output_tokens - request.computed
    return max(min(verified(knobs, drafted), left), 1)


@compiled
def _right(knobs: Record, lanes: Record, request: Record, index: int, drafted: int) -> int:
    """Return how many of the drafts the target accepts: those before the first wrong one."""
    first = request.draft_level * knobs.draft_tokens
    place = (index * POSITIONS + request.scheduled) * DRAFTED
    for j in range(drafted):
        if uniform(knobs.draft_seed, DRAFTS, place + j) >= floats(lanes.draft_chances)[first + j]:
            return j
    return drafted


@compiled
def take_drafts(
    state: Record,
    knobs: Record,
    pool: Record,
    records: Record,
    lanes: Record,
    index: int,
    drafted: int,
) -> None:
    """Put a running request with its drafts into the step; the caller has made room."""
    requests = records[0]
    request = requests[index]
    new = 1 + _right(knobs, lanes, request, index, drafted)
    new = min(new, request.output_tokens - request.scheduled)
    room = request.computed + slots_of(knobs, request, drafted)
    grow(state, knobs, pool, requests, lanes, index, room)
    compute(state, knobs, pool, records, lanes, index, new)
    ints(lanes.batch)[state.n_batch] = index
    ints(lanes.batch_tokens)[state.n_batch] = new
    ints(lanes.batch_drafts)[state.n_batch] = drafted
    state.n_batch += 1
    state.kv_tokens += new
    request.scheduled += new
    request.target = request.computed + 1
    ints(lanes.emitting)[state.n_emitting] = index
    ints(lanes.emitting_tokens)[state.n_emitting] = new
    state.n_emitting += 1


@compiled
def adapt(state: Record, knobs: Record, requests: Record, lanes: Record) -> None:
    """Count the drafts of the step that was formed, and set the lengths of its requests anew.

    Two tokens more after a step in which all were right, else one less.
    """
    for i in range(state.n_batch):
        drafted = ints(lanes.batch_drafts)[i]
        if drafted == 0:
            continue
        request, new = requests[ints(lanes.batch)[i]], ints(lanes.batch_tokens)[i]
        state.drafted += drafted
        state.accepted += new - 1
        state.decoded += 1
        if new > drafted:
            request.draft_length = min(request.draft_length + 2, knobs.draft_tokens)
        else:
            request.draft_length = max(request.draft_length - 1, 1)


@compiled
def _read(tables: StepTables, address: int, sequences: int, context: float) -> float:
    """Return an entry of a table by sequences and mean context, between its contexts."""
    width = tables.decode_s.shape[1]
    i, u = grid_place(tables.bounds, 0, context, width)
    row = floats(address)
    place = sequences * width + i
    return row[place] * (1.0 - u) + row[place + 1] * u


@compiled
def charge(
    tables: StepTables,
    state: Record,
    knobs: Record,
    lanes: Record,
    prompts: int,
    decodes: int,
    context: float,
) -> int:
    """Book what drafts of the step being formed take besides it; return the tokens verified.

    Parameters
    ----------
    tables, state, knobs, lanes
        The replica.
    prompts : int
        Prompt tokens of the step, as `balanced` counts them: what drafts computes them too.
    decodes, context : int, float
        Decoding sequences, and the sum of their contexts [token].
    """
    state.extra_s += floats(lanes.draft_prompt_s)[prompts]
    state.extra_flops += prompts * knobs.draft_flops
    total, longest, more, asking = 0, 0, 0, 0
    for i in range(state.n_batch):
        drafted = ints(lanes.batch_drafts)[i]
        if drafted > 0:
            total += drafted
            longest = max(longest, drafted)
            more += verified(knobs, drafted) - 1
            asking += 1
    if total == 0:
        return 0
    mean = context / decodes
    passes = 1 if knobs.draft_once else longest
    each = asking if knobs.draft_once else (total + longest - 1) // longest
    state.extra_s += passes * _read(tables, lanes.draft_s, each, mean)
    share = more / (decodes * (verified(knobs, knobs.draft_tokens) - 1.0))
    state.extra_s += share * _read(tables, lanes.verify_s, decodes, mean)
    state.extra_flops += total * knobs.draft_flops + tables.counts[2] * mean * more
    state.extra_bytes += passes * (knobs.draft_bytes + knobs.draft_kv_bytes * each * mean)
    return more
