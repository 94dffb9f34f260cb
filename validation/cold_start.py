"""Loading of weights, predicted from bytes and rates, beside ServerlessLLM's measured times.

The table is ``serverlessllm_model_load.csv`` (ServerlessLLM at 9f50241b, Apache-2.0): one H100, two
loaders (safetensors, and ServerlessLLM's own), weights on a local disk ("random") or in the host's
memory ("cached"). It is not part of this project; give its path. The rate of each loader's path is
taken from one model (`RATED`) and judged on the others.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from sim.autoscaling import cold_start_s
from sim.deployment import Deployment, deploy
from sim.fleets.sections import ColdStart
from sim.scenario import Scenario
from validation.foreign import read_foreign

__all__ = ["MODELS", "RATED", "compare", "measured"]

MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "qwen2.5-32b",
}
"""Model of the table -> one of the catalog with the same architecture."""
NEEDED = ("file", "model_name", "loading_time")
RATED = "Qwen/Qwen3-32B"
LONGEST = 512  # tokens: only weights matter here


def measured(path: Path) -> pd.DataFrame:
    """Return loader, source (disk or memory), model and median loading time [s] of H100 runs.

    Raises
    ------
    InputError
        The file is missing or lacks a column.
    """
    table = read_foreign(path, NEEDED)
    table = table[table["file"].str.startswith("h100")]
    table = table.assign(
        model=table["model_name"].str.replace(r"_\d+$", "", regex=True),
        loader=np.where(table["file"].str.contains("_sllm_"), "sllm", "safetensors"),
        source=np.where(table["file"].str.contains("/cached/"), "memory", "disk"),
    )
    groups = table[table["model"].isin(MODELS)].groupby(["loader", "source", "model"])
    return groups["loading_time"].median().rename("measured_s").reset_index()


def _deployment(model: str) -> Deployment:
    changes = {"hardware.accelerator": "h100-sxm", "model.name": MODELS[model]}
    few = {"name": "chunked-prefill", "max_num_seqs": 8, "max_num_batched_tokens": 1024}
    return deploy(Scenario().changed(changes | {"policies.batching": few}), LONGEST)


def compare(path: Path) -> pd.DataFrame:
    """Return predicted beside measured loading times.

    Returns
    -------
    DataFrame
        Columns of `measured`, ``predicted_s``, ``error`` (predicted over measured, minus 1), and
        ``fitted`` (yes where the loader's rate comes from this row, no else).
    """
    table = measured(path)
    made = {name: _deployment(name) for name in MODELS}
    rows = []
    for (loader, source), part in table.groupby(["loader", "source"]):
        known = float(part.loc[part["model"] == RATED, "measured_s"].iloc[0])
        rate = made[RATED].plan.weights / known
        start = ColdStart(storage_bytes_per_s=rate, network_bytes_per_s=1e12, engine_s=0.0)
        for model, time in zip(part["model"], part["measured_s"], strict=True):
            found = cold_start_s(made[model], start)
            fitted = "yes" if model == RATED else "no"
            rows.append((loader, source, model, time, found, found / time - 1.0, fitted))
    names = ["loader", "source", "model", "measured_s", "predicted_s", "error", "fitted"]
    return pd.DataFrame(rows, columns=names)
