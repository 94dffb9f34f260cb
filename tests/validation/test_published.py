"""Other people's tables: every row a case or a counted reason; what is kept of them."""

import pandas as pd
import pytest

from validation import published
from validation.kept import published_rows
from validation.published import Case, Load, by_group, judge
from validation.published_readers import READERS, _not_served, _ranks, read_all
from validation.words_kept import absent_table, published_table


def written(folder, name, rows):
    pd.DataFrame(rows).to_csv(folder / name, index=False)
    return read_all(folder)


def test_every_row_is_a_case_or_has_a_reason(shared):
    found = read_all(shared / "groundtruth")
    count = sum(len(pd.read_csv(shared / "groundtruth" / name)) for name in READERS)
    assert len(found.cases) + sum(found.absent.values()) == count
    assert {case.dataset for case in found.cases} == {
        "TensorRT-LLM throughput",
        "TensorRT-LLM serving",
        "TensorRT-LLM batches",
        "Splitwise phases",
        "GPUStack lab",
        "Argonne batches",
        "dstack prefill/decode",
    }
    assert all(value > 0 for case in found.cases for value in case.measured.values())


def test_files_that_are_not_there_are_named(tmp_path):
    found = read_all(tmp_path)
    assert found.cases == []
    assert {key for key, _ in found.absent} == set(READERS)


def test_milliseconds_and_ranks_of_a_serving_row(tmp_path):
    row = {"model": "LLaMA 3.1 70B", "gpu": "H100-80GB", "tp": 4, "isl_mean": 467}
    row |= {"osl_mean": 256, "qps": 2, "ttft_mean_ms": 62, "itl_mean_ms": 21}
    found = written(tmp_path, "trtllm_0.14_online_serving.csv", [row, row | {"gpu": "H99"}])
    assert found.absent["TensorRT-LLM serving", "no accelerator H99 in the catalog"] == 1
    case = found.cases[0]
    assert case.measured == pytest.approx({"ttft_mean_s": 0.062, "tpot_mean_s": 0.021})
    assert case.scenario().hardware.tp == 4
    table = case.load.table()
    assert len(table) == 500
    assert table["arrival_s"].iloc[-1] == pytest.approx(250, rel=0.2)


@pytest.mark.parametrize(
    ("command", "workload", "reason"),
    [
        ("vllm serve Qwen/Qwen3-8B -tp 2 --max-num-batched-tokens 4096", "", ""),
        ("python3 -m sglang.launch_server --model-path a/b --tp-size 2", "", ""),
        ("vllm serve a/b --kv-cache-dtype fp8", "", "option --kv-cache-dtype has no counterpart"),
        ("python3 -m sglang.launch_server --model a/b --tp 4 --tool-call-parser glm", "", ""),
        ("export A_B=0\nvllm serve a/b", "", "environment variable A_B has no counterpart"),
        ("# as vLLM\nvllm serve a/b -tp 2", "", ""),
        ("vllm serve a/b-AWQ", "", "AWQ"),
        ("vllm serve a/b", "--speculative-algorithm EAGLE3", "speculative"),
        ("nan", "", "not given"),
    ],
)
def test_serving_commands(command, workload, reason):
    found = _not_served(command, workload)
    assert reason in found
    assert bool(found) == bool(reason)


def test_ranks():
    assert _ranks("TP2") == {"hardware.tp": 2}


def test_cases_are_judged_and_grouped():
    words, measured = ("vLLM", "bf16"), {"batch_s": 0.25}
    good = Case("d", 0, "h200-sxm", "llama-3.1-8b", *words, Load(512, 32, 4), measured)
    large = Case("d", 1, "t4", "llama-3.1-70b", *words, Load(8, 8, 1), measured)
    found = published.Found([good, large])
    rows = judge(found)
    assert rows["error"].iloc[0] == pytest.approx(rows["predicted"].iloc[0] / 0.25 - 1)
    assert rows["level"].tolist() == ["own_burst"]
    assert (rows["low_log"] > 0).all()
    assert len(found.absent) == 1
    groups = by_group(rows)
    assert groups["rows"].tolist() == [1]
    assert groups["median"].iloc[0] == pytest.approx(abs(rows["error"].iloc[0]))


def test_kept_errors_become_tables():
    kept, lost = published.stored(), published.absent()
    assert len(kept) > 50
    assert set(kept["dataset"]) >= {"Argonne batches", "Splitwise phases", "GPUStack lab"}
    assert lost["rows"].sum() > 1000
    assert lost["rows"].dtype.kind == "i", "reasons may hold a comment sign"
    shown = published_table(kept)
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert absent_table(lost).brief() == []
    assert set(published_rows(kept)["licence"]) == {"Apache-2.0", "MIT", "BSD-3-Clause"}


def test_reasons_stay_whole_sentences_and_are_counted_together():
    found = published.Found()
    for tokens in (4096, 8192):
        found.drop("d", f"a request of {tokens} tokens is longer than Falcon-180B serves")
    assert found.absent == {("d", "a request of 4096 tokens is longer than Falcon-180B serves"): 2}
    found.drop("d", "a request of 4096 tokens is longer than Falcon-40B serves")
    assert len(found.absent) == 2
