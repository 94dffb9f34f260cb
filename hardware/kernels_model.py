"""All kernel times of one accelerator in one object."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from formats import InputError, did_you_mean
from hardware.kernels_attention_times import AttentionTimes
from hardware.kernels_chip import Array, GemmType
from hardware.kernels_experts import inclusion, touched_experts
from hardware.kernels_families import BYTES_PER_ELEMENT, FAMILIES
from hardware.kernels_forms import GEMM_TYPES

__all__ = ["PATHS", "KernelModel"]

PATHS = {"hbm": "copy_cold", "l2": "copy_l2", "h2d": "h2d_pinned", "d2h": "d2h_pinned"}


@dataclass(frozen=True)
class KernelModel(AttentionTimes):
    """Times of kernels on one accelerator; every method takes arrays and returns seconds."""

    def gemm(
        self,
        m: ArrayLike,
        n: int,
        k: int,
        dtype: str,
        weight_bytes: float | None = None,
        activation_bytes: float | None = None,
        output_bytes: float | None = None,
    ) -> Array:
        """Return the time of a linear layer Y[m,n] = X[m,k] W[n,k]^T [s].

        Parameters
        ----------
        m : array
            Rows (tokens of a step), 1 or more; measured up to 16384, beyond by the form.
        n, k : int
            Output and input width.
        dtype : str
            A key of `hardware.kernels_forms.GEMM_TYPES`: bf16, fp16, fp32, tf32, fp8, int8, w4a16,
            ...
        weight_bytes : float, optional
            Bytes of a weight, where other than usual for the type (scales of smaller groups).
        activation_bytes : float, optional
            Bytes of an input that memory moves, where other than usual (overlapping windows).
        output_bytes : float, optional
            Bytes of an output, where other than usual (narrowed as it is written).

        Raises
        ------
        InputError
            Unknown dtype, or one that the chip has no peak for.
        """
        if dtype not in GEMM_TYPES:
            hint = did_you_mean(dtype, GEMM_TYPES)
            raise InputError(f"no matrix type named {dtype!r}", repair=hint)
        name, usual = f"gemm_{dtype}", GEMM_TYPES[dtype]
        seconds = self.time(name, m, n, k)
        kind = replace(
            usual,
            weight=weight_bytes or usual.weight,
            activation=activation_bytes or usual.activation,
            output=output_bytes or usual.output,
        )
        if _alike(kind, usual):
            return seconds
        form = partial(FAMILIES[name].form, kind=kind)  # type: ignore[call-arg]
        shape, fitted = FAMILIES[name].shape(m, n, k), self._fit(name).coefficients
        ratio = form(shape, self.chip, fitted) / FAMILIES[name].form(shape, self.chip, fitted)
        scaled: Array = seconds * ratio
        return scaled

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


def _alike(a: GemmType, b: GemmType) -> bool:
    """Return whether two types move the same bytes, to a thousandth."""
    pairs = ((a.weight, b.weight), (a.activation, b.activation), (a.output, b.output))
    return all(abs(x / y - 1) < 1e-3 for x, y in pairs)
