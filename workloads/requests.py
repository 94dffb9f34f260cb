"""The requests table: the one form in which work reaches the simulator.

A pandas DataFrame with one row per request, in order of arrival. `COLUMNS` lists every column with
its unit and range; `check_requests` turns any table into that form or says what is wrong with it.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError, atomic_write, did_you_mean, read_table

__all__ = [
    "COLUMNS",
    "HASH_BLOCK_TOKENS",
    "Column",
    "block_counts",
    "check_requests",
    "merge_requests",
    "read_requests",
    "write_requests",
]

HASH_BLOCK_TOKENS = 512
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the requests table: what it holds, in which unit and range."""

    name: str
    kind: Literal["real", "whole", "text", "hashes"]
    unit: str
    description: str
    required: bool = False
    low: float = 0.0
    high: float = np.inf
    fill: float | str | None = None

    @property
    def allowed(self) -> str:
        """The range in words, with the unit."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.low:g} to {self.high:g}{unit}"


MAX_TOKENS = 1e8
COLUMNS: dict[str, Column] = {
    c.name: c
    for c in (
        Column("request", "text", "", "name of the request, unique; the row number if absent"),
        Column("arrival_s", "real", "s", "arrival, from the start of the run", True, 0, 1e9),
        Column("prompt_tokens", "whole", "token", "tokens to prefill", True, 1, MAX_TOKENS),
        Column("output_tokens", "whole", "token", "tokens to generate", True, 1, MAX_TOKENS),
        Column("class", "text", "", "traffic class, which has its own objectives", fill="default"),
        Column("client", "text", "", "who sent it; fairness is between clients", fill=""),
        Column("priority", "whole", "", "smaller is served first", False, -1e9, 1e9, 0),
        Column("deadline_s", "real", "s", "last token due so long after arrival", False, 0, 1e9),
        Column("model", "text", "", "model asked for; empty is the scenario's", fill=""),
        Column("image_tokens", "whole", "token", "image part of the prompt", False, 0, 1e8, 0),
        Column("session", "text", "", "conversation it belongs to; empty is none", fill=""),
        Column(
            "prefix_tokens",
            "whole",
            "token",
            "first tokens that equal those of the session's previous prompt",
            False,
            0,
            MAX_TOKENS,
            0,
        ),
        Column("hash_ids", "hashes", "", "one chained hash per 512-token block of the prompt"),
    )
}
REQUIRED = [c.name for c in COLUMNS.values() if c.required]
OPTIONAL = [c.name for c in COLUMNS.values() if not c.required]
TEXT = [c.name for c in COLUMNS.values() if c.kind in ("text", "hashes")]


def read_requests(path: Path) -> pd.DataFrame:
    """Read a request trace in the project's CSV format (plain or .gz) and check it.

    Parameters
    ----------
    path : Path
        Header ``arrival_s,prompt_tokens,output_tokens`` plus any optional column of `COLUMNS`;
        ``hash_ids`` holds whole numbers separated by spaces.

    Returns
    -------
    pandas.DataFrame
        The requests table.

    Raises
    ------
    InputError
        The file or one of its values is bad.
    """
    return check_requests(read_table(path, REQUIRED, OPTIONAL, text=TEXT), str(path))


def write_requests(table: pd.DataFrame, path: Path) -> None:
    """Write a requests table as CSV (compressed where the name ends in .gz), whole or not at all.

    Raises
    ------
    InputError
        The table is bad, or the folder cannot be written.
    """
    out = check_requests(table)
    if "hash_ids" in out:
        out["hash_ids"] = [" ".join(map(str, ids.tolist())) for ids in out["hash_ids"]]
    text = out.to_csv(index=False).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def check_requests(table: pd.DataFrame, where: str = "requests") -> pd.DataFrame:
    """Return a requests table in canonical form: known columns, right types, rows in order.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns of `COLUMNS` in any order; empty optional cells get the column's default.
    where : str
        What the table is called in messages: a file or a key.

    Returns
    -------
    pandas.DataFrame
        A new table with a plain index; arrival_s and deadline_s float64, counts int64, names
        str, hash_ids arrays of int64.

    Raises
    ------
    InputError
        A column is missing or unknown; a value is negative, not finite, not whole or out of its
        range; arrivals are not in order; prefixes or hashes contradict the prompts.

    Examples
    --------
    >>> t = pd.DataFrame({"arrival_s": [0.5], "prompt_tokens": [0], "output_tokens": [8]})
    >>> check_requests(t, "my.csv")
    Traceback (most recent call last):
    formats.errors.InputError: my.csv: prompt_tokens is 0 in row 1 (allowed: 1 to 1e+08 token)
    """
    _check_names(list(table.columns), where)
    if not len(table):
        raise InputError("holds no requests", where, repair="add a row, or a longer time window")
    data = {c.name: _convert(table[c.name], c, where) for c in COLUMNS.values() if c.name in table}
    out = pd.DataFrame(data)
    _check_order(out, where)
    _check_images(out, where)
    _check_unique(out, where)
    _check_sharing(out, where)
    return out


def block_counts(prompt_tokens: npt.ArrayLike) -> Ints:
    """Return the number of 512-token blocks that prompts take, the last one partly filled.

    Examples
    --------
    >>> block_counts([1, 512, 513]).tolist()
    [1, 1, 2]
    """
    return -(-np.asarray(prompt_tokens, dtype=np.int64) // HASH_BLOCK_TOKENS)


def merge_requests(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Interleave several requests tables by arrival; equal arrivals keep the given order.

    Sessions of different tables stay apart. Hashes are made disjoint, and a table without
    hashes gets unshared ones when another table has them.

    Raises
    ------
    InputError
        One table shares prefixes by hash_ids and another by prefix_tokens.
    """
    checked = [check_requests(t) for t in tables]
    if any("hash_ids" in t for t in checked):
        checked = _disjoint_hashes(checked)
    for i, t in enumerate(checked):
        if "session" in t:
            t["session"] = [f"{i}/{s}" if s else "" for s in t["session"]]
    both = pd.concat([t.drop(columns="request", errors="ignore") for t in checked])
    return check_requests(both.sort_values("arrival_s", kind="stable"), "merged requests")


def _disjoint_hashes(tables: list[pd.DataFrame]) -> list[pd.DataFrame]:
    start, out = 0, []
    for t in tables:
        counts = block_counts(t["prompt_tokens"])
        flat = np.concatenate(t["hash_ids"].to_list()) if "hash_ids" in t else None
        codes = np.arange(counts.sum()) if flat is None else np.unique(flat, return_inverse=True)[1]
        out.append(t.assign(hash_ids=split_rows(codes.astype(np.int64) + start, counts)))
        start += int(codes.max()) + 1
    return out


def split_rows(flat: Ints, counts: Ints) -> "pd.Series[Any]":
    """Cut one flat array into rows of the given lengths, as an object column."""
    rows = np.empty(len(counts), dtype=object)
    rows[:] = np.split(flat, np.cumsum(counts)[:-1]) if len(counts) > 1 else [flat]
    return pd.Series(rows)


def _check_names(names: list[Any], where: str) -> None:
    for name in REQUIRED:
        if name not in names:
            raise InputError(f"column {name!r} is missing", where, repair="add it")
    for name in names:
        if name not in COLUMNS:
            hint = did_you_mean(str(name), COLUMNS)
            raise InputError(f"column {str(name)!r} is not known", where, repair=hint)
        if names.count(name) > 1:
            raise InputError(f"column {name!r} stands twice", where, repair="remove one")


def _convert(series: "pd.Series[Any]", column: Column, where: str) -> object:
    if column.kind == "text":
        filled = series.astype(object).where(series.notna(), column.fill or "")
        return filled.astype(str).replace({"": str(column.fill or "")}).array
    if column.kind == "hashes":
        return _hashes(series, where).array
    values = _numbers(series, column, where)
    if column.kind == "whole":
        _refuse(values != np.rint(values), series, column, where, "a whole number")
        return values.astype(np.int64)
    return values


def _numbers(series: "pd.Series[Any]", column: Column, where: str) -> Floats:
    numbers = series
    if series.dtype.kind in "bcmMO" or isinstance(series.dtype, pd.StringDtype):
        numbers = series.astype(object).map(_number)
    values = numbers.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    missing = np.isnan(values)
    free = missing if column.name == "deadline_s" else np.zeros(len(values), dtype=bool)
    if not column.required and isinstance(column.fill, float | int):
        values[missing] = column.fill
    good = (values >= column.low) & (values <= column.high) | free
    _refuse(~good, series, column, where, column.allowed)
    return values


def _number(cell: object) -> float:
    """Read one cell; what is no number becomes infinite, so that the range check names it."""
    if cell is None or cell is pd.NA or cell == "":
        return np.nan
    if isinstance(cell, bool | complex):
        return np.inf
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.inf


def _refuse(bad: Mask, series: "pd.Series[Any]", column: Column, where: str, allowed: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        cell = series.iloc[row]
        empty = (pd.api.types.is_scalar(cell) and pd.isna(cell)) or cell == ""
        shown = "empty" if empty else str(cell)[:40]
        raise InputError(f"{column.name} is {shown} in row {row + 1}", where, allowed)


def _hashes(series: "pd.Series[Any]", where: str) -> "pd.Series[Any]":
    rows = [_hash_row(cell, row, where) for row, cell in enumerate(series)]
    counts = np.array([len(r) for r in rows], dtype=np.int64)
    return split_rows(np.concatenate(rows), counts)


def _hash_row(cell: object, row: int, where: str) -> Ints:
    try:
        array = _whole_numbers(cell)
    except (TypeError, ValueError, OverflowError):
        what = f"hash_ids in row {row + 1} is not a list of whole numbers"
        raise InputError(what, where, "0 to 9223372036854775807, separated by spaces") from None
    if (array < 0).any():
        raise InputError(f"hash_ids in row {row + 1} has a negative number", where, "0 or more")
    return array


def _whole_numbers(cell: object) -> Ints:
    if isinstance(cell, np.ndarray) and cell.dtype.kind == "i":
        return cell.astype(np.int64)
    if isinstance(cell, str):
        return np.array([int(i) for i in cell.split()], dtype=np.int64)
    return np.array([index(i) for i in cell], dtype=np.int64)  # type: ignore[attr-defined]


def _check_order(table: pd.DataFrame, where: str) -> None:
    arrival = table["arrival_s"].to_numpy()
    falls = np.diff(arrival) < 0
    if falls.any():
        row = int(np.argmax(falls)) + 1
        what = f"arrival_s falls from {arrival[row - 1]:g} to {arrival[row]:g} s in row {row + 1}"
        raise InputError(what, where, repair="sort the rows by arrival_s")


def _check_images(table: pd.DataFrame, where: str) -> None:
    for name in ("image_tokens", "prefix_tokens"):
        if name in table:
            bad = (table[name] > table["prompt_tokens"]).to_numpy()
            if bad.any():
                row = int(np.argmax(bad))
                have, most = table[name].iloc[row], table["prompt_tokens"].iloc[row]
                what = f"{name} is {have} in row {row + 1}, of a prompt of {most} tokens"
                raise InputError(what, where, f"at most prompt_tokens, which includes {name}")


def _check_unique(table: pd.DataFrame, where: str) -> None:
    if "request" in table:
        twice = table["request"].duplicated().to_numpy()
        if twice.any():
            row = int(np.argmax(twice))
            what = f"request {table['request'].iloc[row]!r} stands twice, again in row {row + 1}"
            raise InputError(what, where, repair="give each request its own name")


def _check_sharing(table: pd.DataFrame, where: str) -> None:
    if "hash_ids" in table:
        _check_hash_counts(table, where)
    if "prefix_tokens" in table:
        _check_prefixes(table, where)


def _check_hash_counts(table: pd.DataFrame, where: str) -> None:
    if "prefix_tokens" in table and (table["prefix_tokens"] > 0).any():
        what = "both hash_ids and prefix_tokens say what is shared"
        raise InputError(what, where, repair="keep one of the two columns")
    have = np.array([len(ids) for ids in table["hash_ids"]])
    need = block_counts(table["prompt_tokens"])
    bad = have != need
    if bad.any():
        row = int(np.argmax(bad))
        tokens = table["prompt_tokens"].iloc[row]
        what = f"row {row + 1} has {have[row]} hash_ids for a prompt of {tokens} tokens"
        raise InputError(what, where, f"{need[row]}: one for each begun block of 512 tokens")


def _check_prefixes(table: pd.DataFrame, where: str) -> None:
    shares = (table["prefix_tokens"] > 0).to_numpy()
    session = table["session"] if "session" in table else pd.Series("", index=table.index)
    known = (session != "").to_numpy()
    previous = table["prompt_tokens"].groupby(session, sort=False).shift(fill_value=0).to_numpy()
    over = shares & (~known | (table["prefix_tokens"].to_numpy() > previous))
    if over.any():
        row = int(np.argmax(over))
        most = f"at most {previous[row]}" if known[row] else "0 without a session"
        what = f"prefix_tokens is {table['prefix_tokens'].iloc[row]} in row {row + 1}"
        where_from = f"{most}, the length of the session's previous prompt"
        raise InputError(what, where, where_from, "order the session's rows by arrival")
