"""Analytic time of one kernel from its shape, a chip's numbers and dimensionless coefficients.

Every form is ``launch + (compute^p + memory^p)^(1/p)``: a floor, and a soft maximum of the time
that the compute units need (tiles in waves, as GPUs schedule them) and the time that memory needs.
Coefficients are shares of the chip's own peaks, so that they carry over to other chips; the few in
seconds (``launch_s``, ``tile_s``, ...) are latencies. Each shape is a mapping of broadcastable
arrays. All forms grow with every extent of the shape, apart from the steps of tiles and waves.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from hardware.kernels_chip import Array, Chip, Coefficients, GemmType, Shape
from hardware.kernels_tiling import TILES, tiled_traffic, tiles_that_fit

__all__ = [
    "GEMM_TYPES",
    "MOST_CACHE",
    "Array",
    "Chip",
    "Coefficients",
    "GemmType",
    "Shape",
    "copy",
    "elementwise",
    "gemm",
    "gemm_blocked",
    "soft_maximum",
    "tile_time_per_k",
]

Form: TypeAlias = Callable[[Shape, "Chip", Coefficients], Array]

SPLITS = (1, 2, 3, 4, 6, 8)
MOST_CACHE = 4.0  # assumption: rate of a shared cache, one load for two units, over main memory's
MOST_BLOCKS = 16  # whole blocks beside which the rest still takes a launch of its own


# fp8: CUTLASS as vLLM dispatches it (row classes 16, 64, 128; pairs of 128-row tiles above);
# 4-, 6- and 8-bit weights on 16-bit activations: Marlin, blocks of 64 rows, scales per group;
# fp4: one 8-bit scale per group of 16; fp6: one per 32; 2:4 sparse: half the values and 2-bit
# positions.
GEMM_TYPES = {
    "bf16": GemmType("bf16", 2, 2, 2),
    "fp16": GemmType("fp16", 2, 2, 2),
    "fp32": GemmType("fp32", 4, 4, 4),
    "tf32": GemmType("tf32", 4, 4, 4),
    "fp8": GemmType("fp8", 1, 1, 2, quanta=(16, 64, 128, 256)),
    "int8": GemmType("int8", 1, 1, 4),
    "w4a16": GemmType("bf16", 0.5 + 2 / 128, 2, 2, block=64),
    "w6a16": GemmType("bf16", 0.75 + 1 / 32, 2, 2, block=64),
    "w8a16": GemmType("bf16", 1 + 2 / 128, 2, 2, block=64),
    "fp6": GemmType("fp6", 0.75 + 1 / 32, 0.75 + 1 / 32, 2),
    "int4": GemmType("int4", 0.5 + 2 / 128, 0.5, 4),
    "fp4": GemmType("fp4", 0.5 + 1 / 16, 0.5 + 1 / 16, 2),
    "sparse24_bf16": GemmType("bf16", 1 + 1 / 8, 2, 2, 2.0),
    "sparse24_fp16": GemmType("fp16", 1 + 1 / 8, 2, 2, 2.0),
    "sparse24_fp8": GemmType("fp8", 0.5 + 1 / 8, 1, 2, 2.0),
    "sparse24_int8": GemmType("int8", 0.5 + 1 / 8, 1, 4, 2.0),
}


def soft_maximum(a: Array, b: Array, p: float) -> Array:
    """Return (a^p + b^p)^(1/p) without overflow; p of 1 adds, a large p takes the maximum."""
    high = np.maximum(np.maximum(a, b), 1e-30)
    scaled: Array = high * ((a / high) ** p + (b / high) ** p) ** (1 / p)
    return scaled


def gemm(shape: Shape, chip: Chip, c: Coefficients, kind: GemmType) -> Array:
    """Return the time of Y[m,n] = X[m,k] W[n,k]^T [s]: best of several tilings, or memory.

    A tile of (rows, columns) of the output that fits a unit's SRAM takes it the longer of its
    multiplications and of loading its operands from the shared cache; tiles run in waves over the
    units; k may be split over units, at the price of adding the parts. What memory moves follows
    from the tiles that fit the chip (`hardware.kernels_tiling`).
    """
    m, n, k = shape["m"], shape["n"], shape["k"]
    sizes = (kind.activation, kind.weight, kind.output)
    moved = tiled_traffic(m, n, k, chip.on_chip_bytes, *sizes, chip.sum_bytes)
    padded = np.where(m > TILES[-1][1], kind.padded(m), m)
    best = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape), np.inf)
    for rows, columns in tiles_that_fit(chip, kind):
        grid = np.ceil(padded / rows) * np.ceil(n / columns)
        per_k = tile_time_per_k(np.minimum(m, rows), rows, columns, chip, c, kind)
        for split in SPLITS:
            waves = np.ceil(grid * split / chip.units)
            time = waves * (per_k * k / split + c["tile_s"])
            if split > 1:
                partial = m * n * 2 * chip.sum_bytes * split / (chip.memory * c["cache"])
                time = time + c["split_s"] + partial
            np.minimum(best, time, out=best)
    memory = moved / (chip.memory * c["memory"])
    return c["launch_s"] + soft_maximum(best, memory, c["sharpness"])


def tile_time_per_k(
    used: Array, rows: int, columns: int, chip: Chip, c: Coefficients, kind: GemmType
) -> Array:
    """Return the time of one tile on one unit, per step along k [s]: multiply or load.

    `used` of its `rows` hold data; only those are loaded, and matrix units multiply all.
    """
    unit_flops = kind.peak(chip) / chip.units * c["matrix"]
    unit_bytes = chip.memory * min(c["cache"], MOST_CACHE) / chip.units
    multiplied = rows if chip.pads_rows else np.maximum(used, 1.0)
    multiply = 2.0 * multiplied * columns / unit_flops
    load = (used * kind.activation + columns * kind.weight) / unit_bytes
    return np.maximum(multiply, load)


def gemm_blocked(shape: Shape, chip: Chip, c: Coefficients, kind: GemmType) -> Array:
    """Return the time of a product with packed weights on wider activations [s].

    Whole blocks of rows run in one launch, the remaining rows in another; every block unpacks
    all weights (`unpack`, in multiplications per weight), work spreads evenly over the units, and
    a single block runs at the share `single` of the rate of several. Above 16 blocks the last one
    is padded.
    """
    m, n, k = shape["m"], shape["n"], shape["k"]
    blocks = np.where(m > kind.block * MOST_BLOCKS, np.ceil(m / kind.block), m // kind.block)
    whole = kind.block * blocks
    rest = np.maximum(m - whole, 0)
    first = _block_launch(np.maximum(whole, kind.block), n, k, chip, c, kind)
    second = _block_launch(np.maximum(rest, 1), n, k, chip, c, kind)
    return np.where(whole > 0, first, 0.0) + np.where(rest > 0, second, 0.0)


def _block_launch(
    m: Array, n: Array, k: Array, chip: Chip, c: Coefficients, kind: GemmType
) -> Array:
    peak = kind.peak(chip)
    matrix = np.where(m <= kind.block, c["single"], 1.0) * c["matrix"]
    multiply = 16 * np.ceil(m / 16) / matrix + np.ceil(m / kind.block) * c["unpack"]
    moved = n * k * kind.weight + m * k * kind.activation + m * n * kind.output
    memory = moved / (chip.memory * c["memory"])
    return c["launch_s"] + soft_maximum(2 * n * k * multiply / peak, memory, c["sharpness"])


def elementwise(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of a kernel that reads and writes `bytes` in rows of `width` [s].

    What fits the cache moves at its rate, the rest at that of main memory.
    """
    moved = shape["bytes"]
    row = shape["width"] * c["element_s"]
    spilled = 1 / (1 + (chip.l2_bytes * c["cache_share"] / moved) ** 4)
    per_byte = (spilled / c["memory"] + (1 - spilled) / c["cache"]) / chip.memory
    return c["launch_s"] + soft_maximum(row, moved * per_byte, c["sharpness"])


def copy(shape: Shape, chip: Chip, c: Coefficients, path: str) -> Array:
    """Return the time of copying bytes (read and write counted for device copies) [s]."""
    peak = chip.host if path in ("h2d_pinned", "d2h_pinned") else chip.memory
    return c["launch_s"] + shape["bytes"] / (peak * c["memory"])
