from functools import lru_cache

import numpy as np
import pytest

from formats import InputError
from sim.core.clock import _run_under_cap
from sim.core.layout import STATE
from sim.deployment import deploy
from validation.clocked import logged_steps, replay_clock
from validation.fit_clock import MACHINES, Clock, judge, samples
from validation.fit_machine import host_slowness
from validation.host import prompt_gpu_times
from validation.measured import H200_MORE, all_runs, load_runs

AS_TABULATED = {"full_clock_gain": 0.0, "capped_gain": 0.0, "throttle_per_k": 0.0}


@lru_cache(maxsize=4)
def deployment(run):
    return deploy(all_runs()[run].scenario, 1 << 15)


def replayed(run, workload, **changes):
    return replay_clock(deployment(run), all_runs()[run][workload], None, **changes)


def test_without_clock_a_step_is_the_sum_of_its_tables():
    run, workload = "llama8b_bf16", "static_b8_p512"
    tables = deployment(run).tables
    found = replayed(run, workload, **AS_TABULATED, piecewise_gap_s=0.0).seconds
    logged = logged_steps(tables, all_runs()[run][workload])
    tokens = logged.prefill_tokens + logged.decodes
    linear = tables.linear_s[tokens] + tables.head_s[logged.logits]
    rest = found.to_numpy() - linear - logged.prefill_attention_s
    assert np.abs(rest[logged.decodes == 0]).max() <= 1e-12
    assert (rest[logged.decodes > 0] > 0).all()  # attention of the decodes


def test_the_first_prompts_of_a_burst_run_faster_than_the_later_ones():
    run, workload = "llama8b_bf16", "static_b256_p512"
    ratio = replayed(run, workload).seconds / replayed(run, workload, **AS_TABULATED).seconds
    assert ratio[1] < ratio[4] <= 1.0
    assert ratio[4] == pytest.approx(ratio[8], abs=2e-3)  # settled at the cap


def test_memory_bound_work_gains_nothing_from_a_full_clock():
    run, workload = "llama8b_bf16", "static_b32_p2048"
    ratio = replayed(run, workload).seconds / replayed(run, workload, **AS_TABULATED).seconds
    assert ratio.to_numpy()[-20:] == pytest.approx(np.ones(20), abs=1e-9)


def test_the_power_window_follows_drawn_watts():
    """Work at the cap leaves the window there, so that a pause of a window restores the clock."""
    knobs = deployment("llama8b_bf16").knobs.view(np.recarray)[0]
    state = np.zeros(1, STATE).view(np.recarray)[0]
    state.window_w = knobs.idle_w
    run = _run_under_cap.py_func
    seconds = [run(state, knobs, 0.1, 70.0, 69.0)[0] for _ in range(5)]
    assert state.window_w == pytest.approx(knobs.cap_w, rel=1e-9)
    assert seconds[0] < seconds[1] < seconds[2] == pytest.approx(seconds[4], rel=1e-12)


def test_faster_clocks_never_take_longer():
    times = [
        replayed("llama8b_bf16", "static_b64_p1024", capped_gain=gain).seconds.sum()
        for gain in (0.0, 0.05, 0.1)
    ]
    assert times == sorted(times, reverse=True)


def test_joules_over_time_stay_at_the_cap():
    found = replayed("llama8b_bf16", "static_b256_p512")
    watts = found.joules.sum() / found.seconds.sum()
    assert 600 <= watts <= 720  # the meter read 694 W


def test_true_gpu_times_are_those_of_the_log():
    w = all_runs()["qwen14b_more"]["conv_r12"]
    times = prompt_gpu_times(w)
    row = times.iloc[10]
    assert row.seconds == pytest.approx(w.steps.gpu_ms[int(row.step)] * 1e-3)
    assert (w.steps.n_prefill.to_numpy()[times.step] > 0).all()


def test_gpu_times_from_outputs_agree_with_true_ones():
    """On a log that has both, the estimate without GPU times lies close to them."""
    w = all_runs()["llama8b_bf16_more"]["conv_r18"]
    plain = w.steps.drop(columns=["gpu_ms", "gpu_gap_ms", "host_ms"])
    blind = type(w)(w.run, w.name, w.requests, plain, w.power)
    times = prompt_gpu_times(blind)
    true = w.steps.gpu_ms.to_numpy()[times.step] * 1e-3
    assert len(times) > 30
    assert np.median(times.seconds / true) == pytest.approx(1.0, abs=0.03)


def test_the_clock_that_ships_is_good_on_every_machine():
    knobs = deployment("llama8b_bf16").knobs[0]
    clock = Clock(
        float(knobs["window_s"]),
        float(knobs["full_clock_gain"]),
        float(knobs["capped_gain"]),
        float(knobs["piecewise_gap_s"]) / 32,
    )
    chosen = [s for s in samples() if s.workload.name in ("conv_r12", "conv_r4", "conv_r18")]
    assert {s.machine for s in chosen} == set(MACHINES)
    assert judge(chosen, clock).max() <= 0.08


def test_logs_with_preemptions_cannot_be_replayed():
    with pytest.raises(InputError, match="requests were preempted"):
        replayed("llama8b_3000_more", "conv_r20")


def test_the_other_machines_host_is_faster():
    assert host_slowness(list(load_runs().values())) == pytest.approx(1.0, abs=0.1)
    more = load_runs(H200_MORE)
    found = host_slowness(list(more.values()))
    assert 0.55 <= found <= 0.7
    assert more["qwen14b_more"].scenario.engine.host_slowness == pytest.approx(found, abs=0.02)


def test_too_few_dispatches_are_refused():
    run = load_runs()["llama8b_bf16"]
    few = type(run)(run.name, run.scenario, {"x": run["static_b1_p512"]}, "", "")
    with pytest.raises(InputError, match="1 dispatches of prompt steps"):
        host_slowness([few])
