import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import InputError, check
from workloads import fit_workloads
from workloads.arrivals import ClosedLoop, mean_rate
from workloads.named import (
    Streams,
    WorkloadPart,
    WorkloadSpec,
    closed_loop,
    load_workload,
    make_requests,
    workloads,
)
from workloads.prefix_cache import infinite_hit_rate
from workloads.requests import check_requests, write_requests
from workloads.sessions import MultiTurn
from workloads.synthesis import gap_variation
from workloads.traces import read_trace

POISSON = {"kind": "poisson", "rate_per_s": 5}
CONSTANT = {"kind": "constant", "tokens": 100}
BOTH = {"prompt": CONSTANT, "output": CONSTANT}


def spec_of(data: dict[str, object]) -> WorkloadSpec:
    return check(data, WorkloadSpec, "x.toml")


def make(seed: int = 1, base: Path = Path(), **data: object) -> pd.DataFrame:
    return make_requests(spec_of(data), Streams.of_seed(seed), base)


@pytest.mark.parametrize("name", list(workloads))
def test_each_named_workload_makes_requests_at_its_rate(name):
    named = load_workload(name)
    table = make(named=name)
    assert len(table) >= 100
    if named.count is not None:
        assert len(table) == named.count
        return
    expected = mean_rate(named.arrivals, named.duration_s) * named.duration_s
    if np.isfinite(expected):
        assert table["arrival_s"].iloc[-1] < named.duration_s
        assert len(table) == pytest.approx(expected, rel=0.25)


def test_agents_hit_the_cache_as_often_as_published():
    """94.2 % for Codex on SWE-bench Pro, a figure that the workload was not made from."""
    rates = [infinite_hit_rate(make(seed, named="agent-multi-turn")).tokens for seed in range(3)]
    assert np.mean(rates) == pytest.approx(0.942, abs=0.015)


def test_pauses_of_agents_are_those_of_the_published_lognormal():
    """Median 5.2 s and P99 81.4 s: mean = median exp(s^2 / 2), variation sqrt(exp(s^2) - 1)."""
    sharing = load_workload("agent-multi-turn").sharing
    assert isinstance(sharing, MultiTurn)
    sigma = np.log(81.4 / 5.2) / 2.3263
    assert sharing.pause_s == pytest.approx(5.2 * np.exp(sigma**2 / 2), abs=0.01)
    assert sharing.pause_cv == pytest.approx(np.sqrt(np.exp(sigma**2) - 1), abs=0.001)


@pytest.mark.parametrize("which", ["conv", "code"])
def test_azure_workloads_come_like_the_trace(trace_folder: Path, which: str):
    trace = read_trace(trace_folder / f"azure2023_{which}.csv.gz")
    cv = gap_variation(trace["arrival_s"])
    made = [make(seed, named=f"azure-{which}", duration_s=7200) for seed in range(5)]
    rate = np.mean([len(t) / 7200 for t in made])
    true = (len(trace) - 1) / np.ptp(trace["arrival_s"])
    assert rate == pytest.approx(true, abs=3 * cv * np.sqrt(true / 36_000))
    assert np.mean([gap_variation(t["arrival_s"]) for t in made]) == pytest.approx(cv, rel=0.1)


def test_the_command_makes_the_shipped_files_again(trace_folder: Path, tmp_path: Path):
    assert fit_workloads.main([str(trace_folder), str(tmp_path)]) == 0
    shipped = Path(fit_workloads.__file__).parent / "data" / "workloads"
    for path in sorted(tmp_path.glob("*.toml")):
        assert path.read_text() == (shipped / path.name).read_text(), path.name
    assert {p.stem for p in tmp_path.glob("*.toml")} == {
        n for n in workloads if load_workload(n).kind == "fitted"
    }
    assert fit_workloads.main([str(tmp_path / "none"), str(tmp_path)]) == 2


def test_what_is_given_replaces_what_the_name_says():
    table = make(named="chat", lengths=BOTH, duration_s=100, rate_scale=5)
    assert set(table["prompt_tokens"]) == {100}
    assert len(table) == pytest.approx(1000, abs=4 * np.sqrt(1000))
    assert len(make(named="chat", count=7)) == 7


def test_a_change_in_one_purpose_leaves_the_others_alone():
    a = make(arrivals=POISSON, lengths="azure-conv", duration_s=50)
    b = make(arrivals=POISSON, lengths="azure-code", duration_s=50)
    prefix = {"kind": "shared-prefix", "prefixes": 2, "tokens": CONSTANT}
    c = make(arrivals=POISSON, lengths="azure-conv", duration_s=50, sharing=prefix)
    d = make(arrivals={"kind": "burst", "count": len(a)}, lengths="azure-conv")
    assert (a["arrival_s"] == b["arrival_s"]).all()
    assert (a["arrival_s"] == c["arrival_s"]).all()
    assert (a["prompt_tokens"] + 100 == c["prompt_tokens"]).all()
    assert (a["output_tokens"] == d["output_tokens"]).all()


def test_the_same_seed_gives_the_same_table_in_another_process():
    code = (
        "from workloads.named import *; import pandas as pd;"
        "t = make_requests(WorkloadSpec(named='rag', count=50), Streams.of_seed(9));"
        "print(int(pd.util.hash_pandas_object(t.drop(columns='hash_ids')).sum() % 2**53),"
        " sum(map(sum, t['hash_ids'])))"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert make(9, named="rag", count=50).shape == (50, 4)


def test_sessions_come_at_the_rate_of_requests_from_the_first_second():
    turns = {"kind": "uniform", "low": 1, "high": 19}
    sharing = {"kind": "multi-turn", "turns": turns, "pause_s": 30}
    table = make(arrivals=POISSON, lengths=BOTH, sharing=sharing, duration_s=2000)
    assert len(table) == pytest.approx(10_000, rel=0.12)
    halves = np.histogram(table["arrival_s"], [0, 1000, 2000])[0]
    assert halves[0] == pytest.approx(halves[1], rel=0.12)
    counted = make(arrivals=POISSON, lengths=BOTH, sharing=sharing, count=500)
    assert len(counted) == 500


def test_a_trace_can_be_cut_sped_up_and_labelled(tmp_path: Path):
    times = np.arange(10) * 2.0
    trace = pd.DataFrame({"arrival_s": times, "prompt_tokens": 9, "output_tokens": 3})
    write_requests(trace, tmp_path / "t.csv")
    table = make(
        base=tmp_path,
        requests="t.csv",
        window_s=[4, 16],
        rate_scale=2,
        duration_s=5,
        count=4,
        traffic_class="batch",
        deadline_s=60,
    )
    assert table["arrival_s"].tolist() == [0, 1, 2, 3]
    assert set(table["class"]) == {"batch"}
    assert set(table["deadline_s"]) == {60}
    drawn = make(base=tmp_path, requests="t.csv", synthesise=True, duration_s=1000, rate_scale=4)
    assert len(drawn) == pytest.approx(2000, rel=0.05)
    assert set(drawn["prompt_tokens"]) == {9}
    from_trace = {"kind": "trace", "path": "t.csv"}
    mixed = make(base=tmp_path, arrivals=from_trace, lengths=BOTH, count=3)
    assert mixed["arrival_s"].tolist() == [0, 2, 4]


def test_a_mix_has_every_class():
    table = make(
        duration_s=200,
        mix=[
            {"named": "chat", "traffic_class": "online", "priority": -1},
            {"named": "batch-reports", "traffic_class": "batch", "count": 30},
            {"named": "rag", "traffic_class": "rag"},
        ],
    )
    counts = table["class"].value_counts()
    assert counts["batch"] == 30
    assert counts["online"] == pytest.approx(400, abs=80)
    assert set(table.loc[table["class"] == "online", "priority"]) == {-1}
    assert (check_requests(table)["arrival_s"].diff().iloc[1:] >= 0).all()
    rag = table[table["class"] == "rag"]
    assert len({int(ids[0]) for ids in rag["hash_ids"]}) == 1
    alone = make(duration_s=200, mix=[{"named": "chat"}])
    assert len(alone) == counts["online"]


def test_a_closed_loop_is_for_the_simulator_to_drive():
    loop = closed_loop(WorkloadSpec(named="batch-labelling"))
    assert isinstance(loop, ClosedLoop)
    assert loop.concurrency == 128
    assert (make(named="batch-labelling", count=10)["arrival_s"] == 0).all()
    assert closed_loop(WorkloadSpec(named="chat")) is None


LOOP = {"kind": "closed-loop", "concurrency": 2}
TURNS = {"kind": "multi-turn", "turns": CONSTANT, "pause_s": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "give requests, named or arrivals"),
        ({"named": "chatt"}, "no workload named 'chatt'; did you mean 'chat'?"),
        ({"requests": "a.csv", "named": "chat"}, "requests and named are given; keep one"),
        ({"requests": "none.csv"}, "no such file"),
        ({"arrivals": POISSON}, "arrivals need lengths, such as lengths = 'azure-conv'"),
        ({"arrivals": POISSON, "lengths": BOTH}, "arrivals have no end; give duration_s"),
        ({"arrivals": POISSON, "lengths": "azure", "duration_s": 9}, "no length distribution na"),
        ({"arrivals": POISSON, "lengths": BOTH, "duration_s": 1e-6}, "no request arrives in"),
        ({"arrivals": POISSON, "lengths": BOTH, "duration_s": 0}, "greater than 0, got 0"),
        ({"arrivals": LOOP, "lengths": BOTH, "sharing": TURNS, "count": 3}, "closed loop cannot"),
        ({"named": "chat", "synthesise": True}, "synthesise and window_s need requests"),
        ({"requests": "a.csv", "synthesise": True, "duration_s": 1}, "no such file"),
        ({"requests": "a.csv", "lengths": BOTH}, "a trace has its own"),
        ({"requests": "a.csv", "sharing": TURNS}, "a trace has its own"),
        ({"mix": [{"named": "chat"}], "named": "chat"}, "mix replaces requests"),
        ({"mix": [{}]}, "each part of mix needs requests, named or arrivals"),
        ({"named": "chat", "rate": 3}, "rate is not a known key, did you mean 'rate_scale'?"),
    ],
)
def test_bad_workloads_are_explained(tmp_path: Path, data, message):
    with pytest.raises(InputError) as caught:
        make(base=tmp_path, **data)
    assert message in str(caught.value)


def test_synthesis_needs_a_duration(tmp_path: Path):
    trace = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": 9, "output_tokens": 3})
    write_requests(trace, tmp_path / "t.csv")
    with pytest.raises(InputError, match="synthesise has no end; give duration_s"):
        make(base=tmp_path, requests="t.csv", synthesise=True)


def test_user_folders_are_searched(tmp_path: Path):
    text = (Path(fit_workloads.__file__).parent / "data" / "workloads" / "chat.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace("rate_per_s = 2", "rate_per_s = 7"))
    mine = workloads.with_folders(tmp_path).load("mine")
    assert mean_rate(mine.arrivals) == 7
    assert load_workload(str(tmp_path / "mine.toml")) == mine


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "named": st.sampled_from(["chat", "rag", "agent-multi-turn", "edge-single-stream"]),
            "arrivals": st.sampled_from([POISSON, LOOP, {"kind": "burst"}]),
            "lengths": st.sampled_from(["rag", BOTH, "none"]),
            "sharing": st.sampled_from([TURNS, {"kind": "shared-prefix", "tokens": CONSTANT}]),
            "count": st.integers(-1, 40),
            "duration_s": st.floats(0, 30),
            "rate_scale": st.floats(0.01, 3),
            "priority": st.integers(),
        },
    ),
    st.integers(0, 2**63),
)
def test_any_combination_gives_a_table_or_an_input_error(data, seed):
    try:
        table = make(seed, **data)
    except InputError:
        return
    assert len(table) <= data.get("count", 10**6)
    assert (table["arrival_s"] < data.get("duration_s", np.inf)).all()
    assert isinstance(spec_of(data), WorkloadPart)
