"""Measured fleets: tensor ranks, splits of prefill and decode, loading of weights."""

from functools import reduce

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from sim.engines import engines
from validation import cold_start, kept_fleets, pd_ratio, silicon_apart, silicon_e2e
from validation.cases import COLUMNS
from validation.fit_profiles import PLANS


@pytest.fixture(scope="module")
def table(shared):
    return silicon_e2e.dense_rows(shared / "groundtruth" / "silicon_e2e.csv.gz")


def test_the_dense_rows_are_all_there(table):
    assert len(table) == 604
    assert set(table["system"]) == set(silicon_e2e.SYSTEMS)
    groups = silicon_e2e.stored()
    assert groups["rows"].sum() == len(table)


def test_every_row_has_a_scenario_that_could_have_run(table):
    for _, row in table.drop_duplicates(["system", "backend", "tp_size", "isl", "osl"]).iterrows():
        scenario = silicon_e2e.scenario_of(row)
        assert scenario.hardware.tp == row["tp_size"]
        assert load_accelerator(scenario.hardware.accelerator).calibration is not None
        assert scenario.engine.profile in engines.paths


def test_the_kept_errors_are_those_of_the_model(table):
    """Three short rows of each of three groups, simulated now, against what the file says."""
    for key in (("h100_sxm", "vllm", 4), ("b200_sxm", "vllm", 4), ("h200_sxm", "trtllm", 8)):
        mine = (table[silicon_e2e.GROUP] == pd.Series(key, silicon_e2e.GROUP)).all(axis=1)
        rows = table[mine & (table["osl"] == 1024) & (table["concurrency"] == 8)]
        found = silicon_e2e.compare(rows)["tpot_error"].abs()
        groups = silicon_e2e.stored().set_index(silicon_e2e.GROUP)
        assert found.median() < 2 * groups.loc[key, "tpot_median"] + 0.03


def test_what_is_fitted_is_what_the_groups_say():
    assert {(p.system, p.backend, r) for p in PLANS for r in p.ranks} == silicon_e2e.FITTED
    kept = silicon_e2e.stored()
    fitted = kept[kept["fitted"] == "yes"][silicon_e2e.GROUP]
    assert {(s, b, int(t)) for s, b, t in fitted.itertuples(index=False)} == silicon_e2e.FITTED


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.profile)
def test_a_fitted_profile_says_so(plan):
    profile = engines.load(plan.profile)
    for key in plan.keys:
        number = reduce(getattr, key.split("."), profile)
        assert number.kind == "fitted"
        assert "validation.fit_profiles" in number.source


MISSED = {("h200_sxm", "sglang", 4)}  # TTFT


def test_groups_hold_their_limits_but_those_that_are_said_to_miss_them():
    kept = silicon_e2e.stored()
    held = kept["tpot_median"] <= kept["tpot_limit"]
    held &= kept["ttft_median"] <= kept["ttft_limit"]
    missed = kept[~held][silicon_e2e.GROUP].itertuples(index=False)
    assert {(s, b, int(t)) for s, b, t in missed} == MISSED


def test_a_table_without_a_column_is_explained(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,backend\n1,vllm\n")
    with pytest.raises(InputError, match="lacks column 'model_path'"):
        silicon_e2e.dense_rows(path)
    with pytest.raises(InputError, match="there is no such file"):
        silicon_e2e.dense_rows(tmp_path / "none.csv")
    with pytest.raises(InputError, match="lacks column 'prefill'"):
        pd_ratio.compare(path)
    with pytest.raises(InputError, match="lacks column 'prefill_num_workers'"):
        silicon_apart.rows_of(path)
    with pytest.raises(InputError, match="lacks column 'file'"):
        cold_start.measured(path)


def test_loading_times_of_one_model_give_those_of_others(shared):
    found = cold_start.compare(shared / "groundtruth" / "serverlessllm_model_load.csv")
    unseen = found[found["fitted"] == "no"]
    assert len(unseen) == 6
    assert unseen["error"].abs().median() < 0.15
    assert unseen["error"].abs().max() < 0.30


def test_weights_in_memory_load_at_the_rate_of_the_host_link(shared):
    path = shared / "groundtruth" / "serverlessllm_model_load.csv"
    found = cold_start.measured(path)
    fast = found[(found["loader"] == "sllm") & (found["source"] == "memory")]
    link = load_accelerator("h100-sxm").links.host.bytes_per_s.value
    sizes = {"Qwen/Qwen3-32B": 65.5e9, "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 65.5e9}
    rates = np.array([sizes[name] for name in fast["model"]]) / fast["measured_s"]
    assert (rates < link).all()
    assert (rates > 0.8 * link).all()


def test_the_winning_split_is_right_where_it_leads_clearly():
    found = pd_ratio.winners(pd_ratio.stored())
    assert len(found) == 15  # loads, all of them listed
    judged = found[found["judged"]]
    assert len(judged) == 12
    assert judged["right"].sum() >= 9  # as many in twelve as 8 in 11


def test_a_split_of_the_table_is_simulated_now():
    """One short load: prompts dominate, so more prefill workers win."""
    load = pd.DataFrame(
        {"prefill": [1, 3], "decode": [3, 1], "isl": 2048, "osl": 128, "conc": 64}
    ).assign(num_prompts=120, completed=120, total_output_tokens=120 * 32)
    found = pd_ratio.compare_load(load.assign(**{pd_ratio.RATE: 1.0}))
    assert found["split"].tolist() == ["1p3d", "3p1d"]
    assert found["predicted"][1] > 1.2 * found["predicted"][0]


def test_fleets_stand_in_the_table_of_all_cases_with_limits_and_sources():
    rows = kept_fleets.fleet_rows(kept_fleets.fleet_errors())
    assert set(COLUMNS) == set(rows.columns)
    assert len(rows) == 2 * len(silicon_e2e.stored())
    assert set(rows["fitted"]) == {"yes", "no"}
    text = kept_fleets.fleet_table(kept_fleets.fleet_errors())
    assert sum(row[-1] == "missed" for row in text.rows) == len(MISSED)
    splits = kept_fleets.split_table(kept_fleets.splits())
    assert len(splits.rows) == 15


def test_rows_of_disaggregated_deepseek_are_fleets(shared):
    table = silicon_apart.rows_of(shared / "groundtruth" / "silicon_e2e.csv.gz")
    row = table[(table["system"] == "b200_sxm") & (table["concurrency"] == 32)].iloc[0]
    scenario = silicon_apart.scenario_of(row)
    assert [pool.role for pool in scenario.pools] == ["prefill", "decode"]
    assert scenario.pools[1].replicas == row["decode_num_workers"]
    found = silicon_apart.compare(table.loc[[row.name]])
    assert abs(found["tpot"].iloc[0]) < 1.0  # reported without a limit: not off by a factor
    assert silicon_apart.stored()["rows"].sum() == len(table)
