"""sweep.html: trade-offs and responses of a sweep, or the saturation curve."""

from collections.abc import Sequence

import pandas as pd

from sim.metrics import metrics
from sim.page import Figure, Page, table_html
from sim.sweeping.charts import (
    TRADES,
    grouping,
    latency_by_rate,
    response,
    served_by_rate,
    trade,
)
from sim.sweeping.saturation import Saturation
from sim.units import readable

__all__ = ["SHOWN", "shown_columns", "sweep_page", "swept_keys", "text"]

SHOWN = ("requests_per_s", "output_tokens_per_s", "ttft_p99_s", "tpot_mean_s", "slo_attainment")
RESPONSES = ("goodput_per_s", "output_tokens_per_s", "ttft_p99_s")
MOST_ROWS, MOST_KEYS = 200, 4
TITLES = {
    "goodput_per_s": "goodput [request/s]",
    "output_tokens_per_s": "throughput [token/s]",
    "ttft_p99_s": "TTFT p99 [s]",
}


def swept_keys(table: pd.DataFrame) -> list[str]:
    """Return the swept keys of a table; the seed only where it varies."""
    names = list(table.columns)
    keys = names[1 : names.index("error")]
    return [k for k in keys if k != "seed" or table[k].nunique() > 1]


def shown_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns that a person looks at first."""
    first = ["offered_per_s"] if "rate_scale" in table else []
    faults = ["error"] if table["error"].notna().any() else []
    return [*swept_keys(table), *first, *(c for c in SHOWN if c in table), *faults]


def text(value: object) -> str:
    """Return a cell for people: four digits, nothing where nothing is known."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep_page(title: str, table: pd.DataFrame, found: Saturation | None = None) -> Page:
    """Return the page of a sweep.

    Parameters
    ----------
    title : str
        Heading.
    table : DataFrame
        All points.
    found : Saturation, optional
        The verdict of a saturation curve.
    """
    good = table[table["error"].isna()]
    keys = ["offered_per_s"] if found is not None else swept_keys(good)
    figures = _saturation(found) if found is not None else {}
    figures |= _trades(good, keys)
    if found is None:
        figures |= _responses(good, keys)
    return Page(
        title,
        found.sentence() if found is not None else _counted(table),
        _cards(found) if found is not None else {},
        figures,
        {"Points": _rows(table)},
    )


def _counted(table: pd.DataFrame) -> str:
    failed = int(table["error"].notna().sum())
    return f"{len(table)} points" + (f", {failed} of them could not run" if failed else "")


def _cards(found: Saturation) -> dict[str, str]:
    cards = {"offered": found.offered_per_s, "saturates at": found.knee_per_s}
    if found.good_per_s is not None:
        cards["objectives hold up to"] = found.good_per_s
    texts = {name: readable(value, "request/s") for name, value in cards.items()}
    return texts | {"distance to the limit": f"{found.distance:.2g} x"}


def _saturation(found: Saturation) -> dict[str, Figure]:
    return {
        "served": Figure(
            "Served and good requests",
            "Where the curve leaves the dotted diagonal, requests pile up.",
            served_by_rate(found),
        ),
        "latency": Figure(
            "Latency by offered rate",
            "It rises slowly up to the knee and with the length of the run beyond it.",
            latency_by_rate(found),
        ),
    }


def _trades(table: pd.DataFrame, keys: Sequence[str]) -> dict[str, Figure]:
    figures = {}
    for kind, (title, *_) in TRADES.items():
        chart = trade(table, kind, keys)
        if chart is not None:
            words = "A dot is a point; no other point beats those on the dashed line in both."
            figures[kind] = Figure(title, words, chart)
    return figures


def _responses(table: pd.DataFrame, keys: Sequence[str]) -> dict[str, Figure]:
    figures = {}
    shown = [m for m in RESPONSES if m in table and table[m].notna().any()][:2]
    moved = [k for k in keys if k != "seed" and table[k].astype(str).nunique() > 1]
    for i, key in enumerate(moved[:MOST_KEYS]):
        by = grouping(table, [k for k in moved if k != key])
        for metric in shown:
            words = f"{metrics[metric].description.capitalize()}; lines are means."
            chart = response(table, key, metric, TITLES[metric], by)
            figures[f"response{i}{metric}"] = Figure(f"By {key}", words, chart)
    return figures


def _rows(table: pd.DataFrame) -> str:
    columns = shown_columns(table)
    rows = [[text(row[c]) for c in columns] for row in table.head(MOST_ROWS).to_dict("records")]
    more = len(table) - MOST_ROWS
    note = f"<p>{more} more rows are in sweep.csv.</p>" if more > 0 else ""
    return table_html(columns, rows) + note
