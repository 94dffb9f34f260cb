"""Time of one kernel on one accelerator, from its shape.

>>> import numpy as np
>>> from hardware.catalog import load_accelerator
>>> kernels = load_kernels(load_accelerator("h200-sxm"))
>>> times = kernels.gemm(np.array([1, 512, 4096]), 6144, 4096, "bf16")
>>> bool((np.diff(times) > 0).all())
True
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from formats import InputError, did_you_mean
from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_files import load_calibration
from hardware.kernels_attention import decode_pace, items_per_sequence
from hardware.kernels_experts import inclusion, touched_experts
from hardware.kernels_families import BYTES_PER_ELEMENT, FAMILIES, Family
from hardware.kernels_forms import GEMM_TYPES, Array, Chip
from hardware.kernels_mixed import longest_context, uneven_factor
from hardware.kernels_schedule import near_s
from hardware.kernels_surface import Surface, make_surface
from hardware.specs import AcceleratorSpec

__all__ = [
    "BASE",
    "CALIBRATIONS",
    "PATHS",
    "POOLED",
    "KernelModel",
    "carried",
    "chip_of",
    "load_kernels",
    "pool",
]

BASE, POOLED = "h200-sxm", "pooled"  # calibrations that serve accelerators without traces
CALIBRATIONS = Path(__file__).parent / "data" / "calibrations"
PATHS = {"hbm": "copy_cold", "l2": "copy_l2", "h2d": "h2d_pinned", "d2h": "d2h_pinned"}
WIDEST_UNIT = 20e12  # FLOP/s of 16-bit products; an SM of an H200 has 7.5e12, of a B200 15e12
MOST_UNITS = 1024
KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
Fidelity = Literal["measured", "datasheet"]
Heads = tuple[int, int, int]


def chip_of(spec: AcceleratorSpec) -> Chip:
    """Return the numbers of an accelerator that kernel forms use.

    A unit wider than `WIDEST_UNIT` is counted as several that each run a tile, and no chip has
    more than `MOST_UNITS`: forms and latencies describe tiles of about 128 x 128 outputs.
    """
    peaks = {name: quantity.value for name, quantity in spec.peaks.given().items()}
    host = spec.links.host.bytes_per_s.value
    chip = Chip(spec.compute_units, spec.memory_bytes_per_s, spec.l2_bytes, host, peaks)
    least = round(chip.attention_peak / WIDEST_UNIT)
    return replace(chip, units=min(max(chip.units, least), MOST_UNITS))


def load_kernels(spec: AcceleratorSpec) -> "KernelModel":
    """Return the kernel times of an accelerator.

    Its own calibration is used where `spec.calibration` names one (a file stem under
    ``hardware/data/calibrations``, or a path that ends in .toml); otherwise the forms run on its
    datasheet numbers with the coefficients of `carried`.

    Raises
    ------
    InputError
        The calibration named does not exist or is bad.
    """
    if spec.calibration is None:
        return KernelModel(chip_of(spec), carried(), "datasheet")
    own = load_calibration(_path(spec.calibration))
    return KernelModel(chip_of(spec), own, "measured", carried())


@cache
def carried() -> Calibration:
    """Return the coefficients for accelerators, or kernels, that were not measured.

    Those fitted jointly to several accelerators (`POOLED`), with bands from accelerators left
    out; kernels that only `BASE` was measured for keep its coefficients, their bands widened as
    those of the others are.
    """
    base, path = load_calibration(CALIBRATIONS / f"{BASE}.toml"), CALIBRATIONS / f"{POOLED}.toml"
    if not path.exists():
        return base
    return pool(base, load_calibration(path))


def pool(base: Calibration, pooled: Calibration) -> Calibration:
    """Return the families of `pooled`, and those of `base` that it lacks with wider bands."""
    shared = set(base.families) & set(pooled.families)
    widths = [_width(pooled.families[n].band) / _width(base.families[n].band) for n in shared]
    wider = max(1.0, float(np.median(widths))) if widths else 1.0
    families = {
        name: replace(fit, band={q: v * wider for q, v in fit.band.items()})
        for name, fit in base.families.items()
    }
    return replace(base, families={**families, **pooled.families})


def _width(band: Mapping[str, float]) -> float:
    return band["p90"] - band["p10"]


def _path(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    known = [p.stem for p in CALIBRATIONS.glob("*.toml")]
    if name not in known:
        raise InputError(f"no calibration named {name!r}", repair=did_you_mean(name, known))
    return CALIBRATIONS / f"{name}.toml"


@dataclass(frozen=True)
class KernelModel:
    """Times of kernels on one accelerator; every method takes arrays and returns seconds.

    Parameters
    ----------
    chip : Chip
        The accelerator's numbers.
    calibration : Calibration
        Measured on this accelerator (fidelity "measured") or on another one ("datasheet").
    fidelity : str
        Which of the two.
    base : Calibration, optional
        Serves families that `calibration` lacks.
    """

    chip: Chip
    calibration: Calibration
    fidelity: Fidelity
    base: Calibration | None = None
    _surfaces: dict[tuple[str, tuple[float, ...]], Surface] = field(
        default_factory=dict, repr=False, compare=False
    )

    def gemm(self, m: ArrayLike, n: int, k: int, dtype: str) -> Array:
        """Return the time of a linear layer Y[m,n] = X[m,k] W[n,k]^T [s].

        Parameters
        ----------
        m : array
            Rows (tokens of a step), 1 or more; measured up to 16384, beyond by the form.
        n, k : int
            Output and input width.
        dtype : str
            bf16, fp16, fp32, tf32, fp8, int8, w4a16, fp4 or sparse24_bf16.

        Raises
        ------
        InputError
            Unknown dtype, or one that the chip has no peak for.
        """
        if dtype not in GEMM_TYPES:
            hint = did_you_mean(dtype, GEMM_TYPES)
            raise InputError(f"no matrix type named {dtype!r}", repair=hint)
        return self.time(f"gemm_{dtype}", m, n, k)

    def attention_decode(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
    ) -> Array:
        """Return the time of one layer's attention of one new token per sequence [s].

        Parameters
        ----------
        batch : array
            Sequences.
        context : array
            KV tokens of each, the new one included; the mean where they differ.
        kv_dtype : str
            bf16, fp16 or fp8. Where this accelerator has no traces with an fp8 cache, its time is
            that of a bf16 one: halving the bytes was measured to bring little in an engine.
        """
        name = self._attention("attention_decode", kv_dtype)
        return self.time(name, batch, context, heads, kv_heads, head_dim)

    def attention_prefill(
        self,
        q: ArrayLike,
        past: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
        sequences: ArrayLike = 1,
    ) -> Array:
        """Return the time of one layer's causal attention of q new tokens per sequence [s].

        Parameters
        ----------
        q : array
            New tokens of each sequence.
        past : array
            Tokens already in its KV cache.
        sequences : array
            Equal sequences in one call.
        """
        layout = (heads, kv_heads, head_dim)
        return self.time(
            self._attention("attention_prefill", kv_dtype), q, past, sequences, *layout
        )

    def attention_mixed(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        q: ArrayLike,
        past: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
        *,
        chunks: ArrayLike = 1,
        spread: ArrayLike = 0.0,
        longest: ArrayLike | None = None,
    ) -> Array:
        """Return the time of decoding sequences of uneven contexts beside prompt chunks [s].

        Parameters
        ----------
        batch : array
            Decoding sequences; 0 for prompt chunks alone.
        context : array
            Their mean KV tokens.
        q, past : array
            New and cached tokens of each chunk; q of 0 for decoding alone. Unequal chunks:
            `hardware.kernels_mixed.mean_chunk`.
        chunks : array
            Number of chunks.
        spread : array
            Standard deviation over mean of the decoding contexts. Even contexts cost least.
        longest : array, optional
            Longest decoding context; by default typical of lognormal contexts.
        """
        layout = (heads, kv_heads, head_dim)
        most = longest_context(batch, context, spread) if longest is None else longest
        decoding, new = np.asarray(batch, float), np.asarray(q, float)
        sequences, mean = np.maximum(decoding, 1), np.maximum(context, 1)
        first = self.attention_decode(sequences, mean, *layout, kv_dtype)
        first = first * self._uneven_each(sequences, mean, spread, layout, kv_dtype)
        second = self.attention_prefill(np.maximum(new, 1), past, *layout, kv_dtype, chunks)
        parts = (np.where(decoding > 0, first, 0.0), np.where(new > 0, second, 0.0))
        return self.time("attention_mixed", *parts, most, new * chunks, *layout)

    def _uneven_each(
        self, batch: Array, context: ArrayLike, spread: ArrayLike, layout: Heads, kv_dtype: str
    ) -> Array:
        """Return `attention_uneven` of corresponding elements, in place of every combination."""
        each = np.broadcast_arrays(batch, np.asarray(context, float), np.asarray(spread, float))
        apart = [np.unique(values, return_inverse=True) for values in each]
        n, c, s = (values for values, _ in apart)
        grid = self.attention_uneven(n, c, s, *layout, kv_dtype)
        factor: Array = grid[tuple(place.reshape(each[0].shape) for _, place in apart)]
        return factor

    def attention_uneven(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        spread: ArrayLike,
        heads: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: str = "bf16",
    ) -> Array:
        """Return by what factor uneven contexts slow one layer's decode attention.

        Expected over lognormal contexts in random order; most where the sequences' items just
        fill the units, little for few sequences (split to fill them) and very many.

        Parameters
        ----------
        batch, context, spread : array (N,), (C,), (S,)
            Sequences, mean KV tokens, deviation over mean of the contexts.

        Returns
        -------
        array (N, C, S)
            On the time of `attention_decode` averaged over a block of 128 tokens of context.
        """
        name = self._attention("attention_decode", kv_dtype)
        fit, shape = self._fit(name), FAMILIES[name].shape(1, 1, heads, kv_heads, head_dim)
        pace = decode_pace(shape, self.chip, fit.coefficients, KV_BYTES[kv_dtype]).scalar()
        items = items_per_sequence(heads, kv_heads)
        n, c, s = (np.atleast_1d(np.asarray(v, float)) for v in (batch, context, spread))
        factor = uneven_factor(n, c, s, items, pace)
        even = near_s(n[:, None], c, items, pace)[:, :, None]
        return 1 + (factor - 1) * even / (even + fit.coefficients["launch_s"])

    def attention_unfused(self, q: ArrayLike, heads: int, head_dim: int) -> Array:
        """Return the time of causal attention as separate product and softmax kernels [s]."""
        return self.time("attention_unfused", q, heads, head_dim)

    def moe(
        self,
        tokens: ArrayLike,
        experts: int,
        top_k: int,
        hidden: int,
        intermediate: int,
        dtype: str = "bf16",
        popularity: float = 0.0,
    ) -> Array:
        """Return the time of one layer's routed experts [s].

        Parameters
        ----------
        tokens : array
            Tokens of the step.
        experts, top_k : int
            Experts held, and how many of them a token passes.
        hidden, intermediate : int
            Width of the model and of one expert.
        dtype : str
            bf16, fp16, fp8, int8, w4a16 or fp4.
        popularity : float
            Zipf exponent of how often experts are chosen; 0 is uniform. A skewed choice touches
            fewer experts, so fewer weights are read.
        """
        if f"moe_{dtype}" not in FAMILIES:
            known = [name.removeprefix("moe_") for name in FAMILIES if name.startswith("moe_")]
            hint = did_you_mean(dtype, known)
            raise InputError(f"no expert type named {dtype!r}", repair=hint)
        name, layout = f"moe_{dtype}", (experts, top_k, hidden, intermediate)
        if popularity == 0:
            return self.time(name, tokens, *layout)
        counts = np.asarray(tokens, float)
        touched = touched_experts(counts, inclusion(experts, top_k, popularity))
        return self._time(name, {**FAMILIES[name].shape(counts, *layout), "distinct": touched})

    def elementwise(self, op: str, tokens: ArrayLike, width: int) -> Array:
        """Return the time of an element-wise kernel over tokens x width [s]."""
        if op not in BYTES_PER_ELEMENT:
            hint = did_you_mean(op, BYTES_PER_ELEMENT)
            raise InputError(f"no element-wise operation named {op!r}", repair=hint)
        return self.time(f"elementwise_{op}", tokens, width)

    def copy(self, moved: ArrayLike, path: str) -> Array:
        """Return the time of a copy [s].

        Parameters
        ----------
        moved : array
            Bytes; read plus written for `hbm` and `l2`, transferred for `h2d` and `d2h`.
        path : str
            hbm (cold), l2, h2d or d2h (pinned host memory).
        """
        if path not in PATHS:
            raise InputError(f"no copy path named {path!r}", repair=did_you_mean(path, PATHS))
        return self.time(PATHS[path], moved)

    def launch(self, graph: bool = True) -> float:
        """Return the time per launch of an empty kernel [s], in a graph or eagerly."""
        found = self.calibration.launch or (self.base.launch if self.base else {})
        return found["graph_s" if graph else "eager_s"]

    def fidelity_of(self, name: str) -> Fidelity:
        """Return whether a family rests on traces of this accelerator."""
        own = self.fidelity == "measured" and name in self.calibration.families
        return "measured" if own else "datasheet"

    def residuals(self, name: str) -> Mapping[str, float]:
        """Return P10, P50 and P90 of held-out log(measured / predicted) of a family.

        From layouts held out where measured, from accelerators left out where carried over.
        """
        return self._fit(name).band

    def time(self, name: str, *extents: ArrayLike) -> Array:
        """Return the time of any family's kernel, extents in the order of the family [s]."""
        return self._time(name, FAMILIES[name].shape(*extents))

    def _time(self, name: str, shape: Mapping[str, Array]) -> Array:
        family = FAMILIES[name]
        if family.precision and family.precision not in self.chip.peaks:
            known = ", ".join(self.chip.peaks)
            what = f"this chip has no {family.precision} peak, which {name} needs"
            raise InputError(what, allowed=known, repair="choose another type")
        formed = family.form(shape, self.chip, self._fit(name).coefficients)
        surface = self._surface(family, tuple(float(shape[part]) for part in family.layout))
        return formed if surface is None else formed * np.exp(surface(shape))

    def _attention(self, name: str, kv_dtype: str) -> str:
        """Return the family of attention over a cache of a type."""
        known = ("bf16", "fp16", "fp8")
        if kv_dtype not in known:
            hint = did_you_mean(kv_dtype, known)
            raise InputError(f"no KV cache type named {kv_dtype!r}", repair=hint)
        packed = f"{name}_{kv_dtype}"
        return packed if packed in self.calibration.families else name

    def _fit(self, name: str) -> FamilyFit:
        """Return the family's fit, or its nearest relative's."""
        sources = [self.calibration, *([self.base] if self.base else [])]
        wanted = name
        while wanted:
            for source in sources:
                if wanted in source.families:
                    return source.families[wanted]
            wanted = FAMILIES[wanted].parent
        return FamilyFit(FAMILIES[name].start, np.empty((0, 0)), np.empty(0))

    def _surface(self, family: Family, layout: tuple[float, ...]) -> Surface | None:
        if self.fidelity_of(family.name) == "datasheet":
            return None
        key = (family.name, layout)
        if key not in self._surfaces:
            made = make_surface(family, self.calibration.families[family.name], layout)
            if made is None:
                return None
            self._surfaces[key] = made
        return self._surfaces[key]
