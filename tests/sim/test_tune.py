"""Tuning: what a setting is worth, finalists, the verdict, the command; against brute force."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from formats import InputError
from sim import Scenario, simulate
from sim.cli import run
from sim.metrics import summary
from sim.tuning import (
    Constraint,
    Objective,
    Space,
    parse_constraint,
    parse_objective,
    tune,
)
from sim.tuning.evaluator import PENALTY, Evaluator
from sim.tuning.finalists import Finalist, Gain, Measured, compare
from sim.tuning.loads import LEAST_REQUESTS, Load, Repeat, split
from sim.tuning.sampler import ended
from sim.tuning.storage import open_study
from sim.tuning.study import Search
from sim.tuning.tuner import _best
from sim.tuning.verdict import changes, verdict

SEQS, TOKENS = "policies.batching.max_num_seqs", "policies.batching.max_num_batched_tokens"
QUICK = {
    "name": "quick",
    "workload": {"named": "azure-conv", "duration_s": 30, "rate_scale": 4},
    "slo": {"ttft_s": 0.3, "tpot_s": 0.02},
}
HEAD = "arrival_s,prompt_tokens,output_tokens\n"
GOODPUT = Objective("goodput_per_s", "maximize")
TTFT = Objective("ttft_p99_s", "minimize")
ENERGY = Objective("energy_per_output_token_j", "minimize")


@pytest.fixture(scope="module")
def quick():
    return Scenario.model_validate(QUICK)


# goals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed", "no metric named 'speed'"),
        ("goodput:up", "'up' is no direction"),
        ("ttft_p98", "did you mean 'ttft_p9"),
    ],
)
def test_bad_objectives_are_explained(text, words):
    with pytest.raises(InputError, match=words):
        parse_objective(text)


@pytest.mark.parametrize(
    "text",
    ["ttft_p99<0.5", "ttft_p99<=fast", "<=3", "ttft_p99<=1e", "ttft_p99<=nan", "ttft_p99<=1e999"],
)
def test_bad_constraints_are_explained(text):
    with pytest.raises(InputError, match=r"is no constraint|no metric"):
        parse_constraint(text)


def test_a_violation_is_relative_to_its_limit():
    at_least = parse_constraint("goodput>=10")
    assert at_least.violation({"goodput_per_s": 8.0}) == pytest.approx(0.2)
    assert at_least.violation({"goodput_per_s": None}) == 1.0


# requests


def test_the_split_in_time_keeps_every_request():
    table = pd.DataFrame({"arrival_s": np.linspace(5, 105, 201), "prompt_tokens": range(201)})
    seen, later = split(table, 0.7)
    assert seen["prompt_tokens"].tolist() + later["prompt_tokens"].tolist() == list(range(201))
    assert seen["arrival_s"].max() <= 75 < later["arrival_s"].max() + 75.5
    assert later["arrival_s"].iloc[0] == 0.0


def test_too_short_a_workload_holds_nothing_back():
    table = pd.DataFrame({"arrival_s": np.arange(LEAST_REQUESTS * 2.0 - 1)})
    assert split(table, 0.5)[1] is None
    assert split(table, 1.0)[1] is None


def test_requests_at_once_are_split_by_their_order():
    table = pd.DataFrame({"arrival_s": np.zeros(100), "prompt_tokens": range(100)})
    assert split(table, 0.7)[1]["prompt_tokens"].tolist() == list(range(70, 100))


def test_repeats_of_a_drawn_workload_are_new_draws(quick):
    load = Load(quick)
    repeats = load.repeats(quick, 3)
    tables = [load.seen(quick), *(r.seen for r in repeats), *(r.later for r in repeats)]
    sums = {int(t["prompt_tokens"].sum()) for t in tables}
    assert len(sums) == 7
    assert [r.seed for r in repeats] == [1, 2, 3]


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(0)
    arrivals = np.sort(rng.uniform(0, 60, 300))
    rows = [f"{t},{rng.integers(20, 900)},{rng.integers(5, 60)}" for t in arrivals]
    (tmp_path / "t.csv").write_text(HEAD + "\n".join(rows))
    return Scenario(workload={"requests": "t.csv"}), tmp_path


def test_repeats_of_a_trace_are_its_windows(trace):
    scenario, folder = trace
    load = Load(scenario, folder)
    whole = load.requests(scenario, 0)
    repeats = load.repeats(scenario, 4)
    assert not load.drawn()
    parts = [r.seen for r in repeats] + [r.later for r in repeats]
    joined = [n for part in parts for n in part["prompt_tokens"]]
    assert joined == whole["prompt_tokens"].tolist()
    assert all(part["arrival_s"].iloc[0] == 0 for part in parts)


def test_a_trace_too_short_for_windows_is_one_run(trace):
    scenario, folder = trace
    short = scenario.changed({"workload.duration_s": 7.0})
    repeats = Load(short, folder).repeats(short, 5)
    assert len(repeats) == 1
    result = Evaluator(short, [Load(short, folder)], [TTFT])
    _, other = compare(result, [{}, {SEQS: 1}], [[r] for r in repeats])
    assert other.seen.gain.low is None
    assert "no interval" in str(other.seen.gain)


# worth


class Given(Evaluator):
    """Returns given figures: setting -> one per workload and repeat."""

    def __init__(self, table, objectives, constraints=(), worst=False, loads=1):
        scenario = Scenario.model_validate(QUICK)
        super().__init__(scenario, [Load(scenario)] * loads, objectives, constraints, worst)
        self.table, self.calls = {k: list(v) for k, v in table.items()}, []
        self._scales = [[1.0] * len(objectives)] * loads

    def run(self, setting, load, requests, seed):
        self.calls.append((dict(setting), len(requests), seed))
        found = self.table[setting.get(SEQS, 0)]
        return found[(len(self.calls) - 1) % len(found)]


def repeats_of(count, loads=1):
    rows = pd.DataFrame({"arrival_s": [0.0]})
    return [[Repeat(i, rows, None)] * loads for i in range(count)]


def test_gains_are_those_of_a_paired_t_test():
    base, mine = np.array([10.0, 12.0, 9.0, 11.0]), np.array([11.0, 12.5, 10.5, 12.0])
    table = {0: [{"goodput_per_s": v} for v in base], 1: [{"goodput_per_s": v} for v in mine]}
    work = Given(table, [GOODPUT])
    default, other = compare(work, [{}, {SEQS: 1}], repeats_of(4))
    expected = stats.ttest_rel(mine, base).confidence_interval(0.95)
    gain = other.seen.gain
    assert gain.mean == pytest.approx((mine - base).mean() / base.mean())
    assert gain.low == pytest.approx(expected.low / base.mean())
    assert gain.high == pytest.approx(expected.high / base.mean())
    assert default.seen.gain.mean == 0
    assert other.later is None


def test_intervals_widen_with_the_number_of_finalists():
    values = [{"goodput_per_s": v} for v in (10.0, 12.0, 9.0)]
    better = [{"goodput_per_s": v} for v in (11.0, 12.5, 10.5)]
    one = compare(Given({0: values, 1: better}, [GOODPUT]), [{}, {SEQS: 1}], repeats_of(3))
    table = {0: values, 1: better, 2: better}
    two = compare(Given(table, [GOODPUT]), [{}, {SEQS: 1}, {SEQS: 2}], repeats_of(3))
    assert two[1].seen.gain.low < one[1].seen.gain.low
    half = stats.t.ppf(1 - 0.05 / 4, 2) * stats.sem([1.0, 0.5, 1.5]) / np.mean([10, 12, 9])
    assert two[1].seen.gain.high - two[1].seen.gain.mean == pytest.approx(half)


def test_all_finalists_see_the_same_requests_and_seeds():
    table = {0: [{"goodput_per_s": 1.0}], 1: [{"goodput_per_s": 2.0}]}
    work = Given(table, [GOODPUT])
    quick = work.scenario
    rows = [[r] for r in work.loads[0].repeats(quick, 3)]
    compare(work, [{}, {SEQS: 1}], rows)
    by_setting = [[c[1:] for c in work.calls if bool(c[0]) == moved] for moved in (False, True)]
    assert by_setting[0] == by_setting[1]
    assert len({size for size, _ in by_setting[0]}) > 3  # other requests for every seed


@pytest.mark.parametrize("objective", [TTFT, GOODPUT])
def test_a_metric_without_a_value_never_wins(objective):
    name = objective.metric
    table = {0: [{name: 1.0}, {name: 1.1}], 1: [{name: 0.9}, {name: None}]}
    work = Given(table, [objective])
    default, other = compare(work, [{}, {SEQS: 1}], repeats_of(2))
    assert other.seen.gain is None
    assert other.seen.violation == 1
    assert _best(default, [other], [objective]) is default
    judged = work.judged([{name: None}])
    assert (judged.losses, judged.violation) == ([PENALTY], 1)


def test_a_default_without_a_value_gives_way_to_one_that_has_it():
    table = {0: [{"ttft_p99_s": None}], 1: [{"ttft_p99_s": 3.0}], 2: [{"ttft_p99_s": 2.0}]}
    work = Given(table, [TTFT])
    default, *others = compare(work, [{}, {SEQS: 1}, {SEQS: 2}], repeats_of(2))
    assert _best(default, others, [TTFT]).setting == {SEQS: 2}


def finalist(gain, violation=0.0, setting=None):
    measured = Measured({"goodput_per_s": gain}, gain, violation, {"goodput_per_s": 1.0}, [])
    return Finalist(setting or {SEQS: 1}, measured, None)


def test_the_scenario_stays_where_nothing_is_better_beyond_chance():
    default = finalist(Gain(0.0, 0.0, 0.0), setting={})
    unsure, sure = finalist(Gain(0.05, -0.01, 0.11)), finalist(Gain(0.02, 0.01, 0.03))
    assert _best(default, [unsure], [GOODPUT]) is default
    assert _best(default, [sure], [GOODPUT]) is sure
    missing = finalist(Gain(0.5, 0.4, 0.6), violation=0.1)
    assert _best(default, [missing, sure], [GOODPUT]) is sure  # constraints come first


def test_workloads_count_by_their_mean_or_their_worst():
    both = [{"ttft_p99_s": 2.0}, {"ttft_p99_s": 4.0}]
    assert Given({}, [TTFT], loads=2).judged(both).losses == [3.0]
    assert Given({}, [TTFT], worst=True, loads=2).judged(both).losses == [4.0]
    table = {0: [{"ttft_p99_s": 2.0}, {"ttft_p99_s": 2.0}], 1: both}
    repeats = repeats_of(2, loads=2)
    settings = [{}, {SEQS: 1}]
    mean = compare(Given(table, [TTFT], loads=2), settings, repeats)[1]
    worst = compare(Given(table, [TTFT], worst=True, loads=2), settings, repeats)[1]
    assert (mean.seen.gain.mean, worst.seen.gain.mean) == (-0.5, -1.0)


def test_constraints_hold_under_every_workload():
    limit = Constraint("ttft_p99_s", "<=", 3.0)
    work = Given({}, [TTFT], [limit], loads=2)
    judged = work.judged([{"ttft_p99_s": 1.0}, {"ttft_p99_s": 4.5}])
    assert judged.violation == pytest.approx(0.5)  # the mean of 2.75 would hold


def test_each_workload_keeps_its_own_objectives(quick):
    strict = quick.changed({"slo.ttft_s": 0.001, "name": "strict"})
    work = Evaluator(quick, [Load(quick), Load(strict)], [GOODPUT])
    found = [work.run({}, load, load.seen(quick), 0)["goodput_per_s"] for load in work.loads]
    assert found[0] > 1
    assert found[1] == 0


def test_figures_are_those_of_simulate(quick):
    load = Load(quick)
    work = Evaluator(quick, [load], [GOODPUT])
    alone = summary(simulate(quick.changed({SEQS: 8, "run.step_log": False}), load.seen(quick)))
    judged = work.judge({SEQS: 8})
    assert judged.figures["ttft_p99_s"] == alone["ttft_p99_s"]
    assert judged.losses[0] == -alone["goodput_per_s"] / work.scales()[0][0]


# the whole


@pytest.fixture(scope="module")
def pair(quick):
    space = Space(knobs={SEQS: [4, 16, 64, 256], "model.weights": ["bf16", "fp8"]})
    start = quick.changed({SEQS: 16})
    return tune(start, space, [GOODPUT, ENERGY], budget=8)


def test_the_front_holds_what_no_other_beats(pair):
    front, rest = pair.front, pair.trials[pair.trials["state"] == "complete"]
    assert 1 <= len(front) < len(rest)
    for row in front.itertuples():
        better = (rest["goodput_per_s"] >= row.goodput_per_s) & (
            rest["energy_per_output_token_j"] <= row.energy_per_output_token_j
        )
        same = (rest["goodput_per_s"] == row.goodput_per_s) & (
            rest["energy_per_output_token_j"] == row.energy_per_output_token_j
        )
        assert not (better & ~same).any()


def test_the_ends_of_the_front_are_finalists(pair):
    compared = [f.setting for f in (*pair.finalists, pair.default)]
    for name, up in (("goodput_per_s", True), ("energy_per_output_token_j", False)):
        row = pair.front.sort_values(name, ascending=not up).iloc[0]
        assert {key: row[key] for key in pair.knobs} in compared


def test_the_verdict_says_gain_interval_and_later_requests(pair):
    text = verdict(pair)
    assert text.startswith("Set ")
    assert "95 % interval" in text
    assert "on later requests that the search did not see" in text
    assert pair.best.later.gain is not None
    assert {c.metric for c in changes(pair)} >= {"goodput_per_s", "energy_per_output_token_j"}


def test_the_tuned_scenario_holds_the_best_setting(pair):
    changed, _ = pair.scenario, pair.best.setting
    assert changed.policies.batching["max_num_seqs"] == pair.best.setting[SEQS]
    assert changed.name == "quick"


def test_a_setting_is_tuned_over_several_workloads(quick):
    code = Scenario.model_validate(
        QUICK
        | {"name": "code", "workload": {"named": "azure-code", "duration_s": 60, "rate_scale": 8}}
    )
    found = tune(
        quick,
        Space(knobs={SEQS: [2, 32]}),
        [GOODPUT],
        budget=2,
        workloads=[(code, Path())],
        worst=True,
    )
    assert found.workloads == ["quick", "code"]
    assert len(found.default.seen.per_load) == 2
    assert found.default.seen.per_load[0] != found.default.seen.per_load[1]


# brute force

KNOBS = {
    SEQS: [4, 8, 12, 16, 24, 32, 48, 64],
    TOKENS: [128, 256, 384, 512, 1024, 2048, 4096, 8192],
}
WITHIN, SHARE, HELD_BY = 0.05, 0.25, 0.3
# objective, and a metric that must stay within the best 30 % of its values in the space
GOALS = {
    "goodput": (GOODPUT, "ttft_p99_s", "<="),
    "cost": (parse_objective("cost"), None, "<="),
    "energy": (ENERGY, None, "<="),
    "ttft": (TTFT, "output_tokens_per_s", ">="),
}
PAIRS = [dict(zip(KNOBS, pair, strict=True)) for pair in product(*KNOBS.values())]


@pytest.fixture(scope="module")
def simulated(quick):
    """Figures of settings of a small space, simulated at most once per length."""
    memory = {}

    def find(work, setting, load, share):
        key = (setting.get(SEQS), setting.get(TOKENS), share)
        if key not in memory:
            memory[key] = Evaluator._leading(work, setting, load, share)
        return memory[key]

    return find


def known(quick, simulated, goal):
    """Return an evaluator that looks settings up."""

    class Remembered(Evaluator):
        def _leading(self, setting, load, share):
            return simulated(self, setting, load, share)

    objective, metric, sign = GOALS[goal]
    work = Remembered(quick, [Load(quick)], [objective])
    if metric is not None:
        values = [work.judge(setting).figures[metric] for setting in PAIRS]
        limit = np.quantile(values, HELD_BY if sign == "<=" else 1 - HELD_BY)
        work.constraints = [Constraint(metric, sign, float(limit))]
    return work


def reached(work, seed):
    """Whether a search over a quarter of the points comes within 5 % of the best of all."""
    every = [(j.violation, j.losses[0]) for j in map(work.judge, PAIRS)]
    limit = min(every)[1] + WITHIN * abs(min(every)[1])
    good = [violation == 0 and loss <= limit for violation, loss in every]
    study = open_study("brute", 1, None)
    Search(study, Space(knobs=KNOBS), work, seed).run(int(SHARE * len(every)))
    assert len(ended(study)) == SHARE * len(every)
    assert 0 < sum(good) <= 0.1 * len(every)  # few points are that good
    found = [t for t in ended(study) if t.values and t.constraints["violation"] == 0]
    return any(t.values[0] <= limit for t in found)


def test_a_search_reaches_what_brute_force_finds(quick, simulated):
    assert sum(reached(known(quick, simulated, "energy"), seed) for seed in (0, 1)) >= 1


NEEDLE = "one setting of 64 is that good, between worse ones: 4 of 10, 10 with other kernel times"


@pytest.mark.slow
@pytest.mark.parametrize(
    "goal",
    [
        "goodput",
        "cost",
        "energy",
        pytest.param("ttft", marks=pytest.mark.xfail(reason=NEEDLE, strict=False)),
    ],
)
def test_nine_of_ten_searches_reach_what_brute_force_finds(quick, simulated, goal):
    work = known(quick, simulated, goal)
    assert sum(reached(work, seed) for seed in range(10)) >= 9


# the command


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(
        'name = "quick"\n[workload]\nnamed = "azure-conv"\nduration_s = 20\nrate_scale = 4\n'
        "[slo]\nttft_s = 0.3\ntpot_s = 0.02\n[policies.batching]\n"
        'name = "chunked-prefill"\nmax_num_seqs = 8\n'
    )
    (tmp_path / "space.toml").write_text(f"[knobs]\n{SEQS} = [4, 8, 128]\n")
    return tmp_path


def test_the_command_writes_what_is_deployed(files, capsys):
    command = ["tune", "s.toml", "--space", "space.toml", "--budget", "3"]
    assert run([*command, "--constraint", "ttft_p99<=5"]) == 0
    out = capsys.readouterr().out
    assert "Set policies.batching.max_num_seqs = 128." in out
    assert "--max-num-seqs 128" in out
    folder = files / "out" / "tune-s"
    found = json.loads((folder / "tune.json").read_text())
    assert found["best"]["setting"] == {SEQS: 128}
    assert found["best"]["seen"]["gains"]["goodput_per_s"]["low"] > 0
    assert len(pd.read_csv(folder / "trials.csv")) == 3
    for engine in ("vllm", "sglang", "trtllm", "triton"):
        assert (folder / "deploy" / engine / "command.sh").exists()
        assert "128" in (folder / "deploy" / engine / "values.yaml").read_text()
    page = (folder / "tune.html").read_text()
    for words in ("Tuning of quick", "Progress", "Before and after", "Kubernetes", "Finalists"):
        assert words in page
    assert run(["simulate", str(folder / "scenario.toml"), "--json"]) == 0
    capsys.readouterr()
    assert run([*command, "--constraint", "ttft_p99<=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == found["best"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objective", "speed"], "no metric named 'speed'"),
        (["--constraint", "ttft_p99=1"], "is no constraint"),
        (["--engine", "vlm"], "did you mean 'vllm'"),
        (["--train-share", "0"], "above 0, up to 1"),
        (["--space", "nothing.toml"], "no such file"),
        (["--workload", "nothing.toml"], "no such file"),
        (["--storage", "nonsense://x"], "the study cannot be opened"),
    ],
)
def test_bad_options_are_explained(arguments, words, files, capsys):
    assert run(["tune", "s.toml", "--space", "space.toml", "--budget", "1", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (files / "out" / "tune-s" / "tune.json").exists()
