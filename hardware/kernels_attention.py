"""Analytic time of attention: decode, prefill, both in one call, and without a fused kernel."""

import numpy as np

from hardware.kernels_chip import Array, Chip, Coefficients, Shape
from hardware.kernels_forms import MOST_CACHE, soft_maximum
from hardware.kernels_schedule import BLOCK_TOKENS, Pace, even_s
from hardware.kernels_tiling import attention_rows

__all__ = [
    "attention_decode",
    "attention_mixed",
    "attention_prefill",
    "attention_unfused",
    "attention_unfused_decode",
    "decode_pace",
    "unfused_bytes",
]

ATTENTION_ROWS = 128  # query rows of one FlashAttention-3 tile at head size 128
FULL_SHARE = 0.8  # of the units busy with tiles: FlashAttention-3 splits no context from here on
SPLIT_TOKENS = 256  # fewest KV tokens that a split of one sequence is worth
ROUNDING = 1e-9  # so that exactly full waves stay so
OVERLAP = 3.0  # sharpness with which products and softmax of a tile hide each other


def attention_decode(shape: Shape, chip: Chip, c: Coefficients, kv_bytes: float = 2.0) -> Array:
    """Return the time of one new token per sequence over its KV cache, contexts alike [s].

    Work items are (sequence, KV head, split of the context), scheduled as `kernels_schedule` says.
    """
    batch, context = shape["batch"], shape["context"]
    pace = decode_pace(shape, chip, c, kv_bytes)
    busy, splits = even_s(batch, context, shape["kv_heads"] * _row_tiles(shape), pace)
    return c["launch_s"] + c["split_s"] * (1 - 1 / splits) + busy


def _row_tiles(shape: Shape) -> Array:
    """Return tiles of query rows over one KV head: all its query heads, 128 rows each."""
    tiles: Array = np.ceil(shape["heads"] / shape["kv_heads"] / ATTENTION_ROWS)
    return tiles


def items_per_sequence(heads: int, kv_heads: int) -> int:
    """Return the work items of a sequence before its context is split."""
    return kv_heads * -(-heads // kv_heads // ATTENTION_ROWS)


def decode_pace(shape: Shape, chip: Chip, c: Coefficients, kv_bytes: float = 2.0) -> Pace:
    """Return how fast decode attention works off blocks of the KV cache.

    A block's keys and values are read once, at the share `memory` of the bandwidth when all units
    read and at most `unit` shares of one unit's part when few do; a matrix unit pads its rows to
    64, a vector unit does not.
    """
    d, kv_heads = shape["head_dim"], shape["kv_heads"]
    own = shape["heads"] / kv_heads / _row_tiles(shape)
    rows = np.maximum(own, 64) if chip.pads_rows else own
    tokens = BLOCK_TOKENS[kv_bytes]
    moved = tokens * d * 2 * kv_bytes
    all_busy = moved * chip.units / (chip.memory * c["memory"])
    few_busy = all_busy * c["memory"] / np.maximum(c["unit"], c["memory"])
    unit_peak = chip.attention_peak * min(c["matrix"], 1.0) / chip.units
    compute = tokens * 4 * rows * d / unit_peak
    block_s = np.maximum(all_busy, compute)
    alone = block_s / np.maximum(few_busy, compute)
    return Pace(chip.units, block_s, alone, c["tile_s"] / block_s, c["empty"], tokens)


def _splits(items: Array, context: Array, units: int) -> Array:
    """Return into how many parts the context of each item is split to fill the units.

    Left unrounded: kernels round in ways of their own, which the residual holds.
    """
    splits: Array = np.clip(units / np.maximum(items, 1), 1, np.maximum(context / SPLIT_TOKENS, 1))
    return splits


def attention_prefill(shape: Shape, chip: Chip, c: Coefficients, kv_bytes: float = 2) -> Array:
    """Return the time of causal attention of q new tokens after `past` cached ones [s].

    FLOPs are 4 heads head_dim q (past + q/2) per sequence: two products, the causal half. A tile
    is 128 rows of (query, head of one KV group), fewer where SRAM is small, so that keys and values
    are loaded more often; few tiles split their context. Tiles of equal length (much past) run in
    whole waves, those of a causal triangle fill the gaps. With the coefficient `exponential` (share
    of the chip's rate of exponentials) the softmax of a tile takes its time beside the products.
    """
    q, past, batch = shape["q"], shape["past"], shape["batch"]
    kv, d = shape["kv_heads"], shape["head_dim"]
    context = past + q
    rows = attention_rows(chip, d, kv_bytes)
    tiles = batch * kv * np.ceil(q * shape["heads"] / kv / rows)
    splits = _splits(tiles, context, chip.units)
    share = tiles * splits / chip.units
    waves = share * q / context + np.ceil(share - ROUNDING) * past / context
    multiply = 4 * rows * d / (chip.attention_peak * c["matrix"] / chip.units)
    load = 2 * d * kv_bytes / (chip.memory * MOST_CACHE / chip.units)
    per_token = np.maximum(_with_softmax(multiply, rows, chip, c), load) / splits
    level = waves * (c["tile_s"] + per_token * (past + (q + rows) / 2))
    longest = c["tile_s"] + per_token * context
    memory = batch * context * kv * d * 2 * kv_bytes / (chip.memory * c["memory"])
    combine = c["split_s"] * (1 - 1 / splits)
    busy = soft_maximum(level, longest, c["balance"])
    return c["launch_s"] + combine + soft_maximum(busy, memory, c["sharpness"])


def _with_softmax(multiply: Array, rows: Array, chip: Chip, c: Coefficients) -> Array:
    """Return the time of a tile per token of context: products, and an exponential per score [s].

    FlashAttention-4 and NVIDIA's Blackwell Ultra name the exponentials as what limits attention
    where products are fast: 128 x 128 scores of head size 128 take a B200 as long as its products.
    """
    if "exponential" not in c or not np.all(np.asarray(chip.exponentials) > 0):
        return multiply
    return soft_maximum(
        multiply, rows * chip.units / (chip.exponentials * c["exponential"]), OVERLAP
    )


def attention_mixed(shape: Shape, chip: Chip, c: Coefficients) -> Array:
    """Return the time of decoding sequences beside a prefill chunk, in one call [s].

    `decode_s` and `prefill_s` of the shape are the times of each part alone. One launch is saved.
    Beside a chunk whose tiles fill the units, no context is split any more (else into `splits`),
    so the `longest` one takes a unit a time of its own, which the rest may not cover.
    """
    launch, kv, d = c["launch_s"], shape["kv_heads"], shape["head_dim"]
    decode = np.maximum(shape["decode_s"] - launch, 0)
    chunk = np.maximum(shape["prefill_s"] - launch, 0)
    tiles = kv * np.ceil(shape["q"] * shape["heads"] / kv / ATTENTION_ROWS)
    splits = np.where(tiles >= FULL_SHARE * chip.units, 1.0, c["splits"])
    unit_bytes = chip.memory * c["unit_memory"] / chip.units
    straggler = shape["longest"] * d * 4 / unit_bytes / splits
    beside = soft_maximum(decode + chunk, straggler, c["sharpness"])
    return launch + np.where((decode > 0) & (chunk > 0), beside, decode + chunk)


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


def attention_unfused_decode(shape: Shape, chip: Chip, c: Coefficients, query: int = 1) -> Array:
    """Return the time of new tokens per sequence as separate kernels, by what memory moves [s]."""
    return c["launch_s"] + unfused_bytes(shape, query) / (chip.memory * c["memory"])


def unfused_bytes(shape: Shape, query: float | Array) -> Array:
    """Return what memory moves for `query` new tokens per sequence without a fused kernel [byte].

    Keys and values are copied once to each query head of their group where there are several,
    then read by the products; scores pass eight times (write, scale, mask, softmax, read).

    Examples
    --------
    One head, one new token over 1000 cached ones of 128 elements: keys and values once, 8 scores.

    >>> one = {name: np.array(1.0) for name in ("batch", "heads", "kv_heads")}
    >>> one |= {"context": np.array(1000.0), "head_dim": np.array(128.0)}
    >>> float(unfused_bytes(one, 1)) == 1000 * 128 * 2 * 2 + 8 * 1000 * 2
    True
    """
    cached = shape["batch"] * shape["context"] * shape["kv_heads"] * shape["head_dim"] * 2 * 2
    group = shape["heads"] / shape["kv_heads"]
    copied = cached * np.where(group > 1, 1 + 2 * group, 1.0)
    scores: Array = 8 * 2 * query * shape["batch"] * shape["heads"] * shape["context"]
    return copied + scores
