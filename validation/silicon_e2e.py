"""TTFT and TPOT of multi-GPU engines, simulated beside a table of measured configurations.

The table is NVIDIA's ``silicon_e2e.csv`` (aiconfigurator, Apache-2.0): InferenceX runs of October
2025 (Llama 70B) and NVIDIA's own (Llama 8B), means over requests. It is not part of this project;
give its path. Each row is a closed loop of `concurrency` users. What was found is kept by system,
engine and tensor ranks (`STORED`), made by ``python -m validation.silicon_e2e PATH``.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from sim.scenario import Scenario
from sim.simulation import simulate
from validation.foreign import read_foreign

__all__ = [
    "FITTED",
    "LIMITS",
    "STORED",
    "Protocol",
    "compare",
    "dense_rows",
    "each_row",
    "judge",
    "main",
    "predict",
    "protocol_of",
    "scenario_of",
    "stored",
]

STORED = Path(__file__).parent / "data" / "silicon_e2e.csv"
NEEDED = (
    "id",
    "backend",
    "model_path",
    "system",
    "mode",
    "isl",
    "osl",
    "concurrency",
    "tp_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
SYSTEMS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm"}
FORMATS = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8"}
LIMITS = {"tpot": 0.12, "ttft": 0.30}
"""Median absolute errors that a group is held to."""
FITTED = {
    ("b200_sxm", "vllm", 2),
    ("b200_sxm", "trtllm", 2),
    ("h200_sxm", "trtllm", 2),
    ("h100_sxm", "trtllm", 1),
    ("h100_sxm", "trtllm", 8),
    ("h200_sxm", "sglang", 1),
    ("h200_sxm", "sglang", 8),
}
"""System, engine, tensor ranks of groups of which `validation.fit_profiles` sees rows."""
GROUP = ["system", "backend", "tp_size"]
WAVES = 10  # requests of a user
SOURCE = "silicon_e2e.csv of NVIDIA aiconfigurator"
LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class Protocol:
    """How a source measured.

    Attributes
    ----------
    profile : str
        Engine profile.
    low : float
        Lengths are uniform between this share of the nominal one and all of it [1].
    spare_seqs : int
        Sequences by which the engine's limit exceeds the users; negative: falls short.
    max_tokens : int
        Tokens of a step at most [token].
    kv : str
        Format of the KV cache.
    wait_steps : int
        Decode steps that a prompt waits for company before it is computed [step].
    count : int, optional
        Requests of a run, none = ten per user.
    """

    profile: str
    low: float
    spare_seqs: int
    max_tokens: int
    kv: str
    wait_steps: int = 0
    count: int | None = None


def protocol_of(row: pd.Series) -> Protocol:
    """Return how a row was measured.

    Llama 70B: scripts ``benchmarks/70b_*`` of SemiAnalysisAI/InferenceX at commits 73ef9225 (H200,
    TensorRT-LLM), a267b4bd (B200, TensorRT-LLM) and 2a205bb3 (H100, vLLM), and the README of its
    time for vLLM on B200 (Apache-2.0): random_range_ratio 0.8, ten requests per user, as many
    sequences as users and 8192 tokens per step in vLLM, fp8 KV cache; TensorRT-LLM with up to 16384
    tokens per step and, for 1024 in and 1024 out on fewer than 8 ranks,
    ``batch_wait_timeout_iters: 20`` with a ratio of 0.9 that few users never reach. The H100 rows
    queue at 64 users on two ranks as they do with a 16-bit cache.

    Llama 8B: the scripts are not public; what is taken for them was read off rows that the profiles
    are fitted on. Lengths are fixed. TensorRT-LLM: TTFT grows by one residence time over the number
    of users, as with one sequence fewer than users; the burst of prompts of a start does not show
    on one GPU with few users and does with many, as in runs of a few thousand requests whatever the
    users.
    """
    kind, hopper = row["backend"], row["system"] != "b200_sxm"
    if "70B" not in row["model_path"]:
        if kind == "trtllm":
            return Protocol("trtllm-1.0rc3-hopper", 1.0, -1, 8192, "bf16", count=4000)
        return Protocol("sglang-0.5", 1.0, 0, 8192, "bf16")
    if kind == "vllm":
        profile = "vllm-0.24" if hopper else "vllm-0.10-fused"
        return Protocol(profile, 0.8, 0, 8192, "bf16" if hopper else "fp8")
    waits = row["isl"] == row["osl"] == 1024 and row["tp_size"] < 8
    profile = "trtllm-1.0-hopper" if hopper else "trtllm-1.0-blackwell"
    return Protocol(profile, 0.8, 64, 16384, "fp8", 20 if waits else 0)


def dense_rows(path: Path) -> pd.DataFrame:
    """Return the aggregated Llama rows of systems with NVLink.

    Raises
    ------
    InputError
        The file is missing or lacks a column.
    """
    table = read_foreign(path, NEEDED)
    llama = table["model_path"].str.contains("Llama") & (table["mode"] == "agg")
    return table[llama & table["system"].isin(SYSTEMS)].reset_index(drop=True)


def scenario_of(row: pd.Series) -> Scenario:
    """Return the scenario of one row."""
    how, users = protocol_of(row), int(row["concurrency"])
    batching = {
        "name": "chunked-prefill",
        "max_num_seqs": users + how.spare_seqs,
        "max_num_batched_tokens": how.max_tokens,
    }
    return Scenario.model_validate(
        {
            "hardware": {"accelerator": SYSTEMS[row["system"]], "tp": int(row["tp_size"])},
            "model": {
                "name": "llama-3.1-70b" if "70B" in row["model_path"] else "llama-3.1-8b",
                "weights": FORMATS.get(str(row.get("gemm_quant_mode")), "bf16"),
                "kv": how.kv,
            },
            "engine": {"profile": how.profile},
            "workload": {
                "arrivals": {"kind": "closed-loop", "concurrency": users},
                "lengths": "azure-conv",
                "count": 1,
            },
            "policies": {"batching": batching, "caching": {"name": "none"}},
            "run": {"step_log": False},
        }
    )


def requests_of(row: pd.Series) -> pd.DataFrame:
    """Return the requests of one row."""
    how = protocol_of(row)
    count = how.count or int(row["concurrency"]) * WAVES
    rng = np.random.default_rng(0)
    lengths = {
        name: rng.integers(int(row[key] * how.low), int(row[key]) + 1, count)
        for name, key in (("prompt_tokens", "isl"), ("output_tokens", "osl"))
    }
    return pd.DataFrame({"arrival_s": np.zeros(count), **lengths})


def predict(row: pd.Series, scenario: Scenario | None = None) -> tuple[float, float]:
    """Return (mean TTFT, mean TPOT) of a row [s]."""
    requests = simulate(scenario or scenario_of(row), requests_of(row)).requests
    ttft = requests["first_token_s"] - requests["arrival_s"]
    tpot = (requests["finish_s"] - requests["first_token_s"]) / (requests["output_tokens"] - 1)
    each = float(tpot.mean())
    return float(ttft.mean()) + protocol_of(row).wait_steps * each, each


def each_row(rows: pd.DataFrame) -> list[pd.Series]:
    """Return the rows of a table one by one."""
    return [row for _, row in rows.iterrows()]


def compare(rows: pd.DataFrame, workers: int = 1) -> pd.DataFrame:
    """Return the rows with predictions and relative errors.

    Parameters
    ----------
    rows : DataFrame
        As `dense_rows` returns them.
    workers : int
        Processes that simulate.

    Returns
    -------
    DataFrame
        Columns ``ttft_s``, ``tpot_s`` [s], ``ttft_error``, ``tpot_error`` (predicted over
        measured, minus 1) beside those of `rows`.
    """
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        found = np.array(list(pool.map(predict, each_row(rows), chunksize=4)))
    out = rows.assign(ttft_s=found[:, 0], tpot_s=found[:, 1])
    for name in LIMITS:
        out[f"{name}_error"] = out[f"{name}_s"] / (out[f"silicon_{name}_ms"] * 1e-3) - 1.0
    return out


def judge(compared: pd.DataFrame) -> pd.DataFrame:
    """Return signed and absolute median errors per system, engine and tensor ranks.

    Returns
    -------
    DataFrame
        system, backend, tp_size, fitted (yes where `validation.fit_profiles` sees the rows), rows,
        and for tpot and ttft: bias, median, limit [1].
    """
    groups = compared.astype({"tp_size": int}).groupby(GROUP)
    out = pd.DataFrame({"rows": groups.size()})
    for name, limit in LIMITS.items():
        out[f"{name}_bias"] = groups[f"{name}_error"].median()
        out[f"{name}_median"] = groups[f"{name}_error"].agg(lambda e: e.abs().median())
        out[f"{name}_limit"] = limit
    out = out.reset_index()
    keys = zip(out["system"], out["backend"], out["tp_size"], strict=True)
    out.insert(3, "fitted", ["yes" if key in FITTED else "no" for key in keys])
    return out


def stored() -> pd.DataFrame:
    """Return what was found when the table was last compared, as `judge` returns it."""
    return pd.read_csv(STORED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all rows, print and keep the errors by group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="silicon_e2e.csv or .csv.gz")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate")
    given = parser.parse_args(arguments)
    try:
        found = judge(compare(dense_rows(given.path), given.workers))
    except InputError as e:
        parser.error(str(e))
    sys.stdout.write(found.round(3).to_string(index=False) + "\n")
    with atomic_write(STORED) as path:
        found.to_csv(path, index=False, float_format="%.4f")
    return 0


if __name__ == "__main__":
    sys.exit(main())
