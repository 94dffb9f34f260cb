"""Analytic time of one kernel from its shape, a chip's numbers and dimensionless coefficients.

Every form is ``launch + (compute^p + memory^p)^(1/p)``: a floor, and a soft maximum of the time
that the compute units need (tiles in waves, as GPUs schedule them) and the time that memory needs.
Coefficients are shares of the chip's own peaks, so that they carry over to other chips; the few in
seconds (``launch_s``, ``tile_s``, ...) are latencies. Each shape is a mapping of broadcastable
arrays. All forms grow with every extent of the shape, apart from the steps of tiles and waves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
    "gemm_blocked",
    "moe",
]

Array: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = Mapping[str, Array]
Coefficients: TypeAlias = Mapping[str, float]
Form: TypeAlias = Callable[[Shape, "Chip", Coefficients], Array]

TILES = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 3, 4, 6, 8)
ATTENTION_ROWS = 128  # query rows of one FlashAttention-3 tile at head size 128
EXPERT_BLOCKS, EXPERT_COLUMNS = (16, 32, 64, 128), 128  # tiles of the fused experts kernel
SPLIT_TOKENS = 256  # fewest KV tokens that a split of one sequence is worth


@dataclass(frozen=True)
class Chip:
    """Numbers of one chip that the forms use.

    Parameters
    ----------
    units : int
        Places where a tile runs by itself (SMs, cores).
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

    @property
    def attention_peak(self) -> float:
        """Dense peak that attention runs at: bf16, else fp16, else the least [FLOP/s]."""
        named = next((p for p in ("bf16", "fp16") if p in self.peaks), "")
        return self.peaks[named] if named else min(self.peaks.values())


@dataclass(frozen=True)
class GemmType:
    """A type of matrix product, as its kernel handles it.

    Parameters
    ----------
    precision : str
        Whose peak the multiplication runs at.
    weight, activation, output : float
        Bytes per element, scales and positions included.
    speedup : float
        Factor on that peak (2 for 2:4 sparsity).
    quanta : tuple of int
        Rows are padded to the first of these that holds them, and to whole last ones beyond.
    block : int
        A kernel that runs whole blocks of so many rows in one launch, and the rest in another.
    """

    precision: str
    weight: float
    activation: float
    output: float
    speedup: float = 1.0
    quanta: tuple[int, ...] = ()
    block: int = 0

    def padded(self, m: Array) -> Array:
        """Return the rows that the kernel computes for m rows.

        Examples
        --------
        >>> GEMM_TYPES["fp8"].padded(np.array([3.0, 65.0, 256.0, 257.0])).tolist()
        [16.0, 128.0, 256.0, 512.0]
        """
        if not self.quanta:
            return m
        padded = self.quanta[-1] * np.ceil(m / self.quanta[-1])
        for quantum in reversed(self.quanta[:-1]):
            padded = np.where(m <= quantum, float(quantum), padded)
        return padded


# fp8: CUTLASS as vLLM dispatches it (row classes 16, 64, 128; pairs of 128-row tiles above);
# 4- and 8-bit weights on 16-bit activations: Marlin, blocks of 64 rows, scales per group of 128;
# fp4: one 8-bit scale per group of 16; 2:4 sparse: half the values and 2-bit positions.
GEMM_TYPES = {
    "bf16": GemmType("bf16", 2, 2, 2),
    "fp16": GemmType("fp16", 2, 2, 2),
    "fp32": GemmType("fp32", 4, 4, 4),
    "tf32": GemmType("tf32", 4, 4, 4),
    "fp8": GemmType("fp8", 1, 1, 2, quanta=(16, 64, 128, 256)),
    "int8": GemmType("int8", 1, 1, 4),
    "w4a16": GemmType("bf16", 0.5 + 2 / 128, 2, 2, block=64),
    "w8a16": GemmType("bf16", 1 + 2 / 128, 2, 2, block=64),
    "fp4": GemmType("fp4", 0.5 + 1 / 16, 0.5 + 1 / 16, 2),
    "sparse24_bf16": GemmType("bf16", 1 + 1 / 8, 2, 2, 2.0),
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
    padded = np.where(m > TILES[-1][1], kind.padded(m), m)
    best = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape), np.inf)
    for rows, columns in TILES:
        grid = np.ceil(padded / rows) * np.ceil(n / columns)
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


def gemm_blocked(shape: Shape, chip: Chip, c: Coefficients, kind: GemmType) -> Array:
    """Return the time of a product with packed weights on wider activations [s].

    Whole blocks of rows run in one launch, the remaining rows in another; every block unpacks
    all weights (`unpack`, in multiplications per weight), work spreads evenly over the units, and
    a single block runs at the share `single` of the rate of several.
    """
    m, n, k = shape["m"], shape["n"], shape["k"]
    whole = kind.block * np.floor(m / kind.block)
    rest = m - whole
    first = _block_launch(np.maximum(whole, kind.block), n, k, chip, c, kind)
    second = _block_launch(np.maximum(rest, 1), n, k, chip, c, kind)
    return np.where(whole > 0, first, 0.0) + np.where(rest > 0, second, 0.0)


def _block_launch(
    m: Array, n: Array, k: Array, chip: Chip, c: Coefficients, kind: GemmType
) -> Array:
    peak = chip.peaks[kind.precision] * kind.speedup
    matrix = np.where(m <= kind.block, c["single"], 1.0) * c["matrix"]
    multiply = 16 * np.ceil(m / 16) / matrix + np.ceil(m / kind.block) * c["unpack"]
    moved = n * k * kind.weight + m * k * kind.activation + m * n * kind.output
    memory = moved / (chip.memory * c["memory"])
    return c["launch_s"] + soft_maximum(2 * n * k * multiply / peak, memory, c["sharpness"])


def attention_decode(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of one new token per sequence over its KV cache [s].

    Work items are (sequence, KV head, split of the context), in waves over the units, each with a
    start-up time; the cache is read once, by heads padded to 64 rows of a matrix unit.
    """
    batch, context, d = shape["batch"], shape["context"], shape["head_dim"]
    items = batch * shape["kv_heads"]
    splits = _splits(items, context, chip.units)
    start = np.ceil(items * splits / chip.units) * c["tile_s"]
    memory = items * context * d * 4 / (chip.memory * c["memory"])
    rows = np.maximum(shape["heads"] / shape["kv_heads"], 64)
    compute = items * context * 4 * rows * d / (chip.attention_peak * c["matrix"])
    combine = np.where(splits > 1, c["split_s"], 0.0)
    return c["launch_s"] + combine + start + np.maximum(memory, compute)


def _splits(items: Array, context: Array, units: int) -> Array:
    """Return into how many parts the context of each item is split to fill the units."""
    wanted = np.floor(units / np.maximum(items, 1))
    return np.clip(wanted, 1, np.ceil(context / SPLIT_TOKENS))


def attention_prefill(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of causal attention of q new tokens after `past` cached ones [s].

    FLOPs are 4 heads head_dim q (past + q/2) per sequence: two products, the causal half. A tile
    is 128 rows of (query, head of one KV group); few tiles split their context. Tiles of equal
    length (much past) run in whole waves, those of a causal triangle fill the gaps.
    """
    q, past, batch = shape["q"], shape["past"], shape["batch"]
    kv, d = shape["kv_heads"], shape["head_dim"]
    context = past + q
    tiles = batch * kv * np.ceil(q * shape["heads"] / kv / ATTENTION_ROWS)
    splits = _splits(tiles, context, chip.units)
    share = tiles * splits / chip.units
    waves = share * q / context + np.ceil(share) * past / context
    per_token = 4 * ATTENTION_ROWS * d / splits / (chip.attention_peak * c["matrix"] / chip.units)
    level = waves * (c["tile_s"] + per_token * (past + (q + ATTENTION_ROWS) / 2))
    longest = c["tile_s"] + per_token * context
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
    compute = 4 * scores * d / (chip.attention_peak * c["matrix"])
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

    Weights of the touched experts are read once; each expert's rows are padded to a block, by
    half a block on average; rows pass memory between the products. `distinct` of the shape, when
    given, replaces the number of experts that uniform routing touches.
    """
    tokens, hidden, inter = shape["tokens"], shape["hidden"], shape["intermediate"]
    touched = shape.get("distinct")
    if touched is None:
        touched = distinct_experts(tokens, shape["experts"], shape["top_k"])
    rows = tokens * shape["top_k"]
    memory = touched * 3 * hidden * inter * kind.weight / (chip.memory * c["memory"])
    traffic = rows * (3 * hidden + 6 * inter) * 2 / (chip.memory * c["traffic"])
    best = np.full(np.shape(memory + traffic), np.inf)
    for block in EXPERT_BLOCKS:
        blocks = np.maximum(rows / block + touched / 2, touched)
        used = np.minimum(rows / touched, block)
        per_k = _tile_time_per_k(used, block, EXPERT_COLUMNS, chip, c, kind)
        time = np.zeros(best.shape)
        for n, k in ((2 * inter, hidden), (hidden, inter)):
            waves = np.maximum(blocks * np.ceil(n / EXPERT_COLUMNS) / chip.units, 1)
            time = time + waves * (per_k * k + c["tile_s"])
        np.minimum(best, time, out=best)
    return c["launch_s"] + traffic + soft_maximum(best, memory, c["sharpness"])


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
