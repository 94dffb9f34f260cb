"""Power samples of steps that only decode, cut out of a measured run."""

import pytest

from sim.deployment import scenario_model
from validation.measured import load_runs
from validation.power_windows import LONGEST_STEP_S, decode_windows
from workloads.counts import parameters


@pytest.fixture(scope="module")
def windows():
    run = load_runs()["llama8b_bf16"]
    model = scenario_model(run.scenario)
    return model, decode_windows(run["conv_r12"], model)


def test_every_step_reads_all_weights_at_most_at_the_bandwidth(windows):
    model, table = windows
    weights = table["weight_bytes_per_s"] * table["step_s"]
    assert weights.nunique() <= len(table)
    assert (weights / (2 * parameters(model).total)).between(0.8, 1.0).all()
    assert (table["weight_bytes_per_s"] + table["kv_bytes_per_s"] < 4.8e12).all()
    assert (table["step_s"] < LONGEST_STEP_S).all()


def test_work_follows_sequences_and_stays_below_the_peak(windows):
    _, table = windows
    per_token = table["linear_flops_per_s"] * table["step_s"] / table["sequences"]
    assert per_token.max() == pytest.approx(per_token.min())
    assert (table["linear_flops_per_s"] + table["attention_flops_per_s"] < 989e12).all()
    assert 120 < table["watts"].median() < 700  # single samples overshoot after a prompt
