"""The waterfall as text and as a page."""

import html

import numpy as np
import pandas as pd

from sim.charts_roofline import waterfall_bars
from sim.page import Figure, Page, table_html
from sim.scenario import Scenario

__all__ = ["HEADS", "waterfall_page", "waterfall_rows"]

HEADS = ("step", "ms/token", "saves", "J/token", "saves", "USD/million", "saves")
FIGURES = {
    "seconds": ("Time", "accelerator time of an output token [ms]", 1e3),
    "joules": ("Energy", "energy of an output token [J]", 1.0),
    "usd": ("Cost", "cost of a million output tokens [USD]", 1.0),
}
PAIRS = (("seconds", "saved_s", 1e3), ("joules", "saved_j", 1.0), ("usd", "saved_usd", 1.0))


def waterfall_rows(table: pd.DataFrame) -> list[list[str]]:
    """Return the rows of a waterfall under `HEADS`, a dash where there is no figure.

    Parameters
    ----------
    table : DataFrame
        As `sim.exploring.waterfall.waterfall` returns it.
    """
    rows = []
    for row in table.to_dict("records"):
        cells = [str(row["step"])]
        for figure, saved, scale in PAIRS:
            cells += [_number(row[figure] * scale), _number(row[saved] * scale)]
        rows.append(cells)
    return rows


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"


def waterfall_page(table: pd.DataFrame, scenario: Scenario, batch: int) -> Page:
    """Return a waterfall as a page: three charts, the table, what is known about answers."""
    figures = {}
    for column, (title, axis, scale) in FIGURES.items():
        if not table[column].isna().all():
            shown = table.assign(**{column: table[column] * scale})
            words = "÷ is the factor that a step divides the figure by."
            figures[column] = Figure(title, words, waterfall_bars(shown, column, axis))
    said = dict.fromkeys(note for cell in table["quality"] for note in cell.split("; ") if note)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in said)
    return Page(
        f"From naive to optimised: {scenario.model.name} on {scenario.hardware.accelerator}",
        f"Every bar is a simulation of {batch} requests at a time out of a full queue; each row "
        "adds one step to those above it.",
        {"from first to last": f"{table['seconds'].iloc[0] / table['seconds'].iloc[-1]:.3g} times"},
        figures,
        {
            "Table": table_html(HEADS, waterfall_rows(table)),
            "Answers": f"<ul>{notes}</ul>",
        },
    )
