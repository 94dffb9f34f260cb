"""Fixtures for all tests: the data folder beside the checkout, and small simulated results."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from sim import Result, Scenario

settings.register_profile("roofcast", deadline=None)  # how fast a machine is, is no property
settings.load_profile("roofcast")

SMALL = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "lengths": "azure-conv",
        "duration_s": 20,
    },
    "slo": {"ttft_s": 0.1, "tpot_s": 0.05},
    "run": {"seed": 3},
}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of data that lies beside the checkout and is not part of it."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the shared data folder beside the checkout")
    return folder


@pytest.fixture(scope="session")
def small_scenario() -> "Scenario":
    """Twenty seconds of conversations on one H200."""
    from sim import Scenario  # tests of the leaves do not wait for the engine

    return Scenario.model_validate(SMALL)


@pytest.fixture(scope="session")
def small_result(small_scenario: "Scenario") -> "Result":
    """Its simulation."""
    from sim import simulate

    return simulate(small_scenario)


@pytest.fixture(scope="session")
def fleet_result(small_scenario: "Scenario") -> "Result":
    """The same load on four replicas of two accelerators each, stopped at 15 s."""
    from sim import simulate

    changes = {"hardware.replicas": 4, "hardware.tp": 2, "run.horizon_s": 15.0}
    return simulate(small_scenario.changed(changes))
