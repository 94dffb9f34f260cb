"""Fit the power model on sustained work of one accelerator: ``python -m hardware.fit_power``.

Rows at the full clock only: below it the cap holds the watts and activity says nothing.
"""

import sys
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from formats import atomic_write
from hardware.catalog import load_accelerator

__all__ = ["fit_power", "main"]

DATA = Path(__file__).parent / "data"
FULL_CLOCK = 0.999
EXCLUDED = ("gemm_fp32",)  # vector units: another energy per FLOP


def fit_power(
    table: pd.DataFrame, clock_mhz: float, l2_bytes: float
) -> tuple[float, float, float, float]:
    """Return (base W, J per FLOP, J per byte, cap W) of sustained work.

    Parameters
    ----------
    table : DataFrame
        Columns work, detail, watts_energy_counter, sm_mhz, flops_per_s, bytes_per_s.
    clock_mhz : float
        Full clock.
    l2_bytes : float
        Copies that fit there move nothing through main memory and are left out.
    """
    size = pd.to_numeric(table.detail, errors="coerce")
    cached = (table.work == "copy") & (size < l2_bytes)
    busy = table[(table.bytes_per_s > 0) & ~table.work.isin(EXCLUDED) & ~cached]
    free = busy[busy.sm_mhz >= FULL_CLOCK * clock_mhz]
    design = np.column_stack([np.ones(len(free)), free.flops_per_s / 1e12, free.bytes_per_s / 1e12])
    base, per_tera, per_terabyte = nnls(design, free.watts_energy_counter.to_numpy())[0]
    capped = busy[busy.sm_mhz < FULL_CLOCK * clock_mhz]
    cap = float(capped.watts_energy_counter.median())
    return float(base), float(per_tera) * 1e-12, float(per_terabyte) * 1e-12, cap


def main(accelerator: str = "h200-sxm") -> int:
    """Fit one accelerator's traces and write ``data/power.toml``."""
    spec = load_accelerator(accelerator)
    table = pd.read_csv(DATA / "traces" / accelerator / "power.csv.gz")
    base, per_flop, per_byte, cap = fit_power(table, spec.clock_hz / 1e6, spec.l2_bytes)
    tdp, source = spec.tdp_w, f"{accelerator} power traces, sustained work at full clock"
    shares = {
        "base": (base / tdp, "busy watts before activity, over TDP"),
        "flops": (per_flop * spec.peak("bf16") / tdp, "watts at the bf16 peak rate, over TDP"),
        "bytes": (per_byte * spec.memory_bytes_per_s / tdp, "watts at peak bandwidth, over TDP"),
        "cap": (cap / tdp, "sustained watts at the limit, over TDP"),
    }
    lines = [f"# Made by `python -m hardware.fit_power` on {date.today()}.", "schema_version = 1"]
    for name, (value, note) in shares.items():
        lines.append(
            f'{name} = {{ value = {value:.4f}, unit = "1", kind = "fitted", '
            f'source = "{source}", note = "{note}" }}'
        )
    with atomic_write(DATA / "power.toml") as path:
        path.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
