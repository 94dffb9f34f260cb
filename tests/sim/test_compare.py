"""Comparisons: common random numbers, honest intervals, a page that stands alone."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from formats import InputError
from sim import Scenario, compare, simulate
from sim.cli import run
from sim.comparison import _row
from sim.comparison_page import comparison_rows, verdict, write_comparison
from sim.metrics import summary
from sim.simulation import workload_requests

LOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 3},
    "lengths": "azure-conv",
    "duration_s": 15,
}


def scenario(name, workload=LOAD, **changes):
    return Scenario(name=name, workload=workload).changed(changes)


@pytest.fixture(scope="module")
def found():
    slow = scenario("slow host", **{"engine.host_slowness": 3.0})
    return compare([scenario("base"), slow, scenario("twin")], replications=4)


def test_equal_scenarios_do_not_differ(found):
    twin = found.differences[found.differences["scenario"] == "twin"]
    assert (twin["difference"].dropna() == 0).all()
    assert verdict(found, "twin") == "twin and base do not surely differ in latency or throughput."


def test_values_are_those_of_single_runs_on_the_same_requests(found):
    seeds = found.values["seed"].unique()
    one = scenario("base").changed({"run.seed": int(seeds[1])})
    alone = summary(simulate(one, workload_requests(one)))
    row = found.values.query("scenario == 'base'").iloc[1]
    assert row["ttft_mean_s"] == alone["ttft_mean_s"]
    arrivals = [result.requests["arrival_s"].to_numpy() for result in found.results]
    assert all(np.array_equal(arrivals[0], other) for other in arrivals[1:])


def test_a_slow_host_costs_first_tokens(found):
    rows = found.differences.query("scenario == 'slow host'").set_index("metric")
    assert rows.low["ttft_mean_s"] > 0
    assert rows.difference["finished"] == 0
    assert "TTFT +" in verdict(found, "slow host")


def test_interval_is_students_t_of_the_paired_difference():
    base, other = pd.Series([1.0, 2.0, 4.0]), pd.Series([1.5, 3.0, 4.3])
    row = _row(base, other, 0.9)
    want = stats.ttest_rel(other, base).confidence_interval(0.9)
    assert (row["low"], row["high"]) == pytest.approx(tuple(want))
    assert row["relative"] == pytest.approx(0.6 / (7 / 3))


def test_pairing_is_worth_it(found):
    """The spread of the difference is below that of two independent samples."""
    wide = found.values.pivot(index="seed", columns="scenario", values="e2e_mean_s")
    paired = (wide["slow host"] - wide["base"]).std()
    assert paired < np.hypot(wide["base"].std(), wide["slow host"].std())


def test_page_holds_everything(found, tmp_path):
    assert write_comparison(found, tmp_path) == ["compare.html", "differences.csv", "values.csv"]
    page = (tmp_path / "compare.html").read_text()
    assert "http-equiv" not in page
    assert 'src="http' not in page
    for word in ("slow host", "Time to first token", "95%", "ttft_mean_s"):
        assert word in page, word
    rows = comparison_rows(found, "slow host")
    assert rows[0][0] == "ttft_mean_s"
    assert rows[0][4].endswith("*")


def test_classes_are_compared_on_their_own():
    """Batch work beside online work: online requests are the same with and without it."""
    online = LOAD | {"traffic_class": "online", "duration_s": 8}
    batch = {
        "arrivals": {"kind": "poisson", "rate_per_s": 8},
        "lengths": "azure-conv",
        "traffic_class": "batch",
        "deadline_s": 600.0,
        "duration_s": 8,
    }
    alone = scenario("online alone", {"mix": [online]}, **{"slo.ttft_s": 0.2})
    both = scenario(
        "with batch",
        {"mix": [online, batch]},
        **{"slo.ttft_s": 0.2, "policies.ordering.name": "online-first"},
    )
    made = compare([alone, both], replications=2)
    first, second = (r.requests for r in made.results)
    own = second[second["class"] == "online"]
    assert own["arrival_s"].tolist() == first["arrival_s"].tolist()
    assert own["output_tokens"].tolist() == first["output_tokens"].tolist()
    assert made.values["deadlines_met"].dropna().eq(1.0).all()
    assert made.values["batch: output_tokens_per_s"].dropna().gt(0).all()


@pytest.mark.parametrize(
    ("others", "replications", "confidence", "message"),
    [
        ([], 3, 0.95, "there is one scenario"),
        ([scenario("b")], 1, 0.95, "has no spread"),
        ([scenario("b")], 2, 1.0, "confidence is 1"),
        ([scenario("b", LOAD | {"duration_s": 3})], 2, 0.9, "is not that of 'a'"),
    ],
)
def test_bad_comparisons_are_refused(others, replications, confidence, message):
    with pytest.raises(InputError, match=message):
        compare([scenario("a"), *others], replications, confidence)


TEXT = """
[workload]
arrivals = {kind = "poisson", rate_per_s = 4}
lengths = "azure-conv"
duration_s = 5
"""


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fcfs.toml").write_text(TEXT)
    (tmp_path / "sjf.toml").write_text(TEXT + '[policies.ordering]\nname = "sjf"\n')
    assert run(["compare", "fcfs.toml", "sjf.toml", "-n", "2", "--out", "out"]) == 0
    assert "sjf against fcfs" in capsys.readouterr().out
    assert (tmp_path / "out" / "compare.html").stat().st_size > 100_000
    assert run(["compare", "fcfs.toml", "sjf.toml", "-n", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["differences"]
    assert {row["scenario"] for row in rows} == {"sjf"}
    assert run(["compare", "fcfs.toml"]) == 2
    assert "2 or more" in capsys.readouterr().err
