"""How a load builds up against closed forms and against the simulation."""

import numpy as np
import pytest

from sim.deployment import deploy
from sim.exploring.buildup import build_up, prompt_ends
from sim.exploring.curve import Curve
from sim.exploring.estimate import estimate
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import simulate, workload_requests


def linear(most: float = 100.0, stay_s: float = 2.0) -> Curve:
    """A replica whose sequences leave after `stay_s` on average, whatever the batch."""
    batch = np.geomspace(1e-3, most, 2000)
    flat = np.full(batch.size, 0.01)
    return Curve(batch, batch / stay_s, flat, flat, 0 * flat, "sequences")


def test_the_batch_nears_the_steady_state_as_one_minus_exp():
    path, at = build_up(linear(), 20.0, 10.0), np.array([0.5, 2.0, 5.0])
    assert path.at(at) == pytest.approx(40.0 * (1 - np.exp(-at / 2.0)), rel=5e-3)
    assert path.wait_s(at) == pytest.approx(0.0)


def test_after_the_last_arrival_it_falls_as_exp():
    path = build_up(linear(), 20.0, 10.0)
    last = path.at(np.array([10.0]))[0]
    assert path.at(np.array([11.0, 14.0])) == pytest.approx(last * np.exp([-0.5, -2.0]), rel=1e-2)


def test_beyond_the_last_batch_a_queue_grows_at_the_excess_rate():
    path = build_up(linear(), 60.0, 30.0)
    assert path.full_s == pytest.approx(-2.0 * np.log(1 - 100 / 120), rel=1e-2)
    late = path.wait_s(np.array([path.full_s + 5.0]))[0]
    assert late == pytest.approx(5.0 * 10.0 / 50.0, rel=1e-6)
    assert path.over_s == pytest.approx(30.0 + (30.0 - path.full_s) * 10.0 / 50.0, rel=1e-6)


def test_prompts_of_one_step_end_together_and_the_budget_splits_them():
    ready, own, step = np.zeros(3), np.full(3, 0.02), np.full(3, 0.01)
    size = np.full(3, 4000.0)
    assert prompt_ends(ready, own, step, size, 1e9) == pytest.approx([0.07] * 3)
    assert prompt_ends(ready, own, step, size, 8192.0) == pytest.approx([0.05, 0.05, 0.08])


@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
def test_the_estimate_is_near_the_simulation_up_to_saturation(load):
    base = Scenario(workload={"named": "chat", "duration_s": 100.0})
    table = workload_requests(base)
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max())
    most = estimate(base, deploy(base, longest), table).curve.most_per_s
    rate = load * most * float(table["arrival_s"].max()) / len(table)
    scenario = base.changed({"workload.rate_scale": rate})
    table = workload_requests(scenario)
    found = estimate(scenario, deploy(scenario, longest), table).figures
    told = summary(simulate(scenario, table))
    for name, share in (
        ("ttft_p50_s", 0.25),
        ("ttft_p99_s", 0.35),
        ("tpot_mean_s", 0.2),
        ("e2e_p50_s", 0.2),
        ("output_tokens_per_s", 0.08),
        ("power_mean_w", 0.08),
    ):
        assert found[name] == pytest.approx(told[name], rel=share), name
