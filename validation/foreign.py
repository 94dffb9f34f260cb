"""Tables that others measured and that do not ship with the project."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from formats import InputError

__all__ = ["read_foreign"]


def read_foreign(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Read a CSV table (plain or .gz) that has these columns, and any others.

    `formats.read_table` is for the project's own formats, whose columns are all known.

    Raises
    ------
    InputError
        The file is missing or lacks a column.
    """
    if not path.is_file():
        raise InputError("there is no such file", str(path))
    table = pd.read_csv(path)
    missing = [name for name in needed if name not in table]
    if missing:
        raise InputError(f"lacks column {missing[0]!r}", str(path), ", ".join(needed))
    return table
