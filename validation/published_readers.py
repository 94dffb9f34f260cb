"""Readers of other people's tables: each row a case, or counted with the reason why it is none."""

import re
import tomllib
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from formats import read_text
from validation.published import Case, Found, Load

__all__ = ["READERS", "read_all"]

Row = Mapping[Hashable, Any]
NAMES = tomllib.loads(read_text(Path(__file__).parent / "data" / "published_names.toml"))
"""How tables name accelerators and models -> ids in the catalogs."""
FORMATS = {"FP16": "fp16", "BF16": "bf16", "FP8": "fp8", "FP4": "fp4"}
OFFLINE = 3000
"""Requests of an offline run; fewer where prompts are long."""
TOKENS = 2_000_000
"""Prompt and output tokens that an offline run has at most."""
SLOTS = 2048
"""Sequences at once of TensorRT-LLM's throughput runs."""
OTHER_KERNELS = {
    "llama.cpp": "llama.cpp: kernels and formats of its own",
    "Deepspeed": "DeepSpeed: injected kernels without a profile",
    "Deepspeed-MII": "DeepSpeed: injected kernels without a profile",
    "MindIE": "MindIE: no profile, and prefill is scheduled apart",
}
DRAWN = {
    "TensorRT-LLM throughput": 8,
    "Argonne batches": 20,
    "GPUStack lab": 3,
    "Splitwise phases": 2,
    "dstack prefill/decode": 2,
}
"""Data set -> one case in so many is predicted, in the order of its rows."""


def _named(found: Found, dataset: str, row: Row, gpu: str, model: str) -> tuple[str, str] | None:
    """Return catalog ids of accelerator and model, or count why there are none."""
    for words, what in ((gpu, "accelerator"), (model, "model")):
        if words not in NAMES[f"{what}s"]:
            found.drop(dataset, f"no {what} {words} in the catalog")
            return None
    return NAMES["accelerators"][gpu], NAMES["models"][model]


def _trtllm_overview(table: pd.DataFrame, found: Found) -> None:
    """TensorRT-LLM's offline throughput: all requests at once, equal lengths."""
    dataset = "TensorRT-LLM throughput"
    for i, row in enumerate(table.to_dict("records")):
        ids = _named(found, dataset, row, row["gpu"], row["model"])
        ranks = _ranks(row["parallel"])
        if ids is None:
            continue
        prompt, output = int(row["isl"]), int(row["osl"])
        count = max(min(OFFLINE, TOKENS // (prompt + output)), 16)
        changes = ranks | {"policies.batching.max_num_seqs": SLOTS}
        changes["policies.batching.max_num_batched_tokens"] = 8192
        case = Case(
            dataset,
            i,
            *ids,
            "TensorRT-LLM",
            FORMATS[row["precision"]],
            Load(prompt, output, count),
            {"output_tokens_per_s": float(row["out_tok_s_total"])},
            changes,
        )
        found.cases.append(case)


def _ranks(parallel: str) -> dict[str, object]:
    """Return TP4, TP1,PP2 or DEP4 (data-parallel attention, expert-parallel) as scenario keys.

    Examples
    --------
    >>> _ranks("TP1,PP2"), _ranks("DEP4")
    ({'hardware.tp': 1, 'hardware.pp': 2}, {'hardware.dp': 4, 'hardware.ep': 4})
    """
    sizes = {kind.lower(): int(n) for kind, n in re.findall(r"([A-Z]+)(\d+)", parallel)}
    if "dep" in sizes:
        return {"hardware.dp": sizes["dep"], "hardware.ep": sizes["dep"]}
    return {f"hardware.{kind}": n for kind, n in sizes.items()}


def _trtllm_online(table: pd.DataFrame, found: Found) -> None:
    """TensorRT-LLM serving 500 requests at a rate; lengths stand at their means."""
    dataset = "TensorRT-LLM serving"
    for i, row in enumerate(table.to_dict("records")):
        ids = _named(found, dataset, row, row["gpu"], row["model"])
        if ids is None:
            continue
        load = Load(int(row["isl_mean"]), int(row["osl_mean"]), 500, float(row["qps"]))
        measured = {
            "ttft_mean_s": row["ttft_mean_ms"] / 1e3,
            "tpot_mean_s": row["itl_mean_ms"] / 1e3,
        }
        changes = {"hardware.tp": int(row["tp"])}
        case = Case(dataset, i, *ids, "TensorRT-LLM", "bf16", load, measured, changes)
        found.cases.append(case)


def _trtllm_static(table: pd.DataFrame, found: Found) -> None:
    """TensorRT-LLM 0.9: one batch at a time."""
    dataset = "TensorRT-LLM batches"
    for i, row in enumerate(table.to_dict("records")):
        ids = _named(found, dataset, row, row["gpu"], row["model"])
        if ids is None:
            continue
        batch, tp = int(row["batch_size"]), int(row["tp"])
        first = pd.notna(row["ttft_ms"])
        output = 1 if first else int(row["osl"])
        measured = (
            {"ttft_mean_s": row["ttft_ms"] / 1e3}
            if first
            else {"output_tokens_per_s": float(row["out_tok_s_per_gpu"]) * tp}
        )
        changes = {"hardware.tp": tp, "policies.batching.max_num_seqs": max(batch, 1)}
        load = Load(int(row["isl"]), output, batch)
        form = FORMATS[row["precision"]]
        found.cases.append(Case(dataset, i, *ids, "TensorRT-LLM", form, load, measured, changes))


def _splitwise(table: pd.DataFrame, found: Found) -> None:
    """Splitwise: medians of phases, one batch at a time, an engine of 2023 (bf16)."""
    dataset = "Splitwise phases"
    for i, row in enumerate(table.to_dict("records")):
        if "pcap" in row["hardware"]:
            found.drop(dataset, "power-capped H100: prompt times are derived, not measured")
            continue
        ids = _named(found, dataset, row, row["hardware"], row["model"])
        if ids is None:
            continue
        batch = int(row["batch_size"])
        load = Load(int(row["prompt_tokens"]), min(int(row["output_tokens"]), 256), batch)
        measured = {"ttft_mean_s": row["ttft_ms"] / 1e3, "tpot_mean_s": row["tbt_ms"] / 1e3}
        changes = {"hardware.tp": int(row["tp"]), "engine.max_model_len": 16384}
        case = Case(dataset, i, *ids, "vLLM of 2023", "fp16", load, measured, changes)
        found.cases.append(case)


def _argonne(table: pd.DataFrame, found: Found) -> None:
    """Argonne: one batch of equal requests, its latency."""
    dataset = "Argonne batches"
    for i, row in enumerate(table.to_dict("records")):
        engine = str(row["framework"])
        if engine in OTHER_KERNELS:
            found.drop(dataset, OTHER_KERNELS[engine])
            continue
        ids = _named(found, dataset, row, row["hardware"], row["model"])
        if ids is None:
            continue
        batch = int(row["batch_size"])
        load = Load(int(row["in_len"]), int(row["out_len"]), batch)
        changes = {"hardware.tp": int(row["n_devices"])}
        if batch > 256:
            changes["policies.batching.max_num_seqs"] = batch
        measured = {"batch_s": float(row["latency_s"])}
        found.cases.append(Case(dataset, i, *ids, engine, "bf16", load, measured, changes))


SERVED = re.compile(
    r"(?:--?tp|--tp-size|--tp_size|--?pp|--pp-size|--pp_size|--ep-size|--ep_size) \d+"
    r"|--max-num-batched-tokens \d+|--max_num_tokens=\d+|--max-model-len \d+|--max_seq_len[ =]\d+"
    r"|--async-scheduling|--enable-expert-parallel|--enable_chunked_prefill"
    r"|--host \S+|--port \d+|--model-path \S+|--model \S+"
    r"|--(?:tool-call|reasoning)-parser \S+|--tokenizer-mode \S+|--chat-template \S+"
    r"|--enable-auto-tool-choice"
)
"""Options of a serving command that a scenario has, or that change nothing here."""
START = re.compile(r"^(?:vllm serve|trtllm-serve|python3 -m sglang.launch_server) ?(?!-)\S*")


OPTIONS = {
    "hardware.tp": r"(?:--?tp|--tp-size|--tp_size) (\d+)",
    "hardware.pp": r"(?:--?pp|--pp-size|--pp_size) (\d+)",
    "policies.batching.max_num_batched_tokens": (
        r"--max[-_]num[-_](?:batched[-_])?tokens[ =](\d+)"
    ),
}
"""Key of a scenario -> how a serving command says it."""


def _gpustack(table: pd.DataFrame, found: Found) -> None:
    """GPUStack's performance lab: a thousand requests at once, or so many users."""
    dataset = "GPUStack lab"
    for i, row in enumerate(table.to_dict("records")):
        engine, command = str(row["engine"]), str(row["serving_cmd"]).replace("\\", "")
        reason = OTHER_KERNELS.get(engine) or _not_served(command, str(row["workload"]))
        if reason:
            found.drop(dataset, reason)
            continue
        gpu = re.search(r"(NVIDIA \w+)", str(row["hardware"]))
        ids = _named(found, dataset, row, gpu[1] if gpu else str(row["hardware"]), row["model"])
        if ids is None:
            continue
        users = row["max_concurrency"]
        load = Load(
            round(row["mean_in"]),
            round(row["mean_out"]),
            int(row["n_success"]),
            concurrency=None if pd.isna(users) else int(users),
        )
        form = _format(command, ids[1])
        measured = _gpustack_figures(row)
        found.cases.append(
            Case(dataset, i, *ids, engine, form, load, measured, _gpustack_changes(command))
        )


def _gpustack_figures(row: Row) -> dict[str, float]:
    figures = {
        "output_tokens_per_s": float(row["out_tok_s"]),
        "ttft_mean_s": float(row["ttft_mean_ms"]) / 1e3,
        "tpot_mean_s": float(row["tpot_mean_ms"]) / 1e3,
    }
    return {name: value for name, value in figures.items() if value > 0}


def _not_served(command: str, workload: str) -> str:
    """Return why a serving command has no scenario, empty where it has one."""
    if command == "nan":
        return "the serving command is not given"
    if "speculative" in command + workload:
        return "speculative decoding with a draft model not in the catalog"
    if "AWQ" in command:
        return "AWQ weights: which layers are quantised is not given"
    command = re.sub(r"(?m)^#.*$", "", command).strip()
    if setting := re.match(r"export (\w+)", command):
        return f"environment variable {setting[1]} has no counterpart"
    left = SERVED.sub("", START.sub("", command)).split()
    return f"option {left[0].partition('=')[0]} has no counterpart" if left else ""


def _format(command: str, model: str) -> str:
    if model.startswith("gpt-oss"):
        return "mxfp4"
    return "fp8" if "FP8" in command or model.startswith("deepseek") else "bf16"


def _gpustack_changes(command: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, pattern in OPTIONS.items():
        if hit := re.search(pattern, command):
            found[key] = int(hit[1])
    if "--enable-expert-parallel" in command or "--ep" in command:
        found["hardware.ep"] = found.get("hardware.tp", 1)
    if command.startswith("vllm"):
        found["policies.batching.max_num_seqs"] = 256
    return found


def _dstack(table: pd.DataFrame, found: Found) -> None:
    """Dstack: xPyD of two-GPU workers; 500 requests of so many users."""
    dataset = "dstack prefill/decode"
    for i, row in enumerate(table.to_dict("records")):
        pools = [
            {"name": role, "role": role, "replicas": int(row[role]), "tp": 2}
            for role in ("prefill", "decode")
        ]
        load = Load(
            int(row["total_input_tokens"] / row["completed"]),
            round(row["total_output_tokens"] / row["completed"]),
            int(row["completed"]),
            concurrency=int(row["max_concurrency"]),
        )
        measured = {
            "output_tokens_per_s": float(row["output_throughput"]),
            "ttft_mean_s": row["mean_ttft_ms"] / 1e3,
            "tpot_mean_s": row["mean_tpot_ms"] / 1e3,
        }
        changes = {"pools": pools, "engine.max_model_len": 131072}
        ids = ("h200-sxm", "gpt-oss-120b", "SGLang", "mxfp4")
        found.cases.append(Case(dataset, i, *ids, load, measured, changes))


Reader = Callable[[pd.DataFrame, Found], None]
READERS: dict[str, Reader] = {
    "trtllm_perf_overview.csv": _trtllm_overview,
    "trtllm_0.14_online_serving.csv": _trtllm_online,
    "trtllm_0.9_static_batch.csv": _trtllm_static,
    "splitwise_perf_model_median.csv": _splitwise,
    "gpustack_perf_lab.csv": _gpustack,
    "argonne_llm_inference_bench.csv.gz": _argonne,
    "dstack_pd_ratio_h200_gptoss120b.csv": _dstack,
}
"""File -> reader."""


def read_all(folder: Path, every: int = 1) -> Found:
    """Read every table of a folder that there is a reader for.

    Parameters
    ----------
    folder : Path
        Holds some of the files in `READERS`.
    every : int
        Keep one case in so many.

    Returns
    -------
    Found
        Cases; a file that is not there is counted as absent with 0 rows.
    """
    found = Found()
    for name, reader in READERS.items():
        path = folder / name
        if path.is_file():
            reader(pd.read_csv(path), found)
        else:
            found.drop(name, "the file is not at hand", 0)
    return _drawn(found, every)


def _drawn(found: Found, every: int) -> Found:
    """Keep some of the cases of the long data sets and count the others."""
    kept, seen = Found([], found.absent), dict[str, int]()
    for case in found.cases:
        share = DRAWN.get(case.dataset, 1) * every
        count = seen.get(case.dataset, 0)
        seen[case.dataset] = count + 1
        if count % share:
            kept.drop(case.dataset, f"not drawn: one case in {share} is predicted")
        else:
            kept.cases.append(case)
    return kept
