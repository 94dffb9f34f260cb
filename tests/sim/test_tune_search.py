"""Tuning, the search: spaces, proposals, storage, resuming, several processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pandas as pd
import pytest

from formats import InputError
from sim import Scenario
from sim.tuning import Constraint, Objective, Space, load_space
from sim.tuning.evaluator import CANNOT, PENALTY, CannotRunError, Evaluator, Judged
from sim.tuning.loads import Load
from sim.tuning.sampler import ended
from sim.tuning.space import applied, check_space
from sim.tuning.storage import mend, open_study, study_name, works
from sim.tuning.study import FEWEST_SEEN, Search

SEQS, TOKENS = "policies.batching.max_num_seqs", "policies.batching.max_num_batched_tokens"
GRID = Space(knobs={SEQS: [1, 2, 4, 8, 16, 32, 64, 128], TOKENS: [256, 512, 1024, 2048, 4096]})
QUICK = {
    "workload": {"named": "azure-conv", "duration_s": 30, "rate_scale": 4},
    "slo": {"ttft_s": 0.3, "tpot_s": 0.02},
}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


class Toy(Evaluator):
    """A bowl with its bottom at 16 sequences and 1024 tokens, without any simulation."""

    def __init__(self, objectives=1, deadly=()):
        goals = [Objective("ttft_p99_s", "minimize"), Objective("goodput_per_s", "maximize")]
        super().__init__(Scenario(), [], goals[:objectives])
        self.asked, self.deadly = [], deadly

    def fewest(self, share):
        return 1000 * share

    def judge(self, setting, share=1.0):
        if share == 1:
            self.asked.append(dict(setting))
        place = [GRID.knobs[SEQS].index(setting[SEQS]), GRID.knobs[TOKENS].index(setting[TOKENS])]
        if setting[SEQS] in self.deadly:
            raise CannotRunError("too many")
        bowl = (place[0] - 4) ** 2 + (place[1] - 2) ** 2
        losses = [1.0 + bowl, -float(place[0])][: len(self.objectives)]
        return Judged(losses, 0.0, {"ttft_p99_s": losses[0], "goodput_per_s": float(place[0])})


def settings(study):
    return [trial.user_attrs["setting"] for trial in ended(study)]


def searched(budget, storage=None, seed=3, work=None, space=GRID):
    work = work or Toy()
    study = open_study("toy", len(work.objectives), storage)
    Search(study, space, work, seed).run(budget)
    return study


# spaces


def test_a_space_file_names_any_key(tmp_path):
    (tmp_path / "s.toml").write_text(
        "[knobs]\npolicies.batching.max_num_seqs = [16, 32]\nhardware.tp = [1, 2]\n"
        '"model.weights" = ["bf16", "fp8"]\n'
        "engine.memory_utilisation = { low = 0.5, high = 0.9 }\n"
        'policies.caching = [{ name = "none" }, { name = "prefix-lru" }]\n'
    )
    space = load_space(tmp_path / "s.toml")
    assert set(space.knobs) == {
        SEQS,
        "hardware.tp",
        "model.weights",
        "engine.memory_utilisation",
        "policies.caching",
    }
    check_space(space, Scenario())
    changed, _ = applied(Scenario(), {"policies.caching": {"name": "none"}, "hardware.tp": 2})
    assert (changed.policies.caching, changed.hardware.tp) == ({"name": "none"}, 2)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"policies.batching.max_num_seq": [1]}, "has a parameter 'max_num_seq'.*max_num_seqs"),
        ({"hardware.tpp": [1]}, "tpp"),
        ({SEQS: [16, -3]}, r"max_num_seqs = -3"),
        ({"model.weights": ["bf17"]}, "bf17"),
        ({"policies.ordering.name": ["fcfss"]}, "no ordering policy named 'fcfss'"),
    ],
)
def test_bad_knobs_are_named_before_anything_runs(knobs, words):
    with pytest.raises(InputError, match=words):
        check_space(Space(knobs=knobs), Scenario())


def test_parameters_of_a_policy_count_where_that_policy_is_chosen():
    scenario = Scenario().changed({"policies.memory": {"name": "paged", "block_size": 32}})
    changed, active = applied(scenario, {"policies.caching.name": "none", SEQS: 8})
    assert changed.policies.memory["block_size"] == 32
    assert active == {"policies.caching.name": "none", SEQS: 8}


# proposals


def test_the_scenario_as_it_is_comes_first():
    first = json.loads(
        settings(searched(1, space=Space(knobs={SEQS: [64, 512, 8], TOKENS: [256]}), work=Count()))[
            0
        ]
    )
    assert first[SEQS] == 512  # the default of the policy


class Count(Toy):
    def judge(self, setting, share=1.0):
        if share == 1:
            self.asked.append(dict(setting))
        return Judged([float(setting[SEQS])], 0.0, {})


def test_no_setting_is_tried_twice_and_a_whole_space_ends():
    small = Space(knobs={SEQS: [1, 2, 4], TOKENS: [256, 512]})
    found = settings(searched(100, space=small))
    assert len(found) == len(set(found)) == 6


def test_settings_that_differ_in_what_does_not_count_are_one():
    space = Space(
        knobs={
            "policies.memory": [{"name": "paged"}],
            "policies.memory.nothing": [1, 2, 3],
            SEQS: [1, 2],
            TOKENS: [256],
        }
    )
    assert len(settings(searched(100, space=space, work=Count()))) == 2


def test_the_same_seed_proposes_the_same_and_another_does_not():
    assert settings(searched(20)) == settings(searched(20))
    assert settings(searched(20)) != settings(searched(20, seed=4))


def test_search_finds_the_bottom_of_a_bowl_in_a_quarter_of_the_points():
    for seed in range(5):
        best = min(ended(searched(10, seed=seed)), key=lambda t: (t.state.value, t.values or [99]))
        assert best.values[0] <= 2.0  # the bottom is 1; its neighbours are 2


def test_bad_settings_stop_after_a_short_run():
    work = Toy()
    study = searched(20, work=work)
    pruned = [t for t in ended(study) if t.state == optuna.trial.TrialState.PRUNED]
    assert len(pruned) + len(work.asked) == 20
    assert len(pruned) >= 3
    whole = [t.values[0] for t in ended(study) if t.state == optuna.trial.TrialState.COMPLETE]
    first = [t.values[0] for t in ended(study)[:FEWEST_SEEN]]
    assert len(first) == FEWEST_SEEN  # none is stopped before there is something to compare with
    assert all(t.user_attrs["rungs"]["0"][0][0] > min(whole) for t in pruned)


def test_what_cannot_run_is_worse_than_anything_and_says_why():
    study = searched(40, work=Toy(deadly=(1, 2)))
    bad = [t for t in ended(study) if "error" in t.user_attrs]
    assert len(bad) == 10
    assert {t.user_attrs["error"] for t in bad} == {"too many"}
    assert all(t.values[0] == PENALTY and t.constraints["violation"] == CANNOT for t in bad)


# storage


def test_a_search_goes_on_where_it_was_killed(tmp_path):
    """Killed at any point of its journal, it ends with the same trials as if it never stopped."""
    whole = searched(11, tmp_path / "whole")
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    for cut in (3, len(lines) // 3, len(lines) // 2, len(lines) - 2):
        place = tmp_path / f"cut{cut}"
        place.write_bytes(b"".join(lines[:cut]))
        again = searched(11, place)
        assert settings(again) == settings(whole), cut
        assert [t.values for t in ended(again)] == [t.values for t in ended(whole)]


def test_a_torn_last_line_is_cut_off(tmp_path):
    whole = searched(12, tmp_path / "a")
    lines = (tmp_path / "a").read_bytes().splitlines(keepends=True)
    (tmp_path / "b").write_bytes(b"".join(lines[:40]) + lines[40][: len(lines[40]) // 2])
    assert settings(searched(12, tmp_path / "b")) == settings(whole)
    assert settings(searched(12, tmp_path / "b")) == settings(whole)  # readable after it went on
    mend(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"".join(lines)


def test_a_lock_that_a_kill_left_behind_is_released(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sim.tuning.storage.GRACE_S", 3)
    whole = settings(searched(3, Path("j")))
    Path("j.lock").touch()
    assert settings(searched(3, Path("j"))) == whole


def test_a_larger_budget_goes_on(tmp_path):
    small = settings(searched(10, tmp_path / "j"))
    work = Toy()
    large = settings(searched(14, tmp_path / "j", work=work))
    assert large[:10] == small
    assert large == settings(searched(14))
    assert len(work.asked) <= 4


def test_a_study_is_named_by_all_that_its_trials_depend_on():
    def name(space=GRID, seed=0, worst=False, goals=("goodput_per_s",), limits=(), **changes):
        scenario = Scenario.model_validate(QUICK).changed(changes)
        aims = [Objective(g, "maximize") for g in goals]
        work = Evaluator(scenario, [Load(scenario)], aims, limits, worst)
        return study_name(space, work, seed)

    smaller = Space(knobs={SEQS: [1, 2]})
    limit = [Constraint("ttft_p99_s", "<=", 0.5)]
    others = [
        name(**{"hardware.accelerator": "h100-sxm"}),
        name(**{"workload.rate_scale": 5}),
        name(**{"slo.ttft_s": 0.2}),
        name(**{"run.seed": 1}),
        name(space=smaller),
        name(seed=1),
        name(worst=True),
        name(goals=("output_tokens_per_s",)),
        name(limits=limit),
    ]
    assert name() == name()
    assert len({name(), *others}) == 10


def test_a_changed_trace_is_another_study(tmp_path):
    rows = [f"{i / 5},100,10" for i in range(60)]
    scenario = Scenario(workload={"requests": "t.csv"})
    names = []
    for extra in ([], ["13,100,11"]):
        (tmp_path / "t.csv").write_text(
            "\n".join(["arrival_s,prompt_tokens,output_tokens", *rows, *extra])
        )
        load = Load(scenario, tmp_path, share=1.0)
        work = Evaluator(scenario, [load], [Objective("ttft_p99_s", "minimize")])
        names.append(study_name(GRID, work, 0))
    assert names[0] != names[1]


def test_a_storage_that_is_none_is_explained(tmp_path):
    (tmp_path / "j").write_text("no journal\nat all\n")
    with pytest.raises(InputError, match="the study cannot be opened"):
        open_study("toy", 1, tmp_path / "j")
    with pytest.raises(InputError, match="the study cannot be opened"):
        open_study("toy", 1, "nonsense://x")


# several processes


def running(study, setting, **who):
    trial = study.ask()
    trial.set_user_attr("setting", setting)
    trial.set_user_attr("worker", {"host": socket.gethostname(), "pid": 1} | who)
    return trial.number


def test_a_storage_that_another_process_makes_now_is_tried_again(tmp_path, monkeypatch):
    create, calls = optuna.create_study, []

    def busy(**options):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("table studies already exists")
        return create(**options)

    monkeypatch.setattr(optuna, "create_study", busy)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert open_study("toy", 1, f"sqlite:///{tmp_path}/s.db").study_name == "toy"
    assert len(calls) == 2


def test_what_another_process_works_on_is_left_to_it():
    alone = searched(12)
    study = open_study("toy", 1, None)
    theirs = settings(alone)[0]
    number = running(study, theirs)
    Search(study, GRID, Toy(), 3).run(12)
    assert theirs not in settings(study)
    assert study.trials[number].state == optuna.trial.TrialState.RUNNING  # theirs to end


def test_what_a_dead_process_worked_on_is_done_again():
    ghost = subprocess.Popen([sys.executable, "-c", ""])
    ghost.wait()
    study = open_study("toy", 1, None)
    running(study, settings(searched(1))[0], pid=ghost.pid)
    Search(study, GRID, Toy(), 3).run(12)
    assert settings(study) == settings(searched(12))


def test_a_trial_of_another_machine_is_given_up_after_an_hour():
    study = open_study("toy", 1, None)
    running(study, "x", host="elsewhere")
    trial = study.trials[0]
    assert works(trial)
    trial.datetime_start -= pd.Timedelta(hours=2).to_pytimedelta()
    assert not works(trial)


def write_files(folder):
    (folder / "s.toml").write_text(
        'name = "quick"\n[workload]\nnamed = "azure-conv"\nduration_s = 12\nrate_scale = 4\n'
        "[slo]\nttft_s = 0.3\ntpot_s = 0.02\n"
    )
    (folder / "space.toml").write_text(
        f"[knobs]\n{SEQS} = {GRID.knobs[SEQS]}\n{TOKENS} = {GRID.knobs[TOKENS]}\n"
    )


def start(folder, out, budget=9, *more):
    command = [sys.executable, "-m", "sim", "tune", "s.toml", "--space", "space.toml"]
    command += ["--budget", f"{budget}", "--out", out, "--json", *more]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )


@pytest.mark.slow
def test_a_killed_command_given_again_ends_as_if_it_never_stopped(tmp_path):
    write_files(tmp_path)
    assert start(tmp_path, "whole").communicate()[1] == b""
    killed = start(tmp_path, "cut")
    journal = tmp_path / "cut" / "study.journal"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (
        journal.exists() and journal.read_bytes().count(b"\n") > 45
    ):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = pd.DataFrame() if not journal.exists() else journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')  # as a kill in mid-write leaves it
    again = start(tmp_path, "cut")
    out, err = again.communicate()
    assert (again.returncode, err) == (0, b"")
    assert len(before) < len(journal.read_bytes())
    for name in ("tune.json", "trials.csv", "scenario.toml"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert json.loads(out)["settings_tried"] == 9


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):
    write_files(tmp_path)
    both = [start(tmp_path, out, 12, "--storage", "sqlite:///shared.db") for out in ("a", "b")]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    tables = [pd.read_csv(tmp_path / out / "trials.csv") for out in ("a", "b")]
    assert all(12 <= len(table) <= 13 for table in tables)
    for table in tables:
        assert not table.duplicated([SEQS, TOKENS]).any()
