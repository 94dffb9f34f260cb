"""Number formats: how many bytes an element takes with its scales, and which kernels take it."""

import re
from dataclasses import dataclass

from formats import InputError, did_you_mean

__all__ = ["PRECISIONS", "WIDE", "Precision", "kernel_dtype", "precision", "unit"]


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format with the overhead of its scales.

    Parameters
    ----------
    name : str
        Word used in files and options.
    bits : float
        Bits of one element, scales left out.
    block : int
        Elements that share one scale; 0 where the scales are too few to count
        (one for each tensor, token or channel).
    scale_bits : float
        Bits of one scale (and zero point) of a block.
    source : str
        Where the layout is defined.

    Examples
    --------
    >>> precision("nvfp4").bytes
    0.5625
    """

    name: str
    bits: float
    block: int = 0
    scale_bits: float = 0.0
    source: str = ""

    @property
    def bytes(self) -> float:
        """Bytes of one element including its share of the block scale [byte]."""
        overhead = self.scale_bits / self.block if self.block else 0.0
        return (self.bits + overhead) / 8.0


_IEEE = "IEEE 754-2019"
_OCP8 = "OCP 8-bit Floating Point Specification (OFP8) rev 1.0"
_OCPMX = "OCP Microscaling Formats (MX) Specification v1.0: block 32, E8M0 scale"
_W4 = "GPTQ / AWQ layout as served by Marlin: int4 in groups of 128 with an fp16 scale, no zero"

PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", 64, source=_IEEE),
        Precision("fp32", 32, source=_IEEE),
        Precision("tf32", 32, source="NVIDIA A100 whitepaper: 19 significant bits held in 32"),
        Precision("bf16", 16, source="bfloat16: upper half of IEEE binary32"),
        Precision("fp16", 16, source=_IEEE),
        Precision("fp8", 8, source=f"{_OCP8}: E4M3, one scale for a tensor, channel or token"),
        Precision("fp8_e5m2", 8, source=f"{_OCP8}: E5M2"),
        Precision("fp8_block", 8, 128 * 128, 32, "DeepSeek-V3 report, 3.3: fp32 scale per 128x128"),
        Precision("mxfp8", 8, 32, 8, _OCPMX),
        Precision("int8", 8, source="one fp32 scale for each channel or token (SmoothQuant)"),
        Precision("fp6", 6, 32, 8, f"{_OCPMX} (MXFP6)"),
        Precision("int4", 4, 128, 16, _W4),
        Precision("int4_g32", 4, 32, 16, f"{_W4}; here groups of 32"),
        Precision("int4_zero", 4, 128, 20, "as int4 with a 4-bit zero point per group (AWQ)"),
        Precision(
            "nf4", 4, 64, 8.5, "QLoRA, section 3: block 64, 8-bit scale, 32 bit per 64 blocks"
        ),
        Precision("fp4", 4, 16, 8, "NVIDIA NVFP4: block 16, E4M3 scale (same as nvfp4)"),
        Precision("nvfp4", 4, 16, 8, "NVIDIA NVFP4: block 16, E4M3 scale"),
        Precision("mxfp4", 4, 32, 8, _OCPMX),
        Precision("int2", 2, 64, 16, "assumption: groups of 64 with an fp16 scale"),
    )
}
ALIASES = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "w4a16": "int4",
    "fp8_e4m3": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8_e5m2",
    "w8a8": "int8",
    "mxfp6": "fp6",
}
WIDE = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16"})


GROUPED = re.compile(r"(int2|int4|int8|fp4|fp6|fp8)_g([1-9]\d{0,4})")


def precision(name: str) -> Precision:
    """Return a number format by name or alias (``bfloat16``, ``w4a16``, ...).

    ``<format>_g<size>`` is the format with one 16-bit scale for every group of that size.

    Raises
    ------
    InputError
        No such format.

    Examples
    --------
    >>> precision("w4a16").bytes * 8, precision("int4_g64").bytes * 8
    (4.125, 4.25)
    """
    known = ALIASES.get(name.lower(), name.lower())
    if known not in PRECISIONS and (grouped := GROUPED.fullmatch(known)):
        base, size = PRECISIONS[grouped[1]], int(grouped[2])
        return Precision(known, base.bits, size, 16, f"{base.name}, one fp16 scale per {size}")
    if known not in PRECISIONS:
        hint = did_you_mean(name, [*PRECISIONS, *ALIASES])
        raise InputError(f"no number format named {name!r}", repair=hint)
    return PRECISIONS[known]


def kernel_dtype(weights: str, activations: str, sparse24: bool = False) -> str:
    """Return the word by which a kernel table names a GEMM of these operands.

    Weights narrower than the activations are widened on the fly and multiplied at the
    activations' rate: 4 bits or less by 16 is ``w4a16``, 6 is ``w6a16``, 8 is ``w8a16``.

    Parameters
    ----------
    weights, activations : str
        Number formats of the two operands.
    sparse24 : bool
        Whether the weights are 2:4 sparse and a sparse kernel is used.

    Returns
    -------
    str
        bf16, fp16, fp32, tf32, fp8, int8, fp6, fp4, int4, w4a16, w6a16, w8a16, sparse24_bf16, ...

    Examples
    --------
    >>> kernel_dtype("int4", "bf16"), kernel_dtype("fp8", "fp8"), kernel_dtype("bf16", "bf16", True)
    ('w4a16', 'fp8', 'sparse24_bf16')
    """
    w, a = precision(weights), precision(activations)
    if sparse24:
        return f"sparse24_{unit(activations)}"
    if a.name in {"bf16", "fp16"} and w.bits <= 8:
        return "w4a16" if w.bits <= 4 else "w6a16" if w.bits <= 6 else "w8a16"
    return unit(activations)


def unit(name: str) -> str:
    """Return the arithmetic unit that takes a format: the formats of a width share one.

    Examples
    --------
    >>> unit("fp8_block"), unit("mxfp4"), unit("bf16")
    ('fp8', 'fp4', 'bf16')
    """
    groups = {
        "fp8": ("fp8", "fp8_e5m2", "fp8_block", "mxfp8"),
        "fp4": ("fp4", "nvfp4", "mxfp4", "nf4"),
        "int4": ("int4", "int4_g32", "int4_zero", "int2"),
    }
    known = precision(name).name.split("_g")[0]
    return next((found for found, names in groups.items() if known in names), known)
