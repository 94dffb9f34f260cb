"""Prompt lookup as it was measured on an H200, with nothing fitted to it."""

import pandas as pd
import pytest

from validation.cases import COLUMNS
from validation.speculation import measured_chances, speculation_errors, speculation_rows


@pytest.fixture(scope="module")
def errors():
    return speculation_errors(seeds=3)


def test_steps_that_verify_drafts_take_as_long_as_measured(errors):
    steps = errors[errors["figure"] == "step_s"].set_index("workload")["error"].abs()
    assert len(steps) == 10
    assert steps.median() < 0.08
    assert steps.drop("static_b128_p512_o128").max() < 0.12  # 640 tokens: the host's level decides


def test_clients_of_a_static_batch_wait_as_long_as_measured(errors):
    chosen = errors[(errors["run"] == "llama8b_chosen") & (errors["workload"] != "conv_r8")]
    assert chosen.loc[chosen["figure"] == "e2e_mean_s", "error"].abs().max() < 0.10
    assert chosen.loc[chosen["figure"] == "tpot_mean_s", "error"].abs().max() < 0.20


def test_chances_by_hand():
    # 5 decodes: one found nothing, one had no right draft, one 1, two all 4
    found = measured_chances(pd.Series([0, 1, 4, 4]), decodes=5.0)
    assert found == pytest.approx([3 / 5, 2 / 3, 1, 1])


def test_rows_are_those_of_every_other_case(errors):
    assert set(speculation_rows(errors).columns) == set(COLUMNS)
