"""Charts of one deployment and of several side by side: tables go in, Altair charts come out."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from sim.charts import COLOURS, LINES
from sim.exploring.bands import Band
from sim.exploring.curve import Curve

__all__ = [
    "CAUSES",
    "cause_split",
    "compared_bars",
    "compared_latency",
    "frontier",
    "frontier_table",
    "kernel_errors",
]

HEIGHT = 300
QUANTILES = 200
CAUSES = {
    "queue": ("waiting in the queue", COLOURS["queue"]),
    "memory": ("waiting for KV memory", COLOURS["memory"]),
    "host": ("host (CPU)", COLOURS["host"]),
    "recompute": ("repeated after preemption", COLOURS["recompute"]),
    "transfer": ("KV transfer", "#8C6D31"),
    "prompts": ("computing prompts", COLOURS["prefill"]),
    "weights": ("decode: reading weights", COLOURS["decode"]),
    "kv": ("decode: reading KV cache", COLOURS["service"]),
    "rest": ("decode: all else", COLOURS["idle"]),
}


def cause_split(shares: Mapping[str, float]) -> alt.Chart:
    """Return where the time of requests goes, one bar for each cause.

    Parameters
    ----------
    shares : mapping
        Cause, a key of `CAUSES` -> share of request time [1]; causes below 0.1 % are left out.
    """
    rows = [
        {"cause": CAUSES[name][0], "share": round(shares[name], 5), "colour": CAUSES[name][1]}
        for name in CAUSES
        if shares.get(name, 0.0) >= 1e-3
    ]
    data = pd.DataFrame(rows, columns=["cause", "share", "colour"])
    names, shades = data["cause"].tolist(), data["colour"].tolist()
    base = alt.Chart(data, height=30 * max(len(data), 1) + 60).encode(
        y=alt.Y("cause:N", sort=names, title=None).axis(labelLimit=200),
        x=alt.X("share:Q", title="share of the requests' time")
        .axis(format="%", tickCount=5)
        .scale(domainMax=1.12 * max(float(data["share"].max()), 1e-3), nice=False),
        tooltip=["cause:N", alt.Tooltip("share:Q", format=".1%")],
    )
    bars = base.mark_bar().encode(
        color=alt.Color("cause:N", legend=None).scale(domain=names, range=shades)
    )
    text = base.mark_text(align="left", dx=4, color="#808080").encode(
        text=alt.Text("share:Q", format=".0%")
    )
    layers: Any = bars + text
    return layers  # type: ignore[no-any-return]


def frontier_table(curve: Curve, accelerators: int, output: float, name: str) -> pd.DataFrame:
    """Return operating points as tokens/s of a user against tokens/s of an accelerator.

    Parameters
    ----------
    curve : Curve
        Operating points of one replica.
    accelerators : int
        Accelerators of that replica.
    output : float
        Mean output of a request [token].
    name : str
        Title of the scenario.
    """
    keep = curve.rate_per_s >= np.maximum.accumulate(curve.rate_per_s)
    keep &= curve.tpot_s >= np.maximum.accumulate(curve.tpot_s)
    return pd.DataFrame(
        {
            "scenario": name,
            "user": 1.0 / curve.tpot_s[keep],
            "accelerator": curve.rate_per_s[keep] * output / accelerators,
            "batch": curve.batch[keep],
            "rate": curve.rate_per_s[keep],
        }
    ).round(4)


def frontier(table: pd.DataFrame, points: pd.DataFrame | None = None) -> Any:  # noqa: ANN401
    """Return throughput against interactivity.

    Parameters
    ----------
    table : DataFrame
        Rows of `frontier_table` of one or several scenarios.
    points : DataFrame, optional
        scenario, user, accelerator: where each of them runs now.
    """
    names = list(dict.fromkeys(table["scenario"]))
    legend = alt.Legend(title=None, orient="top", columns=1, labelLimit=320) if names[1:] else None
    colour = alt.Color("scenario:N", sort=names, legend=legend).scale(
        domain=names, range=[LINES[i % len(LINES)] for i in range(len(names))]
    )
    x = alt.X("user:Q", title="speed for one user [token/s]").scale(zero=True)
    y = alt.Y("accelerator:Q", title="output of one accelerator [token/s]").axis(format="~s")
    tips = [
        "scenario:N",
        alt.Tooltip("user:Q", title="token/s of a user", format=".3~g"),
        alt.Tooltip("accelerator:Q", title="token/s of an accelerator", format=",.0f"),
    ]
    more = [
        alt.Tooltip("batch:Q", title="sequences in a batch", format=".3~g"),
        alt.Tooltip("rate:Q", title="request/s of a replica", format=".3~g"),
    ]
    shown = table[table["accelerator"] > 0.002 * table["accelerator"].max()]
    lines = (
        alt.Chart(shown, height=HEIGHT)
        .mark_line(strokeWidth=2)
        .encode(x=x, y=y, color=colour, order="batch:Q", tooltip=[*tips, *more])
    )
    if points is None:
        return lines
    dots = (
        alt.Chart(points)
        .mark_point(filled=True, size=110, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tips)
    )
    return lines + dots


def compared_latency(tables: Mapping[str, pd.DataFrame], what: str) -> alt.Chart:
    """Return the share of requests below each latency, one line for each scenario.

    Parameters
    ----------
    tables : mapping
        Title of a scenario -> its requests, as in requests.csv.
    what : str
        ttft, tpot or e2e.
    """
    parts = [_curve(table, what).assign(scenario=name) for name, table in tables.items()]
    data = pd.concat(parts, ignore_index=True)
    names = list(tables)
    chart: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("latency:Q", title=f"{what.upper()} [ms]").scale(type="log", nice=False),
            y=alt.Y("share:Q", title="share of requests").axis(format="%").scale(domain=[0, 1]),
            color=alt.Color(
                "scenario:N",
                sort=names,
                legend=alt.Legend(title=None, orient="top", columns=1, labelLimit=320)
                if names[1:]
                else None,
            ).scale(domain=names, range=[LINES[i % len(LINES)] for i in range(len(names))]),
            tooltip=[
                "scenario:N",
                alt.Tooltip("latency:Q", title=f"{what.upper()} [ms]", format=".4~g"),
                alt.Tooltip("share:Q", title="requests below", format=".1%"),
            ],
        )
    )
    return chart


def _curve(requests: pd.DataFrame, what: str) -> pd.DataFrame:
    done = requests[requests["first_token_s"].notna()]
    if what == "ttft":
        values = done["first_token_s"] - done["arrival_s"]
    elif what == "e2e":
        values = (done["finish_s"] - done["arrival_s"]).dropna()
    else:
        several = done[(done["output_tokens"] > 1) & done["finish_s"].notna()]
        spread = several["finish_s"] - several["first_token_s"]
        values = spread / (several["output_tokens"] - 1)
    at = np.linspace(0, 1, QUANTILES + 1)
    found = np.quantile(values.to_numpy(np.float64), at) if len(values) else np.zeros(0)
    return pd.DataFrame({"latency": (found * 1e3).round(4), "share": at[: found.size].round(5)})


def compared_bars(bands: Mapping[str, Band], title: str) -> Any:  # noqa: ANN401
    """Return one bar for each scenario, with its figure beside it and its band as a line.

    Parameters
    ----------
    bands : mapping
        Title of a scenario -> its figure with P10 and P90.
    title : str
        What it is, with its unit.
    """
    names = list(bands)
    rows = [
        {"scenario": name, "value": b.value, "low": b.low, "high": b.high}
        for name, b in bands.items()
    ]
    data = pd.DataFrame(rows, columns=["scenario", "value", "low", "high"])
    most = max([b.high for b in bands.values()], default=1.0)
    base = alt.Chart(data, height=34 * len(data) + 60).encode(
        y=alt.Y("scenario:N", sort=names, title=None).axis(labelLimit=160),
        tooltip=[
            "scenario:N",
            alt.Tooltip("value:Q", title=title, format=".3~g"),
            alt.Tooltip("low:Q", title="P10", format=".3~g"),
            alt.Tooltip("high:Q", title="P90", format=".3~g"),
        ],
    )
    x = alt.X("value:Q", title=title).axis(format="~s", tickCount=5)
    x = x.scale(domainMax=1.25 * max(most, 1e-12), nice=False)
    colours = [LINES[i % len(LINES)] for i in range(len(data))]
    bars = base.mark_bar().encode(
        x=x,
        color=alt.Color("scenario:N", legend=None).scale(domain=names, range=colours),
    )
    ends = base.mark_rule(color="#808080", size=2).encode(x="low:Q", x2="high:Q")
    text = base.mark_text(align="left", dx=6, color="#808080").encode(
        x="high:Q", text=alt.Text("value:Q", format=".3~g")
    )
    return bars + ends + text


def kernel_errors(table: pd.DataFrame) -> Any:  # noqa: ANN401 - layers have no common type
    """Return errors of kernel times on held-out shapes: median as a dot, up to the 90th percentile.

    Parameters
    ----------
    table : DataFrame
        accelerator, family, split, median, p90; errors as shares [1].
    """
    words = table["family"].str.removeprefix("elementwise_").str.replace("_", " ")
    families = list(dict.fromkeys(words))
    splits = list(dict.fromkeys(table["split"]))
    data = table.assign(kernel=words)
    base = alt.Chart(data, height=max(22 * len(families), 80) + 80).encode(
        y=alt.Y("kernel:N", sort=families, title=None).axis(labelLimit=200),
        yOffset=alt.YOffset("split:N", sort=splits),
        color=alt.Color(
            "split:N", sort=splits, legend=alt.Legend(title=None, orient="top", columns=1)
        ).scale(domain=splits, range=list(LINES[: len(splits)])),
        tooltip=[
            "accelerator:N",
            "kernel:N",
            alt.Tooltip("split:N", title="held out"),
            alt.Tooltip("median:Q", format=".1%"),
            alt.Tooltip("p90:Q", title="90 % are below", format=".1%"),
        ],
    )
    title = "absolute error"
    x = alt.X("median:Q", title=title).axis(format="%").scale(domainMax=0.4, clamp=True)
    ranges = base.mark_rule(size=3, opacity=0.45).encode(x=x, x2="p90:Q")
    return ranges + base.mark_point(filled=True, size=45, opacity=1).encode(x=x)
