"""Llama on accelerators left out, and the spread of step times."""

import pandas as pd
import pytest

from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from sim.deployment import deploy
from sim.exploring.bands import step_logs
from sim.exploring.engine_error import StepSpread
from sim.exploring.estimate import estimate
from sim.scenario import Scenario
from sim.simulation import workload_requests
from validation.kept_fleets import left_out_errors, left_out_rows, left_out_table
from validation.left_out import LIMIT, judge, left_out_file


def test_a_left_out_accelerator_has_others_kernels_and_its_own_datasheet(tmp_path):
    spec = load_accelerator(str(left_out_file("h100-sxm", tmp_path)))
    own = load_accelerator("h100-sxm")
    assert spec.peaks == own.peaks
    times, measured = (load_kernels(s).gemm(64, 4096, 4096, "bf16") for s in (spec, own))
    assert times != measured
    assert float(times) == pytest.approx(float(measured), rel=0.5)


def test_errors_by_system_and_engine_by_hand():
    rows = pd.DataFrame({"system": ["a", "a", "a"], "backend": ["x", "x", "y"]})
    found = judge(rows.assign(tpot_error=[0.1, -0.2, 0.3])).set_index("backend")
    assert found["rows"].to_dict() == {"all": 3, "x": 2, "y": 1}
    assert found.loc["all", "bias"] == pytest.approx(0.1)
    assert found.loc["all", "median"] == pytest.approx(0.2)
    assert found.loc["x", "bias"] == pytest.approx(-0.05)


def test_kept_errors_become_rows_and_a_table():
    kept = left_out_errors()
    assert set(kept["system"]) == {"h100_sxm", "h200_sxm", "b200_sxm"}
    rows = left_out_rows(kept)
    assert rows["limit"].dropna().tolist() == [LIMIT] * 3
    assert len(left_out_table(kept).rows) == len(kept)


def test_spread_of_steps_matters_more_near_saturation():
    base = Scenario()
    spread, widths = StepSpread(0.02, 0.02), []
    for rate in (2.0, 20.0):
        scenario = base.changed(
            {"workload.arrivals": {"kind": "poisson", "rate_per_s": rate}, "workload.count": 400}
        )
        requests = workload_requests(scenario)
        deployment = deploy(scenario, 16384)
        middle = estimate(scenario, deployment, requests)
        logs = step_logs(scenario, deployment, requests, middle, spread)
        widths.append(max(logs["ttft_mean_s"]))
        assert max(logs["tpot_mean_s"]) < 0.2
        assert step_logs(scenario, deployment, requests, middle, StepSpread(0.0, 0.0))[
            "ttft_mean_s"
        ] == pytest.approx((0.0, 0.0), abs=1e-9)
    assert widths[1] > 1.5 * widths[0]
