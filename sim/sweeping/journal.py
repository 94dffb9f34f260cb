"""The journal of a sweep: one line of JSON per finished point, written at once.

A sweep that is started again takes what the journal holds. While it runs, the file can be read
with ``pandas.read_json(path, lines=True)``. Rows stay on disk; memory holds where each begins.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import pandas as pd

__all__ = ["Journal", "Row"]

Row = dict[str, Any]
CHUNK = 2000  # rows that are turned into columns at a time


class Journal:
    """Finished points by key.

    Parameters
    ----------
    path : Path, optional
        The file; None = a temporary one.

    Examples
    --------
    >>> with Journal() as journal:
    ...     journal.append("a", {"x": 1.5})
    ...     "a" in journal, journal.table(["a"]).to_dict("list")
    (True, {'x': [1.5]})
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._places: dict[str, int] = {}
        self._file = self._opened()
        self._scan()

    def _opened(self) -> BinaryIO:
        if self.path is None:
            return cast("BinaryIO", TemporaryFile())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", self.path.open("a+b"))

    def _scan(self) -> None:
        """Find the rows of an earlier run; a line that an interrupt tore is left out."""
        self._file.seek(0)
        place, line = 0, b""
        for line in self._file:
            key = _key(line)
            if key is not None:
                self._places[key] = place
            place += len(line)
        if line and not line.endswith(b"\n"):
            self._file.write(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def append(self, key: str, row: Row) -> None:
        """Write a finished point, so that nothing that happens later can lose it."""
        line = json.dumps({"key": key, **_plain(row)}, default=str).encode() + b"\n"
        self._places[key] = self._file.seek(0, 2)
        self._file.write(line)
        self._file.flush()

    def row(self, key: str) -> Row:
        """Return a finished point."""
        self._file.seek(self._places[key])
        found: Row = json.loads(self._file.readline())
        found.pop("key")
        return found

    def table(self, keys: Sequence[str]) -> pd.DataFrame:
        """Return the rows of keys, in their order."""
        parts = list(self._parts(keys))
        table = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        gaps = [str(name) for name in table if table[name].hasnans]
        return table.assign(**{name: _tidy(table[name]) for name in gaps})

    def _parts(self, keys: Sequence[str]) -> Iterator[pd.DataFrame]:
        for start in range(0, max(len(keys), 1), CHUNK):
            yield pd.DataFrame([self.row(key) for key in keys[start : start + CHUNK]])


def _tidy(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column whose type does not depend on where its gaps lie: floats, or objects."""
    known = column.dropna()
    if len(known) and all(isinstance(v, int | float) for v in known):
        return column.astype("float64")
    return column.astype(object).where(column.notna(), None)


def _plain(row: Row) -> Row:
    """Return a row without numbers that JSON does not know."""
    bad = {k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    return {k: None if k in bad else v for k, v in row.items()}


def _key(line: bytes) -> str | None:
    """Return the key of a whole line, None of a torn one."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found.get("key") if isinstance(found, dict) else None
