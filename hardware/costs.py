"""Prices, tariffs, lives and intensities with source and date, from ``data/costs.csv``.

An item is ``<group>.<name>``: ``purchase.h200-sxm`` and ``rent.h200-sxm`` (one per accelerator),
``electricity.us-industrial``, ``pue.google``, ``hosting.us``, ``carbon.usa``, ``life.default``,
``api.<model>.input``. Values keep the unit that people quote (USD/kWh, USD/h, gCO2/kWh).
A ``costs.csv`` in a folder of ``ROOFCAST_CATALOG`` adds items or replaces shipped ones.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pandas as pd

from formats import InputError, Kind, did_you_mean, read_table
from hardware.catalog import VARIABLE, user_folders

__all__ = ["COLUMNS", "Cost", "convert", "cost", "costs", "read_costs"]

COLUMNS = ("item", "value", "unit", "currency", "price_year", "kind", "source", "date")
_SHIPPED = Path(__file__).parent / "data" / "costs.csv"
_ITEM = re.compile(r"[a-z0-9][a-z0-9._-]*")
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
_CURRENCY = re.compile(r"([A-Z]{3})?")


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of the table: what, how much, in which money of which year, from where."""

    item: str
    value: float
    unit: str
    currency: str
    price_year: int
    kind: str
    source: str
    date: str


def costs() -> pd.DataFrame:
    """Return every item, shipped ones first, replaced by the user's where both exist.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`; index 0 .. n-1.

    Raises
    ------
    InputError
        A table is bad: the message names file, line and value.

    Examples
    --------
    >>> table = costs()
    >>> table.loc[table["item"] == "pue.google", "value"].item()
    1.1
    """
    return pd.DataFrame([_as_dict(row) for row in _items(os.environ.get(VARIABLE, "")).values()])


def _as_dict(row: Cost) -> dict[str, str | float | int]:
    """Return a row as a dictionary by column."""
    return {name: getattr(row, name) for name in COLUMNS}


def cost(item: str) -> Cost:
    """Return one item.

    Raises
    ------
    InputError
        No such item, with the closest names.

    Examples
    --------
    >>> cost("purchase.h200-sxm").value
    35000.0
    >>> cost("pue.gogle")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    formats.errors.InputError: no cost named 'pue.gogle'; did you mean 'pue.google'? (...)
    """
    known = _items(os.environ.get(VARIABLE, ""))
    if item not in known:
        group = [name for name in known if name.split(".")[0] == item.split(".")[0]]
        raise InputError(f"no cost named {item!r}", repair=did_you_mean(item, group or known))
    return known[item]


def convert(value: float, currency: str, to: str = "USD") -> float:
    """Return an amount in another currency, through the ``fx.<from>-usd`` items.

    Parameters
    ----------
    value : float
        The amount [`currency`].
    currency, to : str
        Three-letter codes, such as EUR.

    Returns
    -------
    float
        The amount [`to`].

    Raises
    ------
    InputError
        No exchange rate is known for one of them.

    Examples
    --------
    >>> round(convert(0.20, "EUR"), 4)
    0.216
    >>> convert(1.5, "USD", "USD")
    1.5
    """
    return value * _usd_per(currency) / _usd_per(to)


def _usd_per(currency: str) -> float:
    return 1.0 if currency == "USD" else cost(f"fx.{currency.lower()}-usd").value


@cache
def _items(folders: str) -> dict[str, Cost]:
    """Return item -> row of all tables; `folders` only keys the cache."""
    del folders
    user = [folder / "costs.csv" for folder in user_folders()]
    found: dict[str, Cost] = {}
    for path in [_SHIPPED, *(path for path in user if path.exists())]:
        found |= read_costs(path)
    return found


def read_costs(path: Path) -> dict[str, Cost]:
    """Return item -> row of one table.

    Raises
    ------
    InputError
        A column is missing, an item stands twice, or a value, year, kind, currency or date is bad.
    """
    table = read_table(path, COLUMNS, text=COLUMNS).astype(object)
    found: dict[str, Cost] = {}
    for line, record in enumerate(table.where(table.notna(), "").to_dict("records"), start=2):
        where = f"{path}, line {line}"
        row = _row({str(k): v for k, v in record.items()}, where)
        if row.item in found:
            raise InputError(f"item {row.item!r} stands twice", where, repair="remove one")
        found[row.item] = row
    return found


def _row(record: dict[str, str], where: str) -> Cost:
    value = _number(record["value"], "value", 0, 1e12, where)
    year = _number(record["price_year"], "price_year", 2000, 2100, where)
    _match(_ITEM, record["item"], "item", "lower-case letters, digits, '.', '-', '_'", where)
    _match(_CURRENCY, record["currency"], "currency", "three letters, or nothing", where)
    _match(_DATE, record["date"], "date", "YYYY, YYYY-MM or YYYY-MM-DD", where)
    if record["kind"] not in get_args(Kind):
        known = ", ".join(get_args(Kind))
        raise InputError(f"kind {record['kind']!r} is not known", where, known, "choose one")
    for name in ("unit", "source"):
        if not record[name]:
            raise InputError(f"{name} is empty", where, repair="say it")
    rest = {name: record[name] for name in ("item", "unit", "currency", "kind", "source", "date")}
    return Cost(value=value, price_year=int(year), **rest)


def _number(text: str, name: str, low: float, high: float, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise InputError(f"{name} = {text!r}", where, f"{low:g} .. {high:g}", "mend it")
    return value


def _match(pattern: re.Pattern[str], text: str, name: str, allowed: str, where: str) -> None:
    if not pattern.fullmatch(text):
        raise InputError(f"{name} = {text!r}", where, allowed, "mend it")
