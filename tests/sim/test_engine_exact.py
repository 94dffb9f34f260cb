"""Macro-steps and slices change nothing, under every discipline that the engine knows."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.batching import Adaptive
from policies.ordering import FairShare, OnlineFirst, Priority
from policies.rules import BatchRules
from sim.testing import serve
from tests.sim.engine_cases import (
    TABLES,
    busy_knobs,
    cases,
    changed,
    same_requests,
    same_steps,
    same_tables,
)

WHOLE_PROMPTS = {"chunked": 0, "max_num_batched_tokens": 1024}
TIERS = {
    "caching": 1,
    "dram_blocks": 40,
    "ssd_blocks": 100,
    "dram_s": 1e-4,
    "ssd_s": 4e-4,
    "dram_latency_s": 1e-4,
    "recompute_token_s": 1e-4,
    "recompute_pair_s": 1e-7,
}
DISCIPLINES = {
    "static": {"hold": 1, "together": 1, "prefill_first": 1},
    "dynamic": {"hold": 1, "together": 1, "fill_size": 3, "fill_timeout_s": 0.05},
    "held": {"hold": 1, "prefill_first": 1},
    "prefill-first": {"prefill_first": 1},
    "whole-prompts": {"prefill_first": 1, **WHOLE_PROMPTS},
    "swap": {"swap_blocks": 20, "swap_out_s": 1e-3, "swap_in_s": 2e-3},
    "lowest-priority": {"victim": 1},
    "shortest-progress": {"victim": 2, "swap_blocks": 5, "swap_out_s": 1e-3},
    "contiguous": {"caching": 0, "reserve": 640},
    "contiguous-outputs": {"caching": 0, "reserve": 200, "reserve_prompt": 1},
    "lfu": {"caching": 1, "eviction": 1},
    "cost-aware": {"caching": 1, "eviction": 2, "recompute_token_s": 1e-4},
    "ttl": {"caching": 1, "ttl_s": 0.2},
    "tiers": TIERS,
    "tiers-beside": {**TIERS, "fetch_beside": 1, "fetch_always": 1, "eviction": 1},
    "door": {"queue_limit": 3, "shed_ttft_s": 0.3, "shed_token_s": 1e-4},
    "prefill-only": {"output_limit": 1},
    "decode-only": {"receive": 1},
}


def fit(knobs, table, values):
    """Return knobs with a discipline, large enough for its reservation."""
    new = changed(knobs, **values)
    size = int(new["block_size"][0])
    if values.get("reserve"):
        least = 1100 // size + 1
        new["num_blocks"] = max(int(new["num_blocks"][0]), least)
    return new


def exact(table, knobs, seed, slices=(), **serving):
    make_policy = serving.pop("policy", lambda: None)

    def run(which, at=()):
        policy = make_policy()
        return serve(table, which, TABLES, seed=seed, slices=at, policy=policy, **serving)

    single, fused = run(changed(knobs, fuse=0)), run(knobs)
    same_tables(fused, run(knobs, slices))
    same_requests(single, fused, 1e-9)
    same_steps(single.steps(), fused.steps())
    assert np.array_equal(single.lanes.gaps, fused.lanes.gaps)
    assert single.state["energy_j"][0] == pytest.approx(fused.state["energy_j"][0], rel=1e-9)
    return fused


SLICES = st.lists(st.floats(0, 3), max_size=6)


@pytest.mark.parametrize("name", DISCIPLINES)
@settings(max_examples=12, deadline=None)
@given(case=cases(), slices=SLICES)
def test_every_discipline(name, case, slices):
    table, knobs, seed = case
    if "priority" in name:
        table = table.assign(priority=np.arange(len(table)) % 3)
    exact(table, fit(knobs, table, DISCIPLINES[name]), seed, slices)


@settings(max_examples=25, deadline=None)
@given(cases(), SLICES)
def test_patience_and_time_outs(case, slices):
    table, knobs, seed = case
    rng = np.random.default_rng(seed)
    waits = rng.exponential(0.2, (2, len(table)))

    def leave(records):
        requests = records.requests
        requests["timeout_s"] = requests["arrival_s"] + waits[0]
        requests["patience_s"] = requests["arrival_s"] + waits[1]

    exact(table, changed(knobs, impatient=1), seed, slices, prepare=leave)


@pytest.mark.parametrize(
    ("ordering", "values"),
    [
        (FairShare(), {"fair": 1, "input_weight": 1, "output_weight": 2}),
        (Priority(), {"victim": 1}),
        (OnlineFirst(deadline_s=1.0, margin_s=0.7), {"background_seqs": 4, "background_free": 3}),
        (OnlineFirst(deadline_s=9.0, margin_s=0.0), {"background_tokens": 8, "victim": 2}),
    ],
)
@settings(max_examples=15, deadline=None)
@given(case=cases(), slices=SLICES)
def test_every_order(ordering, values, case, slices):
    table, knobs, seed = case
    rng = np.random.default_rng(seed)
    table = table.assign(
        client=rng.choice(["a", "b", "c"], len(table)),
        priority=rng.integers(0, 3, len(table)),
        **{"class": rng.choice(["online", "batch"], len(table))},
    )
    exact(table, changed(knobs, **values), seed, slices, ordering=ordering)


def test_background_work_waits_for_one_reason_while_free_blocks_fall():
    lengths = [(5, 6), (4, 24), (3, 19), (2, 27), (2, 15), (1, 18), (1, 29), (1, 22)]
    table = pd.DataFrame(lengths, columns=["prompt_tokens", "output_tokens"]).assign(arrival_s=0.0)
    table["class"] = ["batch"] * 4 + ["online", "batch", "batch", "online"]
    knobs = busy_knobs(
        block_size=1,
        num_blocks=31,
        max_num_seqs=16,
        max_num_batched_tokens=16,
        background_seqs=4,
        background_free=3,
    )
    exact(table, knobs, 0, ordering=OnlineFirst(deadline_s=1.0, margin_s=0.7))


@dataclass
class Nervous:
    """Other limits at every question, for a random time."""

    asked: list = field(default_factory=list)

    def rules(self):
        return BatchRules(64, 256)

    def adapt(self, view):
        self.asked.append(view)
        rng = np.random.default_rng(len(self.asked))
        return BatchRules(
            int(rng.integers(1, 20)), int(rng.integers(20, 256)), valid_s=float(rng.random() / 10)
        )


@pytest.mark.parametrize("policy", [Nervous, lambda: Adaptive(64, 256, 0.01, 0.05)])
@settings(max_examples=20, deadline=None)
@given(case=cases(), slices=SLICES)
def test_rules_that_change(policy, case, slices):
    table, knobs, seed = case
    knobs = changed(knobs, max_num_seqs=64, max_num_batched_tokens=256)
    exact(table, knobs, seed, slices, policy=policy)
