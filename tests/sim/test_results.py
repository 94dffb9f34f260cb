"""The results folder: its files, written whole, the same in every process."""

import errno
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from formats import InputError
from sim import Scenario, load_scenario, simulate
from sim.chrome_trace import chrome_trace
from sim.metrics import summary
from sim.results import RESULT_FILES, write_results

LEADING = [
    "request", "arrival_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens",
    "cached_tokens", "status",
]  # fmt: skip
SAME = ("requests.csv", "steps.csv", "summary.json", "scenario.toml")
ELSEWHERE = """
import sys
from itertools import pairwise
from pathlib import Path
from sim import load_scenario, simulate
from sim.results import write_results
write_results(simulate(load_scenario(Path(sys.argv[1]))), Path(sys.argv[2]), report=False)
"""


@pytest.fixture(scope="module")
def folder(small_result, tmp_path_factory) -> Path:
    return write_results(small_result, tmp_path_factory.mktemp("results") / "run")


def listing(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_result_has_all_its_files(folder):
    assert sorted(p.name for p in folder.iterdir()) == sorted(RESULT_FILES)
    assert [p.name for p in folder.parent.iterdir()] == ["run"]  # nothing temporary is left


def test_tables_read_back(folder, small_result):
    requests = pd.read_csv(folder / "requests.csv")
    assert list(requests.columns[: len(LEADING)]) == LEADING
    assert len(requests) == len(small_result.requests)
    assert requests["finish_s"].sub(small_result.requests["finish_s"]).abs().max() <= 1e-9
    steps = pd.read_csv(folder / "steps.csv")
    assert steps["steps"].sum() == small_result.totals["step"].sum()
    assert steps["energy_j"].sum() == pytest.approx(small_result.steps["energy_j"].sum(), rel=1e-7)


def test_summary_and_scenario_read_back(folder, small_result):
    assert json.loads((folder / "summary.json").read_text()) == summary(small_result)
    assert load_scenario(folder / "scenario.toml") == small_result.scenario


def test_run_info_says_when_and_with_what(folder):
    info = json.loads((folder / "run.json").read_text())
    assert info["schema_version"] == 1
    assert info["versions"]["numpy"]
    assert info["cpu_s"] > 0
    assert sorted(info["files"]) == sorted(RESULT_FILES)


def test_same_seed_gives_the_same_bytes_in_another_process(folder, tmp_path):
    command = [sys.executable, "-c", ELSEWHERE, folder / "scenario.toml", tmp_path / "again"]
    subprocess.run(command, check=True)
    for name in SAME:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_another_seed_gives_other_tables(folder, small_scenario, tmp_path):
    other = simulate(small_scenario.changed({"run.seed": 4}))
    write_results(other, tmp_path / "other", report=False, trace=False)
    for name in ("requests.csv", "steps.csv", "summary.json"):
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes(), name


def test_an_earlier_result_is_replaced(small_result, tmp_path):
    target = tmp_path / "run"
    write_results(small_result, target, report=False, extra={"notes.json": "{}"})
    write_results(small_result, target, report=False, trace=False)
    assert sorted(listing(target)) == sorted(set(RESULT_FILES) - {"report.html", "trace.json"})
    assert list(tmp_path.iterdir()) == [target]


def test_an_empty_folder_may_be_filled(small_result, tmp_path):
    (tmp_path / "run").mkdir()
    write_results(small_result, tmp_path / "run", report=False)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("stranger", ["thesis.tex", "run.json", "summary.json"])
def test_a_folder_of_something_else_is_left_alone(small_result, tmp_path, stranger):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / stranger).write_text("{}")
    with pytest.raises(InputError, match=f"holds '{stranger}', which is not part of a roofcast"):
        write_results(small_result, tmp_path / "mine", report=False)
    assert listing(tmp_path / "mine") == {stranger: b"{}"}


def test_a_file_added_to_a_result_is_not_lost(small_result, tmp_path):
    write_results(small_result, tmp_path / "run", report=False)
    (tmp_path / "run" / "my_notes.txt").write_text("keep")
    with pytest.raises(InputError, match=r"my_notes\.txt"):
        write_results(small_result, tmp_path / "run", report=False)


def test_a_file_or_the_current_folder_is_refused(small_result, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file, not a folder"):
        write_results(small_result, tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="current folder"):
        write_results(small_result, Path())


def test_a_parent_that_is_a_file_is_refused(small_result, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        write_results(small_result, tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(errno.ENOSPC, "No space left on device"), InputError), (KeyboardInterrupt(),) * 2],
)
def test_a_write_that_breaks_leaves_the_earlier_result(
    small_result, tmp_path, monkeypatch, error, raised
):
    target = write_results(small_result, tmp_path / "run", report=False)
    before = listing(target)
    written = Path.write_text

    def full(self, *args, **kwargs):
        if self.name == "run.json":
            raise error
        return written(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(raised if isinstance(raised, type) else KeyboardInterrupt):
        write_results(small_result, target, report=False)
    assert listing(target) == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_rename_that_breaks_puts_the_earlier_result_back(small_result, tmp_path, monkeypatch):
    target = write_results(small_result, tmp_path / "run", report=False)
    before, rename = listing(target), Path.rename

    def broken(self, to):
        if Path(to) == target and "old" not in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(InputError, match="Input/output error"):
        write_results(small_result, target, report=False)
    assert listing(target) == before


def test_a_big_run_has_a_trace_only_on_demand(small_result, tmp_path, monkeypatch):
    monkeypatch.setattr("sim.results.TRACE_ROWS", 10)
    write_results(small_result, tmp_path / "a", report=False)
    assert not (tmp_path / "a" / "trace.json").exists()
    write_results(small_result, tmp_path / "b", report=False, trace=True)
    assert (tmp_path / "b" / "trace.json").exists()


def test_unfinished_requests_have_empty_cells(fleet_result, tmp_path):
    write_results(fleet_result, tmp_path / "run", report=False)
    table = pd.read_csv(tmp_path / "run" / "requests.csv")
    left = table[table["status"] == "unfinished"]
    assert len(left) > 0
    assert left["finish_s"].isna().all()
    assert set(table["replica"]) == {0, 1, 2, 3}


def test_trace_events_are_complete(small_result):
    trace = chrome_trace(small_result)
    assert trace["otherData"]["schema_version"] == 1
    events = trace["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert len(steps) == len(small_result.steps)
    ends = [e["ts"] + e["dur"] for e in steps]
    assert all(e["ts"] >= end - 1e-2 for e, end in zip(steps[1:], ends[:-1], strict=True))
    parts = [e for e in events if e["ph"] == "X" and e["pid"] != 0]
    assert len(parts) == 3 * len(small_result.requests)
    first = small_result.requests.iloc[0]
    mine = [e for e in parts if e["args"]["request"] == "0"]
    assert sum(e["dur"] for e in mine) == pytest.approx(
        (first["finish_s"] - first["arrival_s"]) * 1e6, abs=0.01
    )


def test_requests_on_one_row_of_a_trace_do_not_overlap(small_result):
    rows = {}
    for event in chrome_trace(small_result)["traceEvents"]:
        if event["ph"] == "X" and event["pid"] != 0:
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(spans))


def test_every_step_gives_one_row_per_step(small_scenario, small_result):
    table = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [64], "output_tokens": [40]})
    one = simulate(Scenario().changed({"run.every_step": True}), table)
    assert (one.steps["steps"] == 1).all()
    assert len(one.steps) == one.totals["step"].iloc[0]
