"""Serving policies against real runs, public traces and independent references."""

from collections import OrderedDict

import numpy as np
import pytest

from sim.testing import serve, toy_knobs, toy_tables
from validation.measured import all_runs, load_runs
from validation.serving import compare, replay
from workloads.prefix_cache import hit_rate_curve, infinite_hit_rate
from workloads.traces import read_trace

SIZE = 16


@pytest.fixture(scope="module")
def runs():
    return load_runs()


class ReferenceCache:
    """A least recently used pool of KV blocks in plain Python, one request at a time."""

    def __init__(self, blocks: int) -> None:
        self.free = OrderedDict.fromkeys(range(blocks))  # oldest first
        self.key: dict[int, object] = {}
        self.block: dict[object, int] = {}

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        if block in self.key:
            del self.block[self.key.pop(block)]
        return block

    def serve(self, keys: list[object], prompt: int, tokens: int) -> int:
        """Serve a request of `tokens` in all; return the cached tokens that it finds."""
        found: list[int] = []
        for key in keys[: (prompt - 1) // SIZE]:
            if key not in self.block:
                break
            found.append(self.block[key])
        for block in found:
            del self.free[block]
        held = found + [self._take() for _ in range(-(-tokens // SIZE) - len(found))]
        for i in range(len(found), tokens // SIZE):
            if keys[i] not in self.block:
                self.block[keys[i]], self.key[held[i]] = held[i], keys[i]
        for block in reversed(held):
            self.free[block] = None
        return SIZE * len(found)


def keys_of(table):
    """Return a key per block: equal where a session repeats the blocks of its last prompt."""
    last: dict[str, list[object]] = {}
    out = []
    for row in table.itertuples():
        blocks = (row.prompt_tokens + row.output_tokens) // SIZE + 1
        own: list[object] = [(row.Index, b) for b in range(blocks)]
        shared = row.prefix_tokens // SIZE if row.session in last else 0
        own[:shared] = last[row.session][:shared] if shared else []
        last[row.session] = own
        out.append(own)
    return out


def reference_hits(table, blocks):
    cache, lengths = ReferenceCache(blocks), (table.prompt_tokens, table.output_tokens)
    return [
        cache.serve(keys, prompt, prompt + output - 1)
        for keys, prompt, output in zip(keys_of(table), *lengths, strict=True)
    ]


def test_eviction_is_that_of_an_independent_lru(runs):
    """Conversations that vLLM served, one after another, the pool shrunk till hits halve."""
    table = runs["llama8b_small"]["turns_a"].table().reset_index(drop=True)
    table["arrival_s"] = 1e5 * np.arange(len(table))
    whole = sum(reference_hits(table, 10**6))
    blocks = 40_000
    while sum(reference_hits(table, blocks)) > whole / 2:
        blocks = int(blocks * 0.9)
    expected = reference_hits(table, blocks)
    assert 0.35 < sum(expected) / whole <= 0.5
    knobs = toy_knobs(
        caching=1,
        block_size=SIZE,
        num_blocks=blocks,
        max_num_batched_tokens=1 << 17,
        max_num_seqs=8,
    )
    replica = serve(table, knobs, toy_tables(tokens=1 << 17))
    assert replica.records.requests["cached_tokens"].tolist() == expected


def test_conversations_under_a_budget_of_2048(runs):
    run = runs["llama8b_small"]
    assert run.scenario.policies.batching["max_num_batched_tokens"] == 2048
    table = compare(run["conv_r16"], replay(run, run["conv_r16"], [0])).set_index("metric")
    assert abs(table.error["ttft_mean_s"]) <= 0.12
    assert abs(table.error["tpot_mean_s"]) <= 0.04


def test_preemptions_of_real_runs_under_a_short_pool():
    """Two runs that preempted, each within a factor of two; nothing was fitted to them."""
    run = all_runs()["llama8b_3000_more"]
    for name in ("conv_r20", "closed_c64_p600_o200"):
        table = compare(run[name], replay(run, run[name], [0])).set_index("metric")
        measured = table.measured["preemptions"]
        assert measured >= 8
        assert measured / 2 <= table.predicted["preemptions"] <= measured * 2, name


@pytest.mark.parametrize(
    ("which", "blocks", "tokens"), [("conversation", 0.366, 0.374), ("synthetic", 0.640, 0.651)]
)
def test_mooncake_with_an_infinite_cache(shared, which, blocks, tokens):
    found = infinite_hit_rate(read_trace(shared / "traces" / f"mooncake_{which}_trace.jsonl.gz"))
    assert (found.blocks, found.tokens) == pytest.approx((blocks, tokens), abs=0.0005)


def test_one_pass_gives_the_points_that_the_engine_simulates(shared):
    """The first 1,500 Mooncake conversations, one after another, at three sizes of the pool.

    The pass counts blocks of 512 tokens, the engine blocks of 16: at most one block of 512 at the
    end of each prompt is held in part, and its own blocks are held while a request runs.
    """
    table = read_trace(shared / "traces" / "mooncake_conversation_trace.jsonl.gz").head(1500)
    table = table.assign(arrival_s=1e6 * np.arange(len(table)), output_tokens=1)
    capacities = [1000, 4000, 16_000]
    curve = hit_rate_curve(table, capacities)["tokens_hit"].to_numpy()
    rates = []
    for capacity in capacities:
        knobs = toy_knobs(
            caching=1,
            block_size=SIZE,
            num_blocks=capacity * 512 // SIZE,
            max_num_batched_tokens=1 << 17,
            max_num_seqs=4,
        )
        replica = serve(table, knobs, toy_tables(tokens=1 << 17))
        cached = replica.records.requests["cached_tokens"].sum()
        rates.append(cached / table["prompt_tokens"].sum())
    assert rates == sorted(rates)
    assert rates == pytest.approx(curve.tolist(), abs=0.01)
