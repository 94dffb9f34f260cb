"""Commands that list, show, begin, fit and open."""

import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from formats import check
from hardware.catalog import accelerators
from sim import Scenario
from sim.cli import run
from sim.cli.kinds import KINDS
from sim.metrics import metrics
from workloads.models import models

FEWEST = {"accelerators": 35, "models": 50, "nodes": 20, "workloads": 10, "lengths": 8}
CALLS = "sim.cli.explore.subprocess.call"


def ended(capsys, *arguments):
    code = run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed(capsys, kind):
    code, out, err = ended(capsys, "list", kind, "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert len(rows) >= FEWEST.get(kind, 1)
    code, out, _ = ended(capsys, "list", kind)
    assert code == 0
    assert f"{len(rows)} {kind}" in out
    assert str(next(iter(rows[0].values()))) in out


def test_numbers_of_a_list_are_those_of_the_files(capsys):
    rows = {
        r["accelerator"]: r for r in json.loads(ended(capsys, "list", "accelerators", "--json")[1])
    }
    for name in accelerators:
        assert rows[name]["memory"] == accelerators.load(name).memory_bytes
    rows = json.loads(ended(capsys, "list", "models", "--json")[1])
    assert {r["model"] for r in rows} == set(models)
    llama = next(r for r in rows if r["model"] == "llama-3.1-8b")
    assert llama["parameters"] == 8_030_261_248
    assert llama["KV per token"] == 131_072


def test_a_list_can_be_narrowed(capsys):
    rows = json.loads(ended(capsys, "list", "models", "--contains", "QWEN3", "--json")[1])
    assert rows
    assert all("qwen3" in r["model"] for r in rows)
    assert ended(capsys, "list", "models", "--contains", "nothing like it")[0] == 0


def test_an_unknown_kind_is_hinted(capsys):
    code, _, err = ended(capsys, "list", "modells")
    assert code == 2
    assert "did you mean 'models'" in err


def test_every_number_of_an_accelerator_has_unit_kind_and_source(capsys):
    code, out, _ = ended(capsys, "show", "h200-sxm")
    assert code == 0
    line = next(x for x in out.splitlines() if "memory.bytes_per_s" in x)
    assert line.split()[:4] == ["memory.bytes_per_s", "4.8e+12", "byte/s", "datasheet"]
    assert "NVIDIA H200 datasheet" in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3.1-8b", "blocks [layer]"),
        ("chat", "objectives.ttft_s"),
        ("vllm-0.24", "host.graph_dispatch"),
        ("paged", "blocks of the pool"),
        ("memory/paged", "blocks of the pool"),
        ("ttft_p99_s", "99th percentile of time to first token"),
        ("hgx-h200", "host.memory_bytes"),
    ],
)
def test_entries_of_every_kind_are_shown(capsys, name, words):
    code, out, _ = ended(capsys, "show", name)
    assert code == 0
    assert words in out


def test_a_name_that_stands_twice_is_shown_twice_or_by_kind(capsys):
    both = json.loads(ended(capsys, "show", "azure-conv", "--json")[1])
    assert set(both) == {"workloads", "lengths"}
    one = json.loads(ended(capsys, "show", "azure-conv", "--kind", "lengths", "--json")[1])
    assert set(one) == {"lengths"}


def test_an_unknown_name_is_hinted(capsys):
    code, _, err = ended(capsys, "show", "h200-smx")
    assert code == 2
    assert "did you mean 'h200" in err


def test_an_accelerator_file_can_be_shown(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(accelerators.paths["l4"].read_text())
    code, out, _ = ended(capsys, "show", str(path))
    assert code == 0
    assert "peaks.bf16" in out
    path.write_text("schema_version = 1\n")
    code, _, err = ended(capsys, "show", str(path))
    assert (code, "is no file of any kind" in err) == (2, True)
    code, _, err = ended(capsys, "show", str(path), "--kind", "accelerators")
    assert (code, "vendor is missing" in err) == (2, True)


def test_new_writes_the_default_scenario_once(capsys, tmp_path):
    path = tmp_path / "new" / "my.toml"
    code, out, _ = ended(capsys, "new", str(path))
    assert code == 0
    assert f"roofcast simulate {path}" in out
    assert check(tomllib.loads(path.read_text()), Scenario, "new") == Scenario()
    path.write_text("mine")
    code, _, err = ended(capsys, "new", str(path))
    assert (code, path.read_text()) == (2, "mine")
    assert "is there already" in err


def test_new_prints_to_the_terminal(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = ended(capsys, "new", "-")
    assert code == 0
    assert tomllib.loads(out)["hardware"]["accelerator"] == "h200-sxm"
    assert list(tmp_path.iterdir()) == []


def write_traces(folder: Path) -> None:
    folder.mkdir()
    sizes = [2.0**k for k in range(12, 31)]
    table = pd.DataFrame({"op": "h2d_pinned", "bytes": sizes, "us": [5.0 + s / 5e4 for s in sizes]})
    table.to_csv(folder / "memory.csv", index=False)


def test_calibrate_writes_a_file_and_its_errors(capsys, tmp_path):
    write_traces(tmp_path / "traces")
    out = tmp_path / "mine.toml"
    code, printed, _ = ended(
        capsys, "calibrate", str(tmp_path / "traces"), "-a", "l4", "-o", str(out), "--json"
    )
    assert code == 0
    assert {row["family"] for row in json.loads(printed)} == {"h2d_pinned"}
    assert out.exists()
    code, printed, _ = ended(
        capsys, "calibrate", str(tmp_path / "traces"), "-a", "l4", "-o", str(out)
    )
    assert "Errors on shapes held out" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none", "-a", "l4", "-o", "x.toml"], "no such folder"),
        (["traces", "-a", "l44", "-o", "x.toml"], "did you mean"),
        (["traces", "-a", "l4", "-o", "x.json"], "must end in .toml"),
        (["traces", "-a", "l4"], "Missing option"),
    ],
)
def test_calibrate_says_what_is_wrong(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    write_traces(tmp_path / "traces")
    code, _, err = ended(capsys, "calibrate", *arguments)
    assert code == 2
    assert words in err
    assert [p.name for p in tmp_path.iterdir()] == ["traces"]


def test_explore_opens_the_page_on_this_machine_only(capsys, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(CALLS, lambda command: commands.append(command) or 0)
    monkeypatch.setattr("sim.cli.explore._page", lambda: tmp_path / "app.py")
    assert ended(capsys, "explore", "--port", "9000", "--no-browser")[0] == 0
    assert "--server.address=localhost" in commands[0]
    assert "--server.port=9000" in commands[0]
    assert "--server.headless=true" in commands[0]


def test_explore_says_that_the_page_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, _, err = ended(capsys, "explore")
    assert code == 2
    assert "the page is missing" in err


def test_the_list_of_metrics_is_the_registry(capsys):
    rows = json.loads(ended(capsys, "list", "metrics", "--json")[1])
    assert {r["metric"]: r["unit"] for r in rows} == {m.name: m.unit for m in metrics.values()}
