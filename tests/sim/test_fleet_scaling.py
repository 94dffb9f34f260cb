"""Autoscaling: policies as pure functions, cold starts from bytes, draining, scale to zero."""

import dataclasses
import inspect
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from policies.autoscaling import Observation, autoscaling
from sim import Scenario, simulate
from sim.autoscaling import cold_start_s
from sim.deployment import deploy
from sim.fleets.sections import ColdStart


def seen(ready=2, starting=0, **more):
    return Observation(1000.0, 10.0, ready, starting, **more)


def desired(name, observation, **parameters):
    return autoscaling.make({"name": name, **parameters}).desired(observation)


@pytest.mark.parametrize("name", list(autoscaling))
def test_a_policy_is_a_function_of_what_it_sees(name):
    policy = autoscaling.make({"name": name})
    assert dataclasses.is_dataclass(policy)
    assert type(policy).__dataclass_params__.frozen
    observation = seen(waiting=5, running=9, busy_share=0.9, rates=(1.0, 2.0, 3.0))
    assert {policy.desired(observation) for _ in range(5)} == {policy.desired(observation)}
    assert "simpy" not in inspect.getsource(inspect.getmodule(type(policy)))


CASES = [
    ("fixed", {"replicas": 3}, {}, 3),
    ("target-utilisation", {"target": 10}, {"waiting": 5, "running": 30}, 4),
    ("target-utilisation", {"target": 10}, {"waiting": 0, "running": 21}, 2),  # within 10 %
    ("target-utilisation", {"measure": "busy", "target": 0.5}, {"busy_share": 0.8}, 4),
    ("target-utilisation", {"measure": "kv", "target": 0.8}, {"kv_share": 0.2}, 1),
    ("target-utilisation", {"idle_s": 30.0}, {"rates": (1.0, 0.0, 0.0, 0.0)}, 0),
    ("target-utilisation", {"idle_s": 30.0}, {"rates": (0.0, 1.0, 0.0, 0.0)}, 1),
    ("queue", {"up_waiting": 4}, {"waiting": 9, "running": 64}, 3),
    ("queue", {"up_waiting": 4}, {"waiting": 8, "running": 64}, 2),
    ("queue", {"down_running": 8}, {"running": 8}, 1),
    ("ttft", {"objective_s": 1.0}, {"ttft_s": 1.5, "running": 50}, 3),
    ("ttft", {"objective_s": 1.0}, {"ttft_s": 1.5, "running": 50, "starting": 1}, 3),
    ("ttft", {"objective_s": 1.0}, {"ttft_s": 0.2, "running": 4}, 1),
    ("ttft", {"objective_s": 1.0}, {"ttft_s": 0.5, "running": 4}, 2),
    ("forecast", {"rate_per_replica": 2.0, "headroom": 0.0}, {"rates": (3.0, 7.0, 5.0)}, 4),
]


@pytest.mark.parametrize(("name", "parameters", "load", "count"), CASES)
def test_desired_counts_by_hand(name, parameters, load, count):
    assert desired(name, seen(**load), **parameters) == count


def test_a_forecast_sees_the_peak_of_the_season_before():
    """A square wave of 100 intervals, high in the last 20: it starts before the rise."""
    rates = [1.0] * 80 + [9.0] * 20
    policy = {"season_s": 1000.0, "ahead_s": 50.0, "recent_s": 100.0, "headroom": 0.0}
    policy |= {"rate_per_replica": 1.0}
    whole = tuple(rates + rates[:76])  # the rise comes in four intervals
    early = tuple(rates + rates[:70])
    assert desired("forecast", seen(rates=whole), **policy) == 9
    assert desired("forecast", seen(rates=early), **policy) == 1


def test_a_forecast_follows_growth_over_the_season_before():
    rates = [2.0] * 100 + [4.0] * 50
    policy = {"season_s": 1000.0, "ahead_s": 50.0, "recent_s": 100.0, "headroom": 0.0}
    assert desired("forecast", seen(rates=tuple(rates)), rate_per_replica=1.0, **policy) == 4


def test_a_cold_start_takes_the_slowest_path_and_the_engine():
    made = deploy(Scenario(), 4096)
    size = made.plan.weights
    host = made.spec.links.host.bytes_per_s.value
    disk = ColdStart(storage_bytes_per_s=1e9, network_bytes_per_s=5e9, engine_s=3.0)
    assert cold_start_s(made, disk) == pytest.approx(size / 1e9 + 3.0)
    far = ColdStart(storage_bytes_per_s=1e10, network_bytes_per_s=5e8, engine_s=3.0)
    assert cold_start_s(made, far) == pytest.approx(size / 5e8 + 3.0)
    near = ColdStart(cached=True, engine_s=3.0)
    assert cold_start_s(made, near) == pytest.approx(size / host + 3.0)


def test_ranks_of_one_node_share_its_storage():
    two = deploy(Scenario().changed({"hardware.tp": 2}), 4096)
    start = ColdStart(storage_bytes_per_s=1e9, engine_s=0.0)
    apart = ColdStart(storage_bytes_per_s=1e9, engine_s=0.0, accelerators_per_node=1)
    assert cold_start_s(two, start) == pytest.approx(2 * cold_start_s(two, apart))


def scenario(policy, **more):
    section = {"policy": policy, "interval_s": 5.0, "down_cooldown_s": 20.0, "most": 4}
    data = {
        "policies": {
            "routing": {"name": "least-outstanding"},
            "batching": {"name": "chunked-prefill", "max_num_seqs": 16},  # so that queues form
        },
        "autoscaling": section | more.pop("autoscaling", {}),
        "cold_start": {"engine_s": 10.0},
    }
    return Scenario.model_validate(data | more)


def wave(seed=0, low=1.0, high=14.0, span=240.0, period=120.0):
    """Return requests whose rate switches between low and high every half period."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / high, int(high * span * 1.2)))
    times = times[times < span]
    rate = np.where((times % period) < period / 2, low, high)
    times = times[rng.random(times.size) < rate / high]
    return pd.DataFrame({"arrival_s": times, "prompt_tokens": 1000, "output_tokens": 200})


POLICIES = [
    {"name": "target-utilisation", "target": 8.0},
    {"name": "queue", "up_waiting": 1.0, "down_running": 6.0},
    {"name": "ttft", "objective_s": 0.05, "down_running": 6.0},
    {"name": "forecast", "rate_per_replica": 4.0, "season_s": 120.0, "ahead_s": 20.0},
    {"name": "fixed", "replicas": 2},
]


@pytest.fixture(scope="module", params=POLICIES, ids=lambda p: p["name"])
def scaled(request):
    return simulate(scenario(request.param), wave())


def test_scaling_loses_no_request_and_drains_before_it_stops(scaled):
    table = scaled.requests
    assert (table["status"] == "finished").all()
    assert (table["emitted_tokens"] == table["output_tokens"]).all()
    events = scaled.fleet.event_table()
    for place, mine in events.groupby("replica"):
        log = mine["event"].tolist()
        for at, (before, event) in enumerate(pairwise(log)):
            assert (before, event) in {
                ("start", "up"),
                ("start", "off"),
                ("up", "drain"),
                ("drain", "off"),
                ("drain", "up"),
                ("off", "start"),
            }
            if event == "off" and before == "drain":
                off = mine["time_s"].iloc[at + 1]
                later = mine["time_s"][mine["time_s"] > off].min()
                steps = scaled.steps[scaled.steps["replica"] == place]["schedule_s"]
                assert not steps.between(off, later if later == later else math.inf).any()


def test_a_start_takes_a_cold_start(scaled):
    events = scaled.fleet.event_table()
    took = cold_start_s(scaled.deployment, scaled.scenario.cold_start)
    for _, mine in events.groupby("replica"):
        log = list(zip(mine["time_s"], mine["event"], strict=True))
        for (begun, before), (ready, event) in pairwise(log):
            if (before, event) == ("start", "up"):
                assert ready - begun == pytest.approx(took)


def test_counts_stay_within_limits_and_cool_downs(scaled):
    events, section = scaled.fleet.event_table(), scaled.scenario.autoscaling
    up = scaled.fleet.capacity_table()["up"]
    assert up.max() <= section.most
    assert up.min() >= section.least
    assert len(up) > 1
    drains = events.query("event == 'drain'")["time_s"]
    changes = events[events["event"].isin(["start", "drain"])]["time_s"].drop_duplicates()
    for time in drains:
        before = changes[changes < time]
        assert not len(before) or time - before.max() >= section.down_cooldown_s - 1e-9


def test_scaling_saves_accelerator_time_against_the_peak():
    from sim.metrics import summary

    grown = summary(simulate(scenario(POLICIES[0]), wave()))
    peak = summary(simulate(scenario({"name": "fixed", "replicas": 4}), wave()))
    assert grown["accelerators_mean"] < 0.75 * peak["accelerators_mean"]


def test_scale_to_zero_wakes_for_the_next_request_and_keeps_it():
    times = np.concatenate([np.linspace(0, 20, 21), np.linspace(200, 220, 21)])
    table = pd.DataFrame({"arrival_s": times, "prompt_tokens": 500, "output_tokens": 50})
    policy = {"name": "target-utilisation", "idle_s": 30.0}
    result = simulate(scenario(policy, autoscaling={"least": 0}), table)
    assert (result.requests["status"] == "finished").all()
    assert result.fleet.capacity_table()["up"].min() == 0
    first = result.requests.iloc[21]
    took = cold_start_s(result.deployment, result.scenario.cold_start)
    waited = first["first_token_s"] - 200.0
    assert took < waited < took + result.scenario.autoscaling.interval_s + 1.0


def test_a_fleet_may_start_at_zero():
    table = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": 500, "output_tokens": 50})
    pools = [{"name": "all", "replicas": 0}]
    made = scenario({"name": "target-utilisation"}, pools=pools, autoscaling={"least": 0})
    result = simulate(made, table)
    assert (result.requests["status"] == "finished").all()
    assert (result.requests["first_token_s"] > 10.0).all()
