"""Analytic time of one kernel from its shape, a chip's numbers and dimensionless coefficients.

Every form is ``launch + (compute^p + memory^p)^(1/p)``: a floor, and a soft maximum of the time
that the compute units need (tiles in waves, as GPUs schedule them) and the time that memory needs.
Coefficients are shares of the chip's own peaks, so that they carry over to other chips; the few in
seconds (``launch_s``, ``tile_s``, ...) are latencies. Each shape is a mapping of broadcastable
arrays. All forms grow with every extent of the shape, apart from the steps of tiles and waves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GEMM_TYPES",
    "Array",
    "Chip",
    "Coefficients",
    "GemmType",
    "Shape",
    "attention_decode",
    "attention_prefill",
    "attention_unfused",
    "copy",
    "distinct_experts",
    "elementwise",
    "gemm",
    "moe",
]

Array: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = Mapping[str, Array]
Coefficients: TypeAlias = Mapping[str, float]
Form: TypeAlias = Callable[[Shape, "Chip", Coefficients], Array]

TILES = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 3, 4, 6, 8)
ATTENTION_ROWS = 128  # query rows of one FlashAttention-3 tile at head size 128
SPLIT_TOKENS = 256  # fewest KV tokens that a split of one sequence is worth


class ChipSpec(Protocol):
    """What a form reads of an accelerator's description."""

    @property
    def memory_bytes_per_s(self) -> float: ...
    @property
    def compute_units(self) -> int: ...
    @property
    def l2_bytes(self) -> float: ...
    def peak(self, precision: str) -> float: ...


@dataclass(frozen=True)
class Chip:
    """Numbers of one chip that the forms use.

    Parameters
    ----------
    units : int
        Compute units (SMs, cores, tiles).
    memory : float
        Peak bandwidth of main memory [byte/s].
    l2_bytes : float
        Last shared cache [byte].
    host : float
        Peak bandwidth to host memory, per direction [byte/s].
    peaks : mapping
        Precision -> dense peak [FLOP/s].
    """

    units: int
    memory: float
    l2_bytes: float
    host: float
    peaks: Mapping[str, float]


@dataclass(frozen=True)
class GemmType:
    """Bytes per element of weights, activations and outputs, and the unit that multiplies.

    `speedup` is the factor on that unit's dense peak (2 for 2:4 sparsity).
    """

    precision: str
    weight: float
    activation: float
    output: float
    speedup: float = 1.0


GEMM_TYPES = {
    "bf16": GemmType("bf16", 2, 2, 2),
    "fp16": GemmType("fp16", 2, 2, 2),
    "fp32": GemmType("fp32", 4, 4, 4),
    "tf32": GemmType("tf32", 4, 4, 4),
    "fp8": GemmType("fp8", 1, 1, 2),
    "int8": GemmType("int8", 1, 1, 4),
    "w4a16": GemmType("bf16", 0.5 + 2 / 128, 2, 2),  # one 16-bit scale per group of 128
    "fp4": GemmType("fp4", 0.5 + 1 / 16, 0.5 + 1 / 16, 2),  # one 8-bit scale per group of 16
    "sparse24_bf16": GemmType("bf16", 1 + 1 / 8, 2, 2, 2.0),  # half the values, 2-bit positions
}


def soft_maximum(a: Array, b: Array, p: float) -> Array:
    """Return (a^p + b^p)^(1/p) without overflow; p of 1 adds, a large p takes the maximum."""
    high = np.maximum(np.maximum(a, b), 1e-30)
    scaled: Array = high * ((a / high) ** p + (b / high) ** p) ** (1 / p)
    return scaled


def gemm(shape: Shape, chip: Chip, c: Coefficients, kind: GemmType) -> Array:
    """Return the time of Y[m,n] = X[m,k] W[n,k]^T [s]: best of several tilings, or memory.

    A tile of (rows, columns) of the output takes a compute unit the longer of its
    multiplications and of loading its operands from the shared cache; tiles run in waves over the
    units; k may be split over units, at the price of adding the parts.
    """
    m, n, k = shape["m"], shape["n"], shape["k"]
    moved = n * k * kind.weight + m * k * kind.activation + m * n * kind.output
    best = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape), np.inf)
    for rows, columns in TILES:
        grid = np.ceil(m / rows) * np.ceil(n / columns)
        per_k = _tile_time_per_k(np.minimum(m, rows), rows, columns, chip, c, kind)
        for split in SPLITS:
            waves = np.ceil(grid * split / chip.units)
            time = waves * (per_k * k / split + c["tile_s"])
            if split > 1:
                partial = m * n * 8 * split / (chip.memory * c["cache"])
                time = time + c["split_s"] + partial
            np.minimum(best, time, out=best)
    memory = moved / (chip.memory * c["memory"])
    return c["launch_s"] + soft_maximum(best, memory, c["sharpness"])


def _tile_time_per_k(
    used: Array, rows: int, columns: int, chip: Chip, c: Coefficients, kind: GemmType
) -> Array:
    unit_flops = chip.peaks[kind.precision] * kind.speedup / chip.units * c["matrix"]
    unit_bytes = chip.memory * c["cache"] / chip.units
    multiply = 2.0 * rows * columns / unit_flops
    load = (used * kind.activation + columns * kind.weight) / unit_bytes
    return np.maximum(multiply, load)


def attention_decode(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of one new token per sequence over its KV cache [s].

    Work items are (sequence, KV head, split of the context), in waves over the units.
    """
    batch, context = shape["batch"], shape["context"]
    items = batch * shape["kv_heads"]
    token_bytes = 2 * shape["head_dim"] * 2.0
    splits = _splits(items, context, chip.units)
    waves = np.ceil(items * splits / chip.units)
    unit_bytes = chip.memory * c["unit_memory"] / chip.units
    unit = waves * (c["tile_s"] + context / splits * token_bytes / unit_bytes)
    memory = items * context * token_bytes / (chip.memory * c["memory"])
    combine = np.where(splits > 1, c["split_s"], 0.0)
    return c["launch_s"] + combine + soft_maximum(unit, memory, c["sharpness"])


def _splits(items: Array, context: Array, units: int) -> Array:
    """Return into how many parts the context of each item is split to fill the units."""
    wanted = np.floor(units / np.maximum(items, 1))
    return np.clip(wanted, 1, np.ceil(context / SPLIT_TOKENS))


def attention_prefill(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of causal attention of q new tokens after `past` cached ones [s].

    FLOPs are 4 heads head_dim q (past + q/2) per sequence [DESIGN: two products, causal half];
    a tile is 128 rows of (query, head of one KV group), and its context is split when few.
    """
    q, past, batch = shape["q"], shape["past"], shape["batch"]
    kv, d = shape["kv_heads"], shape["head_dim"]
    group = shape["heads"] / kv
    tiles = batch * kv * np.ceil(q * group / ATTENTION_ROWS)
    context = past + q
    splits = _splits(tiles, context, chip.units)
    unit_flops = chip.peaks["bf16"] * c["matrix"] / chip.units
    tile_flops = 4 * ATTENTION_ROWS * d
    mean = past + (q + ATTENTION_ROWS / group) / 2
    level = tiles * tile_flops * mean / unit_flops / chip.units
    longest = np.ceil(tiles * splits / chip.units) * c["tile_s"] + (
        tile_flops * context / splits / unit_flops
    )
    memory = batch * context * kv * d * 4 / (chip.memory * c["memory"])
    combine = np.where(splits > 1, c["split_s"], 0.0)
    busy = soft_maximum(level, longest, c["balance"])
    return c["launch_s"] + combine + soft_maximum(busy, memory, c["sharpness"])


def attention_unfused(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of attention as separate product, softmax and product kernels [s].

    The q x q scores pass main memory about eight times (write, scale, mask, softmax, read), and
    nothing is skipped above the diagonal.
    """
    q, heads, d = shape["q"], shape["heads"], shape["head_dim"]
    scores = heads * q * q
    compute = 4 * scores * d / (chip.peaks["bf16"] * c["matrix"])
    passes = 8 * scores * 2
    fast = passes / (chip.memory * c["cache"])
    slow = passes / (chip.memory * c["memory"])
    spilled = 1 / (1 + (chip.l2_bytes * c["cache_share"] / (2 * scores * 2)) ** 2)
    return c["launch_s"] + compute + fast + spilled * slow


def distinct_experts(tokens: Array, experts: Array, top_k: Array) -> Array:
    """Return the expected number of experts that `tokens` tokens touch, uniform routing.

    E (1 - (1 - k/E)^t); with k = E every expert is touched.

    Examples
    --------
    >>> float(distinct_experts(np.array(1.0), np.array(8.0), np.array(2.0)))
    2.0
    """
    return experts * (1 - (1 - np.minimum(top_k / experts, 1)) ** tokens)


def moe(shape: Shape, chip: Chip, c: Coefficients, kind: GemmType) -> Array:
    """Return the time of gated experts (two products up, one down) on routed tokens [s].

    Weights of the touched experts are read once; each expert's rows are padded to a block of
    rows. `distinct` of the shape, when given, replaces the count of uniform routing.
    """
    tokens, hidden, inter = shape["tokens"], shape["hidden"], shape["intermediate"]
    touched = shape.get("distinct")
    if touched is None:
        touched = distinct_experts(tokens, shape["experts"], shape["top_k"])
    rows = tokens * shape["top_k"]
    weights = touched * 3 * hidden * inter * kind.weight
    traffic = weights + rows * (2 * hidden + 3 * inter) * 2
    memory = traffic / (chip.memory * c["memory"])
    flops_per_row = 6 * hidden * inter
    peak = chip.peaks[kind.precision] * kind.speedup
    best = np.full(np.shape(memory), np.inf)
    for block in (16, 32, 64, 128):
        padded = np.maximum(rows, 1) + touched * block / 2
        share = c["matrix"] * block / (block + c["half_block"])
        np.minimum(best, padded * flops_per_row / (peak * share), out=best)
    return c["launch_s"] + soft_maximum(best, memory, c["sharpness"])


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
