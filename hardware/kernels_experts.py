"""Analytic time of routed experts, and how many of them a step touches."""

import numpy as np
from scipy.optimize import brentq

from hardware.kernels_forms import (
    Array,
    Chip,
    Coefficients,
    GemmType,
    Shape,
    soft_maximum,
    tile_time_per_k,
)

__all__ = ["distinct_experts", "inclusion", "moe", "touched_experts"]

EXPERT_BLOCKS, EXPERT_COLUMNS = (16, 32, 64, 128), 128  # tiles of the fused experts kernel
MOST_COUNTS = 256  # token counts at which skewed choices are summed over experts


def distinct_experts(tokens: Array, experts: Array, top_k: Array) -> Array:
    """Return the expected number of experts that `tokens` tokens touch, uniform routing.

    E (1 - (1 - k/E)^t); with k = E every expert is touched.

    Examples
    --------
    >>> float(distinct_experts(np.array(1.0), np.array(8.0), np.array(2.0)))
    2.0
    """
    touched: Array = experts * (1 - (1 - np.minimum(top_k / experts, 1)) ** tokens)
    return touched


def inclusion(experts: int, top_k: int, exponent: float) -> Array:
    """Return the probability that a token chooses each expert, most popular first (experts,).

    Popularity falls as rank^-exponent (Zipf); top_k different experts are drawn, and the
    probabilities are 1 - (1 - p)^x with the x that makes them add to top_k.

    Examples
    --------
    >>> inclusion(4, 2, 0.0).round(6).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    if top_k >= experts:
        return np.ones(experts)
    share = np.arange(1, experts + 1, dtype=float) ** -exponent
    miss = np.log1p(-np.minimum(share / share.sum(), 1 - 1e-12))

    def excess(log_draws: float) -> float:
        return float(-np.expm1(np.exp(log_draws) * miss).sum()) - top_k

    chosen: Array = -np.expm1(np.exp(brentq(excess, -10.0, 60.0, xtol=1e-12)) * miss)
    return chosen


def touched_experts(tokens: Array, chosen: Array) -> Array:
    """Return the expected number of experts touched, each token choosing e with `chosen[e]`.

    Beyond 256 token counts, interpolated between 256 of them.

    Examples
    --------
    >>> touched_experts(np.array([1.0, 2.0]), inclusion(8, 2, 0.0)).round(6).tolist()
    [2.0, 3.5]
    """
    asked = np.unique(tokens)
    if len(asked) > MOST_COUNTS:
        asked = np.unique(np.geomspace(asked[0], asked[-1], MOST_COUNTS))
    touched: Array = (1 - (1 - chosen) ** asked[:, None]).sum(axis=1)
    between: Array = np.interp(tokens, asked, touched)
    return between


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
        per_k = tile_time_per_k(used, block, EXPERT_COLUMNS, chip, c, kind)
        time = np.zeros(best.shape)
        for n, k in ((2 * inter, hidden), (hidden, inter)):
            waves = np.maximum(blocks * np.ceil(n / EXPERT_COLUMNS) / chip.units, 1)
            time = time + waves * (per_k * k + c["tile_s"])
        np.minimum(best, time, out=best)
    return c["launch_s"] + traffic + soft_maximum(best, memory, c["sharpness"])
