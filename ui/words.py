"""Figures as people read them, with as many digits as their band justifies."""

import math

from sim.exploring.bands import Band, rounded
from sim.units import PREFIXES, SCALED, SECONDS

__all__ = ["percent", "shown", "span"]


def shown(band: Band, unit: str) -> str:
    """Return a figure with its unit.

    Examples
    --------
    >>> shown(Band(0.04519, 0.042, 0.049), "s"), shown(Band(436.1, 430.0, 441.0), "token/s")
    ('45.2 ms', '436 token/s')
    >>> shown(Band(2.2294, 2.0, 2.5), "USD"), shown(Band(0.9958, 0.99, 1.0), "1")
    ('2.2 USD', '99.6 %')
    """
    factor, word = _scale(band.value, unit)
    return f"{_digits(band.value * factor, _places(band, factor))} {word}"


def span(band: Band, unit: str) -> str:
    """Return P10 and P90 in the unit of the figure, empty where they do not differ.

    Examples
    --------
    >>> span(Band(0.04519, 0.042, 0.049), "s"), span(Band(3.0, 3.0, 3.0), "s")
    ('42.0 to 49.0 ms', '')
    """
    factor, word = _scale(band.value, unit)
    places = _places(band, factor)
    high = min(band.high, 1.0) if unit == "1" else band.high
    low, top = (_digits(end * factor, places) for end in (band.low, high))
    return "" if low == top else f"{low} to {top} {word}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return factor and unit that people read."""
    size = abs(value)
    if unit == "1":
        return 100.0, "%"
    if unit == "s":
        scale, word = next((s for s in SECONDS if size >= s[0] * 0.9995), (1.0, "s"))
        return 1.0 / scale, word
    if unit in SCALED:
        scale, prefix = next((p for p in PREFIXES if size >= p[0]), (1.0, ""))
        return 1.0 / scale, prefix + unit.replace("byte", "B")
    return 1.0, unit


def _places(band: Band, factor: float) -> int:
    """Return decimals so that as many digits are left as the band justifies; -1 is tens."""
    size = abs(band.value * factor)
    if size <= 0 or not math.isfinite(size):
        return 0
    return rounded(band) - 1 - math.floor(math.log10(size))


def _digits(value: float, places: int) -> str:
    if not math.isfinite(value):
        return "no limit"
    return f"{round(value, places):,.{max(places, 0)}f}"


def percent(share: float) -> str:
    """Return a share as percent.

    Examples
    --------
    >>> percent(0.123), percent(0.004)
    ('12 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"
