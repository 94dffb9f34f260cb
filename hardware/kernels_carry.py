"""Coefficients of measured accelerators on one that was not measured: whose, and at what clock.

Kernels are written anew for each generation of matrix instructions, so attention and experts take
the coefficients of their own generation (`generation`); plain products exist for all and share
theirs. Latencies are counted in cycles, so seconds follow the clock; what one unit can fetch per
cycle is its own, so its share of a faster or slower memory follows from it (`Pace`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hardware.calibration_data import Calibration
from hardware.kernels_chip import Array, Coefficients
from hardware.kernels_limits import chip_of
from hardware.specs import AcceleratorSpec

__all__ = [
    "GENERATIONS",
    "Pace",
    "adapted",
    "at_pace",
    "by_generation",
    "generation",
    "pace_of",
    "stacked",
]

GENERATIONS = ("mma", "wgmma", "tcgen05")
"""Matrix instructions of NVIDIA GPUs: up to Ada and on small Blackwells, Hopper, Blackwell."""
OWN_KERNELS = ("attention", "moe")
"""Families whose kernels are written per generation."""
WIDE_SRAM = 200_000
"""Shared memory that only GPUs with tcgen05 have beside Hopper [byte]."""
REFERENCE_HZ = 1.98e9
"""Clock that coefficients in seconds are stored for: that of an H200."""
REFERENCE_SHARE = 132 * 1.98e9 / 4.8e12
"""Unit cycles per byte of main memory that `unit` is stored for: those of an H200."""


def generation(spec: AcceleratorSpec) -> str:
    """Return the matrix instructions of an NVIDIA GPU, empty for others.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> [generation(load_accelerator(a)) for a in ("a100-sxm", "h20", "gb300", "tpu-v5e")]
    ['mma', 'wgmma', 'tcgen05', '']
    """
    if spec.vendor != "NVIDIA":
        return ""
    if spec.architecture == "Hopper":
        return "wgmma"
    wide = spec.on_chip.sram_bytes.value > WIDE_SRAM
    return "tcgen05" if wide and spec.architecture.startswith("Blackwell") else "mma"


def by_generation(family: str) -> bool:
    """Return whether a family's kernels are written per generation.

    Examples
    --------
    >>> by_generation("attention_decode"), by_generation("gemm_bf16")
    (True, False)
    """
    return family.startswith(OWN_KERNELS)


@dataclass(frozen=True)
class Pace:
    """Factors on carried coefficients: numbers, or arrays with one entry per row.

    Parameters
    ----------
    latency : float or array
        On those in seconds: reference clock over the clock.
    unit : float or array
        On the share of the bandwidth that one unit draws: cycles of all units per byte of main
        memory, over those of the reference.
    """

    latency: float | Array
    unit: float | Array


def pace_of(spec: AcceleratorSpec) -> Pace:
    """Return the factors for an accelerator; 1 for an H200."""
    chip = chip_of(spec)
    cycles = chip.units * spec.clock_hz / chip.memory
    return Pace(REFERENCE_HZ / spec.clock_hz, cycles / REFERENCE_SHARE)


def at_pace(coefficients: Coefficients, pace: Pace) -> dict[str, float]:
    """Return coefficients stored for the reference as another accelerator has them.

    Examples
    --------
    >>> at_pace({"launch_s": 4e-6, "unit": 1.0, "memory": 0.9}, Pace(0.5, 2.0))
    {'launch_s': 2e-06, 'unit': 2.0, 'memory': 0.9}
    """
    return {name: value * _factor(name, pace) for name, value in coefficients.items()}  # type: ignore[misc]  # arrays stand for numbers


def _factor(name: str, pace: Pace) -> float | Array:
    if name.endswith("_s"):
        return pace.latency
    return pace.unit if name == "unit" else 1.0


def adapted(calibration: Calibration, spec: AcceleratorSpec) -> Calibration:
    """Return carried coefficients at the clock and memory of an accelerator."""
    pace = pace_of(spec)
    families = {
        name: replace(fit, coefficients=at_pace(fit.coefficients, pace))
        for name, fit in calibration.families.items()
    }
    return replace(calibration, families=families)


def stacked(paces: Mapping[str, Pace], counts: Mapping[str, int]) -> Pace:
    """Return the factors of several accelerators, one entry per row of their stacked tables."""
    rows = list(counts.values())
    latency = np.repeat([float(paces[a].latency) for a in counts], rows)
    return Pace(latency, np.repeat([float(paces[a].unit) for a in counts], rows))
