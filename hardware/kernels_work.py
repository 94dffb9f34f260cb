"""Least work of a kernel: its seconds of compute and of memory at the datasheet's peaks."""

from collections.abc import Callable

import numpy as np

from hardware.kernels_experts import distinct_experts
from hardware.kernels_families import BYTES_PER_ELEMENT, COPY_PATHS
from hardware.kernels_forms import GEMM_TYPES, Array, Chip, Shape

__all__ = ["work"]

_KV_BYTES = {"": 4, "_fp8": 2}  # key and value of one element, by the family's ending
Work = Callable[[Shape, Chip, str], tuple[Array, Array]]


def _gemm(s: Shape, chip: Chip, dtype: str) -> tuple[Array, Array]:
    kind, m, n, k = GEMM_TYPES[dtype], s["m"], s["n"], s["k"]
    moved = n * k * kind.weight + m * k * kind.activation + m * n * kind.output
    return 2 * m * n * k / kind.peak(chip), moved / chip.memory


def _decode(s: Shape, chip: Chip, kv: str) -> tuple[Array, Array]:
    tokens = s["batch"] * s["context"] * s["head_dim"]
    moved = tokens * s["kv_heads"] * _KV_BYTES[kv]
    return 4 * tokens * s["heads"] / chip.attention_peak, moved / chip.memory


def _prefill(s: Shape, chip: Chip, kv: str) -> tuple[Array, Array]:
    d, q = s["head_dim"] * s["batch"], s["q"]
    flops = 4 * s["heads"] * d * q * (s["past"] + q / 2)
    moved = d * (_KV_BYTES[kv] * (s["past"] + q) * s["kv_heads"] + 4 * q * s["heads"])
    return flops / chip.attention_peak, moved / chip.memory


def _unfused(s: Shape, chip: Chip, _: str) -> tuple[Array, Array]:
    scores = s["heads"] * s["q"] ** 2
    return 4 * scores * s["head_dim"] / chip.attention_peak, 16 * scores / chip.memory


def _moe(s: Shape, chip: Chip, dtype: str) -> tuple[Array, Array]:
    kind, matrix = GEMM_TYPES[dtype], 3 * s["hidden"] * s["intermediate"]
    touched = distinct_experts(s["tokens"], s["experts"], s["top_k"])
    flops = 2 * s["tokens"] * s["top_k"] * matrix
    moved = touched * matrix * kind.weight
    return flops / kind.peak(chip), moved / chip.memory


def _elementwise(s: Shape, chip: Chip, op: str) -> tuple[Array, Array]:
    moved = s["tokens"] * s["width"] * BYTES_PER_ELEMENT[op]
    return np.zeros_like(moved), moved / chip.memory


def _copy(s: Shape, chip: Chip, path: str) -> tuple[Array, Array]:
    peak = chip.host if path.endswith("pinned") else chip.memory
    return np.zeros_like(s["bytes"]), s["bytes"] / peak


_BY_PREFIX: dict[str, Work] = {
    "gemm_": _gemm,
    "attention_decode": _decode,
    "attention_beside": _decode,
    "attention_prefill": _prefill,
    "attention_unfused": _unfused,
    "moe_": _moe,
    "elementwise_": _elementwise,
}


def work(family: str, shape: Shape, chip: Chip) -> tuple[Array, Array]:
    """Return seconds of compute and of memory at datasheet peaks; the larger is the roofline.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> from hardware.kernels import chip_of
    >>> chip = chip_of(load_accelerator("h200-sxm"))
    >>> shape = {name: np.array(4096.0) for name in "mnk"}
    >>> compute, memory = work("gemm_bf16", shape, chip)
    >>> f"{compute * 1e6:.0f} us of compute, {memory * 1e6:.0f} us of memory"
    '139 us of compute, 21 us of memory'
    """
    if family in COPY_PATHS:
        return _copy(shape, chip, family)
    prefix = next(p for p in _BY_PREFIX if family.startswith(p))
    return _BY_PREFIX[prefix](shape, chip, family.removeprefix(prefix))
