"""Throughput and energy behind the money, against runs on real accelerators."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim import simulate
from validation.fit_planning import published_loads
from validation.measured import load_runs

PUBLISHED = (
    Path(__file__).resolve().parents[2].parent / "shared" / "groundtruth" / "silicon_e2e.csv.gz"
)
RENT = 2.5  # per accelerator-hour, the same for all
LONG_S = 10.0


def cost_rows(loads):
    """Cost of a million output tokens at one rent, measured and simulated, for every row."""
    rows = []
    for load in loads:
        hourly = RENT * load.tp / 3600 * 1e6
        measured, simulated = hourly / load.output_rate, hourly / load.simulated_output_rate()
        rows.append((load.name, load.accelerator, load.backend, load.tp, measured, simulated))
    columns = ["row", "accelerator", "backend", "tp", "measured", "simulated"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(error=table["simulated"] / table["measured"] - 1)


def every(step):
    if not PUBLISHED.is_file():
        pytest.skip("the published runs are not at hand: shared/groundtruth/silicon_e2e.csv.gz")
    return published_loads(PUBLISHED)[::step]


@pytest.mark.validation
def test_cost_of_a_million_tokens_of_llama_70b():
    table = cost_rows(every(17))
    assert set(table["accelerator"]) == {"h100-sxm", "h200-sxm", "b200-sxm"}
    assert table["error"].abs().median() < 0.25


@pytest.mark.slow
@pytest.mark.validation
def test_cost_of_a_million_tokens_of_llama_70b_on_every_row():
    table = cost_rows(every(1))
    print(table.to_string())  # noqa: T201 - all rows listed
    assert len(table) > 300
    assert table["error"].abs().median() < 0.25
    by_accelerator = table["error"].abs().groupby(table["accelerator"]).median()
    assert (by_accelerator < 0.25).all()


def long_workloads():
    runs = load_runs()
    return [
        (run, workload)
        for run in runs.values()
        for workload in run.workloads.values()
        if workload.duration_s >= LONG_S
    ]


def tokens_after(requests, start):
    """Output tokens after a moment, each request's spread evenly over its decoding."""
    span = (requests["finish_s"] - requests["first_token_s"]).clip(lower=1e-9)
    part = ((requests["finish_s"] - start) / span).clip(0.0, 1.0)
    return float((part * requests["output_tokens"]).sum())


def measured_joules(workload, start):
    ends = np.array([start, workload.duration_s])
    first, last = np.interp(ends, workload.power["t"], workload.power["energy_mj"] * 1e-3)
    return last - first


def simulated_joules(result, start):
    """Busy energy of the steps after a moment, and idle power between them."""
    steps = result.steps[result.steps["output_s"] > start]
    idle_s = result.requests["finish_s"].max() - start - steps["gpu_s"].sum()
    return steps["energy_j"].sum() + idle_s * float(result.deployment.knobs["idle_w"][0])


@pytest.fixture(scope="module")
def energy_errors():
    """Simulated over measured joules per output token, less 1, of runs of 10 s or longer.

    What no judgement may use, and all before it, is left out on both sides.
    """
    errors = {}
    for run, workload in long_workloads():
        result = simulate(run.scenario, workload.table())
        start = max((gap.end_s for gap in workload.exclusions), default=0.0)
        measured = measured_joules(workload, start) / tokens_after(workload.requests, start)
        simulated = simulated_joules(result, start) / tokens_after(result.requests, start)
        errors[run.name, workload.name] = simulated / measured - 1
    return errors


@pytest.mark.validation
def test_energy_per_output_token_of_our_runs(energy_errors):
    assert len(energy_errors) >= 8
    assert np.median(np.abs(list(energy_errors.values()))) < 0.05


@pytest.mark.validation
@pytest.mark.parametrize(
    "place", [(run.name, workload.name) for run, workload in long_workloads()], ids="-".join
)
def test_energy_per_output_token_of_each_run(energy_errors, place):
    assert abs(energy_errors[place]) < 0.10
