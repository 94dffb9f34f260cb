"""A user's own files: three formats read alike, bad ones refused, the host fitted on one half."""

import json

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from sim import Scenario, simulate
from sim.cli import run
from sim.toml import scenario_toml
from validation.user_files import COLUMNS, read_measured
from validation.user_runs import judge_user_run

SLOW = 2.5


@pytest.fixture(scope="module")
def served():
    """What a host 2.5 times slower than the profile's served."""
    changes = {"engine.host_slowness": SLOW, "workload.arrivals.rate_per_s": 5.0, "run.seed": 7}
    return simulate(Scenario().changed(changes)).requests


@pytest.fixture
def files(tmp_path, served):
    """Write the same requests in every format."""
    first = served["first_token_s"] - served["arrival_s"]
    whole = served["finish_s"] - served["arrival_s"]
    vllm = {
        "mean_ttft_ms": 1.0,
        "request_rate": 5.0,
        "max_concurrency": None,
        "ttfts": first.tolist(),
        "itls": [[float(w - f)] for w, f in zip(whole, first, strict=True)],
        "start_times": (served["arrival_s"] + 1e6).tolist(),
        "input_lens": served["prompt_tokens"].tolist(),
        "output_lens": served["output_tokens"].tolist(),
    }
    rows = zip(
        served["arrival_s"], first, whole, served.prompt_tokens, served.output_tokens, strict=True
    )
    guide = [
        {
            "request_start_time": 1e6 + a,
            "time_to_first_token_ms": 1e3 * f,
            "request_latency": w,
            "prompt_tokens": int(p),
            "output_tokens": int(o),
        }
        for a, f, w, p, o in rows
    ]
    (tmp_path / "vllm.json").write_text(json.dumps(vllm))
    (tmp_path / "guide.json").write_text(
        json.dumps({"benchmarks": [{"requests": {"successful": guide}}]})
    )
    served.to_csv(tmp_path / "requests.csv", index=False)
    return tmp_path


def test_three_formats_hold_the_same_requests(files):
    names = ("vllm.json", "guide.json", "requests.csv")
    one, two, three = (read_measured(files / name).requests for name in names)
    for other in (two, three):
        pd.testing.assert_frame_equal(one, other, check_dtype=False, atol=1e-6)
    assert one["arrival_s"].min() == 0
    assert tuple(one.columns) == COLUMNS


def test_users_that_wait_are_a_closed_loop(files):
    content = json.loads((files / "vllm.json").read_text())
    content |= {"request_rate": "inf", "max_concurrency": 8}
    (files / "closed.json").write_text(json.dumps(content))
    assert read_measured(files / "closed.json").concurrency == 8
    del content["start_times"]
    (files / "closed.json").write_text(json.dumps(content))
    assert "sent at once" in read_measured(files / "closed.json").note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ttfts": None}, "--save-detailed"),
        ({"start_times": None}, "arrivals at a finite rate are not known"),
        ({"ttfts": [0.1] * 3}, "not as vllm bench serve writes"),
        ({"output_lens": ["many"] * 3}, "not as vllm bench serve writes"),
    ],
)
def test_bad_vllm_files_are_refused(files, change, message):
    content = json.loads((files / "vllm.json").read_text()) | change
    content = {k: v for k, v in content.items() if v is not None}
    (files / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_measured(files / "bad.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "neither JSON nor CSV"),
        ("[]", "none of the known results"),
        ('{"benchmarks": []}', "holds no benchmark"),
        ('{"benchmarks": [{}]}', "0 finished requests"),
        ('{"benchmarks": 3}', "not as GuideLLM writes"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_measured(tmp_path / "bad.json")


def test_times_out_of_order_are_refused(files):
    table = pd.read_csv(files / "requests.csv")
    table.loc[3, "first_token_s"] = table.loc[3, "finish_s"] + 1
    table.to_csv(files / "bad.csv", index=False)
    with pytest.raises(InputError, match="request 3 has its first token"):
        read_measured(files / "bad.csv")


@pytest.mark.parametrize("key", ["start_times", "itls"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_times_that_are_no_numbers_are_refused(files, key, value):
    content = json.loads((files / "vllm.json").read_text())
    content[key][3] = [value] if key == "itls" else value
    (files / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="no number"):
        read_measured(files / "bad.json")


def test_the_host_is_found_on_one_half_and_helps_on_the_other(files):
    found = judge_user_run(Scenario(), read_measured(files / "requests.csv"))
    assert found.host_slowness == pytest.approx(SLOW, rel=0.25)
    table = found.table.set_index("figure")
    for name in ("ttft_p50_s", "e2e_mean_s"):
        assert abs(table.error_after[name]) < abs(table.error_before[name])
    assert (table.low < table.after).all()
    assert (table.after < table.high).all()
    assert found.fitted + found.judged == len(read_measured(files / "requests.csv").requests)


def test_command_prints_and_writes_the_judgement(files, capfd):
    (files / "scenario.toml").write_text(scenario_toml(Scenario()))
    arguments = ["--measured", str(files / "vllm.json"), "--out", str(files / "out")]
    assert run(["validate", *arguments]) == 2
    assert "--scenario" in capfd.readouterr().err
    assert run(["validate", *arguments, "--scenario", str(files / "scenario.toml"), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    kept = pd.read_csv(files / "out" / "measured.csv")
    assert [row["figure"] for row in printed["rows"]] == kept["figure"].tolist()
    assert np.isfinite(kept["error_after"]).all()
