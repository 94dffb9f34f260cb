"""Numbers of an accelerator, or of a part of it, as kernel forms use them."""

from dataclasses import dataclass, replace

from formats import InputError
from hardware.kernels_chip import Chip
from hardware.specs import AcceleratorSpec

__all__ = ["Limits", "chip_of", "limited", "widened"]

WIDEST_UNIT = 20e12  # FLOP/s of 16-bit products; an SM of an H200 has 7.5e12, of a B200 15e12
MOST_UNITS = 1024


@dataclass(frozen=True)
class Limits:
    """How much of an accelerator kernels use; left out = all of it.

    Parameters
    ----------
    units : int, optional
        Compute units busy (cores, SMs).
    simd_bits : int, optional
        Vector width used, on parts whose width is known [bit].
    sram_bytes : float, optional
        Memory of a unit that tiles may fill [byte].
    tiled : bool
        Loops are tiled for what is on chip; False: every product fetches both factors.
    """

    units: int | None = None
    simd_bits: int | None = None
    sram_bytes: float | None = None
    tiled: bool = True


SATURATING = 0.25  # assumption: a quarter of the units draws the full memory bandwidth


def limited(chip: Chip, spec: AcceleratorSpec, limits: Limits) -> Chip:
    """Return a chip of which only a part is used.

    Peaks fall with the vector width and with the units; bandwidth only below a quarter of them.

    Raises
    ------
    InputError
        More than the part has, or a vector width for a part without one.
    """
    width = spec.on_chip.simd_bits.value if spec.on_chip.simd_bits else None
    if limits.simd_bits is not None and (width is None or limits.simd_bits > width):
        allowed = f"up to {width:.0f} bit" if width else "none: its matrix units have no such width"
        raise InputError(f"simd_bits = {limits.simd_bits}", f"[kernels] on {spec.name}", allowed)
    if limits.units is not None and limits.units > spec.compute_units:
        allowed = f"up to {spec.compute_units}"
        raise InputError(f"units = {limits.units}", f"[kernels] on {spec.name}", allowed)
    used = (limits.units or spec.compute_units) / spec.compute_units
    vector = limits.simd_bits / width if limits.simd_bits and width else 1.0
    sram = chip.sram_bytes if limits.sram_bytes is None else limits.sram_bytes
    return replace(
        chip,
        units=max(round(chip.units * used), 1),
        memory=chip.memory * min(used / SATURATING, 1.0),
        l2_bytes=chip.l2_bytes if limits.tiled else 0.0,
        sram_bytes=sram if limits.tiled else 1.0,
        peaks={name: peak * used * vector for name, peak in chip.peaks.items()},
        exponentials=chip.exponentials * used,
    )


def widened(chip: Chip, precision: str) -> Chip:
    """Return a chip whose 16-bit kernels take as long as those of 32-bit elements do on this one.

    Twice the bytes through a memory are as many through half of it; products run at the peak of
    `precision` where there is one, those in fp32 on vector units.

    Examples
    --------
    >>> chip = Chip(132, 4.8e12, 60e6, 6e10, {"bf16": 1e15, "fp32": 67e12})
    >>> wide = widened(chip, "fp32")
    >>> wide.memory, wide.attention_peak
    (2400000000000.0, 67000000000000.0)
    """
    peak = chip.peaks.get(precision, chip.attention_peak)
    return replace(
        chip,
        memory=chip.memory / 2,
        l2_bytes=chip.l2_bytes / 2,
        sram_bytes=chip.sram_bytes / 2,
        peaks={**chip.peaks, "bf16": peak, "fp16": peak},
        pads_rows=chip.pads_rows and precision != "fp32",
    )


def chip_of(spec: AcceleratorSpec) -> Chip:
    """Return the numbers of an accelerator that kernel forms use.

    A unit wider than `WIDEST_UNIT` is counted as several that each run a tile, and no chip has
    more than `MOST_UNITS`: forms and latencies describe tiles of about 128 x 128 outputs. A chip
    without bf16 runs 16-bit models at its fp16 rate, without that at its fp32 rate.
    """
    peaks = {name: quantity.value for name, quantity in spec.peaks.given().items()}
    wide = peaks.get("fp16", peaks.get("fp32"))
    if wide is not None:
        peaks.setdefault("bf16", wide)
    host = spec.links.host.bytes_per_s.value
    sram = spec.on_chip.sram_bytes.value
    numbers = (spec.compute_units, spec.memory_bytes_per_s, spec.l2_bytes, host)
    chip = Chip(*numbers, peaks, sram, pads_rows=spec.on_chip.simd_bits is None)
    if per_clock := spec.on_chip.exponentials_per_clock:
        chip = replace(chip, exponentials=per_clock.value * spec.compute_units * spec.clock_hz)
    least = round(chip.attention_peak / WIDEST_UNIT)
    return replace(chip, units=min(max(chip.units, least), MOST_UNITS))
