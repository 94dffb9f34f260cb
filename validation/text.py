"""A table of texts, and shares as percent."""

from dataclasses import dataclass

import pandas as pd

__all__ = ["KERNELS", "LIMIT", "TextTable", "percent"]

KERNELS = "Kernels"
LIMIT = "limit"
PAGE_ONLY = ("Not represented",)


@dataclass(frozen=True)
class TextTable:
    """A table of texts with a title and one sentence that says what it is."""

    title: str
    about: str
    columns: list[str]
    rows: list[list[str]]

    def brief(self) -> list[list[str]]:
        """Return the rows that a terminal shows: of kernels those that are held to a limit."""
        if self.title in PAGE_ONLY:
            return []
        if self.title != KERNELS:
            return self.rows
        place = self.columns.index(LIMIT)
        return [row for row in self.rows if row[place] != "-"]


def percent(value: float | None, sign: bool = True) -> str:
    """Return a share as percent, a dash where there is none.

    Examples
    --------
    >>> percent(0.0312), percent(-0.5), percent(0.1, sign=False), percent(float("nan"))
    ('+3.1 %', '-50.0 %', '10.0 %', '-')
    """
    if value is None or pd.isna(value):
        return "-"
    return f"{value:+.1%}".replace("%", " %") if sign else f"{value:.1%}".replace("%", " %")
