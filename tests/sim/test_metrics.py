"""Metrics against figures worked out by hand, and against each other."""

from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import InputError
from sim import Result, Scenario, simulate
from sim.core.layout import ITL_BINS, itl_bin_edges
from sim.deployment import deploy
from sim.metrics import (
    Observed,
    Window,
    by_group,
    measure,
    metric_table,
    metrics,
    mser,
    summary,
    weighted_percentile,
)
from sim.metrics.rates import attainments, output_tokens
from sim.metrics.waits import waits
from sim.metrics.window import in_system, observation_window

NAN = float("nan")


@lru_cache(maxsize=1)
def deployment():
    return deploy(Scenario(), 4096)


def requests_of(*rows):
    columns = [
        "arrival_s", "admitted_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens",
        "emitted_tokens", "status",
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=columns).assign(
        request=range(len(rows)), cached_tokens=0, preemptions=0, recomputed_tokens=0, replica=0
    )
    return table.astype(dict.fromkeys(columns[:4], float))


STEPS = pd.DataFrame(
    {
        "schedule_s": [1.0, 1.5, 4.0],
        "output_s": [2.0, 4.0, 8.0],
        "steps": [1, 2, 3],
        "prefill_tokens": [10, 20, 0],
        "decode_requests": [0, 1, 2],
        "running": [1, 2, 2],
        "waiting": [0, 1, 0],
        "free_blocks": [90, 80, 70],
        "gpu_s": [1.0, 1.5, 4.0],
        "energy_j": [100.0, 200.0, 400.0],
        "flops": [1e12, 2e12, 3e12],
        "bytes": [1e9, 2e9, 3e9],
        "window_w": [300.0, 500.0, 400.0],
        "temperature_c": [30.0, 40.0, 35.0],
        "replica": [0, 0, 0],
    }
)
TWO_AND_A_REJECT = requests_of(
    (0.0, 1.0, 2.0, 6.0, 10, 5, 5, "finished"),
    (1.0, 3.0, 4.0, 8.0, 20, 3, 3, "finished"),
    (2.0, NAN, NAN, 2.0, 7, 9, 0, "rejected"),
)


def result_of(requests=TWO_AND_A_REJECT, steps=STEPS, scenario=None, **totals):
    totals = {"prefill_energy_j": 150.0, "looked_up_blocks": 8, "hit_blocks": 2} | totals
    chosen = scenario or Scenario()
    return Result(chosen, deployment(), requests, steps, np.zeros(ITL_BINS), pd.DataFrame([totals]))


def figures(**kinds):
    return measure(Observed.of(result_of(**kinds)))


def test_latencies_by_hand():
    found = figures()
    assert found["ttft_mean_s"] == 2.5
    assert found["tpot_mean_s"] == 1.5  # (6 - 2) / 4 and (8 - 4) / 2
    assert found["e2e_mean_s"] == 6.5
    assert found["e2e_p50_s"] == 6.5
    assert found["e2e_p99_s"] == pytest.approx(6.99)  # linear between 6 and 7
    assert found["itl_mean_s"] == pytest.approx(8 / 6)  # all gaps weigh alike
    assert found["queue_mean_s"] == 1.5


def test_rates_by_hand():
    found = figures()
    assert (found["requests"], found["finished"], found["rejected"]) == (3, 2, 1)
    assert found["requests_per_s"] == 2 / 8
    assert found["output_tokens_per_s"] == 8 / 8
    assert found["total_tokens_per_s"] == (8 + 30) / 8


def test_a_single_token_has_no_tpot():
    one = requests_of((0.0, 0.0, 2.0, 2.0, 10, 1, 1, "finished"))
    found = figures(requests=one)
    assert found["tpot_mean_s"] is None
    assert found["itl_mean_s"] is None
    assert found["ttft_p50_s"] == 2.0


def test_use_by_hand():
    spec, found = deployment().spec, figures()
    assert found["busy_share"] == pytest.approx(6.5 / 8)
    assert found["mfu"] == pytest.approx(6e12 / (8 * spec.peak("bf16")))
    assert found["mbu"] == pytest.approx(6e9 / (8 * spec.memory_bytes_per_s))
    assert found["mfu_busy"] == pytest.approx(found["mfu"] * 8 / 6.5)
    assert found["running_mean"] == pytest.approx((1 * 1 + 2 * 2 + 2 * 4) / 8)
    assert found["waiting_max"] == 1
    assert found["prefix_hit_blocks"] == 2 / 8


def test_energy_by_hand():
    # Steps of prompts only: 100 J; so 50 of the 200 J of the mixed row were for prompts.
    idle = float(deployment().knobs["idle_w"][0]) * 1.5
    found = figures()
    assert found["energy_prefill_j"] == 150.0
    assert found["energy_decode_j"] == 550.0
    assert found["energy_idle_j"] == pytest.approx(idle)
    assert found["energy_j"] == pytest.approx(700.0 + idle)
    assert found["energy_per_output_token_j"] == pytest.approx((700.0 + idle) / 8)
    assert found["prefill_energy_per_prompt_token_j"] == pytest.approx(150 / 30)
    assert found["power_mean_w"] == pytest.approx((700.0 + idle) / 8)
    assert (found["power_max_w"], found["temperature_max_c"]) == (500.0, 40.0)


def test_energy_counts_every_accelerator_of_a_replica():
    scenario = Scenario().changed({"hardware.tp": 4})
    assert figures(scenario=scenario)["energy_j"] == pytest.approx(4 * figures()["energy_j"])
    assert figures(scenario=scenario)["mfu"] == figures()["mfu"]


def test_waits_and_effective_throughput_by_hand():
    knobs = deployment().knobs[0]
    requests = TWO_AND_A_REJECT.assign(transfer_s=[0.0, 0.25, 0.0], memory_wait_s=[0.0, 1.5, 0.0])
    steps = STEPS.assign(waiting=[1, 1, 0], prefill_tokens=[8192, 20, 0])
    found = waits(Observed.of(result_of(requests=requests, steps=steps)))
    ingest = 2 * (knobs["ingest_s"] + knobs["gather_s"]) + 30 * knobs["ingest_per_token_s"]
    assert found["queue"] == pytest.approx(3.0 - ingest - 1.5)
    assert found["memory"] == 1.5
    assert found["transfer"] == 0.25
    # Rows last 1, 2 and 4 s, the GPU works 1, 1.5 and 4 s of them, with 2 running in the second.
    assert found["host"] == pytest.approx(0.5 * 2 + ingest + 2 * knobs["client_s"])
    total = 6.0 + 7.0  # the rejected request was in the system for no time
    lost = sum(found.values())
    effective = figures(requests=requests, steps=steps)["effective_output_tokens_per_s"]
    assert effective == pytest.approx(1.0 * total / (total - lost), rel=1e-6)


def test_a_small_pool_shows_as_waits_for_memory(small_scenario):
    small = simulate(small_scenario.changed({"policies.memory.kv_blocks": 310}))
    found, wide = measure(Observed.of(small)), measure(Observed.of(simulate(small_scenario)))
    assert found["wait_memory_share"] > 0.1
    assert wide["wait_memory_share"] == pytest.approx(0.0, abs=0.01)
    # Taken out, the waits bring back most of the throughput per request in the system.
    assert found["effective_requests_per_s"] > 1.1 * found["requests_per_s"]


def test_recomputed_work_is_no_model_work():
    again = TWO_AND_A_REJECT.assign(recomputed_tokens=[4, 0, 0], preemptions=[1, 0, 0])
    per_token = float(deployment().tables.counts[0])
    peak = deployment().spec.peak("bf16")
    assert figures(requests=again)["mfu"] == pytest.approx((6e12 - 4 * per_token) / (8 * peak))
    assert figures(requests=again)["wait_recompute_share"] > 0
    assert figures(requests=again)["preemptions"] == 1


def test_objectives_by_hand():
    scenario = Scenario().changed({"slo.ttft_s": 2.5})
    found = figures(scenario=scenario)
    assert found["slo_attainment"] == pytest.approx(1 / 3)  # late and rejected ones missed
    assert found["goodput_per_s"] == pytest.approx(1 / 8)
    assert figures()["slo_attainment"] is None
    assert figures()["goodput_per_s"] is None


@pytest.mark.parametrize(
    ("objective", "share"),
    [({"slo.tpot_s": 1.0}, 1 / 3), ({"slo.e2e_s": 7.0}, 2 / 3), ({"slo.e2e_s": 5.0}, 0.0)],
)
def test_each_objective_counts(objective, share):
    found = figures(scenario=Scenario().changed(objective))
    assert found["slo_attainment"] == pytest.approx(share)


def test_unfinished_requests_count_as_missed_only_once_they_are_late():
    rows = requests_of(
        (0.0, 1.0, 2.0, 6.0, 10, 5, 5, "finished"),
        (1.0, 3.0, NAN, NAN, 20, 3, 0, "unfinished"),  # seven seconds without a token
        (7.5, NAN, NAN, NAN, 20, 3, 0, "unfinished"),  # half a second
    )
    scenario = Scenario().changed({"slo.ttft_s": 2.5, "run.horizon_s": 8.0})
    assert figures(requests=rows, scenario=scenario)["slo_attainment"] == 1 / 2


def test_objectives_per_class_come_from_named_workloads():
    mix = [
        {"named": "chat", "traffic_class": "chat"},
        {"named": "batch-classification", "traffic_class": "night"},
    ]
    scenario = Scenario.model_validate({"workload": {"mix": mix, "duration_s": 10}})
    rows = TWO_AND_A_REJECT.assign(**{"class": ["chat", "night", "night"]})
    result = result_of(requests=rows, scenario=scenario)
    assert [(a.traffic_class, a.share, a.wanted) for a in attainments(result)] == [
        ("chat", 0.0, 0.99),  # 2 s to the first token
        ("night", 0.5, 1.0),  # a day for the whole; one was rejected
    ]
    classes = summary(result)["classes"]
    assert classes["chat"]["ttft_mean_s"] == 2.0
    assert classes["night"]["ttft_mean_s"] == 3.0
    assert classes["night"]["requests"] == 2


def test_requests_that_a_closed_loop_never_sent_do_not_count():
    unsent = requests_of((0.0, NAN, NAN, NAN, 10, 5, 0, "unfinished")).assign(replica=-1)
    rows = pd.concat([TWO_AND_A_REJECT, unsent], ignore_index=True)
    assert figures(requests=rows)["requests"] == 3


def test_a_window_counts_what_lies_in_it():
    result = result_of()
    seen = Observed(result, Window(2.0, 5.0, whole=False))
    # r0: first token at 2, four more until 6: three of them by 5. r1: first at 4, half of one.
    assert output_tokens(seen) == pytest.approx(1 + 3 + 1 + 0.5)
    assert seen.step_sum("gpu_s") == pytest.approx(1.5 + 4.0 * 1 / 4)
    assert len(seen.requests) == 1  # by arrival


@settings(max_examples=50, deadline=None)
@given(st.floats(0.1, 7.9).filter(lambda cut: cut % 1))  # nothing ends at the cut
def test_two_windows_hold_the_whole(cut):
    result = result_of()
    parts = [Observed(result, Window(0.0, cut)), Observed(result, Window(cut, 8.0))]
    whole = Observed(result, Window(0.0, 8.0))
    assert sum(map(output_tokens, parts)) == pytest.approx(output_tokens(whole))
    joules = metrics["energy_j"].function
    assert sum(map(joules, parts)) == pytest.approx(joules(whole))


def test_warm_up_by_seconds_leaves_out_the_drain_too():
    table = pd.DataFrame({"arrival_s": [0.0, 5.0, 9.0], "finish_s": [2.0, 8.0, 20.0]})
    table["status"] = "finished"
    scenario = Scenario().changed({"run.warmup": 3.0})
    window = observation_window(scenario, table, STEPS)
    assert (window.start_s, window.end_s) == (3.0, 9.0)
    with pytest.raises(InputError, match="the last request arrives at 9 s"):
        observation_window(Scenario().changed({"run.warmup": 9.0}), table, STEPS)


def test_requests_in_system_at_each_arrival():
    table = pd.DataFrame({"arrival_s": [0.0, 1.0, 2.0, 6.0], "finish_s": [1.5, 9.0, np.nan, 7.0]})
    assert in_system(table).tolist() == [0, 1, 1, 2]


def by_definition(series, batch=5):
    """MSER as White, Cobb and Spratt write it."""
    n = len(series) // batch
    y = [float(np.mean(series[i * batch : (i + 1) * batch])) for i in range(n)]
    errors = [np.sum((np.array(y[d:]) - np.mean(y[d:])) ** 2) / (n - d) ** 2 for d in range(n)]
    return int(np.argmin(errors[: n // 2 + 1])) * batch


@pytest.mark.parametrize("seed", range(5))
def test_mser_is_the_published_rule_and_cuts_the_transient(seed):
    rng = np.random.default_rng(seed)
    series = 10 - 10 * np.exp(-np.arange(400) / 20) + rng.normal(0, 0.5, 400)
    assert mser(series) == by_definition(series)
    assert 30 <= mser(series) <= 120  # at 60, the transient is down to the noise
    assert mser(rng.normal(0, 1, 400)) <= 200


def test_mser_of_short_or_steady_series_cuts_nothing():
    assert mser([5.0] * 100) == 0
    assert mser([9.0, 1.0, 1.0]) == 0


def test_mser_shortens_a_real_run(small_result):
    scenario = small_result.scenario.changed({"run.warmup": "mser"})
    window = observation_window(scenario, small_result.requests, small_result.steps)
    assert 0 <= window.start_s < 10.1
    assert window.end_s == small_result.requests["arrival_s"].max()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 30)), min_size=1, max_size=20),
    st.sampled_from([1, 25, 50, 90, 99, 100]),
)
def test_weighted_percentiles_are_those_of_the_repeated_sample(pairs, q):
    pairs = sorted(pairs)
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, weights.astype(int))
    found = weighted_percentile(values, weights, q)
    if repeated.size == 0:
        assert np.isnan(found)
    else:
        assert found == np.percentile(repeated, q, method="inverted_cdf")


def test_itl_percentiles_come_from_the_histogram():
    result = result_of()
    edges = itl_bin_edges()
    for gap, weight in ((0.010, 90), (0.100, 9), (1.0, 1)):
        result.gaps[np.searchsorted(edges, gap, side="right") - 1] += weight
    found = measure(Observed.of(result))
    assert found["itl_p50_s"] == pytest.approx(0.010, rel=0.0026)
    assert found["itl_p90_s"] == pytest.approx(0.010, rel=0.0026)
    assert found["itl_p95_s"] == pytest.approx(0.100, rel=0.0026)
    assert found["itl_p99_s"] == pytest.approx(0.100, rel=0.0026)


def test_energy_of_a_run_is_that_of_the_engine(small_result):
    found, totals = measure(Observed.of(small_result)), small_result.totals
    seen = Observed.of(small_result)
    tail = seen.window.end_s - float(totals["gpu_end"].iloc[0])
    whole = float(totals["energy_j"].iloc[0]) + tail * seen.knob("idle_w")
    assert found["energy_j"] == pytest.approx(whole, rel=1e-8)
    assert found["energy_prefill_j"] == pytest.approx(totals["prefill_energy_j"].iloc[0], rel=1e-8)
    parts = (found[f"energy_{part}_j"] for part in ("prefill", "decode", "idle"))
    assert sum(parts) == pytest.approx(found["energy_j"], rel=1e-8)


def test_without_a_step_log_figures_come_from_the_totals(small_result, small_scenario):
    bare = simulate(small_scenario.changed({"run.step_log": False}))
    assert len(bare.steps) == 0
    found, full = measure(Observed.of(bare)), measure(Observed.of(small_result))
    for name in ("ttft_p99_s", "output_tokens_per_s", "slo_attainment"):
        assert found[name] == full[name]
    for name in ("busy_share", "mfu", "mbu", "energy_j", "energy_prefill_j"):
        assert found[name] == pytest.approx(full[name], rel=2e-3)  # the last step ends later
    assert found["effective_requests_per_s"] == pytest.approx(
        full["effective_requests_per_s"], rel=0.02
    )
    assert found["kv_used_max"] is None
    late = Observed.of(simulate(bare.scenario.changed({"run.warmup": 5.0})))
    assert measure(late)["energy_j"] is None


def test_tokens_of_a_run_are_those_of_the_engine(small_result):
    seen = Observed.of(small_result)
    assert output_tokens(seen) == small_result.totals["generated"].iloc[0]
    assert output_tokens(seen) == small_result.requests["output_tokens"].sum()
    assert seen.step_sum("prefill_tokens") == small_result.requests["prompt_tokens"].sum()


def test_requests_that_run_agree_with_the_step_log(small_result):
    # Little's law: mean requests in a batch = time in the engine, summed, over the run's length.
    table, seen = small_result.requests, Observed.of(small_result)
    inside = (table["finish_s"] - table["admitted_s"]).sum() / seen.window.span_s
    assert measure(seen)["running_mean"] == pytest.approx(inside, rel=0.05)


def test_a_fleet_counts_idle_replicas_to_the_end(fleet_result):
    seen = Observed.of(fleet_result)
    found = measure(seen)
    assert seen.window.end_s == pytest.approx(15.0, abs=0.2)
    busy = float(fleet_result.totals["busy_s"].sum())
    idle = 4 * seen.window.span_s - busy
    assert found["energy_idle_j"] == pytest.approx(2 * idle * seen.knob("idle_w"), rel=1e-6)
    assert found["finished"] + found["unfinished"] == found["requests"]
    assert found["unfinished"] > 0


def test_every_metric_says_its_unit_and_suffix_agrees():
    suffixes = {"s": "_s", "J": "_j", "W": "_w", "degC": "_c", "token/s": "_per_s"}
    for m in metrics.values():
        assert m.description
        assert m.unit
        if m.unit in suffixes and not m.name.endswith("_per_accelerator"):
            assert m.name.endswith(suffixes[m.unit]), m.name
    assert list(metric_table()["name"]) == [m.name for m in by_group()]


def test_a_new_metric_is_one_function(small_result):
    from sim.metrics import metric

    @metric("longest_prompt_tokens", "token", "longest prompt", "run")
    def longest(seen):
        return int(seen.requests["prompt_tokens"].max())

    try:
        assert summary(small_result)["longest_prompt_tokens"] > 1000
        assert "longest_prompt_tokens" in set(metric_table()["name"])
    finally:
        metrics.pop("longest_prompt_tokens")


def test_summary_is_plain_and_rounded(small_result):
    found = summary(small_result)
    assert found["schema_version"] == 1
    assert found["fidelity"] == "measured"
    for name, value in found.items():
        assert value is None or isinstance(value, (int, float, str, dict)), name
        if isinstance(value, float):
            assert value == float(f"{value:.9g}")
