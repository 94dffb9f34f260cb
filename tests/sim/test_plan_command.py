"""``roofcast plan``: what it prints and writes, and what bad input gets."""

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest

from formats import InputError
from sim.cli import run
from sim.planning import load_plan, plan
from sim.planning.load import Load
from sim.planning.schedule import purchase_plan
from sim.planning.words import sentences
from sim.planning.write import PLAN_FILES, write_plan

FILE = """
schema_version = 1
name = "two <quotes>"

[[traffic]]
name = "chat"
requests_per_s = 30
workload = "chat"
growth_per_year = 0.5

[[batch]]
requests_per_day = 50_000

[horizon]
quarters = 3

[[candidates]]
accelerator = "h200-sxm"
lead_time_weeks = 10
power_cap_w = 650

[[candidates]]
name = "too small"
accelerator = "l4"
model = "llama-3.1-70b"

[search]
requests = 300
replicas = 1
caps = [0.6]

[uncertainty]
samples = 16
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "demand.toml").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def result(folder):
    return plan(load_plan(folder / "demand.toml"))


@pytest.fixture(scope="module")
def printed(folder):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(["plan", str(folder / "demand.toml"), "-o", str(folder / "out"), "--workers=1"])
    assert code == 0
    return out.getvalue()


def test_the_answer_is_printed_and_the_files_are_named(printed):
    text = printed
    assert text.startswith("two <quotes>: ")
    assert "P10" in text
    assert "h200-sxm tp1, buy" in text
    assert "owning pays above" in text
    assert "left out: too small: " in text
    assert "does not fit" in text
    assert "Wrote plan.json, plan.csv, plan.html" in text


def test_orders_power_and_list_prices_are_said(result):
    buy = next(o for o in result.options if o.bill.way == "buy")
    orders = purchase_plan(buy, Load.of(result.file))
    bought = replace(result, best=buy, schedule=orders)
    said = " ".join(sentences(bought))
    first = orders[orders["order"] > 0].iloc[0]
    assert f"To order: {first['order_of']} in {first['quarter']}" in said
    assert f"{first['order']} x " in first["order_of"]
    assert "(mean) are rented, to 2027Q1." in said  # ten weeks of lead time
    assert f"IT power peaks at {buy.fleet.peak_watts()[0].max() / 1e3:,.1f} kW" in said
    assert said.count("list price of") == len(result.api) > 0


def test_the_files_hold_the_same_figures(printed, folder):
    data = json.loads((folder / "out" / "plan.json").read_text())
    table = pd.read_csv(folder / "out" / "plan.csv")
    assert data["schema_version"] == 1
    assert data["currency"] == "USD"
    assert [o["way"] for o in data["options"]] == table["way"].tolist()
    assert [o["present_cost"] for o in data["options"]] == pytest.approx(
        table["present_cost"].tolist()
    )
    assert data["headline"] in printed
    assert data["faults"]["too small"]["limit"] == "memory"
    assert len(data["orders"]) == 3
    assert data["options"][0]["per_request"].keys() == {"chat", "batch"}
    assert [row["share"] for row in data["power_limits"]["h200-sxm tp1"]] == pytest.approx(
        [650 / 700, 0.6]
    )


def test_every_assumption_has_kind_source_and_unit(printed, folder):
    rows = json.loads((folder / "out" / "plan.json").read_text())["assumptions"]
    items = {row["item"] for row in rows}
    assert {"purchase.h200-sxm", "rent.h200-sxm", "hosting.us", "carbon.usa"} <= items
    assert {"pue.industry", "capital.discount-rate", "doubt growth"} <= items
    assert all(row["source"] and row["kind"] and row["unit"] for row in rows)
    dated = [row for row in rows if row["item"].split(".")[0] in ("purchase", "rent", "hosting")]
    assert all(row["date"] for row in dated)


def test_the_page_stands_alone(printed, folder):
    page = (folder / "out" / "plan.html").read_text()
    assert "two &lt;quotes&gt;" in page
    assert "<quotes>" not in page
    assert "$" + "title" not in page
    assert "https://cdn" not in page
    for key in ("parts", "bands", "fleet", "power", "use", "tornado", "caps"):
        assert f'class="chart" id="{key}"' in page
    assert "Appendix: every assumption" in page


def test_json_is_all_that_is_printed(result, capsys, monkeypatch):
    monkeypatch.setattr("sim.planning.plan", lambda *_args, **_keys: result)
    assert run(["plan", "any.toml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["roofcast"] == "plan"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("requests_per_s = 30", "requests_per_s = 0"), "greater than 0"),
        (("growth_per_year = 0.5", "growth_per_year = -2"), "give a share above -1"),
        (('workload = "chat"', 'workload = "chatt"'), "did you mean 'chat'"),
        (('"h200-sxm"', '"h200"'), "did you mean 'h200-nvl' or 'h200-sxm'"),
        (("lead_time_weeks", "lead_time"), "did you mean 'lead_time_weeks'"),
        (("lead_time_weeks = 10", "price = 0"), "leave it out"),
        (("lead_time_weeks = 10", 'node = "hgx-b200"'), "carries b200-sxm, not h200-sxm"),
        (("power_cap_w = 650", "power_cap_w = 50"), "power cap of 50 W cannot hold"),
        (("power_cap_w = 650", "tp = 3"), "3"),
        (("quarters = 3", "quarters = 0"), "greater than or equal to 1"),
        (('name = "chat"', 'name = "batch"'), "two classes are called 'batch'"),
        (("[horizon]", '[site]\nelectricity = "mars"\n[horizon]'), "no cost named"),
        (("[horizon]", "[site]\npue = 0.5\n[horizon]"), "1 or more"),
        (("[horizon]", '[money]\ncurrency = "GBP"\n[horizon]'), "fx.gbp-usd"),
    ],
)
def test_bad_input_gets_one_message_and_code_2(tmp_path, capsys, change, message):
    assert change[0] in FILE
    small = FILE.split('[[candidates]]\nname = "too small"')
    text = small[0] + small[1][small[1].index("[search]") :]
    (tmp_path / "bad.toml").write_text(text.replace(*change))
    assert run(["plan", str(tmp_path / "bad.toml"), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_missing_file_is_named(capsys):
    assert run(["plan", "no-such-plan.toml"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_nothing_is_half_written(result, tmp_path, monkeypatch):
    (tmp_path / "plan.json").write_text("earlier")
    monkeypatch.setattr("sim.planning.page.plan_charts", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(result, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "earlier"
    monkeypatch.undo()
    assert [p.name for p in write_plan(result, tmp_path)] == list(PLAN_FILES)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(PLAN_FILES)


def interrupt(_result):
    raise KeyboardInterrupt


def test_a_folder_that_cannot_be_made_is_named(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_plan(result, tmp_path / "file" / "out")


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(folder):
    command = [sys.executable, "-m", "sim", "plan", "demand.toml", "--out", "gone"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(3.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in said
    assert not (folder / "gone").exists()
