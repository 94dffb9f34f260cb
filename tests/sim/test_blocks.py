"""The block pool: least recently used goes first, tails before heads, shared blocks stay."""

from functools import partial

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.blocks import allocate, lookup, make_pool, publish, release, share
from sim.core.jit import compiled
from sim.core.layout import STATE
from sim.core.pointers import pool_at
from sim.testing import serve, toy_knobs


@compiled
def act(pools, states, knobs, action, block, key):
    """Do one thing to a pool; return the block it is about, -1 for none."""
    pool, state, knob = pools[0], states[0], knobs[0]
    if action == 0:
        block = allocate(pool, state, knob)
        publish(pool, block, key, 0, knob)
    elif action == 1:
        release(pool, block, state, knob)
    else:
        block = lookup(pool, key)
        if block >= 0:
            share(pool, block, state, knob)
    return block


class Lru:
    """Reference: a list of (key or None) in order of last use, and users by block."""

    def __init__(self, blocks):
        self.free, self.key, self.users = list(range(blocks)), {}, dict.fromkeys(range(blocks), 0)

    def find(self, key):
        return next((b for b, k in self.key.items() if k == key), -1)

    def allocate(self):
        block = self.free.pop(0)
        self.key.pop(block, None)
        self.users[block] = 1
        return block

    def share(self, block):
        if self.users[block] == 0:
            self.free.remove(block)
        self.users[block] += 1

    def release(self, block):
        self.users[block] -= 1
        if self.users[block] == 0:
            self.free.append(block)


def do(fast, plain, held, action, pick):
    """Take one random action on both pools and compare them."""
    if action == 0 and plain.free:
        block = fast(0, 0, pick + 1)
        assert block == plain.allocate()
        held.append(block)
        if plain.find(pick + 1) < 0:
            plain.key[block] = pick + 1
    elif action == 1 and held:
        block = held.pop(pick % len(held))
        fast(1, block, 0)
        plain.release(block)
    elif action == 2:
        found = fast(2, 0, pick + 1)
        assert found == plain.find(pick + 1)
        if found >= 0:
            plain.share(found)
            held.append(found)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=200),
)
def test_pool_equals_a_plain_list(blocks, actions):
    pool, state, knobs = make_pool(blocks), np.zeros(1, STATE), toy_knobs(num_blocks=blocks)
    state["free_blocks"] = blocks
    plain, held, places = Lru(blocks), [], pool_at(pool)
    for action, pick in actions:
        do(partial(act, places, state, knobs), plain, held, action, pick)
        assert state["free_blocks"][0] == len(plain.free)


def turns(*rows):
    """Return a table of (arrival, session, prompt, shared prefix), one output token each."""
    table = pd.DataFrame(rows, columns=["arrival_s", "session", "prompt_tokens", "prefix_tokens"])
    return table.assign(output_tokens=1)


def cached(table, **changes):
    knobs = toy_knobs(caching=1, **changes)
    return serve(table, knobs).records.requests["cached_tokens"].tolist()


def test_full_blocks_are_found_again_but_never_the_last_token():
    """Blocks of 4. 13 of 16 shared: 3 blocks. 16 of 16: at least one token is computed: 3."""
    table = turns((0, "a", 16, 0), (10, "a", 20, 13), (20, "a", 20, 20), (30, "b", 16, 0))
    assert cached(table) == [0, 12, 16, 0]


def test_prompts_of_one_step_share():
    """Blocks are named when they are scheduled, so a twin in the same step finds them."""
    table = turns((0, "a", 16, 0), (0, "a", 20, 16))
    assert cached(table) == [0, 16]


def test_tails_are_evicted_before_heads():
    """Six blocks. a leaves 4 full ones, tail first in line; b takes 2 unused and 2 of a's tail."""
    table = turns((0, "a", 16, 0), (10, "b", 15, 0), (20, "a", 16, 16))
    assert cached(table, num_blocks=6) == [0, 0, 8]


def test_least_recently_used_goes_first():
    """Room for three prompts of two blocks: a, b, c, then a again, then d evicts b."""
    table = turns(
        (0, "a", 8, 0),
        (10, "b", 8, 0),
        (20, "c", 8, 0),
        (30, "a", 9, 8),
        (40, "d", 4, 0),
        (50, "c", 9, 8),
        (60, "b", 9, 8),
    )
    assert cached(table, num_blocks=7)[3] == 8
    assert cached(table, num_blocks=7)[5:] == [8, 0]


def test_running_blocks_are_never_evicted():
    """The first still decodes; its shared prompt survives any number of other prompts."""
    rows = [(0, "a", 16, 0), *((1.0 + i, "b", 16, 0) for i in range(8)), (9.5, "a", 17, 16)]
    table = turns(*rows)
    table["output_tokens"] = [30] + [1] * 9
    assert cached(table, num_blocks=24, max_num_seqs=2)[-1] == 16


def test_hashes_name_blocks_of_512_tokens():
    """Equal hashes share 32 blocks of 16; the last one counts only to the prompt's end."""
    table = pd.DataFrame(
        {
            "arrival_s": [0.0, 10.0, 20.0],
            "prompt_tokens": [1100, 1100, 600],
            "output_tokens": [1, 1, 1],
            "hash_ids": [np.array([7, 8, 9]), np.array([7, 8, 9]), np.array([7, 5])],
        }
    )
    knobs = toy_knobs(caching=1, block_size=16, max_num_batched_tokens=256)
    assert serve(table, knobs).records.requests["cached_tokens"].tolist() == [0, 1088, 512]
