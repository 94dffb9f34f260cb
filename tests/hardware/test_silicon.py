"""NVIDIA's tables in our columns: units, names, what is dropped, what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware import silicon
from sim.cli import run

TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "silicon"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="NVIDIA's tables are not at hand")


@pytest.fixture
def folder(tmp_path):
    """Make tables of three rows with one duplicate, one bad time and one of no counterpart."""
    pytest.importorskip("pyarrow")
    gemm = pd.DataFrame(
        {
            "kernel_source": "x",
            "gemm_dtype": ["bfloat16", "bfloat16", "nvfp4", "mystery", "fp8"],
            "m": [1, 1, 2, 3, 4],
            "n": 64,
            "k": 32,
            "latency": [0.002, 0.004, 0.001, 0.001, 0.0],
        }
    )
    attention = pd.DataFrame(
        {
            "batch_size": [2, 2, 2],
            "isl": 1,
            "num_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": ["bfloat16", "fp8", "bfloat16"],
            "step": [127, 127, 127],
            "window_size": [0, 0, 128],
            "latency": [0.01, 0.02, 0.03],
        }
    )
    moe = pd.DataFrame(
        {
            "moe_dtype": ["bfloat16", "bfloat16", "bfloat16", "int4_wo"],
            "num_tokens": 4,
            "hidden_size": [1024, 1024, 2688, 1024],
            "inter_size": 512,
            "topk": 2,
            "num_experts": 8,
            "moe_tp_size": [2, 1, 1, 1],
            "moe_ep_size": [1, 4, 1, 1],
            "distribution": "balanced",
            "latency": [0.05, 0.05, 0.05, 0.06],
        }
    )
    nccl = pd.DataFrame(
        {
            "op_name": "alltoall",
            "nccl_dtype": ["half", "int8"],
            "num_gpus": 2,
            "message_size": [512, 1024],
            "latency": [0.007, 0.009],
        }
    )
    names = {"gemm": gemm, "context_attention": attention, "generation_attention": attention}
    for name, table in {**names, "moe": moe, "nccl": nccl}.items():
        table.to_parquet(tmp_path / f"l40s__{name}_perf.parquet")
    return tmp_path


def test_gemm_means_duplicates_and_counts_what_is_lost(folder):
    found = silicon.read_gemm(folder, "l40s")
    assert found.table.to_dict("list") == {
        "dtype": ["bf16", "fp4"],
        "m": [1, 2],
        "n": [64, 64],
        "k": [32, 32],
        "us": pytest.approx([3.0, 1.0]),
    }
    assert found.rows == 5
    assert found.dropped == {
        "time missing or not positive": 1,
        "gemm_dtype mystery has no counterpart": 1,
    }


def test_decode_context_counts_the_new_token(folder):
    found = silicon.read_decode(folder, "l40s")
    assert found.table["context"].tolist() == [128]
    assert found.table["us"].tolist() == [10.0]
    assert found.dropped == {"sliding window": 1, "KV cache not bf16": 1}
    assert silicon.read_decode(folder, "l40s", "fp8").table["us"].tolist() == [20.0]


def test_experts_of_one_rank(folder):
    found = silicon.read_moe(folder, "l40s")
    assert found.table["dtype"].tolist() == ["bf16", "w4a16"]
    assert found.table["intermediate"].tolist() == [256, 512]
    assert found.dropped == {
        "share of the experts (expert parallel)": 1,
        "experts without a gate": 1,
    }


def test_messages_are_counted_in_elements(folder):
    table = silicon.read_collectives(folder, "l40s").table
    assert table["bytes"].tolist() == [1024, 1024]
    assert set(table["op"]) == {"all_to_all"}


def test_written_traces_are_read_by_the_calibration(folder, tmp_path):
    from hardware.calibration_traces import read_traces

    found = silicon.read_traces(folder, "l40s")
    files = silicon.write_tables(found, tmp_path / "out", "a made-up table", "2026-01-31")
    assert {f.name for f in files} >= {"gemm_bf16.csv", "attention_decode.csv", "moe_bf16.csv"}
    read = read_traces(tmp_path / "out")
    assert read["gemm_bf16"]["s"].tolist() == pytest.approx([3e-6])
    assert read["attention_prefill"]["past"].tolist() == [127]


def test_the_newest_version_in_the_folders_of_the_packages_is_read(folder, tmp_path):
    old, new = (tmp_path / "data" / "l40s" / "gemm" / "vllm" / v for v in ("0.9.1", "0.10.0"))
    for place, latency in ((old, 0.001), (new, 0.007)):
        place.mkdir(parents=True)
        table = pd.read_parquet(folder / "l40s__gemm_perf.parquet").assign(latency=latency)
        table.to_parquet(place / "gemm_perf.parquet")
    assert set(silicon.read_gemm(tmp_path / "data", "l40s").table["us"]) == {7.0}


@pytest.mark.parametrize("arguments", [["-a", "l40"], ["-a", "l40s", "--date", "yesterday"]])
def test_import_refuses_in_one_message(folder, tmp_path, capsys, arguments):
    assert run(["import", str(folder), "-o", str(tmp_path / "out"), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_import_writes_traces_and_counts_every_row(folder, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["import", str(folder), "-a", "l40s", "-o", str(out), "--date", "2026-01-31"]
    assert run([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {Path(name).name for name in printed["files"]} >= {"gemm_bf16.csv", "moe_bf16.csv"}
    gemm = {row["what"]: row["rows"] for row in printed["rows"] if row["table"] == "gemm"}
    assert sum(gemm.values()) == 5
    assert gemm["left out: gemm_dtype mystery has no counterpart"] == 1
    about = json.loads((out / "about.json").read_text())
    assert about["date"] == "2026-01-31"
    assert "Apache-2.0" in about["source"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: silicon.read_gemm(f, "h200"), "did you mean 'h200-sxm'"),
        (lambda f: silicon.read_gemm(f, "a100-sxm"), "no table gemm_perf.parquet of a100_sxm"),
        (lambda f: silicon.read_decode(f, "l40s", "int8"), "no KV precision"),
        (lambda f: silicon.read_traces(f, "l40s", ["gem"]), "did you mean 'gemm'"),
    ],
)
def test_bad_input_is_refused(folder, call, message):
    with pytest.raises(InputError, match=message):
        call(folder)


def test_broken_file_is_refused(folder):
    (folder / "l40s__gemm_perf.parquet").write_text("not parquet")
    with pytest.raises(InputError, match="not a Parquet table"):
        silicon.read_gemm(folder, "l40s")


def test_missing_pyarrow_is_named(folder, monkeypatch):
    monkeypatch.setattr(silicon, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"roofcast\[parquet\]"):
        silicon.read_gemm(folder, "l40s")


@needs_tables
@pytest.mark.parametrize("accelerator", list(silicon.SYSTEMS))
def test_every_system_is_read_whole(accelerator):
    for family, found in silicon.read_traces(TABLES, accelerator).items():
        table = found.table
        repeats = found.rows - sum(found.dropped.values()) - len(table)
        assert 0 <= repeats <= 0.1 * found.rows, family
        assert len(table) > 1000 or (accelerator == "a100-sxm" and family.endswith("fp8"))
        assert (table["us"] > 0.5).all()
        assert np.isfinite(table["us"]).all()


@needs_tables
def test_large_products_stay_under_the_peak():
    table = silicon.read_gemm(TABLES, "h200-sxm").table
    big = table[(table["dtype"] == "bf16") & (table["m"] * table["n"] * table["k"] > 2**38)]
    rate = 2.0 * big["m"] * big["n"] * big["k"] / (big["us"] * 1e-6)
    assert 600e12 < rate.max() < 989.4e12
