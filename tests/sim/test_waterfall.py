"""From naive to optimised, and models beside each other: every figure is a simulation."""

import json

import numpy as np
import pytest

from formats import InputError
from sim.cli.app import run
from sim.exploring.students import beside, teacher_of
from sim.exploring.waterfall import COLUMNS, figures_of_crowd, ladder, waterfall
from sim.exploring.waterfall_page import HEADS, waterfall_page, waterfall_rows
from sim.scenario import Scenario
from sim.simulation import simulate, workload_requests


@pytest.fixture(scope="module")
def table():
    return waterfall(Scenario(), batch=8)


def test_the_steps_of_llama_on_an_h200_in_order(table):
    assert table["step"].tolist() == [
        "fp32, unfused, eager, static batches",
        "bf16 weights and cache",
        "fp8 weights",
        "fp8 cache",
        "fused attention",
        "fused element-wise kernels",
        "CUDA graphs",
        "continuous batching",
        "speculation (eagle)",
    ]
    assert tuple(table.columns) == COLUMNS


def test_every_step_saves_and_the_savings_add_up(table):
    for figure, saved in (("seconds", "saved_s"), ("joules", "saved_j"), ("usd", "saved_usd")):
        first, last = table[figure].iloc[[0, -1]]
        assert first - table[saved].sum() == pytest.approx(last)
    costly = table["saved_s"] < -0.02 * table["seconds"]
    assert not costly.any()
    assert table["seconds"].iloc[0] > 20 * table["seconds"].iloc[-1]


def test_a_bar_is_what_a_simulation_gives(table):
    steps = ladder(Scenario(), 8)
    scenario = Scenario()
    for _, keys in steps[:-1]:
        scenario = scenario.changed(keys)
    figures = figures_of_crowd(scenario, 8)
    row = table[table["step"] == "continuous batching"].iloc[0]
    assert row["seconds"] == pytest.approx(figures["seconds"])
    assert row["joules"] == pytest.approx(figures["joules"])
    rows = np.arange(64)
    crowd = workload_requests(scenario).iloc[rows].assign(arrival_s=0.0)
    whole = simulate(scenario.changed({"policies.batching.max_num_seqs": 8}), crowd)
    end = whole.requests["finish_s"].max()
    assert end / crowd["output_tokens"].sum() == pytest.approx(row["seconds"], rel=0.2)


def test_usd_follow_from_the_seconds(table):
    rent = table["usd"] / table["seconds"]  # 3.5 USD an hour for an H200
    assert rent.to_numpy() == pytest.approx(3.5 / 3600 * 1e6)


def test_what_does_not_fit_is_left_out_and_the_rest_goes_on():
    found = waterfall(Scenario(model={"name": "llama-3.1-70b"}), batch=4)
    assert "fp32, unfused, eager, static batches" not in found["step"].tolist()
    assert "fp8 weights" in found["step"].tolist()
    assert np.isnan(found["saved_s"].iloc[0])


def test_rows_and_page(table):
    rows = waterfall_rows(table)
    assert len(rows[0]) == len(HEADS)
    assert rows[0][2] == "-"
    text = waterfall_page(table, Scenario(), 8).text()
    assert "continuous batching" in text
    assert "arXiv:2411.02355" in text


def test_a_student_beside_its_teacher_in_one_call():
    scenario = Scenario(model={"name": "llama-3.2-3b"})
    found = beside(scenario.changed({"model.name": "llama-3.2-1b"}), ["llama-3.2-3b"])
    assert found["model"].tolist() == ["Llama-3.2-1B", "Llama-3.2-3B"]
    small, large = found.to_dict("records")
    for figure in ("parameters", "weight_bytes", "decode_s", "prompt_s", "seconds", "usd"):
        assert small[figure] < large[figure]
    assert "llama-3.1-70b" in small["quality"]
    assert teacher_of(scenario) == "llama-3.1-70b"
    with pytest.raises(InputError, match="names no teacher"):
        teacher_of(Scenario())


def test_the_commands(tmp_path, capsys):
    page = tmp_path / "waterfall.html"
    small = ["explain", "--model", "llama-3.2-1b", "--batch", "4"]
    assert run([*small, "--waterfall", "--out", str(page), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[-1]["step"] == "speculation (eagle)"
    assert page.stat().st_size > 100_000
    assert run([*small, "--against", "smollm2-360m"]) == 0
    text = capsys.readouterr().out
    assert "decode step" in text
    assert "SmolLM2" in text
