"""Replicas that fail, are repaired and restarted: what becomes of requests, what is reported."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from sim import Scenario, simulate
from sim.autoscaling import cold_start_s
from sim.deployment import deploy
from sim.failures import failure_rate
from sim.fleets.run import serve
from sim.fleets.sections import FailuresSection
from sim.metrics import Observed, summary
from sim.metrics.fleet import availability, capacity, degraded_s
from sim.simulation import Result
from sim.testing import toy_knobs, toy_tables

FAIL_S, REPAIR_S, ENGINE_S = 40.0, 20.0, 10.0
LOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 8.0},
    "lengths": "azure-conv",
    "duration_s": 120.0,
}


def fleet(failures=None, **changes):
    data = {
        "hardware": {"replicas": 3},
        "workload": LOAD,
        "policies": {"routing": {"name": "least-outstanding"}},
        "slo": {"ttft_s": 1.0},
        "cold_start": {"engine_s": ENGINE_S},
        "failures": failures,
    }
    return Scenario.model_validate(data | changes)


@pytest.fixture(scope="module")
def killed():
    return simulate(fleet({"at": [[FAIL_S, 1]], "mttr_s": REPAIR_S}))


@pytest.fixture(scope="module")
def unhurt():
    return simulate(fleet())


def on_it(unhurt):
    """Requests that are on replica 1 when it dies: nothing differs before that."""
    table = unhurt.requests
    sent = (table["replica"] == 1) & (table["arrival_s"] < FAIL_S)
    return set(table.index[sent & (table["finish_s"] > FAIL_S)])


def test_killing_one_of_three_replicas_loses_no_request(killed, unhurt):
    table = killed.requests
    assert (table["status"] == "finished").all()
    assert (table["emitted_tokens"] == table["output_tokens"]).all()
    retried = set(table.index[table["retries"] > 0])
    assert retried
    assert retried <= on_it(unhurt)
    assert (table.loc[sorted(retried), "replica"] != 1).all()
    before = unhurt.requests["finish_s"] < FAIL_S
    pd.testing.assert_frame_equal(table[before], unhurt.requests[before])


def test_with_the_policy_lose_those_on_it_are_lost_and_no_other(killed, unhurt):
    table = simulate(fleet({"at": [[FAIL_S, 1]], "requests": "lose"})).requests
    lost = set(table.index[table["status"] == "failed"])
    assert lost == set(killed.requests.index[killed.requests["retries"] > 0])
    assert set(table["status"]) == {"finished", "failed"}
    assert len(on_it(unhurt) - lost) <= 1  # its last step had begun: taken as done


def test_a_request_out_of_retries_is_lost():
    table = simulate(fleet({"at": [[FAIL_S, 1]], "retries": 0})).requests
    assert (table["status"] == "failed").sum() > 0


def test_nothing_runs_on_a_replica_that_is_down(killed):
    up = killed.fleet.event_table().query("replica == 1 and event == 'up'")["time_s"].max()
    steps = killed.steps[killed.steps["replica"] == 1]
    inside = (steps["schedule_s"] > FAIL_S) & (steps["schedule_s"] < up)
    assert not inside.any()
    assert (steps["schedule_s"] > up).any()


def test_availability_is_the_time_that_replicas_were_there(killed):
    down = REPAIR_S + cold_start_s(killed.deployment, killed.scenario.cold_start)
    seen = Observed.of(killed)
    assert degraded_s(seen) == pytest.approx(down)
    assert availability(seen) == pytest.approx(1 - down / (3 * seen.window.span_s))
    assert capacity(seen)["up"].tolist() == [3, 2, 2, 3]  # failed, repaired, started
    # a dead accelerator is not held while it is repaired
    held = 3 * seen.window.span_s - REPAIR_S
    assert seen.accelerator_s == pytest.approx(held)


def test_objectives_during_a_failure_stand_beside_those_of_all(killed):
    figures = summary(killed)
    table = killed.requests
    down = REPAIR_S + cold_start_s(killed.deployment, killed.scenario.cold_start)
    there = (table["arrival_s"] < FAIL_S + down) & (table["finish_s"] > FAIL_S)
    met = (table["first_token_s"] - table["arrival_s"])[there] <= 1.0
    assert figures["requests_degraded"] == there.sum()
    assert figures["slo_attainment_degraded"] == pytest.approx(met.mean())
    assert figures["retries"] == table["retries"].sum()


def test_a_started_spare_is_missing_only_until_the_failure_is_seen():
    failures = {"at": [[FAIL_S, 1]], "mttr_s": REPAIR_S, "spares": 1, "detection_s": 2.0}
    result = simulate(fleet(failures))
    assert degraded_s(Observed.of(result)) == pytest.approx(2.0)
    served = result.requests.groupby("replica").size()
    assert served[3] > 0  # the spare
    spare = result.fleet.event_table().query("replica == 3")["event"].tolist()
    assert spare == ["spare", "up"]
    assert (result.requests["status"] == "finished").all()


def test_rolling_restarts_drain_first_and_lose_nothing():
    result = simulate(fleet({"restart_every_s": 25.0}))
    table = result.requests
    assert (table["status"] == "finished").all()
    assert table["retries"].sum() == 0
    events = result.fleet.event_table()
    assert events.query("event == 'restart'")["replica"].tolist()[:3] == [0, 1, 2]
    assert capacity(Observed.of(result))["up"].min() == 2  # one after another


def test_a_failure_before_the_only_replica_is_back_makes_requests_wait():
    scenario = fleet({"at": [[FAIL_S, 0]], "mttr_s": 5.0}).changed({"hardware.replicas": 1})
    result = simulate(scenario)
    table = result.requests
    assert (table["status"] == "finished").all()
    down = 5.0 + cold_start_s(result.deployment, scenario.cold_start)
    waited = table["arrival_s"].between(FAIL_S, FAIL_S + down)
    assert (table["first_token_s"][waited] > FAIL_S + down).all()


@pytest.mark.parametrize(
    ("ranks", "section", "rate"),
    [
        (4, {"accelerator_mtbf_s": 1e6}, 4e-6),
        (8, {"node_mtbf_s": 1e6, "accelerators_per_node": 8}, 1e-6),
        (9, {"node_mtbf_s": 1e6, "accelerators_per_node": 8}, 2e-6),
        (8, {"accelerator_mtbf_s": 2e6, "node_mtbf_s": 1e6}, 5e-6),
        (8, {}, 0.0),
    ],
)
def test_a_replica_fails_at_the_sum_of_rates(ranks, section, rate):
    assert failure_rate(ranks, FailuresSection(**section)) == pytest.approx(rate)


@pytest.fixture(scope="module")
def toy():
    real = deploy(Scenario(), 4096)
    made = toy_knobs(max_num_seqs=1, max_num_batched_tokens=512, throttle_per_k=0.0)
    return dataclasses.replace(real, tables=toy_tables(0.0, 1e-3, tokens=512, seqs=2), knobs=made)


def test_long_run_availability_is_mtbf_over_the_cycle(toy):
    """Alternating renewal: up for MTBF, down for MTTR and a start; within 3 standard errors."""
    mtbf, mttr, engine, span, replicas = 400.0, 90.0, 10.0, 4000.0, 12
    found = []
    for seed in range(8):
        failures = {"accelerator_mtbf_s": mtbf, "mttr_s": mttr, "detection_s": 0.0}
        scenario = fleet(failures, hardware={"replicas": replicas}, run={"seed": seed})
        scenario = scenario.changed({"cold_start.engine_s": engine})
        table = pd.DataFrame(
            {"arrival_s": np.arange(0.0, span, 4.0), "prompt_tokens": 100, "output_tokens": 1}
        )
        served = serve(scenario, table, deployments={"all": toy})
        assert (served.records.requests["status"] == 1).all()
        found.append(served.outcome.up_s(span).sum() / (span * replicas))
    start = cold_start_s(toy, fleet().cold_start.model_copy(update={"engine_s": engine}))
    up = mtbf / (mtbf + mttr + start)
    squares = 2 * mttr**2 + 2 * mttr * start + start**2  # second moment of a time down
    expected = up + up**2 / mtbf * squares / 2 / span  # begun when all is up
    found = np.array(found)
    assert abs(found.mean() - expected) < 3 * found.std(ddof=1) / np.sqrt(found.size)


def test_the_same_seed_gives_the_same_failures(toy):
    failures = {"accelerator_mtbf_s": 300.0, "mttr_s": 30.0}
    table = pd.DataFrame(
        {"arrival_s": np.arange(0.0, 900.0), "prompt_tokens": 100, "output_tokens": 1}
    )
    logs = []
    for seed in (1, 1, 2):
        scenario = fleet(failures, run={"seed": seed})
        logs.append(serve(scenario, table, deployments={"all": toy}).outcome.event_table())
    pd.testing.assert_frame_equal(logs[0], logs[1])
    assert not logs[0].equals(logs[2])
    assert logs[0]["time_s"].max() < 2000.0  # nothing happens after the last request


def test_mixed_pools_count_each_with_its_own_figures():
    """Energy, utilisation and names of a fleet of two kinds, by hand from its step log."""
    pools = [{"name": "new", "replicas": 1}, {"name": "old", "replicas": 1, "accelerator": "l40s"}]
    result: Result = simulate(fleet(pools=pools))
    figures, seen = summary(result), Observed.of(result)
    assert figures["accelerator"] == "NVIDIA H200 SXM 141GB + NVIDIA L40S 48GB"
    assert figures["accelerators"] == 2
    span, steps = seen.window.span_s, result.steps
    idle = energy = flops = peak = 0.0
    for place, made in enumerate(result.deployments):
        mine = steps[steps["replica"] == place]
        idle += (span - mine["gpu_s"].sum()) * float(made.knobs["idle_w"][0])
        energy += mine["energy_j"].sum()
        flops += mine["flops"].sum()
        peak += span * made.spec.peak("bf16")
    assert figures["energy_idle_j"] == pytest.approx(idle)
    assert figures["energy_j"] == pytest.approx(energy + idle)
    assert figures["mfu"] == pytest.approx(flops / peak)
    blocks = [int(made.knobs["num_blocks"][0]) for made in result.deployments]
    assert blocks[0] != blocks[1]
    assert figures["kv_blocks"] == round(np.mean(blocks))
