"""KV memory: contiguous runs, fragmentation, victims and swapping, traced by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import InputError
from sim.core import extents
from sim.core.jit import compiled
from sim.core.layout import STATE
from sim.core.pointers import lanes_at
from sim.testing import serve, toy_knobs
from tests.sim.engine_traces import columns, requests, single_steps


@compiled
def take(states, places, size):
    return extents.take(states[0], places[0], size)


@compiled
def give(states, places, start, size):
    extents.give(states[0], places[0], start, size)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=80))
def test_runs_equal_a_plain_bitmap(actions):
    """First fit on a list of free blocks, joined again when they come back."""
    size = 40
    replica = serve(requests(*[(0, 1, 1)] * 60), toy_knobs(num_blocks=size, reserve=4))
    state, places = np.zeros(1, STATE), lanes_at(replica.lanes)
    replica.lanes.extent_start[0], replica.lanes.extent_size[0] = 0, size
    state["n_extents"], state["free_blocks"], state["largest_free"] = 1, size, size
    free, held = np.ones(size, bool), []
    for taking, number in actions:
        runs = [s for s in range(size - number + 1) if free[s : s + number].all()]
        if taking and runs:
            assert state["largest_free"][0] >= number
            start = take(state, places, number)
            assert start == runs[0]
            free[start : start + number] = False
            held.append((start, number))
        elif not taking and held:
            start, length = held.pop(number % len(held))
            give(state, places, start, length)
            free[start : start + length] = True
        edges = np.diff(np.concatenate([[0], free.astype(int), [0]]))
        lengths = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        assert state["free_blocks"][0] == free.sum()
        assert state["largest_free"][0] == max([0, *lengths])
        assert state["n_extents"][0] == len(lengths)


def test_contiguous_memory_is_reserved_at_its_maximum():
    """Reserving 16 tokens = 4 blocks each, ten blocks take two requests; paged takes all four."""
    table = requests(*[(0, 4, 4)] * 4)
    held = toy_knobs(num_blocks=10, reserve=16, every_step=1)
    assert columns(serve(table, held), "admitted_s") == [0.0, 0.0, 4.0, 4.0]
    assert columns(serve(table, toy_knobs(num_blocks=10)), "admitted_s") == [0.0] * 4


def test_internal_fragmentation_is_room_without_tokens():
    """One request of 5 + 3 tokens, 16 reserved: 11, 10, 9 unused; paged: 3, 2, 1."""
    table = requests((0, 5, 3))
    held = serve(table, toy_knobs(num_blocks=10, reserve=16, every_step=1)).steps()
    assert held["unused_tokens"].tolist() == [11, 10, 9]
    paged = serve(table, toy_knobs(num_blocks=10, every_step=1)).steps()
    assert paged["unused_tokens"].tolist() == [3, 2, 1]
    assert paged["largest_free_blocks"].tolist() == paged["free_blocks"].tolist()


def test_shared_blocks_have_no_unused_room():
    """Two requests with one prompt of 16 share 4 blocks; each has 3 of 4 tokens unused."""
    table = requests((0, 16, 3), (0, 17, 3), session=["a", "a"], prefix_tokens=[0, 16])
    replica = serve(table, toy_knobs(num_blocks=20, caching=1, every_step=1))
    first = replica.steps()[0]
    assert columns(replica, "cached_tokens") == [0, 16]
    assert (20 - first["free_blocks"], first["unused_tokens"]) == (5, 3)


def test_external_fragmentation_blocks_what_would_fit():
    """Outputs reserve 4 tokens each beside prompts of 8, 4, 8: 3 + 2 + 3 of 9 blocks.

    When the first and the third have gone, 7 blocks are free in runs of 3 and 4: a prompt of 16
    and its outputs (5 blocks) waits for the second.
    """
    table = requests((0, 8, 2), (0, 4, 4), (0, 8, 2), (0, 16, 1))
    replica = serve(table, toy_knobs(num_blocks=9, reserve=4, reserve_prompt=1, every_step=1))
    assert columns(replica, "admitted_s") == [0.0, 0.0, 0.0, 4.0]
    waiting = [r for r in replica.steps() if r["free_blocks"] == 7]
    assert {int(r["largest_free_blocks"]) for r in waiting} == {4}
    paged = serve(table, toy_knobs(num_blocks=9))
    assert columns(paged, "admitted_s")[3] == 0.0


def test_requests_beyond_pool_or_reservation_are_refused():
    with pytest.raises(InputError, match="takes 40 tokens of KV cache, but the KV pool holds 36"):
        serve(requests((0, 31, 10)), toy_knobs(num_blocks=9))
    serve(requests((0, 31, 6)), toy_knobs(num_blocks=9))
    with pytest.raises(InputError, match="reserved are 16"):
        serve(requests((0, 14, 4)), toy_knobs(num_blocks=9, reserve=16))
    with pytest.raises(InputError, match="reserved for outputs are 3"):
        serve(requests((0, 4, 4)), toy_knobs(num_blocks=9, reserve=3, reserve_prompt=1))
    with pytest.raises(InputError, match="cuts no prompt and takes 10"):
        serve(requests((0, 11, 1)), toy_knobs(chunked=0, max_num_batched_tokens=10))


def three(victim, priorities=(0, 0, 0), outputs=(5, 5, 5), **changes):
    """Three prompts of two blocks fill six blocks; the first decode preempts somebody."""
    rows = [(0, 8, n) for n in outputs]
    knobs = toy_knobs(num_blocks=6, victim=victim, every_step=1, **changes)
    return serve(requests(*rows, priority=list(priorities)), knobs)


@pytest.mark.parametrize(
    ("victim", "priorities", "gone"),
    [(0, (0, 0, 0), 2), (1, (2, 1, 0), 0), (1, (0, 1, 0), 1), (2, (0, 0, 0), 2)],
)
def test_who_is_preempted_first(victim, priorities, gone):
    replica = three(victim, priorities)
    assert int(np.argmax(columns(replica, "preemptions"))) == gone
    assert sum(columns(replica, "preemptions")) == 1


def test_shortest_progress_goes_first():
    """The third has emitted least when blocks run out; the others need all ten of them."""
    table = requests((0, 4, 14), (0, 4, 14), (3, 4, 14))
    replica = serve(table, toy_knobs(num_blocks=10, victim=2, every_step=1))
    first, second, third = columns(replica, "preemptions")
    assert (first, second) == (0, 0)
    assert third > 0


def test_a_victim_leaves_the_step_that_it_was_in():
    """The first has room for its token and is scheduled; the second needs a block and takes its."""
    table = requests((0, 7, 5), (0, 8, 5), (0, 8, 5), priority=[5, 0, 0])
    replica = serve(table, toy_knobs(num_blocks=6, victim=1, every_step=1))
    assert columns(replica, "preemptions") == [1, 0, 0]
    assert columns(replica, "recomputed_tokens") == [7, 0, 0]
    rows = single_steps(replica, "decode_requests", "preempted")
    assert rows[1] == (2, 1)
    assert columns(replica, "emitted") == [5, 5, 5]


def test_swapped_requests_lose_time_but_no_work():
    """Two blocks out at step 2 and in at step 5: 0.25 s each way, then the next token."""
    replica = three(0, swap_blocks=4, swap_out_s=0.125, swap_in_s=0.125)
    assert columns(replica, "swaps") == [0, 0, 1]
    assert columns(replica, "recomputed_tokens") == [0, 0, 0]
    assert replica.state["swapped_blocks"][0] == 0
    assert replica.state["copied_s"][0] == pytest.approx(0.5)
    computed = replica.steps()["prefill_tokens"].sum()
    assert computed == 24
    assert columns(replica, "finish_s")[0] == pytest.approx(5.25)
    # output 1 at 1 s; the others run to 5.25; copied back in 0.25 s, then four steps of 1 s
    assert columns(replica, "finish_s")[2] == pytest.approx(5.25 + 0.25 + 4.0)


def test_full_swap_space_means_recompute():
    replica = three(0, swap_blocks=1, swap_out_s=0.125)
    assert columns(replica, "swaps") == [0, 0, 0]
    assert columns(replica, "recomputed_tokens") == [0, 0, 8]


def test_memory_waits_are_counted():
    """The second waits from 0 to 4 because blocks are short; the third for a sequence only."""
    blocked = serve(requests((0, 8, 4), (0, 16, 1)), toy_knobs(num_blocks=5))
    assert columns(blocked, "memory_wait_s") == [0.0, 4.0]
    crowded = serve(requests((0, 8, 4), (0, 16, 1)), toy_knobs(max_num_seqs=1))
    assert columns(crowded, "memory_wait_s") == [0.0, 0.0]
