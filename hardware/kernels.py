"""Time of one kernel on one accelerator, from its shape.

>>> import numpy as np
>>> from hardware.catalog import load_accelerator
>>> kernels = load_kernels(load_accelerator("h200-sxm"))
>>> times = kernels.gemm(np.array([1, 512, 4096]), 6144, 4096, "bf16")
>>> bool((np.diff(times) > 0).all())
True
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from formats import InputError, did_you_mean
from hardware.calibration_data import Calibration
from hardware.calibration_files import load_calibration
from hardware.kernels_carry import adapted, generation
from hardware.kernels_limits import Limits, chip_of, limited, widened
from hardware.kernels_model import PATHS, KernelModel
from hardware.specs import AcceleratorSpec

__all__ = [
    "BASE",
    "CALIBRATIONS",
    "PATHS",
    "POOLED",
    "KernelModel",
    "Limits",
    "carried",
    "chip_of",
    "load_kernels",
    "pool",
    "widened",
]

BASE, POOLED = "h200-sxm", "pooled"  # calibrations that serve accelerators without traces
CALIBRATIONS = Path(__file__).parent / "data" / "calibrations"


def load_kernels(spec: AcceleratorSpec, limits: Limits | None = None) -> KernelModel:
    """Return the kernel times of an accelerator, or of a part of it.

    Its own calibration is used where `spec.calibration` names one (a file stem under
    ``hardware/data/calibrations``, or a path that ends in .toml); otherwise the forms run on its
    datasheet numbers with the coefficients of `carried`.

    Raises
    ------
    InputError
        The calibration named does not exist or is bad.
    """
    chip = chip_of(spec) if limits is None else limited(chip_of(spec), spec, limits)
    others = adapted(carried(generation(spec)), spec)
    if spec.calibration is None:
        return KernelModel(chip, others, "datasheet")
    own = load_calibration(_path(spec.calibration))
    return KernelModel(chip, own, "measured", others)


@cache
def carried(instructions: str = "") -> Calibration:
    """Return the coefficients for accelerators, or kernels, that were not measured.

    Those fitted jointly to several accelerators (`POOLED`), with bands from accelerators left
    out; kernels that only `BASE` was measured for keep its coefficients, their bands widened as
    those of the others are. Attention and experts of a generation of matrix instructions
    (`hardware.kernels_carry`) have coefficients fitted to that generation.
    """
    found = load_calibration(CALIBRATIONS / f"{BASE}.toml")
    for name in (POOLED, f"{POOLED}-{instructions}"):
        path = CALIBRATIONS / f"{name}.toml"
        if path.exists():
            found = pool(found, load_calibration(path)) if name == POOLED else _over(found, path)
    return found


def _over(found: Calibration, path: Path) -> Calibration:
    families = {**found.families, **load_calibration(path).families}
    return replace(found, families=families)


def pool(base: Calibration, pooled: Calibration) -> Calibration:
    """Return the families of `pooled`, and those of `base` that it lacks with wider bands."""
    shared = set(base.families) & set(pooled.families)
    widths = [_width(pooled.families[n].band) / _width(base.families[n].band) for n in shared]
    wider = max(1.0, float(np.median(widths))) if widths else 1.0
    families = {
        name: replace(fit, band={q: v * wider for q, v in fit.band.items()})
        for name, fit in base.families.items()
    }
    return replace(base, families={**families, **pooled.families})


def _width(band: Mapping[str, float]) -> float:
    return band["p90"] - band["p10"]


def _path(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    known = [p.stem for p in CALIBRATIONS.glob("*.toml")]
    if name not in known:
        raise InputError(f"no calibration named {name!r}", repair=did_you_mean(name, known))
    return CALIBRATIONS / f"{name}.toml"
