"""Charts of operators under roofs, of memory, and of what optimisations bring."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from sim.charts import COLOURS, DECADES, LINES

__all__ = ["memory_bar", "roofs", "waterfall_bars"]

HEIGHT = 420
LOWEST, HIGHEST = 0.3, 1e4  # intensities that are drawn at least [FLOP/byte]
PHASES = {"decode": "decode", "prefill": "prefill", "image": "host"}  # phase -> colour
MEMORY = {
    "weights": COLOURS["prefill"],
    "activations": COLOURS["queue"],
    "graphs, workspaces": COLOURS["host"],
    "KV cache in use": COLOURS["memory"],
    "KV cache free": COLOURS["service"],
    "not used by the engine": COLOURS["idle"],
}


def roofs(table: pd.DataFrame, peaks: Mapping[str, float], levels: Mapping[str, float]) -> Any:  # noqa: ANN401 - layers have no common type
    """Return operators as dots under the roofs of a chip.

    Parameters
    ----------
    table : DataFrame
        Operators of `sim.explain.explain`; those without arithmetic are not drawn.
    peaks : mapping
        Precision -> peak [FLOP/s].
    levels : mapping
        Level of memory -> bandwidth [byte/s]; the first is the fastest.
    """
    data = _dots(table)
    low = min(LOWEST, 0.3 * float(data["intensity"].min()))
    high = max(HIGHEST, 2.0 * float(data["intensity"].max()))
    top = max(peaks.values())
    x = alt.X("intensity:Q", title="arithmetic intensity [FLOP/byte]")
    x = x.axis(values=DECADES, format="~s").scale(type="log", domain=[low, high], nice=False)
    floor = 0.2 * float(data["rate"].min())
    y = alt.Y("rate:Q", title="rate [TFLOP/s]").axis(values=DECADES, format="~g")
    y = y.scale(type="log", domain=[floor, 2.5 * top / 1e12], nice=False)
    names = [name for name in PHASES if name in set(data["phase"])]
    dots = (
        alt.Chart(data, height=HEIGHT)
        .mark_point(filled=True, opacity=0.9)
        .encode(
            x=x,
            y=y,
            size=alt.Size("share:Q", legend=None).scale(domain=[0, 1], range=[50, 700]),
            color=alt.Color(
                "phase:N", sort=names, legend=alt.Legend(title=None, orient="top")
            ).scale(domain=names, range=[COLOURS[PHASES[name]] for name in names]),
            tooltip=[
                "phase:N",
                "operator:N",
                "bound:N",
                alt.Tooltip("intensity:Q", title="FLOP/byte", format=".3~g"),
                alt.Tooltip("rate:Q", title="TFLOP/s", format=".3~g"),
                alt.Tooltip("ms:Q", title="time [ms]", format=".3~g"),
                alt.Tooltip("share:Q", title="of its step", format=".0%"),
            ],
        )
    )
    return _slopes(levels, top, floor * 1e12, x, y) + _flats(peaks, levels, high, x, y) + dots


def _dots(table: pd.DataFrame) -> pd.DataFrame:
    share = table["seconds"] / table.groupby("phase")["seconds"].transform("sum")
    rate = table["flops"] / table["seconds"] / 1e12
    columns = ["phase", "operator", "intensity", "bound", "share", "rate", "ms"]
    kept = table.assign(share=share, rate=rate, ms=table["seconds"] * 1e3)[columns]
    return kept[kept["rate"] > 0].dropna(subset="intensity")


def _slopes(levels: Mapping[str, float], top: float, floor: float, x: alt.X, y: alt.Y) -> Any:  # noqa: ANN401
    """Return the roofs of memory: rate = intensity x bandwidth, up to the highest peak."""
    rows, labels = [], []
    for i, (name, bandwidth) in enumerate(levels.items()):
        ends = np.array([floor / bandwidth, top / bandwidth])
        rows += [
            {"intensity": v, "rate": v * bandwidth / 1e12, "roof": name} for v in ends.tolist()
        ]
        place = 0.5 if i == 0 else 0.12
        middle = float(np.exp(np.log(ends[0]) + place * np.ptp(np.log(ends))))
        words = f"{name}, {bandwidth / 1e12:.3g} TB/s"
        labels.append(
            {"intensity": middle, "rate": middle * bandwidth / 1e12, "words": words, "fast": i == 0}
        )
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(color="#888888", strokeWidth=1.4, clip=True)
        .encode(x=x, y=y, detail="roof:N")
    )
    base = alt.Chart(pd.DataFrame(labels)).encode(x=x, y=y, text="words:N")
    above = base.transform_filter("datum.fast").mark_text(
        color="#888888", align="right", dx=-8, dy=-4, fontSize=11
    )
    below = base.transform_filter("!datum.fast").mark_text(
        color="#888888", align="left", dx=8, dy=8, fontSize=11
    )
    return lines + above + below


def _flats(
    peaks: Mapping[str, float], levels: Mapping[str, float], high: float, x: alt.X, y: alt.Y
) -> Any:  # noqa: ANN401
    """Return the roofs of arithmetic, one for each precision; equal ones share a label."""
    fastest = max(levels.values())
    by_rate: dict[float, list[str]] = {}
    for name, rate in peaks.items():
        by_rate.setdefault(rate, []).append(name)
    rows, labels = [], []
    for rate, names in by_rate.items():
        start = rate / fastest
        rows += [{"intensity": i, "rate": rate / 1e12, "roof": names[0]} for i in (start, high)]
        words = f"{', '.join(names)}: {rate / 1e12:,.0f}" if rate >= 1e13 else ", ".join(names)
        labels.append({"intensity": high, "rate": rate / 1e12, "words": words})
    lines = (
        alt.Chart(pd.DataFrame(rows))
        .mark_line(color="#888888", strokeDash=[5, 4], strokeWidth=1.2)
        .encode(x=x, y=y, detail="roof:N")
    )
    text = (
        alt.Chart(pd.DataFrame(labels))
        .mark_text(color="#888888", align="right", dx=-4, dy=-6, fontSize=11)
        .encode(x=x, y=y, text="words:N")
    )
    return lines + text


def memory_bar(parts: Mapping[str, float]) -> alt.Chart:
    """Return how one accelerator's memory is used, as one stacked bar.

    Parameters
    ----------
    parts : mapping
        Part, a key of `MEMORY` -> bytes.
    """
    rows = [
        {"part": name, "gb": round(parts[name] / 1e9, 3), "place": i}
        for i, name in enumerate(MEMORY)
        if parts.get(name, 0.0) > 0
    ]
    data = pd.DataFrame(rows).assign(bar="memory")
    names = data["part"].tolist()
    chart: alt.Chart = (
        alt.Chart(data, height=210)
        .mark_bar(size=44)
        .encode(
            y=alt.Y("bar:N", axis=None),
            x=alt.X("gb:Q", title="memory of one accelerator [GB]").scale(nice=False),
            color=alt.Color(
                "part:N", sort=names, legend=alt.Legend(title=None, orient="top", columns=2)
            ).scale(domain=names, range=[MEMORY[name] for name in names]),
            order=alt.Order("place:Q"),
            tooltip=["part:N", alt.Tooltip("gb:Q", title="GB", format=".3~g")],
        )
    )
    return chart


def waterfall_bars(table: pd.DataFrame, column: str, title: str) -> Any:  # noqa: ANN401
    """Return what each step saves, as bars from the value before to the value after.

    Parameters
    ----------
    table : DataFrame
        As `sim.exploring.waterfall.waterfall` returns it.
    column, title : str
        Which figure, and what its axis says.
    """
    after = table[column].to_numpy(np.float64)
    before = np.concatenate([[after[0]], after[:-1]])
    saved = [
        f"{v:.3g}" if i == 0 else f"÷ {b / v:.3g}"
        for i, (b, v) in enumerate(zip(before, after, strict=True))
    ]
    low = float(after.min()) / 2.0
    data = pd.DataFrame(
        {
            "step": table["step"],
            "after": after,
            "before": np.concatenate([[low], after[:-1]]),
            "words": saved,
            "better": np.where(after <= before, "saves", "costs more"),
        }
    )
    base = alt.Chart(data, height=36 * len(data) + 70).encode(
        y=alt.Y("step:N", sort=data["step"].tolist(), title=None).axis(labelLimit=190),
        tooltip=[
            "step:N",
            alt.Tooltip("before:Q", format=".3~g"),
            alt.Tooltip("after:Q", format=".3~g"),
        ],
    )
    x = (
        alt.X("after:Q", title=title)
        .axis(values=DECADES, format="~g", titleAnchor="end")
        .scale(type="log", domain=[low, 4.0 * float(after.max())], nice=False)
    )
    bars = base.mark_bar(height=16).encode(
        x=x,
        x2="before:Q",
        color=alt.Color("better:N", legend=None).scale(
            domain=["saves", "costs more"], range=[LINES[2], LINES[4]]
        ),
    )
    text = (
        base.mark_text(align="left", dx=6, color="#808080")
        .encode(x=alt.X("end:Q"), text="words:N")
        .transform_calculate(end="max(datum.after, datum.before)")
    )
    return bars + text
