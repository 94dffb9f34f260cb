"""Prompt caching: orders of eviction, times to live, lower tiers; traced by hand."""

import numpy as np
import pandas as pd
import pytest

from sim.testing import serve, toy_knobs, toy_tables
from tests.sim.engine_traces import columns


def turns(*rows):
    """Return a table of (arrival, session, prompt, shared prefix), one output token each."""
    table = pd.DataFrame(rows, columns=["arrival_s", "session", "prompt_tokens", "prefix_tokens"])
    return table.assign(output_tokens=1)


def cached(table, **changes):
    return columns(serve(table, toy_knobs(caching=1, **changes)), "cached_tokens")


def test_least_often_used_goes_first():
    """a is asked for three times, b twice and last; c needs room: LRU drops a, LFU drops b."""
    table = turns(
        (0, "a", 8, 0),
        (10, "a", 9, 8),
        (20, "a", 9, 8),
        (30, "b", 8, 0),
        (40, "b", 9, 8),
        (50, "c", 12, 0),
        (60, "a", 9, 8),
    )
    assert cached(table, num_blocks=5)[-1] == 0
    assert cached(table, num_blocks=5, eviction=1)[-1] == 8


def test_cost_aware_keeps_what_is_slow_to_compute():
    """One long prompt, then short ones, which take less time per block to compute again."""
    rows = [(0, "long", 32, 0)]
    rows += [(10.0 * k, f"s{k}", 8, 0) for k in range(1, 8)]
    table = turns(*rows, (90, "long", 32, 32))
    costs = {"recompute_token_s": 1e-3, "recompute_pair_s": 1e-3}
    assert cached(table, num_blocks=12, **costs)[-1] == 0
    assert cached(table, num_blocks=12, eviction=2, **costs)[-1] == 28


def test_a_block_lives_for_a_time_after_its_last_use():
    """Time to live 15 s: a use after 10 s renews it, after 20 s it is gone and computed anew."""
    table = turns(
        (0, "a", 8, 0), (10, "a", 9, 8), (22, "a", 9, 8), (50, "a", 9, 8), (60, "a", 9, 8)
    )
    assert cached(table, ttl_s=15.0) == [0, 8, 8, 0, 8]
    assert cached(table, ttl_s=5.0) == [0, 0, 0, 0, 0]


def tiers(**changes):
    base = {
        "num_blocks": 6,
        "dram_blocks": 4,
        "dram_s": 0.01,
        "recompute_token_s": 0.1,
        "fetch_always": 0,
    }
    return base | changes


# a's four blocks leave the pool of six for c; then a comes again
COME_BACK = ((0, "a", 16, 0), (10, "c", 23, 0), (20, "a", 17, 16))


def test_evicted_blocks_are_fetched_from_host_memory():
    """LRU alone finds nothing; the tier brings 16 tokens back in 4 x 10 ms, before the step."""
    table = turns(*COME_BACK)
    assert cached(table, num_blocks=6)[-1] == 0
    replica = serve(table, toy_knobs(caching=1, **tiers()))
    assert columns(replica, "cached_tokens", "dram_tokens")[-1] == (16, 16)
    assert columns(replica, "first_token_s")[-1] == pytest.approx(21.04)
    assert replica.state["dram_hit_blocks"][0] == 4


def test_a_fetch_beside_the_step_is_hidden():
    """A step of 1 s hides 40 ms, and is lengthened by a fetch of 4 s to 4 s."""
    table = turns(*COME_BACK)
    hidden = serve(table, toy_knobs(caching=1, **tiers(fetch_beside=1)))
    assert columns(hidden, "first_token_s")[-1] == pytest.approx(21.0)
    slow = tiers(fetch_beside=1, fetch_always=1, dram_s=1.0)
    assert columns(serve(table, toy_knobs(caching=1, **slow)), "first_token_s")[-1] == 24.0


@pytest.mark.parametrize(("dram_s", "tokens"), [(0.39, 16), (0.41, 0)])
def test_fetch_or_compute_whichever_is_faster(dram_s, tokens):
    """Four tokens take 0.4 s to compute: a block is fetched if it takes less."""
    replica = serve(turns(*COME_BACK), toy_knobs(caching=1, **tiers(dram_s=dram_s)))
    assert columns(replica, "dram_tokens")[-1] == tokens


def test_fetch_stops_where_computing_is_faster():
    """Deep blocks cost more to compute (pairs): fetching four beats none, two would not."""
    knobs = toy_knobs(
        caching=1, **tiers(recompute_token_s=0.0, recompute_pair_s=0.01, dram_latency_s=1.0)
    )
    replica = serve(turns(*COME_BACK), knobs)
    # 16 tokens: 136 pairs = 1.36 s against 1.04 s; 8 tokens: 0.36 s against 1.02 s
    assert columns(replica, "dram_tokens")[-1] == 16


def test_host_memory_spills_to_ssd():
    """Two blocks in host memory, the rest on SSD: the run is found in both."""
    replica = serve(turns(*COME_BACK), toy_knobs(caching=1, **tiers(dram_blocks=2, ssd_blocks=8)))
    tokens = columns(replica, "dram_tokens", "ssd_tokens")[-1]
    assert sum(tokens) == 16
    assert tokens[1] == 8


def test_a_full_tier_forgets_the_least_recently_used():
    """Room for two blocks and no SSD: the run from the first block is broken."""
    table = turns(*COME_BACK)
    assert columns(serve(table, toy_knobs(caching=1, **tiers(dram_blocks=2))), "dram_tokens")[
        -1
    ] in (0, 8)


@pytest.mark.parametrize("blocks", [12, 17, 25, 40, 60])
def test_engine_equals_the_stack_distance(blocks):
    """Request after request, the pool is a stack of its last `blocks` blocks used."""
    rng = np.random.default_rng(2)
    n, session = 60, rng.integers(0, 6, 60)
    prompts = rng.integers(4, 41, n)
    table = pd.DataFrame(
        {
            "arrival_s": 10.0 * np.arange(n),
            "session": [f"s{k}" for k in session],
            "prompt_tokens": prompts,
            "output_tokens": 1,
        }
    )
    before = table.groupby("session")["prompt_tokens"].shift(fill_value=0)
    table["prefix_tokens"] = np.minimum(before, table["prompt_tokens"])
    streams, last = [], {}
    for i, row in enumerate(table.itertuples()):
        own = [(i, b) for b in range(-(-row.prompt_tokens // 4))]
        if row.session in last:
            shared = row.prefix_tokens // 4
            own[:shared] = last[row.session][:shared]
        last[row.session] = own
        streams.append(own)
    stack, expected = [], []
    for row, own in zip(table.itertuples(), streams, strict=True):
        limit, hits = (row.prompt_tokens - 1) // 4, 0
        while hits < limit and own[hits] in stack:
            hits += 1
        expected.append(4 * hits)
        # room for the new blocks comes from the others, least recently used first; a block that
        # is computed again beside one that still exists gets no name
        others = [b for b in stack if b not in own[:hits]][: blocks - len(own)]
        new = ((row.Index, b) if b in others else b for b in own[hits:])
        stack = [*own[:hits], *new, *others]
    assert cached(table, num_blocks=blocks) == expected


def test_infinite_pool_hits_all_that_is_shared():
    table = turns((0, "a", 30, 0), (5, "a", 60, 30), (9, "a", 90, 60))
    assert cached(table) == [0, 28, 60]


def test_caching_shortens_prefill():
    """A token takes 10 ms: the second turn computes 5 of 21 tokens."""
    table = turns((0, "a", 16, 0), (10, "a", 21, 16))
    tables = toy_tables(step_s=0.0, token_s=0.01)
    replica = serve(table, toy_knobs(caching=1), tables)
    assert columns(replica, "first_token_s") == pytest.approx([0.16, 10.05])
