"""How long the tuning under examples/ takes: a few minutes on two cores."""

from pathlib import Path

import pytest

from sim.scenario import load_scenario
from sim.tuning import Objective, load_space, tune

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tuning"


@pytest.mark.benchmark
def test_tuning_of_a_model_on_one_accelerator(benchmark):
    scenario, space = load_scenario(FOLDER / "azure-conv.toml"), load_space(FOLDER / "space.toml")
    goal = [Objective("goodput_per_s", "maximize")]
    found = benchmark.pedantic(lambda: tune(scenario, space, goal, budget=80), rounds=1)
    benchmark.extra_info["simulations"] = found.simulations
    assert found.best.seen.gain.sure
    assert found.best.setting["model.weights"] == "fp8"
    assert len(found.trials) == 80
