"""A band does not pass what a figure cannot exceed."""

import pytest

from sim import Scenario, simulate
from sim.exploring.bands import bands_of


def test_shares_end_at_one_and_rates_at_what_was_sent():
    scenario = Scenario.model_validate(
        {
            "hardware": {"accelerator": "mi300x"},  # no kernels measured: bands of several times
            "workload": {
                "arrivals": {"kind": "poisson", "rate_per_s": 2},
                "lengths": "azure-conv",
                "duration_s": 30,
            },
            "run": {"seed": 1},
        }
    )
    result = simulate(scenario)
    found = bands_of(result)
    assert found["ttft_mean_s"].high > 2 * found["ttft_mean_s"].value
    assert found["busy_share"].high == 1.0
    assert found["mbu"].high <= 1.0
    rate = found["requests_per_s"]
    stretch = result.requests["finish_s"].max() / result.requests["arrival_s"].max()
    assert rate.high == pytest.approx(rate.value * stretch)
    assert rate.low < rate.value
