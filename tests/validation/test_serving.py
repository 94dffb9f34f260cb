import numpy as np
import pandas as pd
import pytest

from validation.measured import load_runs
from validation.serving import (
    METRICS,
    Observation,
    compare,
    equal_hits,
    limits,
    medians,
    observe,
    replay,
    workload_scenario,
)


@pytest.fixture(scope="module")
def runs():
    return load_runs()


def seen(requests, **changes):
    base = {
        "requests": pd.DataFrame(requests),
        "tokens_per_s": 1.0,
        "gaps_s": np.array([0.01]),
        "weights": np.array([1.0]),
        "power_w": 500.0,
        "duration_s": 20.0,
        "preemptions": 0,
    }
    return Observation(**{**base, **changes})


def test_figures_of_two_requests_by_hand():
    two = seen(
        {
            "arrival_s": [0.0, 1.0],
            "first_token_s": [0.1, 1.3],
            "finish_s": [1.1, 1.3],
            "output_tokens": [11, 1],
            "cached_tokens": [16, 0],
        }
    )
    value = {name: figure.function(two) for name, figure in METRICS.items()}
    assert value["ttft_mean_s"] == pytest.approx(0.2)
    assert value["ttft_p50_s"] == pytest.approx(0.2)
    assert value["ttft_p99_s"] == pytest.approx(0.298)
    assert value["tpot_mean_s"] == pytest.approx(0.1)  # a request of one token has none
    assert value["e2e_mean_s"] == pytest.approx(0.7)
    assert value["energy_j"] == 10_000.0
    assert value["cached_tokens"] == 16


def test_energy_of_a_short_workload_is_not_judged():
    short = seen({"arrival_s": [0.0]}, duration_s=9.9)
    assert np.isnan(METRICS["energy_j"].function(short))


def test_gaps_between_tokens_are_steps_weighted_by_their_decodes(runs):
    found = observe(runs["llama8b_bf16"]["static_b1_p128"])
    assert found.weights.sum() == 31
    assert (np.diff(found.gaps_s) >= 0).all()
    assert np.average(found.gaps_s, weights=found.weights) == pytest.approx(4.78e-3, rel=0.01)


def test_a_closed_loop_keeps_its_users(runs):
    run = runs["llama8b_bf16"]
    w = run["closed_c64_p1024_o256"]
    assert w.concurrency == 64
    scenario = workload_scenario(run, w, 0)
    assert scenario.workload.arrivals.concurrency == 64
    table = compare(w, replay(run, w, [0])).set_index("metric")
    assert table.limit["e2e_mean_s"] == limits().closed
    assert abs(table.error["e2e_mean_s"]) <= limits().closed
    assert table.measured["output_tokens_per_s"] == pytest.approx(192 * 256 / 10.345, rel=1e-3)


def test_conversations_find_the_cached_tokens_of_the_real_engine(runs):
    run = runs["llama8b_small"]
    w = run["turns_a"]
    results = replay(run, w, [0])
    assert equal_hits(results[0], w) >= 0.98
    table = compare(w, results).set_index("metric")
    assert abs(table.error["cached_tokens"]) < 0.01
    assert (table.low <= table.predicted).all()
    assert (table.predicted <= table.high).all()


def test_an_excluded_workload_has_nothing_to_compare(runs):
    run = runs["qwen30b_a3b"]
    w = run["static_b32_p512"]
    assert compare(w, []).empty


def test_limits_follow_the_precision(runs):
    run = runs["llama8b_fp8"]
    table = compare(run["conv_r24"], replay(run, run["conv_r24"], [0]), "fp8").set_index("metric")
    assert table.limit["ttft_mean_s"] == 0.15
    assert np.isnan(table.limit["e2e_mean_s"])


def test_medians_use_open_loop_workloads_only():
    rows = pd.DataFrame(
        {
            "kind": ["open", "open", "open", "static"],
            "metric": "tpot_mean_s",
            "error": [-0.04, 0.01, 0.02, 9.0],
        }
    )
    out = medians(rows).iloc[0]
    assert (out.workloads, out.signed, out["median"], out.worst) == (3, 0.01, 0.02, 0.04)
    assert (out.limit, out.rival) == (0.025, 0.051)
