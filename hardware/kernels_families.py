"""Kernel families: how a shape is named, timed by a form, and told apart by its residual.

A family's shape has running extents (`axes`: m, batch, context, ... which change from step to
step) and a layout (n, k, head counts, ... fixed by a model). Features are log2 of what matters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from formats import InputError, did_you_mean
from hardware import kernels_attention as attention
from hardware import kernels_experts as experts
from hardware import kernels_forms as forms
from hardware.kernels_forms import GEMM_TYPES, Array, Chip, Coefficients, GemmType, Shape

__all__ = ["BYTES_PER_ELEMENT", "COPY_PATHS", "FAMILIES", "Family", "family"]

# Bytes read and written per element of an element-wise operation: bf16 activations, fp32 logits;
# sampling copies bf16 logits to fp32, adds noise, and searches.
BYTES_PER_ELEMENT = {
    "rms_norm_fused_add": 8.0,
    "rms_norm_add_unfused": 8.0,
    "silu_and_mul": 6.0,
    "quant_fp8_per_token": 3.0,
    "rotary": 4.0,
    "add": 6.0,
    "argmax": 4.0,
    "softmax_sample": 12.0,
    # As a compiler fuses them inside an engine: with the quantisation that follows, cache writes.
    "norm_compiled": 8.0,
    "norm_quant_compiled": 7.0,
    "silu_compiled": 6.0,
    "silu_quant_compiled": 5.0,
    "quant_compiled": 3.0,
    "rotary_compiled": 4.0,
    "qk_norm_compiled": 4.0,
    "kv_write": 4.0,
    "kv_write_fp8": 3.0,
    "sample": 14.0,
}
COPY_PATHS = ("copy_cold", "copy_l2", "h2d_pinned", "d2h_pinned")


@dataclass(frozen=True)
class Family:
    """One kind of kernel.

    Parameters
    ----------
    name : str
        Such as ``gemm_bf16``.
    axes, layout : tuple of str
        Running extents, and those fixed by a model.
    offsets : tuple of float
        Per axis: interpolation runs in log2(extent + offset).
    form : callable
        Shape, chip and coefficients to seconds.
    start : mapping
        Coefficients to start a fit from.
    features : callable
        Shape to (running features, layout features), log2; None where the form has no residual.
    parent : str
        Family whose coefficients serve when a chip has no traces of this one.
    precision : str
        Peak that the form needs; empty where any chip will do.
    breaks : tuple of float
        Extents of the first axis at which the features jump.
    uneven : tuple of str
        Coefficients that only batches of uneven sequences can tell.
    optional : tuple of str
        Coefficients that only joint fits to several accelerators have.
    """

    name: str
    axes: tuple[str, ...]
    layout: tuple[str, ...]
    form: Callable[[Shape, Chip, Coefficients], Array]
    start: Mapping[str, float]
    features: Callable[[Shape], tuple[list[Array], list[Array]]] | None
    offsets: tuple[float, ...] = ()
    parent: str = ""
    precision: str = ""
    breaks: tuple[float, ...] = ()
    uneven: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[str, ...]:
        """All extents of a shape: axes, then layout."""
        return self.axes + self.layout

    def shape(self, *values: object) -> dict[str, Array]:
        """Return a shape from values in the order of `extents`."""
        arrays = (np.asarray(v, dtype=float) for v in values)
        return dict(zip(self.extents, arrays, strict=True))

    def position(self, axis: int, value: Array) -> Array:
        """Return where an extent of an axis lies on the axis's logarithmic scale."""
        offset = self.offsets[axis] if self.offsets else 0.0
        position: Array = np.log2(value + offset)
        return position

    def matrix(self, shape: Shape) -> tuple[Array, int]:
        """Return features (N, F) of a shape, and how many of them run."""
        if self.features is None:
            return np.empty((len(next(iter(shape.values()))), 0)), 0
        run, layout = self.features(shape)
        columns = np.broadcast_arrays(*run, *layout)
        return np.stack([c.ravel() for c in columns], axis=1), len(run)


def _gemm_features(s: Shape, kind: GemmType) -> tuple[list[Array], list[Array]]:
    """Return log2 m, or of the padded rows and of how full they are; log2 n and k."""
    padded = kind.padded(s["m"])
    run = [padded, s["m"] / padded] if kind.quanta else [s["m"]]
    return [np.log2(v) for v in run], [np.log2(s["n"]), np.log2(s["k"])]


def _decode_features(s: Shape) -> tuple[list[Array], list[Array]]:
    items, context = s["batch"] * s["kv_heads"], s["context"] * s["head_dim"] / 128
    return [np.log2(items), np.log2(context)], [np.log2(s["heads"] / s["kv_heads"])]


def _beside_features(s: Shape) -> tuple[list[Array], list[Array]]:
    run, layout = _decode_features(s)
    return [*run, np.log2(s["q"])], layout


def _prefill_features(s: Shape) -> tuple[list[Array], list[Array]]:
    rows = s["batch"] * s["heads"] * s["q"]
    past, q = np.log2(1 + s["past"] / 256), np.log2(s["q"])
    layout = [s["heads"] / s["kv_heads"], s["kv_heads"]]
    return [np.log2(rows), q, past], [np.log2(v) for v in layout]


def _unfused_features(s: Shape) -> tuple[list[Array], list[Array]]:
    return [np.log2(s["q"])], [np.log2(s["heads"] * s["head_dim"])]


def _moe_features(s: Shape) -> tuple[list[Array], list[Array]]:
    per_expert = s["tokens"] * s["top_k"] / s["experts"]
    layout = [s["experts"] / s["top_k"], s["hidden"], s["intermediate"]]
    return [np.log2(per_expert)], [np.log2(v) for v in layout]


def _elementwise_features(s: Shape) -> tuple[list[Array], list[Array]]:
    return [np.log2(s["tokens"])], [np.log2(s["width"])]


def _copy_features(s: Shape) -> tuple[list[Array], list[Array]]:
    return [np.log2(s["bytes"])], [np.zeros_like(s["bytes"])]


_GEMM_START = {
    "matrix": 0.7,
    "cache": 2.0,
    "memory": 0.9,
    "tile_s": 1e-6,
    "split_s": 1e-6,
    "launch_s": 3e-6,
    "sharpness": 3.0,
}
_BLOCKED_START = {
    "matrix": 0.4,
    "single": 0.7,
    "unpack": 5.0,
    "memory": 0.8,
    "launch_s": 5e-6,
    "sharpness": 2.0,
}
_DECODE_START = {
    "memory": 0.9,
    "unit": 1.5,
    "matrix": 0.6,
    "tile_s": 2e-6,
    "split_s": 1e-6,
    "launch_s": 7e-6,
    "empty": 0.5,
}
_PREFILL_START = {
    "matrix": 0.65,
    "memory": 0.9,
    "tile_s": 1e-6,
    "split_s": 2e-6,
    "launch_s": 6e-6,
    "balance": 3.0,
    "sharpness": 2.0,
}
_MIXED_START = {
    "unit_memory": 1.1,
    "splits": 3.0,
    "launch_s": 6e-6,
    "sharpness": 2.0,
}
_UNFUSED_START = {
    "matrix": 0.6,
    "memory": 0.8,
    "cache": 2.0,
    "cache_share": 1.0,
    "launch_s": 1e-5,
}
_MOE_START = {
    "matrix": 0.7,
    "cache": 2.0,
    "memory": 0.9,
    "traffic": 1.0,
    "tile_s": 1e-6,
    "launch_s": 1e-5,
    "sharpness": 3.0,
}
_ELEMENTWISE_START = {
    "memory": 0.8,
    "cache": 1.5,
    "cache_share": 1.0,
    "element_s": 1e-10,
    "launch_s": 1.5e-6,
    "sharpness": 2.0,
}
_COPY_START = {"memory": 0.8, "launch_s": 2e-6}


_GEMM_PARENTS = {
    "bf16": "",
    "int8": "fp8",
    "int4": "fp8",
    "fp6": "fp8",
    "fp4": "fp8",
    "w4a16": "",
    "w6a16": "w4a16",
    "w8a16": "w4a16",
    **{f"sparse24_{narrow}": "sparse24_bf16" for narrow in ("fp16", "fp8", "int8")},
}


def _gemm_family(dtype: str) -> Family:
    kind = GEMM_TYPES[dtype]
    form = partial(forms.gemm_blocked if kind.block else forms.gemm, kind=kind)
    start = _BLOCKED_START if kind.block else _GEMM_START
    parent = _GEMM_PARENTS.get(dtype, "bf16")
    return Family(
        f"gemm_{dtype}",
        ("m",),
        ("n", "k"),
        form,
        start,
        partial(_gemm_features, kind=kind),
        parent=f"gemm_{parent}" if parent else "",
        precision="" if kind.block else kind.precision,
        breaks=tuple(float(quantum + 1) for quantum in _quanta(kind)),
    )


def _quanta(kind: GemmType) -> list[int]:
    """Return the row counts below 4096 at which a padded kernel takes another step."""
    if not kind.quanta:
        return []
    last = kind.quanta[-1]
    return [*kind.quanta[:-1], *range(last, 4096, last)]


def _elementwise_form(s: Shape, chip: Chip, c: Coefficients, per_element: float) -> Array:
    moved = s["tokens"] * s["width"] * per_element
    return forms.elementwise({"bytes": moved, "width": s["width"]}, chip, c)


def _elementwise_family(op: str) -> Family:
    form = partial(_elementwise_form, per_element=BYTES_PER_ELEMENT[op])
    start, features = _ELEMENTWISE_START, _elementwise_features
    name, parent = f"elementwise_{op}", "" if op == "add" else "elementwise_add"
    return Family(name, ("tokens",), ("width",), form, start, features, parent=parent)


def _moe_family(dtype: str) -> Family:
    form, parent = (
        partial(experts.moe, kind=GEMM_TYPES[dtype]),
        "" if dtype == "bf16" else "moe_bf16",
    )
    kind, start, features = GEMM_TYPES[dtype], _MOE_START, _moe_features
    precision = "" if kind.block else kind.precision
    name, axes = f"moe_{dtype}", ("tokens",)
    return Family(name, axes, _MOE_LAYOUT, form, start, features, (), parent, precision)


def _copy_family(path: str) -> Family:
    form = partial(forms.copy, path=path)
    parent = {"copy_l2": "copy_cold", "d2h_pinned": "h2d_pinned"}.get(path, "")
    return Family(path, ("bytes",), (), form, _COPY_START, _copy_features, parent=parent)


_HEADS = ("heads", "kv_heads", "head_dim")


def _decode_family(name: str, kv_bytes: float) -> Family:
    form = partial(attention.attention_decode, kv_bytes=kv_bytes)
    axes, parent = ("batch", "context"), "" if kv_bytes == 2 else "attention_decode"
    start, features, uneven = _DECODE_START, _decode_features, ("unit", "empty")
    return Family(name, axes, _HEADS, form, start, features, parent=parent, uneven=uneven)


def _beside_family(name: str, kv_bytes: float) -> Family:
    """Return decode attention in a call that holds a prompt chunk of q tokens as well."""
    form = partial(attention.attention_decode, kv_bytes=kv_bytes)
    axes, start, uneven = ("batch", "context", "q"), _DECODE_START, ("unit", "empty")
    return Family(name, axes, _HEADS, form, start, _beside_features, uneven=uneven)


def _prefill_family(name: str, kv_bytes: float) -> Family:
    form = partial(attention.attention_prefill, kv_bytes=kv_bytes)
    axes, offsets = ("q", "past", "batch"), (0.0, 256.0, 0.0)
    parent = "" if kv_bytes == 2 else "attention_prefill"
    start, features, optional = _PREFILL_START, _prefill_features, ("exponential",)
    return Family(name, axes, _HEADS, form, start, features, offsets, parent, optional=optional)


_EXPERT_TYPES = ("bf16", "fp16", "fp32", "fp8", "int8", "w4a16", "w6a16", "w8a16", "fp6", "fp4")
_MOE_LAYOUT = ("experts", "top_k", "hidden", "intermediate")
_LISTED = [
    *(_gemm_family(dtype) for dtype in GEMM_TYPES),
    _decode_family("attention_decode", 2),
    _decode_family("attention_decode_fp8", 1),
    _beside_family("attention_beside_fp8", 1),
    _prefill_family("attention_prefill", 2),
    _prefill_family("attention_prefill_fp8", 1),
    Family(
        "attention_mixed",
        ("decode_s", "prefill_s", "longest", "q"),
        _HEADS,
        attention.attention_mixed,
        _MIXED_START,
        None,
    ),
    Family(
        "attention_unfused",
        ("q",),
        ("heads", "head_dim"),
        attention.attention_unfused,
        _UNFUSED_START,
        _unfused_features,
    ),
    *(_moe_family(dtype) for dtype in _EXPERT_TYPES),
    *(_elementwise_family(op) for op in BYTES_PER_ELEMENT),
    *(_copy_family(path) for path in COPY_PATHS),
]
FAMILIES = {f.name: f for f in _LISTED}


def family(name: str) -> Family:
    """Return a family by name.

    Raises
    ------
    InputError
        No such family.

    Examples
    --------
    >>> family("gemm_bf16").extents
    ('m', 'n', 'k')
    """
    if name not in FAMILIES:
        raise InputError(f"no kernel family named {name!r}", repair=did_you_mean(name, FAMILIES))
    return FAMILIES[name]
