"""Loop tiling: what fits on chip decides the tile, and the tile decides what memory moves."""

import numpy as np

from hardware.kernels_chip import Array, Chip, GemmType

__all__ = ["TILES", "attention_rows", "tiled_traffic", "tiles_that_fit"]

TILES = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256), (256, 128))
SMALL_TILES = ((32, 64), (32, 32), (16, 32), (16, 16), (8, 8), (4, 4))
SLICE = 64  # elements of k that a unit holds of both operands at a time


def tiles_that_fit(chip: Chip, kind: GemmType) -> tuple[tuple[int, int], ...]:
    """Return the (rows, columns) of output tiles whose operands fit a unit's SRAM.

    A unit holds a slice of `SLICE` along k of both operands. Without a known SRAM all tiles that
    kernels are written for fit; where none of these does, the largest smaller one is taken.

    Examples
    --------
    >>> from hardware.kernels_forms import GEMM_TYPES
    >>> chip = Chip(132, 4.8e12, 60e6, 6e10, {"bf16": 1e15}, sram_bytes=32768)
    >>> tiles_that_fit(chip, GEMM_TYPES["bf16"])
    ((64, 64), (64, 128), (128, 128))
    """

    def held(tile: tuple[int, int]) -> float:
        return SLICE * (tile[0] * kind.activation + tile[1] * kind.weight)

    if not chip.sram_bytes:
        return TILES
    fitting = tuple(tile for tile in TILES if held(tile) <= chip.sram_bytes)
    if fitting:
        return fitting
    smaller = [tile for tile in SMALL_TILES if held(tile) <= chip.sram_bytes]
    return (smaller[0],) if smaller else ((1, 1),)


def tiled_traffic(
    m: Array,
    n: Array,
    k: Array,
    on_chip_bytes: Array | float,
    activation: float = 2.0,
    weight: float = 2.0,
    output: float = 2.0,
    sums: float = 4.0,
) -> Array:
    """Return the bytes that a product tiled for a memory of `on_chip_bytes` moves [byte].

    The sums of a tile of (rows, columns) of the output stay on chip while k runs by; the input is
    read once for each column of tiles, the weights once for each row of tiles. Square tiles as
    large as fit (`sums` bytes a sum), wider where there are few rows: with everything on chip each
    operand moves once, with nothing every product reads both its factors.

    Examples
    --------
    1024 x 1024 x 1024 in 16 bits through 64 KiB: tiles of 128 x 128, each operand 8 times.

    >>> side = np.array(1024.0)
    >>> float(tiled_traffic(side, side, side, 65536)) / (2 * 1024**2)
    17.0
    """
    held = np.maximum(on_chip_bytes / sums, 1.0)
    rows = np.minimum(m, np.floor(np.sqrt(held)))
    columns = np.minimum(n, np.maximum(np.floor(held / rows), 1.0))
    read = m * k * activation * np.ceil(n / columns) + n * k * weight * np.ceil(m / rows)
    moved: Array = read + m * n * output
    return moved


def attention_rows(chip: Chip, head_dim: Array, kv_bytes: float = 2.0) -> Array:
    """Return the query rows of an attention tile: 128, fewer where SRAM is small.

    A unit holds the queries, and as many keys and values (FlashAttention, arXiv:2205.14135,
    algorithm 1); halved until that fits.

    Examples
    --------
    >>> chip = Chip(132, 4.8e12, 60e6, 6e10, {"bf16": 1e15}, sram_bytes=32768)
    >>> float(attention_rows(chip, np.array(128.0)))
    32.0
    """
    if not chip.sram_bytes:
        return np.full(np.shape(head_dim), 128.0)
    most = chip.sram_bytes / (head_dim * (2.0 + 2.0 * kv_bytes))
    rows: Array = np.exp2(np.clip(np.floor(np.log2(np.maximum(most, 1.0))), 0.0, 7.0))
    return rows
