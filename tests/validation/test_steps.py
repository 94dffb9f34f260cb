from functools import lru_cache

import numpy as np
import pandas as pd
import pytest

from sim.deployment import deploy
from validation.measured import Exclusion, MeasuredWorkload, load_runs
from validation.steps import judge_workload, predict_steps, summarise

# step medians and window medians that the project promises (decode, window) [1]
LIMITS = {
    "llama8b_bf16": (0.03, 0.04),
    "llama8b_small": (0.03, 0.04),
    "llama8b_fp8": (0.06, None),
    "qwen30b_a3b": (0.06, None),
}


@lru_cache(maxsize=4)
def deployment(run):
    return deploy(load_runs()[run].scenario, 17_000)


def made(decodes, exclusions=()):
    """One prompt of 512, then `decodes` steps of 10 ms each."""
    end = 0.05 + 0.01 * np.arange(decodes + 1)
    start = np.concatenate([[0.0, 0.02], end[:-2] + 0.001])
    log = pd.DataFrame(
        {
            "t_schedule": start,
            "t_output": end,
            "n_prefill": [1] + [0] * decodes,
            "prefill_tokens": [512] + [0] * decodes,
            "prefill_attn": [512 * 256.5] + [0.0] * decodes,
            "n_decode": [0] + [1] * decodes,
            "decode_context": [0, *range(512, 512 + decodes)],
            "n_preempted": 0,
        }
    )
    requests = pd.DataFrame(
        {"prompt_tokens": [512], "output_tokens": [decodes + 1], "cached_tokens": [0]}
    )
    return MeasuredWorkload("run", "made", requests, log, pd.DataFrame(), None, exclusions)


def test_decode_steps_start_two_after_a_prompt():
    rows = judge_workload(deployment("llama8b_bf16"), made(20))
    assert rows.kind.tolist() == ["decode"] * 19
    assert rows.measured_s.to_numpy() == pytest.approx(np.full(19, 0.01))
    assert rows.start_s.iloc[0] == pytest.approx(0.06)
    assert (rows.error < 0).all()  # 4.9 ms on the GPU against the 10 ms of the log


def test_excluded_steps_are_not_judged():
    gap = Exclusion(run="run", workload="made", start_s=0.1, end_s=0.2, reason="a made-up stall")
    rows = judge_workload(deployment("llama8b_bf16"), made(40, (gap,)))
    inside = (rows.start_s + rows.measured_s > 0.1) & (rows.start_s < 0.19)
    assert not inside.any()
    assert 20 < len(rows) < 39


def test_windows_without_prompts_and_idle_windows_are_left_out():
    workload = made(200)
    rows = judge_workload(deployment("llama8b_bf16"), workload)
    assert "window" not in set(rows.kind)  # the only prompt ends before the first output
    log = workload.steps
    prompt = pd.DataFrame([[1, 64]], index=[20])
    log.loc[[20], ["n_prefill", "prefill_tokens"]] = prompt.to_numpy()
    extra = workload.requests.copy()
    extra.loc[1] = [64, 1, 0]
    with_prompt = MeasuredWorkload("run", "made", extra, log, pd.DataFrame())
    rows = judge_workload(deployment("llama8b_bf16"), with_prompt)
    window = rows[rows.kind == "window"]
    assert len(window) == 1
    assert window.measured_s.iloc[0] == pytest.approx(0.5, abs=0.011)
    predicted = predict_steps(deployment("llama8b_bf16"), with_prompt).gpu_s
    count = round(window.measured_s.iloc[0] / 0.01)
    assert window.gpu_s.iloc[0] == pytest.approx(predicted[1 : 1 + count].sum())
    idle = log.assign(t_schedule=log.t_schedule.mask(log.index == 10, log.t_output))
    stopped = MeasuredWorkload("run", "made", extra, idle, pd.DataFrame())
    assert "window" not in set(judge_workload(deployment("llama8b_bf16"), stopped).kind)


def test_summary_is_signed_median_median_and_percentile():
    rows = pd.DataFrame(
        {"run": "r", "workload": "w", "kind": "decode", "error": [-0.2, 0.1, 0.1], "host_error": 0}
    )
    out = summarise(rows).iloc[0]
    assert (out["count"], out.signed, out["median"]) == (3, 0.1, 0.1)
    assert out.p90 == pytest.approx(0.18)


@pytest.mark.validation
@pytest.mark.parametrize("name", LIMITS)
def test_step_times_are_within_their_limits(name):
    run = load_runs()[name]
    rows = pd.concat([judge_workload(deployment(name), w) for w in run.workloads.values()])
    found = summarise(rows, ("kind",)).set_index("kind")["median"]
    decode, window = LIMITS[name]
    assert found["decode"] <= decode
    if window:
        assert found["window"] <= window
