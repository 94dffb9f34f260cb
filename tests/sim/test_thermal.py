"""Temperature is one RC element driven by watts, and a chip above its limit runs slower."""

import numpy as np
import pytest

from sim import Scenario, simulate
from sim.core import clock
from sim.core.knobs import KNOBS
from sim.core.layout import STATE


def warmed(watts: float, seconds: float, steps: int) -> float:
    """Temperature after constant power from 25 degC, taken in equal steps."""
    state, knobs = np.zeros(1, STATE), np.zeros(1, KNOBS)
    state["temperature_c"] = 25.0
    knobs["ambient_c"], knobs["kelvin_per_w"], knobs["thermal_s"] = 25.0, 0.05, 20.0
    for _ in range(steps):
        clock._warm(state[0], knobs[0], watts, seconds / steps)
    return float(state["temperature_c"][0])


@pytest.mark.parametrize("steps", [1, 7, 500])
def test_constant_power_follows_the_closed_form(steps):
    expected = 25.0 + 0.05 * 600.0 * (1.0 - np.exp(-30.0 / 20.0))
    assert warmed(600.0, 30.0, steps) == pytest.approx(expected, rel=1e-9)


def test_a_long_time_ends_at_the_steady_temperature():
    assert warmed(600.0, 1000.0, 10) == pytest.approx(55.0)


def test_above_the_throttle_temperature_work_slows():
    state, knobs = np.zeros(1, STATE), np.zeros(1, KNOBS)
    knobs["throttle_c"], knobs["throttle_per_k"] = 87.0, 0.02
    factors = []
    for temperature in (60.0, 87.0, 92.0):
        state["temperature_c"] = temperature
        factors.append(clock._throttle(state[0], knobs[0]))
    assert factors == pytest.approx([1.0, 1.0, 1.1])


def test_a_lower_power_cap_saves_watts_and_costs_throughput():
    found = []
    for cap in (700.0, 450.0):
        scenario = Scenario().changed(
            {
                "hardware.power_cap_w": cap,
                "workload.arrivals": {"kind": "poisson", "rate_per_s": 40.0},
                "workload.duration_s": 5.0,
            }
        )
        totals = simulate(scenario).totals
        seconds = float(totals["gpu_end"].max())
        found.append((float(totals["energy_j"].sum()) / seconds, seconds))
    (watts, seconds), (capped_watts, capped_seconds) = found
    assert capped_watts < 450.0 < watts
    assert capped_seconds > 1.05 * seconds
