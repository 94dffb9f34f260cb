"""Fit the power model of one accelerator: ``python -m hardware.fit_power``.

Fitted on watts of steady decoding (``power_serving.csv.gz``), where the cap does not hold; the cap
itself is read off sustained matrix work (``power.csv.gz``) below the full clock.
"""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from formats import atomic_write
from hardware.catalog import load_accelerator
from hardware.power import precision_scale

__all__ = ["fit_power", "main"]

TRACES = Path(__file__).parent / "data" / "traces"
FULL_CLOCK, CAPPED = 0.999, 0.96
CLOCK = (  # not fitted here
    *("window", "clock_free", "full_clock_gain", "capped_gain"),
    *("power_exponent", "time_exponent", "memory_exponent"),
)


def features(table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the columns 1, weight, KV and expert TB/s, 16-bit TFLOP/s of a table of windows."""
    scale = table["precision"].map(precision_scale)
    flops = table["linear_flops_per_s"] * scale + table["attention_flops_per_s"]
    experts = table["experts"].astype(float)
    weights = table["weight_bytes_per_s"]
    parts = [weights * (1 - experts), table["kv_bytes_per_s"], weights * experts, flops]
    return np.column_stack([np.ones(len(table)), *(p.to_numpy() / 1e12 for p in parts)])


def fit_power(windows: pd.DataFrame, cap_w: float) -> npt.NDArray[np.float64]:
    """Return (base W, J per weight, KV and expert byte, J per 16-bit FLOP), none negative.

    Weights of a mixture of experts are read in small pieces and cost more per byte.

    Parameters
    ----------
    windows : DataFrame
        Columns of `validation.power_windows`.
    cap_w : float
        Samples near it say nothing about activity and are left out [W].
    """
    free = windows[windows["watts"] < CAPPED * cap_w]
    found = nnls(features(free), free["watts"].to_numpy())[0]
    return np.asarray(found * np.array([1.0, 1e-12, 1e-12, 1e-12, 1e-12]))


def sustained_cap(table: pd.DataFrame, clock_mhz: float) -> float:
    """Return the median watts of work that ran below the full clock [W]."""
    capped = table[(table["flops_per_s"] > 0) & (table["sm_mhz"] < FULL_CLOCK * clock_mhz)]
    return float(capped["watts_energy_counter"].median())


def main(accelerator: str = "h200-sxm") -> int:
    """Fit one accelerator's traces and write ``data/power.toml`` as shares of its datasheet."""
    spec = load_accelerator(accelerator)
    folder = TRACES / accelerator
    cap = sustained_cap(pd.read_csv(folder / "power.csv.gz"), spec.clock_hz / 1e6)
    base, weights, kv, experts, flops = fit_power(pd.read_csv(folder / "power_serving.csv.gz"), cap)
    tdp, bandwidth = spec.tdp_w, spec.memory_bytes_per_s
    shares = {
        "base": (base / tdp, "busy watts before activity, over TDP"),
        "weights": (weights * bandwidth / tdp, "watts of weights at peak bandwidth, over TDP"),
        "kv": (kv * bandwidth / tdp, "watts of KV cache at peak bandwidth, over TDP"),
        "experts": (experts / weights, "joules per byte of experts over dense weights"),
        "flops": (flops * spec.peak("bf16") / tdp, "watts at the bf16 peak rate, over TDP"),
        "cap": (cap / tdp, "sustained watts at the limit, over TDP"),
    }
    source = f"{accelerator} power traces: steady decoding, and sustained work at the limit"
    lines = [f"# Made by `python -m hardware.fit_power` on {date.today()}.", "schema_version = 1"]
    lines += [
        f'{name} = {{ value = {value:.4f}, unit = "1", kind = "fitted", '
        f'source = "{source}", note = "{note}" }}'
        for name, (value, note) in shares.items()
    ]
    target = TRACES.parent / "power.toml"
    kept = [line for line in target.read_text().splitlines() if line.startswith(CLOCK)]
    with atomic_write(target) as path:
        path.write_text("\n".join([*lines, *kept]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
