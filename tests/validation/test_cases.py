import json
import re

import pandas as pd
import pytest

from formats import InputError
from sim.cli import run
from validation.cases import (
    COLUMNS,
    Selection,
    Validation,
    fitted_on,
    kernel_errors,
    select,
    validate,
)
from validation.measured import H200_FRESH, all_runs, earlier_runs, load_runs
from validation.regions import by_region, capacity_per_s, load_of, region
from validation.report import report_html
from validation.words import markdown, percent, tables

RUN, SHORT = "llama8b_bf16", "static_b8_p512"


@pytest.fixture(scope="module")
def one():
    return validate(Selection(RUN, "code_r8", 2))


def test_a_selection_is_a_run_a_workload_or_everything():
    assert len(select(Selection())) == 79
    assert len(select(Selection("llama8b_small"))) == 3
    assert [(r.name, w.name) for r, w in select(Selection(RUN, SHORT))] == [(RUN, SHORT)]
    found = select(Selection(None, "conv_r24"))
    assert [run.name for run, _ in found] == ["llama8b_bf16", "llama8b_fp8"]
    assert len(select(Selection("qwen32b_more"))) == 7


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection("llama8b_bf1"), "did you mean 'llama8b_bf16'"),
        (Selection(RUN, "conv_r122"), "did you mean 'conv_r12'"),
        (Selection(None, "conv_r122"), "did you mean 'conv_r[12]2'"),
    ],
)
def test_unknown_names_are_helped(selection, message):
    with pytest.raises(InputError, match=message):
        select(selection)


def test_one_table_says_source_licence_and_use_for_fitting(one):
    table = one.table()
    assert list(table.columns) == list(COLUMNS)
    assert set(table.family) == {"serving", "steps"}
    assert table.fitted.unique().tolist() == ["yes"]
    assert table.licence.unique().tolist() == ["Apache-2.0"]
    row = table[table.figure == "e2e_mean_s"].iloc[0]
    assert row.error == pytest.approx(row.predicted / row.measured - 1)
    assert row.low <= row.predicted <= row.high


def test_half_used_workloads_are_marked():
    used = fitted_on()
    assert used["llama8b_fp8", "conv_r24"] == "half"
    assert ("llama8b_small", "turns_a") not in used


def test_kernel_errors_are_those_that_calibrate_kept():
    found = kernel_errors()
    h200 = found[(found.accelerator == "h200-sxm") & (found.method == "model")]
    gemm = h200[(h200.family == "gemm_bf16") & (h200.split == "shape")].iloc[0]
    assert gemm["median"] <= 0.04
    assert gemm["p90"] <= 0.12


def test_nine_calibrations_are_judged_on_layouts_and_shapes_never_fitted():
    found = kernel_errors()
    assert found.accelerator.nunique() == 9
    wide = found[found.split == "layout"].pivot_table(
        index=["accelerator", "family"], columns="method", values="median"
    )
    dense = wide[wide.index.get_level_values("family").isin(["gemm_bf16", "attention_prefill"])]
    assert len(dense) == 18
    assert (dense["model"] < dense["roofline"]).all()
    assert dense["model"].max() < 0.11
    assert found[found.split == "shape"].accelerator.nunique() == 9


def test_page_is_self_contained_and_names_its_charts(one):
    page = report_html(one)
    assert not re.findall(r'(?:src|href)="https?://', page)
    assert "Llama-3.1-8B bf16 on one H200: code_r8" in page
    for key in ("scatter", "errors", "steps", f"ttft_{RUN}_code_r8", f"e2e_{RUN}_code_r8"):
        assert f'id="{key}"' in page
    specs = json.loads(re.search(r"const specs = (.*);\n", page)[1].replace("<\\/", "</"))
    names = {
        row["who"] for rows in specs[f"e2e_{RUN}_code_r8"]["datasets"].values() for row in rows
    }
    assert names == {"measured", "simulated"}


def test_page_of_a_workload_that_is_left_out_has_steps_only():
    page = report_html(validate(Selection("qwen30b_a3b", "static_b32_p512", 1)))
    assert 'id="steps"' in page
    assert 'id="scatter"' not in page
    assert "kernels of a new shape were compiled" in page


def test_steps_of_a_workload_with_preemptions_are_named_not_dropped():
    found = validate(Selection("llama8b_3000_more", "conv_r20", 1))
    assert found.steps.empty
    assert found.skipped == [
        "steps of llama8b_3000_more/conv_r20: requests were preempted, so their order is not known"
    ]
    assert "Not judged: steps of llama8b_3000_more/conv_r20" in report_html(found)
    row = found.serving.set_index("metric").loc["preemptions"]
    assert row.measured == 56
    assert row.predicted == pytest.approx(56, abs=15)


def test_tables_of_one_workload_and_of_several(one):
    first = tables(one)[0]
    assert first.columns[:4] == ["figure", "predicted", "measured", "error"]
    assert all(len(row) == len(first.columns) for row in first.rows)
    several = validate(Selection("llama8b_small", None, 1))
    titles = [table.title for table in tables(several)]
    assert titles == ["Serving, medians", "Serving, every workload", "Step times"]
    assert markdown(several).count("\n| --- ") == 3


def test_percent():
    assert percent(None) == "-"
    assert percent(0.005) == "+0.5 %"


def test_regions_of_load():
    assert [region(x) for x in (0.1, 0.5, 0.94, 0.95, 3.0)] == [
        "below 50 %",
        "50-80 %",
        "80-95 %",
        "95 % and overload",
        "95 % and overload",
    ]
    rows = pd.DataFrame(
        {
            "run": "r",
            "workload": ["a", "b", "c", "c"],
            "metric": ["x", "x", "x", "y"],
            "error": [-0.1, 0.3, 0.5, float("nan")],
        }
    )
    out = by_region(rows, {("r", "a"): 0.2, ("r", "b"): 0.3, ("r", "c"): 0.9})
    assert out.region.tolist() == ["below 50 %", "80-95 %"]
    assert out["median"].tolist() == pytest.approx([0.2, 0.5])
    assert out.workloads.tolist() == [2, 1]


def test_capacity_of_the_measured_engines():
    bf16 = load_runs()[RUN]
    full = capacity_per_s(bf16, bf16["conv_r24"])
    assert 22.0 <= full <= 27.0  # the engine just kept up with 23 requests/s
    assert load_of(bf16, bf16["code_r8"]) < 0.5


def test_command_writes_table_page_and_summary(tmp_path, capfd):
    out = tmp_path / "out"
    arguments = ["--run", RUN, "--workload", SHORT, "--seeds", "1", "--out", str(out)]
    assert run(["validate", *arguments]) == 0
    printed = capfd.readouterr().out
    assert "TTFT p50" in printed
    assert str(out / "validation.html") in printed.replace("\n", "")
    assert sorted(p.name for p in out.iterdir()) == [
        "summary.md",
        "validation.csv",
        "validation.html",
    ]
    assert pd.read_csv(out / "validation.csv").columns.tolist() == list(COLUMNS)


def test_command_as_json(tmp_path, capfd):
    arguments = ["--run", RUN, "--workload", SHORT, "--seeds", "1", "--out", str(tmp_path)]
    assert run(["validate", *arguments, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert {row["family"] for row in rows} == {"serving", "steps"}


def test_command_refuses_unknown_runs(capfd):
    assert run(["validate", "--run", "nonsense"]) == 2
    assert "no measured run named 'nonsense'" in capfd.readouterr().err


def test_fresh_runs_stand_apart_and_train_nothing():
    fresh = [run for run in all_runs().values() if run.fresh]
    assert [run.name for run in fresh] == [
        "llama8b_fp8_fresh",
        "llama8b_bf16_fresh",
        "llama3b_bf16_fresh",
    ]
    assert not {run.name for run in fresh} & set(earlier_runs())
    assert not {run.name for run in fresh} & {name for name, _ in fitted_on()}
    new = load_runs(H200_FRESH)["llama8b_fp8_fresh"]
    row = {"metric": "e2e_mean_s", "kind": "open", "run": "a", "workload": "w", "error": 0.02}
    serving = pd.DataFrame([row, row | {"run": new.name, "error": 0.2}])
    found = Validation(Selection(), [(new, new["conv_r12"])], serving, pd.DataFrame())
    assert found.medians["median"].tolist() == [0.02]
    assert found.fresh_medians["median"].tolist() == [0.2]
