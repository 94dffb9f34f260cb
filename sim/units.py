"""Figures in units that people read; inside, everything is in SI base units."""

__all__ = ["readable"]

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SCALED = ("J", "W", "byte", "FLOP/s", "byte/s", "Hz", "FLOP")


def readable(value: float | None, unit: str) -> str:
    """Return a figure in a unit that people read.

    Parameters
    ----------
    value : float or None
        The figure in SI; None shows as a dash.
    unit : str
        SI unit; "1" is a share and shows as a percentage.

    Examples
    --------
    >>> readable(0.0123, "s"), readable(4.2e6, "J"), readable(0.512, "1"), readable(None, "s")
    ('12.3 ms', '4.20 MJ', '51.2 %', '-')
    >>> readable(4.8e12, "byte/s"), readable(8e10, "byte")
    ('4.80 TB/s', '80.0 GB')
    >>> readable(1682.2, "token/s"), readable(7.957, "request/s"), readable(3, "request")
    ('1,682 token/s', '7.96 request/s', '3 request')
    """
    if value is None:
        return "-"
    if unit == "s":
        return _seconds(value)
    if unit == "1":
        return f"{_three(value * 100)} %"
    if unit in SCALED:
        scale, prefix = next((p for p in PREFIXES if abs(value) >= p[0]), (1.0, ""))
        return f"{_three(value / scale)} {prefix}{unit.replace('byte', 'B')}"
    return f"{value:,} {unit}" if isinstance(value, int) else f"{_three(value)} {unit}"


def _seconds(value: float) -> str:
    scale, unit = next((s for s in SECONDS if abs(value) >= s[0] * 0.9995), (1.0, "s"))
    return f"{_three(value / scale)} {unit}"


def _three(value: float) -> str:
    """Return a number with three significant digits, and whole from 100 on."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 or value == 0 else f"{value:.3g}"
