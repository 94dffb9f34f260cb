"""Policies as a user meets them: in a scenario, through the command line, in the results."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from policies.base import registries
from sim import Scenario, simulate
from sim.cli import run
from sim.contract import AXES, check_policy, contract_table
from sim.core.layout import Status
from sim.metrics import Observed, measure, summary

CHOICES = [
    (axis, name) for axis in AXES for name in registries[axis] if name != "shortest-prompt-first"
]


def table_of(*rows, **columns):
    table = pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"])
    return table.assign(**columns)


def alike(arrivals, prompts, outputs):
    """Return requests of given arrivals, the same lengths for all where one is given."""
    data = {"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": outputs}
    return pd.DataFrame(data)


def figures(result):
    return measure(Observed.of(result))


@pytest.mark.parametrize(("axis", "name"), CHOICES)
def test_every_policy_serves_from_a_file(axis, name, tmp_path, monkeypatch, capsys):
    """Every request ends in one of six ways, and these add up to the arrivals."""
    monkeypatch.chdir(tmp_path)
    contract_table(count=40).to_csv("requests.csv", index=False)
    text = f'[workload]\nrequests = "requests.csv"\n[policies.{axis}]\nname = "{name}"\n'
    if name == "contiguous":
        text += '[policies.caching]\nname = "none"\n'
    if axis == "encoder" and name != "none":
        text += "flops_per_token = 1e9\n"
    (tmp_path / "case.toml").write_text(text)
    assert run(["simulate", "case.toml", "--out", "out"]) == 0, capsys.readouterr().err
    done = pd.read_csv("out/requests.csv")
    assert len(done) == 40
    counts = done["status"].value_counts()
    assert set(counts.index) <= set(Status.NAMES)
    found = pd.read_json("out/summary.json", typ="series")
    assert sum(found[name] for name in Status.NAMES) == found["requests"] == 40
    assert found["finished"] == counts["finished"]


def test_a_front_door_in_overload():
    """Queue limit, time-out, patience and a horizon together: every way out but failure."""
    rng = np.random.default_rng(1)
    count = 400
    table = alike(np.sort(rng.uniform(0, 4, count)), 4000, rng.integers(4, 400, count))
    scenario = Scenario().changed(
        {
            "policies.admission": {
                "name": "limits",
                "queue_limit": 60,
                "timeout_s": 2.0,
                "patience_s": 4.0,
                "patience_cv": 0.5,
            },
            "policies.batching.max_num_seqs": 64,
            "run.horizon_s": 5.0,
        }
    )
    found = figures(simulate(scenario, table))
    ways = {name: found[name] for name in Status.NAMES}
    assert sum(ways.values()) == count
    assert all(ways[name] > 0 for name in Status.NAMES if name != "failed"), ways


def test_goodput_in_overload_is_kept_by_shedding():
    """Twice what fits: first come first served makes all late, shedding serves half in time."""
    rng = np.random.default_rng(2)
    table = alike(np.sort(rng.uniform(0, 20, 1000)), 4000, 8)
    base = Scenario().changed({"slo.ttft_s": 1.0})
    shed = base.changed({"policies.admission": {"name": "shed-load", "ttft_s": 1.0}})
    late, kept = (figures(simulate(s, table)) for s in (base, shed))
    assert kept["rejected"] > 0
    assert kept["goodput_per_s"] > 2 * late["goodput_per_s"]


def test_shortest_job_first_starves_in_the_results():
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 10, 600))
    prompts = np.where(rng.random(600) < 0.02, 30_000, 2_000)
    table = alike(arrivals, prompts, 100)
    small = {"policies.batching.max_num_seqs": 16}
    fcfs, sjf = (
        figures(simulate(Scenario().changed(small | {"policies.ordering.name": name}), table))
        for name in ("fcfs", "sjf")
    )
    assert sjf["queue_mean_s"] < fcfs["queue_mean_s"]
    assert sjf["queue_max_s"] > fcfs["queue_max_s"]
    assert fcfs["overtaken_max"] <= 1  # a longer prompt takes longer to reach the engine
    assert sjf["overtaken_max"] > 100


def test_static_batches_block_behind_a_long_request():
    """The regime that Orca and vLLM report: several times the throughput at the same latency.

    One request in eight has 1,000 output tokens, the others 50; a static batch of 16 waits for
    its longest, so nearly every batch takes 1,000 steps. Orca (OSDI 2022, figure 9) reports up to
    36.9 times FasterTransformer's throughput, vLLM (SOSP 2023, section 6.2) 2 to 4 times Orca's.
    """
    count = 256
    outputs = np.where(np.arange(count) % 8 == 0, 1000, 50)
    table = alike(np.zeros(count), 128, outputs)
    took = {}
    for name in ("static", "continuous", "chunked-prefill"):
        policies = {"policies.batching": {"name": name, "max_num_seqs": 16}}
        result = simulate(Scenario().changed(policies), table)
        took[name] = result.requests["finish_s"].max()
        if name == "static":
            assert figures(result)["padding_share"] > 0.5
    assert 4.0 < took["static"] / took["continuous"] < 16.0
    assert took["chunked-prefill"] == pytest.approx(took["continuous"], rel=0.15)


def test_chunks_bound_the_worst_gap_and_cost_first_tokens():
    """Prompts of 8,000 tokens burst into 32 decodes, at three chunk sizes and without chunks."""
    decodes = [(0.0, 64, 400)] * 32
    bursts = [(1.0 + 0.5 * k, 8000, 4) for k in range(4)]
    gaps, firsts = [], []
    for batching in (
        {"name": "chunked-prefill", "max_num_batched_tokens": 512},
        {"name": "chunked-prefill", "max_num_batched_tokens": 2048},
        {"name": "chunked-prefill", "max_num_batched_tokens": 8192},
        {"name": "continuous", "max_num_batched_tokens": 8192},
    ):
        scenario = Scenario().changed({"policies.batching": batching})
        result = simulate(scenario, table_of(*decodes, *bursts))
        gaps.append(result.steps["gpu_s"].div(result.steps["steps"]).max())
        firsts.append((result.requests["first_token_s"] - result.requests["arrival_s"])[32:].mean())
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[2] > 4 * gaps[0]
    assert gaps[3] == pytest.approx(gaps[2], rel=0.05)  # without chunks: the whole prompt
    assert firsts[0] > firsts[1] > firsts[2] * 0.99


def test_contiguous_memory_wastes_what_paging_uses():
    rng = np.random.default_rng(4)
    table = alike(np.zeros(300), 500, rng.integers(10, 400, 300))
    pool = {"policies.caching.name": "none", "policies.memory.kv_blocks": 2000}
    paged = figures(simulate(Scenario().changed(pool), table))
    name = {"policies.memory": {"name": "contiguous", "kv_blocks": 2000, "max_tokens": 2048}}
    whole = simulate(Scenario().changed({"policies.caching.name": "none"} | name), table)
    found = figures(whole)
    assert paged["kv_internal_fragmentation"] < 0.05
    assert found["kv_internal_fragmentation"] > 0.5
    assert found["running_mean"] < 0.5 * paged["running_mean"]
    assert whole.steps["unused_tokens"].max() > 0


def test_swapping_costs_copies_and_saves_work():
    rng = np.random.default_rng(5)
    table = alike(np.sort(rng.uniform(0, 4, 150)), 300, 250)
    found = {}
    for how in ("recompute", "swap"):
        memory = {"name": "paged", "kv_blocks": 1500, "preemption": how}
        found[how] = figures(simulate(Scenario().changed({"policies.memory": memory}), table))
    assert found["recompute"]["preemptions"] > 5
    assert found["recompute"]["recomputed_tokens"] > 0
    assert found["swap"]["swaps"] > 5
    assert found["swap"]["recomputed_tokens"] == 0
    assert found["swap"]["kv_copied_s"] > 0


def test_a_sold_cache_has_its_price():
    """1,000 tokens written at 1.25, then 992 of 1,000 read at 0.1: vendors' way to bill."""
    table = table_of(
        (0.0, 1000, 1),
        (10.0, 1000, 1),
        (500.0, 1000, 1),
        session="a",
        prefix_tokens=[0, 1000, 1000],
    )
    scenario = Scenario().changed({"policies.caching": {"name": "prefix-ttl", "ttl_s": 300}})
    result = simulate(scenario, table)
    assert result.requests["cached_tokens"].tolist() == [0, 992, 0]
    want = (2008 * 1.25 + 992 * 0.1) / 3000
    assert figures(result)["prompt_price_share"] == pytest.approx(want)
    assert figures(simulate(Scenario(), table))["prompt_price_share"] is None


def test_lower_tiers_shorten_first_tokens_of_long_sessions():
    table = table_of(
        *[(20.0 * k, 8000, 4) for k in range(6)],
        session=["a", "b", "a", "b", "a", "b"],
        prefix_tokens=[0, 0, 8000, 8000, 8000, 8000],
    )
    ttft = {}
    for name in ("prefix-lru", "tiered"):
        small = {"policies.memory.kv_blocks": 520, "policies.caching.name": name}
        result = simulate(Scenario().changed(small), table)
        ttft[name] = figures(result)["ttft_mean_s"]
        if name == "tiered":
            found = figures(result)
            assert found["prefix_hit_dram"] > 0.9 * found["prefix_hit_blocks"]
            assert result.requests["cached_tokens"].tolist() == [0, 0, *[7984] * 4]
    assert ttft["tiered"] < 0.6 * ttft["prefix-lru"]


def test_known_answers_and_encoder_outputs_save_work():
    table = contract_table(count=200)
    every = {"policies.encoder": {"name": "every-image", "flops_per_token": 1e10}}
    cached = {"policies.encoder": {"name": "cached", "items": 5, "flops_per_token": 1e10}}
    a, b = (figures(simulate(Scenario().changed(c), table)) for c in (every, cached))
    assert a["encoder_saved_s"] == 0
    assert b["encoder_s"] + b["encoder_saved_s"] == pytest.approx(a["encoder_s"])
    assert b["encoder_saved_s"] > b["encoder_s"]
    known = {"policies.answers": {"name": "hit-rate", "hit_share": 0.5, "lookup_s": 0.02}}
    result = simulate(Scenario().changed(known), table)
    quick = result.requests["admitted_s"].isna()
    assert quick.mean() == pytest.approx(0.5, abs=0.12)  # 3.4 standard errors
    assert figures(result)["finished"] == 200
    assert figures(result)["energy_j"] < figures(simulate(Scenario(), table))["energy_j"]


def test_online_first_keeps_the_objective_and_gains_batch_tokens():
    """Online alone; with batch work in one queue; and with batch work that fills the valleys."""
    rng = np.random.default_rng(6)
    online = pd.DataFrame(
        {
            "arrival_s": np.sort(rng.uniform(0, 30, 150)),
            "prompt_tokens": 800,
            "output_tokens": 120,
            "class": "online",
        }
    )
    work = pd.DataFrame(
        {"arrival_s": 0.0, "prompt_tokens": [3000] * 600, "output_tokens": 300, "class": "batch"}
    )
    both = pd.concat([work, online]).sort_values("arrival_s", kind="stable", ignore_index=True)
    both["deadline_s"] = np.where(both["class"] == "batch", 3600.0, np.nan)
    slo = Scenario().changed({"slo.ttft_s": 0.3, "policies.batching.max_num_seqs": 128})
    first = slo.changed({"policies.ordering.name": "online-first"})
    met = {}
    for name, scenario, table in (
        ("alone", slo, online),
        ("one queue", slo, both),
        ("valleys", first, both),
    ):
        found = summary(simulate(scenario, table))
        met[name] = found["classes"]["online"]["slo_attainment"]
        if name != "alone":
            assert found["classes"]["batch"]["finished"] == 600
            assert found["classes"]["batch"]["deadlines_met"] == 1.0
            assert found["classes"]["batch"]["output_tokens_per_s"] > 0
    assert met["one queue"] < 0.5
    assert met["valleys"] > met["alone"] - 0.1


def test_samples_share_the_prompt():
    """n = 4: four requests, three of which find all but the last block of the prompt."""
    one = table_of((0.0, 1024, 16))
    result = simulate(Scenario().changed({"engine.samples": 4}), one)
    assert result.requests["cached_tokens"].tolist() == [0, 1008, 1008, 1008]
    assert result.requests["request"].is_unique


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("engine.lora_adapters", 3, "LoRA adapters are not modelled: no kernel"),
        ("engine.structured_output", True, "structured output is not modelled: the host time"),
    ],
)
def test_what_is_not_modelled_is_refused_with_the_reason(key, value, words):
    with pytest.raises(InputError, match=words):
        simulate(Scenario().changed({key: value}), table_of((0.0, 10, 2)))


def test_two_policies_that_contradict_are_refused():
    contiguous = Scenario().changed({"policies.memory": {"name": "contiguous"}})
    with pytest.raises(InputError, match="contiguous memory cannot share blocks"):
        simulate(contiguous, table_of((0.0, 10, 2)))


def test_the_policy_of_the_guide_keeps_the_contract():
    text = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    try:
        exec(compile(block[1], "policies.md", "exec"), {"__name__": "guide"})
        check_policy("batching", {"name": "tide", "calm_tokens": 64})
    finally:
        registries["batching"]._classes.pop("tide", None)


def test_the_list_names_defaults_and_units(capsys):
    assert run(["list", "policies"]) == 0
    text = capsys.readouterr().out
    assert "ttl_s = 300.0 s" in text
    assert "max_num_batched_tokens = 8192 token" in text
    assert "Use it when few prefixes are asked for again and again" in text
