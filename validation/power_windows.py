"""Watts of steady decoding, cut from serving runs: ``python -m validation.power_windows``.

Each row is one power sample with nothing but decode steps in the 80 ms before it. The table goes
beside the kernel traces of the accelerator, where `hardware.fit_power` reads it.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from formats import atomic_write
from sim.deployment import scenario_model
from validation.measured import MeasuredWorkload, load_runs
from workloads.counts import (
    kv_bytes_per_token,
    linear_flops_per_token,
    lm_head_flops,
    weight_bytes_touched,
)
from workloads.models import ModelSpec

__all__ = ["TRAINING", "decode_windows", "main"]

TRAINING = ("llama8b_bf16", "llama8b_fp8", "qwen30b_a3b")
TARGET = Path(__file__).parents[1] / "hardware/data/traces/h200-sxm/power_serving.csv.gz"
WINDOW_S, FEWEST_STEPS, LONGEST_STEP_S = 0.08, 3, 0.05


def decode_windows(workload: MeasuredWorkload, model: ModelSpec) -> pd.DataFrame:
    """Return the samples of a workload that saw only decoding.

    Parameters
    ----------
    workload : MeasuredWorkload
        Steps and power samples.
    model : ModelSpec
        What was served, in its number formats.

    Returns
    -------
    DataFrame
        watts, sm_mhz, temp_c; sequences; weight_bytes_per_s, kv_bytes_per_s, linear_flops_per_s
        (at `precision`), attention_flops_per_s.
    """
    steps, power = workload.steps, workload.power
    ends = steps["t_output"].to_numpy()
    last = np.searchsorted(ends, power["t"])
    first = np.searchsorted(ends, power["t"] - WINDOW_S)
    prompts = np.concatenate([[0], np.cumsum(steps["n_prefill"])])
    rows = []
    for sample, (a, b) in enumerate(zip(first, last, strict=True)):
        inside = a >= 2 and b < len(ends) - 1 and b - a >= FEWEST_STEPS
        if inside and prompts[b + 2 if b + 2 < len(prompts) else -1] == prompts[a - 2]:
            rows.append(_row(power.iloc[sample], steps.iloc[a:b], ends[b - 1] - ends[a - 1], model))
    table = pd.DataFrame(rows)
    return table[table["step_s"] < LONGEST_STEP_S] if len(table) else table


def _row(
    sample: "pd.Series[float]", steps: pd.DataFrame, seconds: float, model: ModelSpec
) -> dict[str, float]:
    step_s = seconds / len(steps)
    sequences, context = float(steps["n_decode"].mean()), float(steps["decode_context"].mean())
    pairs = 4.0 * model.heads * model.head_dim * model.layers
    linear = (linear_flops_per_token(model) + lm_head_flops(model)) * sequences
    return {
        "watts": float(sample["watts"]),
        "sm_mhz": float(sample["sm_mhz"]),
        "temp_c": float(sample["temp_c"]),
        "step_s": step_s,
        "sequences": sequences,
        "weight_bytes_per_s": float(weight_bytes_touched(model, sequences)) / step_s,
        "kv_bytes_per_s": kv_bytes_per_token(model) * context / step_s,
        "linear_flops_per_s": linear / step_s,
        "attention_flops_per_s": pairs * context / step_s,
    }


def main() -> int:
    """Cut the training runs and write the table."""
    tables = []
    for name, run in load_runs().items():
        if name in TRAINING:
            model = scenario_model(run.scenario)
            parts = [decode_windows(w, model) for w in run.workloads.values()]
            tables.append(
                pd.concat(parts).assign(
                    run=name, precision=model.weights, experts=model.moe is not None
                )
            )
    with atomic_write(TARGET) as path:
        table = pd.concat(tables, ignore_index=True)
        table.to_csv(
            path, index=False, float_format="%.6g", compression={"method": "gzip", "mtime": 0}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
