"""What repeated workloads of one engine show: things that happen once, and chance."""

import numpy as np
import pytest

from validation.measured import H200_REPEATS, MeasuredRun, load_runs


@pytest.fixture(scope="module")
def narrow() -> MeasuredRun:
    return load_runs(H200_REPEATS)["llama8b_fp8_repeat"]


def test_a_dispatch_waits_for_the_gpu_at_first_uses_alone(narrow):
    seen, waited = {0}, {True: [], False: []}  # eights that ran; four requests warmed the engine up
    for workload in narrow.workloads.values():
        rows = workload.steps[["n_prefill", "n_decode"]].sum(axis=1).to_numpy()
        for step, eight in zip(workload.steps.itertuples(), (rows - 1) // 8, strict=True):
            if step.n_prefill and step.gpu_ms > 36.0:  # an eager dispatch alone takes up to 35
                waited[eight not in seen].append(step.host_ms > 0.97 * step.gpu_ms)
            seen.add(eight)
    assert len(waited[True]) > 10
    assert np.mean(waited[True]) > 0.8
    assert len(waited[False]) > 200
    assert np.mean(waited[False]) < 0.01


def test_one_request_alone_is_a_draw_of_the_host(narrow):
    alone = [w.requests for w in narrow.workloads.values() if "_b1_" in w.name]
    times = np.array([r["first_token_s"].iloc[0] - r["arrival_s"].iloc[0] for r in alone])
    assert len(times) == 10
    assert times.std(ddof=1) / times.mean() == pytest.approx(0.13, abs=0.02)
