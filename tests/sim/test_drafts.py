"""Speculation in the engine: luck of requests, work of steps, memory, and where gains end."""

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from policies.speculation import SpeculationRules, expected_tokens, speculation
from sim.deployment import deploy
from sim.drafts import LEVELS, chances
from sim.fleets.run import serve
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.speculation import break_even_batch

BASE = Scenario().changed({"engine.host_slowness": 0.01, "policies.caching": {"name": "none"}})


def requests(count, output=400, prompt=256, every=0.0):
    arrival = np.arange(count) * every
    return pd.DataFrame({"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output})


def drafting(name="eagle", scenario=BASE, **parameters):
    return scenario.changed({"decoding": {"name": name, **parameters}})


def per_step(result):
    """Return tokens of a decode that drafts stood behind."""
    state = result.totals.iloc[0]
    return (state["accepted"] + state["decoded"]) / state["decoded"]


@pytest.mark.parametrize(("a", "g"), [(0.0, 3), (0.4, 2), (0.7, 4), (0.95, 8), (1.0, 3)])
def test_tokens_per_step_are_those_of_the_closed_form(a, g):
    result = simulate(drafting(tokens=g, acceptance=a), requests(64, 801))
    wanted = (1 - a ** (g + 1)) / (1 - a) if a < 1 else g + 1
    steps = result.totals["decoded"][0]
    spread = (g + 1) / 2 / np.sqrt(steps)  # at most; a last step may be cut short
    assert per_step(result) == pytest.approx(wanted, abs=3 * spread + (g + 1) / 801 * wanted)


def test_chances_by_position_are_kept():
    given = (0.9, 0.5, 0.2)
    result = simulate(drafting(tokens=3, by_position=given), requests(64, 801))
    assert per_step(result) == pytest.approx(expected_tokens(given), rel=0.02)


def test_everybody_gets_all_tokens_and_all_memory_comes_back():
    table = requests(40, 333, every=0.02)
    for name in speculation:
        result = simulate(drafting(name), table)
        assert (result.requests["status"] == "finished").all()
        assert (result.requests["output_tokens"] == 333).all()
        state = result.totals.iloc[0]
        assert state["generated"] == 40 * 333
        assert state["free_blocks"] == result.deployment.knobs["num_blocks"][0]
        assert state["kv_tokens"] == state["held_blocks"] == 0


def test_preempted_requests_draw_the_same_luck_and_lose_no_token():
    few = drafting(scenario=BASE.changed({"policies.memory.kv_blocks": 400}))
    result = simulate(few, requests(40, 600))
    state = result.totals.iloc[0]
    assert state["preemptions"] > 0
    assert state["generated"] == 40 * 600
    assert state["free_blocks"] == 400
    assert per_step(result) == pytest.approx(expected_tokens([0.75] * 3), rel=0.03)


def test_luck_belongs_to_the_request_whatever_runs_beside_it():
    alone = simulate(drafting(), requests(1, 500)).steps["steps"].sum()
    beside = simulate(drafting(), requests(30, 500))
    first = beside.requests.iloc[0]
    gpu = beside.steps[beside.steps["output_s"] <= first["finish_s"]]
    assert gpu["steps"].sum() == pytest.approx(alone, abs=3)


def test_the_seed_decides_the_luck():
    def finished(seed):
        result = simulate(drafting().changed({"run.seed": seed}), requests(8))
        return result.requests["finish_s"].to_numpy()

    assert (finished(1) == finished(1)).all()
    assert (finished(1) != finished(2)).any()


@pytest.mark.parametrize("parameters", [{}, {"length": "adaptive"}, {"length": "best"}])
def test_macro_steps_change_nothing(parameters):
    table = requests(50, 200, every=0.01)
    scenario = drafting(**parameters)
    deployment = deploy(scenario, 4096)
    plain = simulate(scenario, table)
    deployment.knobs["fuse"] = 0
    served = serve(scenario, table, None, None, {"all": deployment})
    for name in ("first_token_s", "finish_s", "preemptions"):
        assert (served.records.requests[name] == plain.requests[name].to_numpy()).all()
    assert served.replicas[0].state["energy_j"][0] == plain.totals["energy_j"][0]


def test_a_step_takes_what_its_drafts_and_their_verification_take():
    scenario = drafting(tokens=3, acceptance=1.0)
    result = simulate(scenario, requests(8, 400, prompt=1000))
    steps = result.steps[(result.steps["decode_requests"] == 8)]
    row = steps.iloc[len(steps) // 2]
    context = row["decode_context"] / 8
    found = result.deployment.drafting.steps.step_s(np.array([8.0]), np.array([context]), 3)[0]
    assert row["gpu_s"] / row["steps"] == pytest.approx(found, rel=0.02)
    tables = result.deployment.tables.counts
    flops = 32 * (tables[0] + tables[1]) + 4 * row["decode_context"] * tables[2]
    flops += 24 * result.deployment.knobs["draft_flops"][0]
    assert row["flops"] == pytest.approx(flops, rel=1e-6)


def test_drafts_gain_up_to_the_break_even_batch_and_lose_beyond():
    chosen = drafting("draft-model", tokens=4, acceptance=0.65)
    explained = deploy(chosen, 4096).drafting.steps
    limit = break_even_batch(explained, 600.0)
    assert 2 < limit < 400

    def seconds(scenario, count):
        return simulate(scenario, requests(count, 500, 350)).requests["finish_s"].mean()

    low, high = max(limit // 3, 1), min(3 * limit, 500)
    assert seconds(chosen, low) < seconds(BASE, low)
    assert seconds(chosen, high) > seconds(BASE, high)


def test_the_best_length_is_never_much_slower_than_none():
    for count in (1, 32, 400):
        table = requests(count, 300, prompt=900)
        best = simulate(drafting("draft-model", length="best", tokens=6), table)
        none = simulate(BASE, table)
        ends = [r.requests["finish_s"].mean() for r in (best, none)]
        assert ends[0] < 1.08 * ends[1]  # prompts pass what drafts in any case


def test_an_adaptive_length_drafts_less_where_drafts_are_wrong():
    def drafted(a):
        result = simulate(drafting(acceptance=a, tokens=8, length="adaptive"), requests(16, 600))
        return result.totals["drafted"][0] / result.totals["decoded"][0]

    wrong, right = drafted(0.2), drafted(0.95)
    assert wrong < 2.5
    assert right > 5


def test_no_drafts_above_the_largest_batch():
    def share(count):
        scenario = drafting(length="batch", largest_batch=16)
        totals = simulate(scenario, requests(count, 200)).totals
        return totals["accepted"][0] / totals["generated"][0]

    assert share(16) > 0.5
    assert share(64) < 0.05  # only at the end, when few are left


def test_what_drafts_takes_room_from_the_cache():
    plain, model = (deploy(s, 4096) for s in (BASE, drafting("draft-model")))
    weights, kv = model.drafting.steps.extra_bytes()
    assert model.plan.weights == pytest.approx(plain.plan.weights + weights)
    assert model.plan.block == plain.plan.block + 16 * kv
    assert model.knobs["num_blocks"][0] < plain.knobs["num_blocks"][0]


def test_requests_have_rates_of_their_own_with_the_mean_of_the_rules():
    rules = SpeculationRules("free", 2, (0.8, 0.5), concentration=3.0)
    table = chances(rules)
    assert table.shape == (LEVELS, 2)
    assert table.mean(axis=0) == pytest.approx([0.8, 0.5], abs=0.01)
    assert table[:, 1].std() == pytest.approx(np.sqrt(0.25 / 4), rel=0.1)  # a (1 - a) / (c + 1)
    wide = simulate(drafting("prompt-lookup", concentration=2.0), requests(64, 600))
    even = simulate(drafting("prompt-lookup"), requests(64, 600))
    assert wide.requests["finish_s"].std() > 3 * even.requests["finish_s"].std()


def test_speculation_is_in_the_summary():
    figures = summary(simulate(drafting(acceptance=0.7), requests(16, 600)))
    assert figures["tokens_per_decode"] == pytest.approx(expected_tokens([0.7] * 3), rel=0.05)
    assert 0.3 < figures["draft_acceptance"] < 0.7
    assert summary(simulate(BASE, requests(2, 10)))["draft_acceptance"] is None


def test_data_parallel_ranks_draft_for_their_own_requests():
    """Two ranks with 2 n requests take for drafts what one takes with n, and guess as often."""
    moe = BASE.changed({"model.name": "qwen3-30b-a3b"})
    two = {"hardware.dp": 2, "hardware.ep": 2}
    asked = drafting(scenario=moe, tokens=3, acceptance=0.7)
    one, both = (deploy(s, 4096).drafting.tables for s in (asked, asked.changed(two)))
    assert np.array_equal(both.draft_s[2::2], both.draft_s[1::2])
    assert both.draft_s[2::2].shape == one.draft_s[1:].shape
    assert np.array_equal(both.verify_s[2::2], one.verify_s[1:])
    assert both.draft_lengths.size == 2 * (one.draft_lengths.size - 1) + 1
    table = requests(8, 400)
    with_drafts = simulate(asked.changed(two), table)
    plain = simulate(moe.changed(two), table)
    assert per_step(with_drafts) == pytest.approx(expected_tokens([0.7] * 3), rel=0.1)
    assert with_drafts.requests["finish_s"].max() < 0.8 * plain.requests["finish_s"].max()
    assert with_drafts.totals["generated"][0] == 8 * 400


def test_what_is_not_modelled_is_refused():
    with pytest.raises(InputError, match="not modelled"):
        deploy(drafting().changed({"hardware.pp": 2}), 4096)
    with pytest.raises(InputError, match="tokens to verify"):
        deploy(drafting().changed({"policies.batching.max_num_batched_tokens": 2}), 4096)
