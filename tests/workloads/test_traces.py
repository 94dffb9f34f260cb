import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formats import InputError
from workloads.arrivals import Burst, Gaps, Piecewise
from workloads.lengths import length_statistics
from workloads.requests import check_requests
from workloads.synthesis import fit_arrivals, gap_variation, synthesise
from workloads.traces import (
    READERS,
    day_shape,
    detect_format,
    read_trace,
    scale_trace_rate,
    time_window,
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9799600,4808,10
2023-11-17 00:00:00.2299600,3180,8
2023-11-17 00:00:01.4799600,110,27
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type
5,s1,2,ChatGPT,472,18,Conversation log
45,s2,1,GPT-4,1087,0,API log
118,s1,3,GPT-4,417,276,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}
{"timestamp": 2500, "input_length": 600, "output_length": 3, "hash_ids": [0, 3]}
"""
FINE = [*range(70)], [*range(32), *range(900, 908)]
SIMULATED = "\n".join(
    json.dumps({"timestamp_ms": t, "input_length": n, "output_length": 2, "hash_ids": ids})
    for t, n, ids in ((1.5, 1125, FINE[0]), (2.5, 640, FINE[1]))
)
SHAREGPT = json.dumps(
    [
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "a" * 400},
                {"from": "gpt", "value": "b" * 80},
                {"from": "human", "value": "c" * 40},
                {"from": "gpt", "value": "d" * 8},
            ],
        },
        {"id": "y", "conversations": [{"from": "human", "value": "?"}]},
    ]
)
CSV = "prompt_tokens,arrival_s,output_tokens,class\n5,0.5,2,a\n6,0.75,3,\n"
SAMPLES = {
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
    "llmservingsim": SIMULATED,
    "sharegpt": SHAREGPT,
    "csv": CSV,
}


def write(folder: Path, text: str, name: str = "t.txt") -> Path:
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["t.dat", "t.gz"])
@pytest.mark.parametrize("kind", list(SAMPLES))
def test_the_format_is_found_by_content(tmp_path: Path, kind: str, name: str):
    path = write(tmp_path, SAMPLES[kind], name)
    assert detect_format(path) == kind
    pd.testing.assert_frame_equal(read_trace(path), read_trace(path, kind))


def test_every_reader_has_a_sample():
    assert set(SAMPLES) == set(READERS)


def test_azure_times_start_at_zero_and_cross_midnight(tmp_path: Path):
    table = read_trace(write(tmp_path, AZURE))
    assert table["arrival_s"].to_numpy() == pytest.approx([0, 0.25, 1.5], abs=1e-6)
    assert table["prompt_tokens"].tolist() == [4808, 3180, 110]
    zoned = AZURE.replace("00", "00", 1).replace("9600,", "9600+00:00,")
    assert read_trace(write(tmp_path, zoned))["arrival_s"].iloc[2] == pytest.approx(1.5, abs=1e-6)


def test_burstgpt_leaves_failures_out(tmp_path: Path):
    table = read_trace(write(tmp_path, BURSTGPT))
    assert table["arrival_s"].tolist() == [5, 118]
    assert table["output_tokens"].tolist() == [18, 276]
    assert table["class"].tolist() == ["ChatGPT", "GPT-4"]
    assert table["session"].tolist() == ["s1", "s1"]


def test_mooncake_is_in_milliseconds_with_hashes(tmp_path: Path):
    table = read_trace(write(tmp_path, MOONCAKE))
    assert table["arrival_s"].tolist() == [0, 2.5]
    assert [ids.tolist() for ids in table["hash_ids"]] == [[0, 1, 2], [0, 3]]
    plain = MOONCAKE.replace(', "hash_ids": [0, 1, 2]', "").replace(', "hash_ids": [0, 3]', "")
    assert "hash_ids" not in read_trace(write(tmp_path, plain))


def test_sixteen_token_hashes_become_hashes_of_512(tmp_path: Path):
    ids = [list(row) for row in read_trace(write(tmp_path, SIMULATED))["hash_ids"]]
    assert ids[0][:2] == [31, 63]  # the last of each 32
    assert ids[1][0] == 31  # equal up to token 512
    assert len(ids[0]) == 3
    assert len(ids[1]) == 2
    assert ids[0][2] != ids[1][1]  # begun blocks are shared by nobody


def test_sharegpt_turns_repeat_the_conversation(tmp_path: Path):
    table = read_trace(write(tmp_path, SHAREGPT))
    assert table["prompt_tokens"].tolist() == [100, 100 + 20 + 10]
    assert table["output_tokens"].tolist() == [20, 2]
    assert table["prefix_tokens"].tolist() == [0, 100]
    lines = "\n".join(json.dumps(item) for item in json.loads(SHAREGPT))
    pd.testing.assert_frame_equal(table, read_trace(write(tmp_path, lines)))


BAD = [
    ("", "is of no known trace format"),
    ("hello\n", "is of no known trace format"),
    ("{", "is of no known trace format"),
    ("arrival_s\n1\n", "column 'prompt_tokens' is missing"),
    ("arrival_s,prompt_tokens,output_tokens\n", "holds no requests"),
    (AZURE.replace("110,27", "110"), "output_tokens is empty in row 3"),
    (AZURE.replace("4808", "many"), "prompt_tokens is many in row 1"),
    (AZURE.replace("2023-11-17 00:00:01", "yesterday"), "TIMESTAMP is 'yesterday.4799600' in row"),
    (AZURE.replace("00:00:01", "00:00:00.0", 1), "TIMESTAMP is"),
    (AZURE.replace("2023-11-17 00:00:01", "2023-11-16 00:00:01"), "arrival_s falls from"),
    (AZURE.split("\n", 1)[0] + "\n", "holds no requests"),
    (MOONCAKE.replace("1100", "-1"), "prompt_tokens is -1 in row 1"),
    (MOONCAKE.replace("1100", "true"), "prompt_tokens is True in row 1"),
    (MOONCAKE.replace("1100", "[1]"), "prompt_tokens is [1] in row 1"),
    (MOONCAKE.replace("1100", "null"), "prompt_tokens is empty in row 1"),
    (MOONCAKE.replace("2500", "NaN"), "arrival_s is empty in row 2"),
    (MOONCAKE.replace("2500", "1e999"), "arrival_s is inf in row 2"),
    (MOONCAKE.replace("[0, 3]", "[0]"), "row 2 has 1 hash_ids for a prompt of 600 tokens"),
    (MOONCAKE.replace("[0, 3]", '"0 x"'), "hash_ids in row 2 is not a list of whole numbers"),
    (MOONCAKE.replace(', "hash_ids": [0, 3]', ""), "hash_ids is in 1 of 2 rows"),
    (MOONCAKE.replace('"output_length": 3', '"output": 3'), "line 2: 'output_length' is missing"),
    (MOONCAKE[:-10], "line 2: is not valid JSON"),
    (MOONCAKE + "[1]\n", "line 3: is not a JSON object"),
    (MOONCAKE + "[" * 100_000, "line 3: is not usable JSON"),
    (SIMULATED.replace("[0, 1,", "[1,"), "is not one number for each 16 tokens"),
    (SHAREGPT.replace('"value"', '"text"'), "conversation 1: a turn has no text in 'value'"),
    (SHAREGPT.replace('"id": "x", "conversations"', '"conversations": 1, "c"'), "is not a list"),
    (SHAREGPT[:-4], "is not valid JSON"),
    ('[{"conversations": []}]', "holds no requests"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_every_bad_trace_is_explained(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read_are_explained(tmp_path: Path):
    whole = write(tmp_path, MOONCAKE * 200, "whole.gz").read_bytes()
    cases = {
        "cut.gz": (whole[:-30], "cannot be read"),
        "garbage.gz": (whole[:40] + b"\xff" * 40 + whole[80:], "cannot be read"),
        "plain.gz": (MOONCAKE.encode(), "cannot be read"),
        "latin.csv": (
            "arrival_s,prompt_tokens,output_tokens\n0,5,\xe9\n".encode("latin-1"),
            "UTF-8",
        ),
        "binary.bin": (bytes(range(256)) * 20, "no known trace format"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=message):
            read_trace(tmp_path / name)
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "whole", "no such file; did you mean 'whole.gz'?"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(InputError) as caught:
            read_trace(path)
        assert message in str(caught.value)
    with pytest.raises(InputError, match="no trace format named 'azur'; did you mean 'azure'"):
        read_trace(tmp_path / "whole.gz", "azur")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(SAMPLES)),
    st.sampled_from([*SAMPLES, "auto"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=6)), max_size=4),
    st.booleans(),
)
def test_any_damage_gives_a_table_or_an_input_error(tmp_path, sample, kind, damage, packed):
    data = SAMPLES[sample].encode()
    if packed:
        data = gzip.compress(data)
    for share, removed, added in damage:
        at = int(share * len(data))
        data = data[:at] + added + data[at + removed :]
    path = tmp_path / ("fuzz.gz" if packed else "fuzz.txt")
    path.write_bytes(data)
    try:
        table = read_trace(path, kind)
    except InputError:
        return
    assert len(check_requests(table)) > 0


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*SAMPLES, "auto"]), st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_give_a_table_or_an_input_error(tmp_path, kind, data):
    path = tmp_path / "fuzz"
    path.write_bytes(data)
    try:
        read_trace(path, kind)
    except InputError:
        return


def test_windows_shift_time_and_start_sessions_afresh():
    table = pd.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0, 3.0],
            "prompt_tokens": [10, 20, 30, 40],
            "output_tokens": 1,
            "session": "a",
            "prefix_tokens": [0, 10, 20, 30],
        }
    )
    cut = check_requests(time_window(table, 1, 3))
    assert cut["arrival_s"].tolist() == [0, 1]
    assert cut["prefix_tokens"].tolist() == [0, 20]
    with pytest.raises(InputError, match="no request arrives in \\[5, 9\\) s"):
        time_window(table, 5, 9)
    with pytest.raises(InputError, match="window \\[2, 2\\) s is empty"):
        time_window(table, 2, 2)


def test_a_faster_trace_is_shorter():
    table = pd.DataFrame({"arrival_s": [0.0, 3.0], "prompt_tokens": 1, "output_tokens": 1})
    assert scale_trace_rate(table, 1.5)["arrival_s"].tolist() == [0, 2]
    with pytest.raises(InputError, match="rate_scale is 0"):
        scale_trace_rate(table, 0)


def test_day_shape_recovers_a_known_shape():
    hours = np.arange(14 * 24)
    hourly = np.where(np.arange(24) < 8, 0.5, 1.25)
    daily = np.array([1.1, 1.1, 1.1, 1.1, 1.1, 0.75, 0.75])
    week = (hours + 30) % 168
    counts = 1000 * hourly[week % 24] * daily[week // 24]
    found = day_shape(hours * 3600.0, start_hour=30, weights=counts)
    assert found[0] == pytest.approx(hourly / hourly.mean(), abs=1e-3)
    assert found[1] == pytest.approx(daily / daily.mean(), abs=1e-3)
    with pytest.raises(InputError, match="spans 1 h"):
        day_shape([0.0, 5.0])


PUBLISHED = {  # requests, duration in s, variation of gaps, mean prompt, mean output
    "azure2023_code.csv.gz": (8819, 3435.9, 13.15, 2047.8, 27.9),
    "azure2023_conv.csv.gz": (19366, 3501.7, 1.09, 1154.7, 211.1),
    "mooncake_conversation_trace.jsonl.gz": (12031, 3537.0, 3.03, 12035.1, 342.6),
    "mooncake_synthetic_trace.jsonl.gz": (3993, 1022.0, 1.01, 15325.5, 149.1),
    "llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl.gz": (300, 29.1, 0.94, 857.5, 652.5),
}


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_public_traces_read_with_their_known_statistics(trace_folder: Path, name: str):
    n, duration, cv, prompt, output = PUBLISHED[name]
    table = read_trace(trace_folder / name)
    assert len(table) == n
    assert np.ptp(table["arrival_s"]) == pytest.approx(duration, abs=0.06)
    assert gap_variation(table["arrival_s"]) == pytest.approx(cv, abs=0.006)
    assert table["prompt_tokens"].mean() == pytest.approx(prompt, abs=0.06)
    assert table["output_tokens"].mean() == pytest.approx(output, abs=0.06)


@pytest.mark.parametrize("name", list(PUBLISHED)[:4])
def test_synthetic_loads_resemble_their_trace(trace_folder: Path, name: str):
    """Rate, variation and quantiles over 4 h agree within their sampling error."""
    trace = read_trace(trace_folder / name)
    made = synthesise(trace, 4 * 3600.0, np.random.default_rng(1))
    span, cv = np.ptp(trace["arrival_s"]), gap_variation(trace["arrival_s"])
    rate = (len(trace) - 1) / span
    assert len(made) / 14_400 == pytest.approx(rate, abs=3 * cv * np.sqrt(rate / 14_400))
    assert gap_variation(made["arrival_s"]) == pytest.approx(cv, rel=0.15)
    a = length_statistics(trace["prompt_tokens"], trace["output_tokens"])
    b = length_statistics(made["prompt_tokens"], made["output_tokens"])
    for side in ("prompt", "output"):
        true, drawn = trace[f"{side}_tokens"], made[f"{side}_tokens"]
        error = true.std() * np.sqrt(1 / len(trace) + 1 / len(made))
        assert drawn.mean() == pytest.approx(true.mean(), abs=3 * error)
        for p in (0.5, 0.95, 0.99):
            quantile = np.quantile(drawn, p)
            slack = 3 * np.sqrt(p * (1 - p) * (1 / len(trace) + 1 / len(made)))
            assert (true < quantile - 1).mean() <= p + slack
            assert (true <= quantile + 1).mean() >= p - slack
    assert b.rank_correlation == pytest.approx(a.rank_correlation, abs=3 / np.sqrt(len(trace)))


def test_a_synthetic_load_follows_the_steps_of_its_trace():
    rng = np.random.default_rng(2)
    times = np.sort(np.append(rng.random(4000) * 1000, 1000 + rng.random(1000) * 1000))
    trace = pd.DataFrame({"arrival_s": times, "prompt_tokens": 5, "output_tokens": 5})
    spec = fit_arrivals(times, step_s=500.0)
    assert isinstance(spec, Piecewise)
    assert spec.cv == pytest.approx(1, abs=0.05)
    made = synthesise(trace, 20_000.0, np.random.default_rng(3), step_s=500.0)
    first = (made["arrival_s"] % np.ptp(times) < 1000 - times[0]).mean()
    assert first == pytest.approx(0.8, abs=0.01)
    faster = synthesise(trace, 20_000.0, np.random.default_rng(3), rate_scale=2)
    assert len(faster) == pytest.approx(2 * 2.5 * 20_000, rel=0.03)


def test_traces_too_small_to_fit_still_give_a_load():
    one = pd.DataFrame({"arrival_s": [3.0], "prompt_tokens": [7], "output_tokens": [2]})
    assert fit_arrivals(one["arrival_s"]) == Burst(count=1)
    made = synthesise(one, 10.0, np.random.default_rng(0))
    assert made[["prompt_tokens", "output_tokens"]].to_numpy().tolist() == [[7, 2]]
    two = fit_arrivals([0.0, 4.0])
    assert isinstance(two, Gaps)
    assert two.rate_per_s == 0.25
    with pytest.raises(InputError, match="step_s is 9 for a trace of 4 s"):
        fit_arrivals([0.0, 4.0], step_s=9)
