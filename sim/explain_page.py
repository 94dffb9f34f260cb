"""An explanation as a page that opens without a network: roofline, phases, operators, memory."""

import html
import math

import pandas as pd

from sim.charts_roofline import roofs
from sim.explain import Explanation
from sim.page import Figure, Page, table_html
from sim.roofline import memory_roofs, peak_roofs

__all__ = ["explanation_html"]


def explanation_html(found: Explanation) -> str:
    """Return the page of an explanation as text."""
    load, plan = found.load, found.plan
    words = (
        f"{found.model.name} on {found.spec.name}: {load.batch} sequences decoding at "
        f"{load.context} tokens; a prompt of {load.prompt} tokens"
    )
    memory = (
        f"weights {plan.weights / 1e9:.1f} GB, activations {plan.activations / 1e9:.1f} GB, "
        f"workspaces {plan.reserved / 1e9:.1f} GB, KV cache {max(plan.kv, 0) / 1e9:.1f} GB of "
        f"{plan.usable / 1e9:.1f} GB usable; {found.kv_bytes_per_token / 1024:.1f} KiB per token"
    )
    chart = roofs(found.operators, peak_roofs(found.spec), memory_roofs(found.spec))
    about = "Slopes are levels of memory, flat lines peaks of arithmetic; a dot is an operator."
    return Page(
        f"Explained: {found.model.name} on {found.spec.name}",
        words,
        figures={"roofline": Figure("Operators under the roofs", about, chart)},
        sections={
            "Phases": _table(found.phases),
            "Operators": _table(found.operators),
            "Memory": f"<p>{html.escape(memory)}</p>{_table(found.largest())}",
        },
    ).text()


def _table(table: pd.DataFrame) -> str:
    rows = [[_shown(cell) for cell in row] for row in table.itertuples(index=False)]
    return table_html(list(table.columns), rows)


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.4g}"
    return str(cell)
