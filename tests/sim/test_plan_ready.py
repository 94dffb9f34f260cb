"""Deployments of a candidate are built once, and serve as if each trial had built its own."""

import numpy as np
import pandas as pd
import pytest

import sim.fleets.run
import sim.planning.ready
from sim import Scenario, simulate
from sim.planning.load import Load
from sim.planning.planfile import PlanFile
from sim.planning.rated import rate
from sim.planning.ready import Ready, room
from sim.planning.supply import expand

FILE = PlanFile(
    traffic=[{"requests_per_s": 20, "shape": "flat", "workload": "chat"}],
    batch=[{"requests_per_day": 10_000}],
    candidates=[{"accelerator": "h200-sxm", "weights": "fp8"}],
    horizon={"quarters": 1},
    search={"requests": 200, "replicas": 2, "caps": [0.7, 0.5]},
)


def test_a_candidate_builds_no_deployment_twice(monkeypatch):
    built = []

    def counting(scenario, longest):
        built.append((longest, scenario.hardware.power_cap_w))
        return deploy(scenario, longest)

    deploy = sim.planning.ready.deploy
    monkeypatch.setattr(sim.planning.ready, "deploy", counting)
    monkeypatch.setattr(sim.fleets.run, "deploy", counting)
    rating = rate(expand(FILE.candidates, FILE.model)[0], Load.of(FILE), FILE)
    assert len(rating.bench.trials) > 12
    assert len(built) == len(set(built))
    limits = {cap for _, cap in built}
    assert len(limits) == 1 + len(FILE.search.caps)
    assert len(built) <= 3 * len(limits)  # a few lengths each, not one per trial


@pytest.mark.parametrize("longest", [700, 1500, 4000])
def test_longer_tables_give_the_same_times(longest):
    requests = pd.DataFrame(
        {
            "arrival_s": np.arange(60) * 0.02,
            "prompt_tokens": np.linspace(20, longest - 5, 60).astype(int),
            "output_tokens": np.linspace(200, 5, 60).astype(int),
        }
    )
    ready = Ready().of(Scenario(), requests)
    assert ready["all"].longest == room(longest) >= longest + 48
    own, shared = simulate(Scenario(), requests), simulate(Scenario(), requests, deployments=ready)
    pd.testing.assert_frame_equal(own.requests, shared.requests)
    pd.testing.assert_frame_equal(own.steps, shared.steps)
