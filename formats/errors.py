"""Errors that a person caused and can repair: one message that says what, where, range, repair."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["InputError", "RoofcastError", "did_you_mean"]


class RoofcastError(ValueError):
    """Base of every error that the command line prints without a traceback (exit code 2)."""


class InputError(RoofcastError):
    """Bad input, with what is wrong, where it stands, what is allowed and how to repair it.

    Parameters
    ----------
    what : str
        What is wrong, with the value.
    where : str, optional
        File, option or key.
    allowed : str, optional
        The allowed range or set, with the unit.
    repair : str, optional
        What to do.

    Examples
    --------
    >>> print(InputError("tp = 3 does not divide 32 heads", "[hardware] tp", "1, 2, 4, ..."))
    [hardware] tp: tp = 3 does not divide 32 heads (allowed: 1, 2, 4, ...)
    """

    def __init__(self, what: str, where: str = "", allowed: str = "", repair: str = "") -> None:
        self.what, self.where, self.allowed, self.repair = what, where, allowed, repair
        text = f"{where}: {what}" if where else what
        if allowed:
            text += f" (allowed: {allowed})"
        if repair:
            text += f"; {repair}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, str, str, str]]:
        return type(self), (self.what, self.where, self.allowed, self.repair)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'h200-sxm'? (known: ...)``.

    Parameters
    ----------
    word : str
        What was given.
    known : iterable of str
        What exists.

    Returns
    -------
    str
        The hint; long lists are cut at 12 names.

    Examples
    --------
    >>> did_you_mean("continous", ["continuous", "static"])
    "did you mean 'continuous'? (known: continuous, static)"
    >>> did_you_mean("h200", ["h20", "h200-nvl", "h200-sxm"])
    "did you mean 'h200-nvl' or 'h200-sxm'? (known: h20, h200-nvl, h200-sxm)"
    """
    names = sorted(known)
    longer = [name for name in names if word and name.startswith(word.lower())]
    close = longer[:3] or get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    listed = ", ".join(names[:12]) + (f", and {len(names) - 12} more" if len(names) > 12 else "")
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}(known: {listed or 'none'})"
