"""The pages of a comparison: a table in words, and an HTML report with charts."""

from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from formats import atomic_write
from sim import charts
from sim.comparison import COMPARED, Comparison, plain
from sim.metrics import metrics
from sim.page import Figure, Page, table_html, write_page
from sim.units import readable

__all__ = ["comparison_rows", "verdict", "write_comparison"]

HEIGHT, CURVE_POINTS = 260, 300
LARGEST = 3.0  # relative change that the chart still shows; the table has them all
LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "e2e": "End-to-end latency",
}
COLUMNS = ["metric", "base", "value", "difference", "interval", "relative"]


def comparison_rows(found: Comparison, scenario: str, every: bool = False) -> list[list[str]]:
    """Return the rows of one scenario against the base, in units that people read.

    Parameters
    ----------
    found : Comparison
        A comparison.
    scenario : str
        One of its names but the first.
    every : bool
        All metrics; otherwise those of `COMPARED` that have a value.
    """
    rows = [
        _words(name, row)
        for name, row in _differences(found, scenario).items()
        if np.isfinite(row["difference"]) and (every or plain(name) in COMPARED)
    ]
    order = {name: i for i, name in enumerate(COMPARED)}
    return rows if every else sorted(rows, key=lambda row: order[plain(row[0])])


def _differences(found: Comparison, scenario: str) -> dict[str, dict[str, float]]:
    """Return the numbers of one scenario against the base, by metric."""
    table = found.differences[found.differences["scenario"] == scenario]
    numbers = table.drop(columns=["scenario", "unit"]).set_index("metric")
    return {
        str(name): {str(key): float(value) for key, value in row.items()}
        for name, row in numbers.to_dict("index").items()
    }


def _sure(row: dict[str, float]) -> bool:
    return row["low"] > 0 or row["high"] < 0


def _words(name: str, row: dict[str, float]) -> list[str]:
    unit = metrics[plain(name)].unit
    low, high = (readable(row[k], unit) for k in ("low", "high"))
    return [
        name,
        *(readable(row[k], unit) for k in ("base", "value", "difference")),
        f"{low} to {high}{' *' if _sure(row) else ''}",
        f"{row['relative']:+.1%}" if np.isfinite(row["relative"]) else "-",
    ]


def verdict(found: Comparison, scenario: str) -> str:
    """Return a sentence on what one scenario surely changes of latency and throughput."""
    rows, said = _differences(found, scenario), []
    for name, words in (
        ("ttft_mean_s", "TTFT"),
        ("tpot_mean_s", "TPOT"),
        ("output_tokens_per_s", "output tokens per second"),
        ("slo_attainment", "share within objectives"),
    ):
        if name in rows and _sure(rows[name]):
            said.append(f"{words} {rows[name]['relative']:+.1%}")
    base = found.names[0]
    if not said:
        return f"{scenario} and {base} do not surely differ in latency or throughput."
    return f"{scenario} against {base}: {', '.join(said)}."


def write_comparison(found: Comparison, folder: Path) -> list[str]:
    """Write compare.html, differences.csv and values.csv; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("differences", found.differences), ("values", found.values)):
        with atomic_write(folder / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False, lineterminator="\n")
    write_page(comparison_page(found), folder / "compare.html")
    return ["compare.html", "differences.csv", "values.csv"]


def comparison_page(found: Comparison) -> Page:
    """Return the page of a comparison."""
    level = f"{found.confidence:.0%}"
    sections = {
        f"{name} against {found.names[0]}": table_html(COLUMNS, comparison_rows(found, name, True))
        for name in found.names[1:]
    }
    runs = int(found.differences["replications"].max())
    note = (
        f"<p>Means of {runs} replications on the same requests; intervals of {level} for the "
        "paired difference (Student's t). A star: the interval leaves out zero.</p>"
    )
    figures = {"relative": _relative_figure(found)}
    figures |= {f"cdf_{what}": _curves(found, what, title) for what, title in LATENCIES.items()}
    return Page(
        f"{' against '.join(found.names)}",
        " ".join(verdict(found, name) for name in found.names[1:]),
        {},
        figures,
        {"How to read it": note, **sections},
    )


def _relative_figure(found: Comparison) -> Figure:
    table = found.differences
    steady = (table["relative_low"] > -LARGEST) & (table["relative_high"] < LARGEST)
    shown = table[table["metric"].isin(COMPARED) & steady].copy()
    shown["what"] = [metrics[name].name for name in shown["metric"]]
    columns = ["scenario", "what", "relative", "relative_low", "relative_high"]
    base = alt.Chart(shown[columns].round(5), height=alt.Step(26)).encode(
        y=alt.Y("what:N", title=None, sort=list(COMPARED)),
        color=alt.Color("scenario:N", sort=found.names[1:], legend=alt.Legend(orient="top")).scale(
            range=list(charts.LINES)
        ),
        yOffset="scenario:N",
    )
    bars = base.mark_rule(size=2).encode(
        x=alt.X("relative_low:Q", title=f"change against {found.names[0]}").axis(format="+%"),
        x2="relative_high:Q",
    )
    dots = base.mark_point(filled=True, size=60).encode(
        x="relative:Q",
        tooltip=[
            alt.Tooltip("scenario:N"),
            alt.Tooltip("what:N", title="metric"),
            alt.Tooltip("relative:Q", title="change", format="+.2%"),
            alt.Tooltip("relative_low:Q", title="from", format="+.2%"),
            alt.Tooltip("relative_high:Q", title="to", format="+.2%"),
        ],
    )
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(strokeDash=[4, 4], color="#999999")
    words = f"Bars are {found.confidence:.0%} intervals of the paired difference."
    return Figure("What changes", words, bars + dots + zero.encode(x="x:Q"))


def _curves(found: Comparison, what: str, title: str) -> Figure:
    """Return the share of requests below each latency, first replication of every scenario."""
    parts = []
    for name, result in zip(found.names, found.results, strict=True):
        seconds = np.sort(charts.latencies(result.requests, what))
        if seconds.size:
            share = np.linspace(0, 1, min(CURVE_POINTS, seconds.size))
            values = np.quantile(seconds, share)
            parts.append(pd.DataFrame({"scenario": name, "s": values, "share": share}))
    data = pd.concat(parts).round(6) if parts else pd.DataFrame(columns=["scenario", "s", "share"])
    chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("s:Q", title=f"{what.upper()} [s]"),
            y=alt.Y("share:Q", title="share of requests").axis(format="%"),
            color=alt.Color("scenario:N", sort=found.names, legend=alt.Legend(orient="top")).scale(
                domain=found.names, range=list(charts.LINES)[: len(found.names)]
            ),
            tooltip=[
                "scenario:N",
                alt.Tooltip("s:Q", format=".4~g"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    return Figure(title, "Share of requests below each value, first replication.", chart)
