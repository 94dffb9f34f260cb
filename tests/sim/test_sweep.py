"""Sweeps: grids, the same table whoever works, journals, deaths, interrupts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from sim import Scenario, simulate, sweep
from sim.cli import run
from sim.metrics import summary
from sim.sweeping import Grid, Span, points
from sim.sweeping import run as runs
from sim.sweeping.journal import Journal
from sim.sweeping.keys import check_scenario, effective
from sim.sweeping.pool import Pool
from sim.sweeping.run import JOURNAL, TABLE, tasks_of
from sim.sweeping.task import run_task

QUICK = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "lengths": "azure-conv",
        "duration_s": 3,
    },
    "slo": {"ttft_s": 0.1},
}
HEAD = "arrival_s,prompt_tokens,output_tokens\n"
SEQS = "policies.batching.max_num_seqs"


@pytest.fixture(scope="module")
def quick():
    return Scenario.model_validate(QUICK)


@pytest.fixture(scope="module")
def grid():
    return Grid(keys={SEQS: [2, 64], "workload.rate_scale": [0.5, 1.0, 2.0]}, replications=2)


@pytest.fixture(scope="module")
def serial(grid, quick):
    return sweep(grid, quick)


# grids


def test_cartesian_takes_every_combination_in_order():
    table = points(Grid(keys={"a.b": [1, 2], "c.d": ["x", "y", "z"]}))
    assert table.to_dict("list") == {"a.b": [1, 1, 1, 2, 2, 2], "c.d": ["x", "y", "z"] * 2}


def test_zip_goes_side_by_side_and_needs_equal_lengths():
    table = points(Grid(method="zip", keys={"a.b": [1, 2], "c.d": ["x", "y"]}))
    assert table.to_dict("records") == [{"a.b": 1, "c.d": "x"}, {"a.b": 2, "c.d": "y"}]
    with pytest.raises(ValueError, match=r"as many values for every key, got a.b: 1, c.d: 2"):
        Grid(method="zip", keys={"a.b": [1], "c.d": ["x", "y"]})


def test_sobol_fills_the_space_evenly():
    keys = {"a.b": Span(low=1, high=100, log=True), "c.d": ["x", "y"], "e.f": Span(low=0, high=9)}
    table = points(Grid(method="sobol", samples=64, keys=keys))
    # the first 2^k points of a Sobol sequence put equally many into equal halves, in every axis
    assert (np.log10(table["a.b"].astype(float)) < 1).sum() == 32
    assert (table["c.d"] == "x").sum() == 32
    assert [((table["e.f"] >= i) & (table["e.f"] < i + 2.25)).sum() for i in (0, 2.25)] == [16, 16]
    assert points(Grid(method="sobol", samples=64, keys=keys)).equals(table)
    assert not points(Grid(method="sobol", samples=64, keys=keys, seed=1)).equals(table)


def test_toml_tables_and_single_values_are_keys_too():
    grid = Grid.model_validate({"keys": {"hardware": {"tp": [1, 2]}, "run.seed": 3}})
    assert grid.keys == {"hardware.tp": [1, 2], "run.seed": [3]}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hardware.tpp": [1]}, r"hardware.tpp is not a known key, did you mean 'tp'"),
        ({"hardware.tp": [1, 0]}, r"keys.hardware.tp = 0.*greater than or equal to 1"),
        ({"hardware.tp": [1], "model.name": ["llama-3.1-8x"]}, r"did you mean 'llama-3.1-8b'"),
        ({"hardware.accelerator": ["h200-sxm", "h300"]}, r"no accelerator named 'h300'"),
        ({"model.weights": ["fp9"]}, r"fp9"),
        ({"policies.batching.max_num_seq": [1]}, r"did you mean 'max_num_seqs'"),
        ({"policies.batching.max_num_seqs": [8, -1]}, r"max_num_seqs = -1.*greater than or equal"),
        ({"hardware.tp.x": [1]}, r"'tp' is a value, not a section"),
        ({"hardware.tp": []}, r"a key has no values"),
        ({"hardware.tp": {"low": 1, "high": 4}}, r"ranges need method = 'sobol'"),
        ({"hardware.tp": {"low": 4, "higher": 1}}, r"did you mean 'high'"),
        ({"run.seed": list(range(1001)), "hardware.tp": list(range(1, 1001))}, "1,001,000 points"),
    ],
)
def test_a_bad_grid_is_explained_before_anything_runs(keys, message, quick, monkeypatch):
    monkeypatch.setattr(runs, "run_task", lambda _: pytest.fail("ran"))
    with pytest.raises((InputError, ValueError), match=message):
        sweep(keys, quick)


def test_effective_values_are_those_of_the_defaults():
    scenario = Scenario().changed({"model.weights": "fp8"})
    keys = ["model.weights", "model.kv", "engine.memory_utilisation", "hardware.tp", SEQS]
    assert [effective(scenario, key) for key in keys] == ["fp8", "bf16", 0.9, 1, 512]
    check_scenario(scenario, "here")


# the table


def test_a_row_is_what_simulate_returns(serial, quick):
    row = serial.iloc[3]  # second value of rate_scale, second seed
    assert (row[SEQS], row["workload.rate_scale"], row["seed"]) == (2, 1.0, 1)
    alone = summary(simulate(quick.changed({SEQS: 2, "run.seed": 1, "run.step_log": False})))
    metrics = [k for k, v in alone.items() if isinstance(v, int | float)]
    assert len(metrics) > 60
    assert {k: row[k] for k in metrics} == {k: alone[k] for k in metrics}


def test_points_see_the_same_requests(serial):
    at = serial[(serial["workload.rate_scale"] == 2.0) & (serial["seed"] == 0)]
    assert at["prompt_tokens"].nunique() == 1
    assert at.set_index(SEQS)["ttft_mean_s"].loc[2] > at.set_index(SEQS)["ttft_mean_s"].loc[64]


def test_money_of_a_token_follows_from_the_rent(serial):
    row = serial.iloc[-1]
    expected = 3.5 / 3600 / row["output_tokens_per_s"] * 1e6  # USD/h of an H200
    assert row["usd_per_million_output_tokens"] == pytest.approx(expected)


def test_a_point_that_cannot_run_is_a_row_with_its_reason(quick):
    table = sweep({"policies.memory.kv_blocks": [1, 5000]}, quick)
    assert "cannot hold one request" in table["error"].iloc[0]
    assert table["error"].iloc[1] is None
    assert np.isnan(table["ttft_mean_s"].iloc[0])


def test_values_that_fail_only_together_are_rows(tmp_path):
    rows = "".join(f"{i / 4},64,4\n" for i in range(40))
    (tmp_path / "t.csv").write_text(HEAD + rows)
    trace = Scenario(workload={"requests": "t.csv", "duration_s": 5.0})
    keys = {"workload.synthesise": [True, False], "workload.lengths": [None, "azure-code"]}
    table = sweep(keys, trace, base=tmp_path)
    assert "lengths are for drawn requests" in table["error"].iloc[3]
    assert table["error"].iloc[2] is None


def test_a_sweep_of_which_nothing_runs_is_an_error(quick):
    with pytest.raises(InputError, match=r"none of 2 points can run: .*cannot hold one request"):
        sweep({"policies.memory.kv_blocks": [1, 2]}, quick)


def test_a_fault_of_the_program_stays_in_its_row(quick, grid, monkeypatch):
    def broken(*_args, **_named):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr("sim.sweeping.task.simulate", broken)
    assert run_task(next(tasks_of(grid, quick)))["error"] == "ZeroDivisionError: by hand"


def test_relative_traces_start_at_the_scenario_file(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,64,4\n1,64,4\n"
    )
    (tmp_path / "in" / "s.toml").write_text('[workload]\nrequests = "t.csv"\n')
    (tmp_path / "g.toml").write_text('scenario = "in/s.toml"\n[keys]\nhardware.tp = [1, 2]\n')
    table = sweep(tmp_path / "g.toml")
    assert table["finished"].tolist() == [2, 2]


# workers


def test_few_quick_points_start_no_processes(serial, grid, quick, monkeypatch):
    def refuse(*_):
        raise AssertionError("a pool was opened for milliseconds of work")

    monkeypatch.setattr("sim.sweeping.pool._processes", refuse)
    pd.testing.assert_frame_equal(sweep(grid, quick, workers=0), serial)


def test_memory_is_bounded_by_tasks_in_flight(quick):
    """A huge grid is taken one task at a time, as workers become free."""
    given = []

    def endless():
        for task in tasks_of(Grid(keys={"run.seed": list(range(100_000))}), quick):
            given.append(task.index)
            yield task

    class EnoughError(Exception):
        pass

    def stop(share):
        if share > 5 / 100_000:
            raise EnoughError

    with runs.Runner() as runner, pytest.raises(EnoughError):
        runner.table(endless(), 100_000, stop)
    assert len(given) < 10


class Mortal(Pool):
    """Runs tasks in order, and dies with those in flight when it meets one of `deadly`."""

    def __init__(self, deadly, deaths):
        self.deadly, self.deaths, self.dead = deadly, deaths, False
        super().__init__(self.give, lambda: 3, (BrokenProcessPool,))

    def give(self, function, task):
        future = Future()
        if task.index in self.deadly and self.deaths.get(task.index, 99) > 0:
            self.deaths[task.index] = self.deaths.get(task.index, 99) - 1
            self.dead = True
        if self.dead:
            future.set_exception(BrokenProcessPool("gone"))
        else:
            future.set_result(function(task))
        return future


@pytest.mark.parametrize(("deaths", "failed"), [({4: 1}, []), ({}, [4])])
def test_a_dying_worker_loses_no_finished_point(
    deaths, failed, grid, quick, serial, monkeypatch, tmp_path
):
    """Once: its points run again. Always at the same point: that one becomes a row that says so."""
    from contextlib import contextmanager

    opened = []

    @contextmanager
    def mortal(*_):
        opened.append(1)
        yield Mortal({4}, deaths)

    monkeypatch.setattr(runs, "open_pool", mortal)
    ran = []
    monkeypatch.setattr(runs, "run_task", lambda task: (ran.append(task.index), run_task(task))[1])
    table = sweep(grid, quick, workers=2, out=tmp_path)
    assert table.index[table["error"].notna()].tolist() == failed
    whole = ~table.index.isin(failed)
    pd.testing.assert_frame_equal(
        table[whole].drop(columns="error"), serial[whole].drop(columns="error"), check_dtype=False
    )
    assert len(ran) == len(set(ran))  # nothing that was finished ran twice
    assert len(opened) > 1
    if failed:
        assert "ended without an answer" in table["error"].iloc[4]
        monkeypatch.undo()
        pd.testing.assert_frame_equal(sweep(grid, quick, out=tmp_path), serial)  # tried again


def test_processes_give_the_same_table_also_when_one_is_killed(grid, quick, serial, tmp_path):
    killed = []

    def kill_once(_share):
        import multiprocessing

        if not killed:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)

    table = sweep(grid, quick, workers=2, out=tmp_path, progress=kill_once)
    assert killed
    pd.testing.assert_frame_equal(table, serial)


# journal


def test_resume_simulates_only_what_is_missing(grid, quick, serial, tmp_path, monkeypatch):
    pd.testing.assert_frame_equal(sweep(grid, quick, out=tmp_path), serial)
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:7]) + lines[7][:40])  # as an interrupt leaves it
    ran = []
    monkeypatch.setattr(runs, "run_task", lambda task: (ran.append(task.index), run_task(task))[1])
    pd.testing.assert_frame_equal(sweep(grid, quick, out=tmp_path), serial)
    assert ran == [7, 8, 9, 10, 11]
    assert sweep(grid, quick, out=tmp_path)["error"].isna().all()
    assert len(ran) == 5
    written = pd.read_csv(tmp_path / TABLE)
    assert written["ttft_mean_s"].tolist() == serial["ttft_mean_s"].tolist()


def test_a_larger_grid_takes_over_what_is_done(grid, quick, tmp_path, monkeypatch):
    sweep(grid, quick, out=tmp_path)
    ran = []
    monkeypatch.setattr(runs, "run_task", lambda task: (ran.append(task.labels), run_task(task))[1])
    wider = grid.model_copy(update={"keys": {SEQS: [2, 16, 64], "workload.rate_scale": [0.5, 1.0]}})
    table = sweep(wider, quick, out=tmp_path)
    assert {row[SEQS] for row in ran} == {16}
    assert table["point"].tolist() == list(range(12))


def test_other_scenarios_traces_and_code_are_not_taken_over(grid, quick, tmp_path, monkeypatch):
    key = next(tasks_of(grid, quick)).key
    assert next(tasks_of(grid, quick)).key == key
    assert next(tasks_of(grid, quick.changed({"slo.ttft_s": 0.2}))).key != key
    monkeypatch.setattr("sim.sweeping.task.code_digest", lambda: "other")
    assert next(tasks_of(grid, quick)).key != key


def test_partial_results_can_be_read_while_it_runs(grid, quick, tmp_path):
    seen = []

    def look(_share):
        seen.append(len(pd.read_json(tmp_path / JOURNAL, lines=True)))

    sweep(grid, quick, out=tmp_path, progress=look)
    assert seen == list(range(1, 13))


def test_the_table_is_refreshed_now_and_then(grid, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "REFRESH_S", 0.0)
    sizes = []

    def look(_share):
        if (tmp_path / TABLE).exists():
            sizes.append(len(pd.read_csv(tmp_path / TABLE)))

    sweep(grid, quick, out=tmp_path, progress=look)
    assert sizes == list(range(1, 12))


def test_the_journal_keeps_rows_on_disk_and_writes_valid_json(tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.append("a", {"x": float("nan"), "y": 1, "error": None})
        journal.append("b", {"x": 2.0, "z": "word", "error": "bad"})
        table = journal.table(["b", "a"])
    assert [json.loads(line)["x"] for line in (tmp_path / "j").read_text().splitlines()] == [
        None,
        2,
    ]
    assert table["x"].tolist()[0] == 2.0
    assert table["error"].tolist() == ["bad", None]


# an interrupt


def test_an_interrupt_leaves_a_journal_to_go_on_with(tmp_path):
    (tmp_path / "s.toml").write_text(
        '[workload]\narrivals = { kind = "poisson", rate_per_s = 8 }\n'
        'lengths = "azure-conv"\nduration_s = 20\n'
    )
    (tmp_path / "g.toml").write_text(
        f'scenario = "s.toml"\n[keys]\nrun.seed = {list(range(4000))}\n'
    )
    command = [sys.executable, "-m", "sim", "sweep", "g.toml", "--out", "o", "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    journal = tmp_path / "o" / JOURNAL
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and journal.stat().st_size > 9000):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Interrupted" in err
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert 2 <= len(rows) < 4000
    assert all(row["error"] is None and row["ttft_mean_s"] > 0 for row in rows)


# command line


def test_command_writes_table_charts_and_journal(tmp_path, capsys):
    (tmp_path / "g.toml").write_text(
        'name = "small"\n[scenario.workload]\nduration_s = 3\nlengths = "azure-conv"\n'
        'arrivals = { kind = "poisson", rate_per_s = 4 }\n[keys]\nhardware.tp = [1, 2]\n'
    )
    assert run(["sweep", str(tmp_path / "g.toml"), "--out", str(tmp_path / "o")]) == 0
    out = capsys.readouterr().out
    assert "hardware.tp" in out
    assert "sweep.csv" in out
    assert len(pd.read_csv(tmp_path / "o" / TABLE)) == 2
    page = (tmp_path / "o" / "sweep.html").read_text()
    for words in ("<h1>small</h1>", "Throughput against interactivity", "Energy against", "Cost a"):
        assert words in page
    assert run(["sweep", str(tmp_path / "g.toml"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["hardware.tp"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["g.toml", "--cluster", "local:x"], "is not local:N"),
        (["g.toml", "--cluster", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        (["g.toml", "--rate", "12"], "'12' is not auto"),
        (["missing.toml"], "no such file"),
    ],
)
def test_bad_options_are_explained(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sim.sweeping.pool.CONNECT_S", 1.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.toml").write_text("[keys]\nrun.seed = [0, 1]\n")
    assert run(["sweep", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_plugins_are_loaded_by_whoever_runs_a_point(tmp_path, quick):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom policies.rules import ordering\n"
        "@ordering('swept-plugin')\n@dataclass(frozen=True)\nclass Mine:\n"
        "    '''Last first. Use it in this test.'''\n"
        "    def key(self, request):\n        return -request.arrival_s\n"
    )
    grid = Grid(keys={"policies.ordering.name": ["swept-plugin"]})
    assert "no ordering policy" in run_task(next(tasks_of(grid, quick)))["error"]
    assert run_task(next(tasks_of(grid, quick, plugins=[tmp_path / "mine.py"])))["error"] is None


# a real Dask cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and two workers on loopback, each a process of its own."""
    pytest.importorskip("dask.distributed")
    folder = tmp_path_factory.mktemp("dask")
    place = folder / "scheduler.json"
    python = [sys.executable, "-m"]
    common = ["--no-dashboard", "--scheduler-file", str(place)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    options = {
        "cwd": folder,
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    scheduler = [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    worker = [*python, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny"]
    started = [subprocess.Popen([*scheduler, *common], **options)]
    deadline = time.monotonic() + 60
    while not place.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    started += [subprocess.Popen([*worker, *common], **options) for _ in range(2)]
    try:
        yield json.loads(place.read_text())["address"], started[1:]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(timeout=30)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dask_cluster_survives_the_end_of_a_worker(cluster, quick, tmp_path):
    address, workers = cluster
    many = Grid(keys={SEQS: [2, 64], "workload.rate_scale": [0.5, 1.0, 2.0]}, replications=6)
    ended = threading.Event()

    def end_one(share):
        if share > 0.2 and not ended.is_set():
            os.kill(workers[0].pid, signal.SIGKILL)
            ended.set()

    table = sweep(many, quick, cluster=address, out=tmp_path, progress=end_one)
    assert ended.is_set()
    assert workers[0].wait(timeout=30) == -signal.SIGKILL
    pd.testing.assert_frame_equal(table, sweep(many, quick))
    assert len((tmp_path / JOURNAL).read_text().splitlines()) == 36


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_local_dask_cluster_gives_the_same_table(grid, quick, serial):
    pytest.importorskip("dask.distributed")
    pd.testing.assert_frame_equal(sweep(grid, quick, cluster="local:2"), serial)
