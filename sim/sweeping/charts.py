"""Charts of a sweep: response curves, throughput against interactivity, latency against rate."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from formats import atomic_write
from sim.report import json_script, vega_script

if TYPE_CHECKING:
    from sim.sweeping.saturation import Saturation

__all__ = ["interactivity", "latency_by_rate", "response", "write_page"]

WIDTH, HEIGHT = 520, 300


def interactivity(table: pd.DataFrame) -> alt.Chart:
    """Return throughput per accelerator against tokens per second and user, one dot per point.

    Parameters
    ----------
    table : DataFrame
        Columns tpot_mean_s, output_tokens_per_s_per_accelerator, and the swept keys.
    """
    data = table.assign(interactivity=1 / table["tpot_mean_s"])
    chart: alt.Chart = (
        alt.Chart(data, title="Throughput against interactivity", width=WIDTH, height=HEIGHT)
        .mark_circle(size=70)
        .encode(
            x=alt.X("interactivity:Q", title="interactivity [token/s per user]"),
            y=alt.Y(
                "output_tokens_per_s_per_accelerator:Q",
                title="throughput [token/s per accelerator]",
            ),
            color=alt.Color(
                "ttft_p99_s:Q", title="TTFT p99 [s]", scale=alt.Scale(scheme="viridis")
            ),
            tooltip=_tips(table),
        )
    )
    return chart


def latency_by_rate(table: pd.DataFrame) -> alt.LayerChart:
    """Return TTFT p99 and goodput against the offered rate.

    Parameters
    ----------
    table : DataFrame
        Columns offered_per_s, ttft_p99_s, goodput_per_s (may be empty), requests_per_s.
    """
    base = alt.Chart(table, title="Saturation", width=WIDTH, height=HEIGHT).encode(
        x=alt.X("offered_per_s:Q", title="offered [request/s]")
    )
    served = base.mark_line(point=True, color="#0072B2").encode(
        y=alt.Y("requests_per_s:Q", title="served [request/s]"), tooltip=_tips(table)
    )
    waits = base.mark_line(point=True, color="#D55E00").encode(
        y=alt.Y("ttft_p99_s:Q", title="TTFT p99 [s]", scale=alt.Scale(type="symlog"))
    )
    layered: alt.LayerChart = alt.layer(served, waits).resolve_scale(y="independent")
    return layered


def response(table: pd.DataFrame, key: str, metric: str) -> alt.Chart:
    """Return one metric against one swept key, a dot per point."""
    numbers = all(isinstance(value, int | float) for value in table[key])
    kind = "Q" if numbers else "N"
    data = table.rename(columns={key: "knob"})
    chart: alt.Chart = (
        alt.Chart(data, title=f"{metric} by {key}", width=WIDTH, height=HEIGHT)
        .mark_circle(size=60, color="#0072B2")
        .encode(
            x=alt.X(f"knob:{kind}", title=key),
            y=alt.Y(f"{metric}:Q", title=metric, scale=alt.Scale(zero=False)),
        )
    )
    return chart


def _tips(table: pd.DataFrame) -> list[alt.Tooltip]:
    names = [n for n in ("seed", "offered_per_s", "ttft_p99_s", "tpot_mean_s") if n in table]
    return [alt.Tooltip(f"{n}:Q", format=".3g") for n in names]


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;
color-scheme:light dark}}figure{{overflow-x:auto;margin:2rem 0}}</style></head><body>
<h1>{title}</h1><p>{lead}</p>{figures}
<script>{vega}</script>{data}<script>
for (const node of document.querySelectorAll("figure"))
  vegaEmbed(node, JSON.parse(document.getElementById(node.dataset.chart).textContent),
            {{actions: true, renderer: "svg"}});
</script></body></html>"""


def write_page(table: pd.DataFrame, found: "Saturation | None", path: Path) -> None:
    """Write the charts of a sweep as one self-contained HTML page."""
    good = table[table["error"].isna()]
    charts: dict[str, Any] = {"interactivity": interactivity(good)}
    if found is not None:
        charts["latency"] = latency_by_rate(good)
    lead = found.sentence() if found is not None else f"{len(table)} points"
    write_charts("Sweep", lead, charts, path)


def write_charts(title: str, lead: str, charts: dict[str, Any], path: Path) -> None:
    """Write named charts with a heading as one self-contained HTML page."""
    figures = "".join(f'<figure data-chart="{name}"></figure>' for name in charts)
    data = "".join(
        f'<script type="application/json" id="{name}">{json_script(chart.to_dict())}</script>'
        for name, chart in charts.items()
    )
    text = PAGE.format(title=title, lead=lead, figures=figures, vega=vega_script(), data=data)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
