import numpy as np
import pandas as pd
import pytest

from sim.streams import stream
from sim.testing import serve, toy_knobs, toy_tables
from validation.theory import CASES, check_theory, simulate_case


@pytest.fixture(scope="module")
def checked():
    return check_theory(replications=8, requests=8_000).set_index("case")


@pytest.mark.parametrize("name", [n for n in CASES if "batch" not in n])
def test_simulator_agrees_with_theory_within_three_standard_errors(checked, name):
    row = checked.loc[name]
    assert abs(row.sigmas) <= 3.0
    assert abs(row.error) <= 0.15  # the errors are small enough to say something


@pytest.mark.parametrize("name", [n for n in CASES if "batch" in n])
def test_batch_service_stays_close_below_its_bound(checked, name):
    row = checked.loc[name]
    assert row.simulated_s <= row.expected_s + 3.0 * row.error_s
    assert row.simulated_s >= 0.9 * row.expected_s


def test_same_seed_same_mean_other_seed_other_mean():
    case = CASES["M/M/1, load 0.5"]()
    first = simulate_case(case, 1, 500)
    assert first == simulate_case(case, 1, 500)
    assert first != simulate_case(case, 2, 500)


def test_littles_law_of_the_step_log():
    """Time-weighted running requests = rate x time in the engine."""
    rng, count = stream(3, "test"), 4_000
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(0.05, count)),
            "prompt_tokens": 1,
            "output_tokens": rng.geometric(1 / 50, count),
        }
    )
    replica = serve(table, toy_knobs(every_step=1), toy_tables(0.01, tokens=256, seqs=64))
    steps, requests = pd.DataFrame(replica.steps()), replica.records.requests
    present = (steps["decode_requests"] + steps["prefill_requests"]) * steps["gpu_s"]
    inside = requests["output_tokens"] * 0.01
    assert present.sum() == pytest.approx(inside.sum(), rel=1e-9)
    assert (requests["finish_s"] - requests["admitted_s"] >= inside - 1e-9).all()
