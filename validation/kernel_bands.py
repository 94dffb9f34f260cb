"""Whether bands of kernel times hold: made of half of the layouts held out, judged on the rest."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hardware.calibration_files import load_calibration
from hardware.catalog import load_accelerator
from hardware.fit_silicon import calibration_name, is_held_out, predict
from hardware.kernels import CALIBRATIONS, chip_of
from hardware.kernels_families import FAMILIES, Family
from hardware.silicon import SYSTEMS
from hardware.silicon_rows import training_rows

__all__ = ["by_family", "kernel_coverage"]

ASKED = 2000
"""Shapes of a family that its band is judged on."""


def kernel_coverage(tables: Path, accelerators: Sequence[str] = tuple(SYSTEMS)) -> pd.DataFrame:
    """Judge the kernel bands of NVIDIA's tables: quantiles of half of the layouts held out.

    Returns
    -------
    DataFrame
        accelerator, figure (family), cases (shapes of the other half), coverage, half_width,
        median_error.
    """
    rows = []
    for accelerator in accelerators:
        chip = chip_of(load_accelerator(accelerator))
        made = load_calibration(CALIBRATIONS / f"{calibration_name(accelerator)}.toml")
        found = training_rows(tables, accelerator, chip)
        for name in made.names:
            family, table = FAMILIES[name], found[name].table
            out = table[is_held_out(family, table)]
            out = out.sample(min(ASKED, len(out)), random_state=0).reset_index(drop=True)
            shapes = out[list(family.extents)].to_numpy(float)
            left = np.log(out["s"] / predict(family, made.families[name], chip, shapes))
            judged = _band_holds(family, out, left.to_numpy(np.float64))
            rows.append({"accelerator": accelerator, "figure": name, **judged})
    return pd.DataFrame(rows)


def _band_holds(
    family: Family, rows: pd.DataFrame, left: npt.NDArray[np.float64]
) -> dict[str, float]:
    index = np.unique(rows[list(family.layout)].to_numpy(float), axis=0, return_inverse=True)[1]
    seen = index.ravel() % 2 == 0
    low, high = np.quantile(left[seen], (0.1, 0.9))
    asked = left[~seen]
    return {
        "cases": len(asked),
        "coverage": float(((asked >= low) & (asked <= high)).mean()),
        "half_width": float(np.exp(high) - np.exp(low)) / 2,
        "median_error": float(np.median(np.abs(np.expm1(-asked)))),
    }


def by_family(table: pd.DataFrame) -> pd.DataFrame:
    """Return the coverage of each kernel family over all accelerators, weighted by shapes."""
    return pd.DataFrame(list(_families(table)))


def _families(table: pd.DataFrame) -> Iterator[dict[str, object]]:
    for name, part in table.groupby("figure"):
        weights = part["cases"] / part["cases"].sum()
        shares = {c: float((part[c] * weights).sum()) for c in ("coverage", "half_width")}
        median = float((part["median_error"] * weights).sum())
        count = int(part["cases"].sum())
        yield {
            "family": "kernels",
            "figure": name,
            "cases": count,
            **shares,
            "median_error": median,
        }
