"""Families as NVIDIA's tables hold them, for coefficients that carry over between accelerators.

Rows of fp8 products hold the quantisation of their activations too, a kernel of its own in an
engine. What it takes grows with m k and not with n, so rows of many n tell both apart: on every
GPU measured a row costs a few microseconds and 0.7 ns an element, four rows of a unit at a time.
Attention over prompts also gets the time of its exponentials, which rows of one accelerator alone
seldom tell from the products' time and those of several do.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hardware.kernels_chip import Array, Chip, Coefficients, Shape
from hardware.kernels_families import Family

__all__ = ["as_measured", "product_alone"]

ROWS_AT_ONCE = 4  # rows that one unit quantises at a time: blocks of 512 threads
MOVED = 3  # bytes per element: read in 16 bits, written in 8
FP8 = "gemm_fp8"
START = {"row_s": 1e-6, "element_s": 8e-10}
SOFTMAX_START = {"exponential": 0.8}


def _quantise(s: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time to quantise activations (m, k) to 8 bits, a scale per row [s]."""
    waves = np.maximum(s["m"] / (np.asarray(chip.units) * ROWS_AT_ONCE), 1.0)
    busy = waves * (c["row_s"] + s["k"] * c["element_s"])
    memory = MOVED * s["m"] * s["k"] / (chip.memory * c["memory"])
    both: Array = np.maximum(busy, memory)
    return both


def as_measured(family: Family) -> Family:
    """Return a family with what the tables' rows hold beside it.

    Examples
    --------
    >>> from hardware.kernels_families import FAMILIES
    >>> wider = as_measured(FAMILIES["gemm_fp8"])
    >>> sorted(set(wider.start) - set(FAMILIES["gemm_fp8"].start))
    ['element_s', 'row_s']
    """
    if family.name == FP8:

        def form(s: Shape, chip: Chip, c: Coefficients) -> Array:
            total: Array = family.form(s, chip, c) + _quantise(s, chip, c)
            return total

        return replace(family, form=form, start={**family.start, **START})
    known = {name: SOFTMAX_START[name] for name in family.optional}
    return replace(family, start={**family.start, **known})


def product_alone(coefficients: Mapping[str, float]) -> dict[str, float]:
    """Return the coefficients of a family without those of what the rows hold beside it."""
    return {name: value for name, value in coefficients.items() if name not in START}
