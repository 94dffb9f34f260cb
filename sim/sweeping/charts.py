"""Charts of a sweep: trade-offs with their Pareto front, response to a key, saturation curve.

Charts have no width of their own; the page stretches them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.charts import COLOURS
from sim.sweeping.task import COST

if TYPE_CHECKING:
    from sim.sweeping.saturation import Saturation

__all__ = [
    "TRADES",
    "Trade",
    "grouping",
    "knob_axis",
    "latency_by_rate",
    "pareto",
    "plain",
    "response",
    "served_by_rate",
    "trade",
]

Chart = alt.Chart | alt.LayerChart
Trade = tuple[str, str, str, bool, str, str, bool]
HEIGHT, MOST_COLOURS, MOST_DOTS = 260, 7, 3000
FEW, WIDE = 10, 6  # keys: values that stand on an axis each; ratio of a logarithmic axis
SPREAD = 30  # metrics: ratio of a logarithmic axis
BEYOND = 1.6  # how far above the knee a saturation chart goes
TICKS: dict[str, Any] = {"tickCount": 6, "labelOverlap": True}
BLUE, ORANGE, GREEN, RED = (COLOURS[name] for name in ("prefill", "decode", "service", "memory"))
SHADES = (BLUE, ORANGE, GREEN, *(COLOURS[name] for name in ("queue", "host", "memory", "idle")))
INTERACTIVITY = "interactivity_per_s"
# id -> title; x metric, its title, more is better; y metric, its title, more is better
TRADES: dict[str, Trade] = {
    "interactivity": (
        "Throughput against interactivity",
        INTERACTIVITY,
        "interactivity [token/s per user]",
        True,
        "output_tokens_per_s_per_accelerator",
        "throughput [token/s per accelerator]",
        True,
    ),
    "cost": (
        "Cost against time to first token",
        "ttft_p99_s",
        "TTFT p99 [s]",
        False,
        COST,
        "rent [USD per million output tokens]",
        False,
    ),
    "energy": (
        "Energy against throughput",
        "output_tokens_per_s",
        "throughput [token/s]",
        True,
        "energy_per_output_token_j",
        "energy [J per output token]",
        False,
    ),
}


def pareto(x: npt.ArrayLike, y: npt.ArrayLike, more_x: bool, more_y: bool) -> npt.NDArray[np.bool_]:
    """Return which points no other point beats in one direction without losing in the other.

    Examples
    --------
    >>> pareto([1, 2, 3], [3, 1, 2], more_x=True, more_y=True).tolist()
    [True, False, True]
    """
    a = np.asarray(x, dtype=float) * (1 if more_x else -1)
    b = np.asarray(y, dtype=float) * (1 if more_y else -1)
    order = np.lexsort((-b, -a))
    ahead = np.concatenate([[-np.inf], np.maximum.accumulate(b[order])[:-1]])
    best = np.zeros(a.size, dtype=np.bool_)
    best[order] = b[order] > ahead
    return best


def trade(table: pd.DataFrame, kind: str, swept: Sequence[str]) -> Chart | None:
    """Return a trade-off of all points, the Pareto front drawn through; None without its metrics.

    Parameters
    ----------
    table : DataFrame
        Rows of a sweep that ran.
    kind : str
        A key of `TRADES`.
    swept : sequence of str
        Swept keys, for colours and tooltips.
    """
    _, x, x_title, more_x, y, y_title, more_y = TRADES[kind]
    data = _plottable(table, swept)
    if x not in data or y not in data:
        return None
    data = data.dropna(subset=[x, y])
    if data.empty:
        return None
    data["front"] = pareto(data[x], data[y], more_x, more_y)
    base = alt.Chart(_thinned(data), height=HEIGHT).encode(
        x=alt.X(f"{x}:Q", title=x_title).scale(type=_scale(data[x]), zero=False).axis(**TICKS),
        y=alt.Y(f"{y}:Q", title=y_title).scale(type=_scale(data[y]), zero=False),
    )
    line = base.mark_line(color=RED, strokeWidth=1.5, strokeDash=[5, 3]).transform_filter(
        "datum.front"
    )
    by = grouping(table, swept)
    place = f"key{list(swept).index(by)}" if by is not None else ""
    colour = alt.value(BLUE) if by is None else _shades(place, list(data[place]), by)
    dots = base.mark_point(filled=True, size=60, opacity=0.85).encode(
        color=colour, tooltip=_tips(swept, {x: x_title, y: y_title})
    )
    return _layered(line, dots)


def _layered(*charts: Any) -> alt.LayerChart:  # noqa: ANN401 - encode() has no better type
    return cast("alt.LayerChart", alt.layer(*charts))


def _scale(values: "pd.Series[Any]") -> Any:  # noqa: ANN401 - Altair's word for it
    """Return the kind of scale that shows values of several orders."""
    low, high = float(values.min()), float(values.max())
    return "log" if low > 0 and high > SPREAD * low else "linear"


def _plottable(table: pd.DataFrame, swept: Sequence[str]) -> pd.DataFrame:
    """Return the metrics that charts need, swept keys as ``key0``, ``key1``, ..."""
    wanted = {name for _, x, _, _, y, _, _ in TRADES.values() for name in (x, y)}
    data = table[[name for name in table if name in wanted]].copy()
    data[INTERACTIVITY] = 1.0 / table["tpot_mean_s"].astype(float)
    for i, key in enumerate(swept):
        data[f"key{i}"] = plain(table[key])
    return data


def plain(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return numbers and words as they are, anything else as text."""
    return column.map(lambda v: v if isinstance(v, int | float | str) and v == v else str(v))


def _thinned(data: pd.DataFrame) -> pd.DataFrame:
    """Return at most a few thousand dots, all of the front among them."""
    if len(data) <= MOST_DOTS:
        return data
    rest = data[~data["front"]].iloc[:: -(-len(data) // MOST_DOTS)]
    return pd.concat([data[data["front"]], rest])


def grouping(table: pd.DataFrame, swept: Sequence[str]) -> str | None:
    """Return the swept key that colours stand for: that with the fewest values above one."""
    counts = {key: table[key].astype(str).nunique() for key in swept}
    some = {key: n for key, n in counts.items() if 1 < n <= MOST_COLOURS}
    return min(some, key=lambda key: some[key]) if some else None


def _shades(field: str, values: Sequence[Any], title: str) -> alt.Color:
    names = list(dict.fromkeys(values))
    if all(_is_number(v) for v in names):
        names = sorted(names)
    legend = alt.Legend(title=title, orient="top", columns=4)
    return alt.Color(f"{field}:N", legend=legend, sort=names).scale(
        domain=names, range=list(SHADES[: len(names)])
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tips(swept: Sequence[str], metrics: dict[str, str]) -> list[alt.Tooltip]:
    keys = [alt.Tooltip(f"key{i}:N", title=key) for i, key in enumerate(swept)]
    return keys + [alt.Tooltip(f"{m}:Q", title=t, format=".4~g") for m, t in metrics.items()]


def response(
    table: pd.DataFrame, key: str, metric: str, title: str, by: str | None = None
) -> Chart:
    """Return one metric against one swept key: a dot per point, means drawn through.

    Parameters
    ----------
    table : DataFrame
        Rows of a sweep that ran.
    key, metric : str
        Columns of it.
    title : str
        What the metric is, with its unit.
    by : str, optional
        Another swept key, a line per value.
    """
    data = pd.DataFrame({"knob": plain(table[key]), "metric": table[metric]})
    data = data.assign(by="all" if by is None else plain(table[by]))
    data = data.astype({"metric": float}).dropna()
    x = knob_axis(list(data["knob"]), key)
    y = alt.Y("metric:Q", title=title).scale(zero=False)
    colour = alt.value(BLUE) if by is None else _shades("by", list(data["by"]), by)
    tips = [alt.Tooltip("knob", title=key), alt.Tooltip("metric:Q", format=".4~g", title=title)]
    dots = alt.Chart(data, height=HEIGHT).mark_point(filled=True, size=40, opacity=0.6)
    mean = data.groupby(["by", "knob"], sort=False, as_index=False)["metric"].mean()
    line = alt.Chart(mean).mark_line(strokeWidth=2, point={"size": 30})
    return _layered(
        dots.encode(x=x, y=y, color=colour, tooltip=tips), line.encode(x=x, y=y, color=colour)
    )


def knob_axis(values: list[Any], key: str) -> alt.X:
    """Return an axis that fits the values of a key: log, linear or names."""
    if not all(_is_number(v) for v in values):
        return alt.X("knob:N", title=key).axis(labelAngle=0, labelOverlap=True)
    some = sorted(set(values))
    axis = {"values": some, "labelOverlap": True} if len(some) <= FEW else TICKS
    log = some[0] > 0 and some[-1] >= WIDE * some[0]
    kind: Any = "log" if log else "linear"
    return alt.X("knob:Q", title=key).scale(type=kind, zero=False, nice=False).axis(**axis)


def served_by_rate(found: "Saturation") -> Chart:
    """Return served and good requests per second against the offered rate."""
    table = _near_knee(found)
    good = table["slo_attainment"].astype(float) * table["offered_per_s"]
    data = _long(table, {"served": table["steady_served_per_s"], "good": good})
    most = float(table["offered_per_s"].max())
    ideal = (
        alt.Chart(pd.DataFrame({"offered": [0.0, most], "value": [0.0, most]}))
        .mark_line(color=COLOURS["idle"], strokeDash=[2, 3])
        .encode(x="offered:Q", y="value:Q")
    )
    lines = _rate_lines(data, alt.Y("value:Q", title="[request/s]"))
    return _layered(ideal, lines, _marks(found))


def latency_by_rate(found: "Saturation") -> Chart:
    """Return TTFT and TPOT at the 99th percentile against the offered rate."""
    table = _near_knee(found)
    data = _long(table, {"TTFT p99": table["ttft_p99_s"], "TPOT p99": table["tpot_p99_s"]})
    y = alt.Y("value:Q", title="latency [s]").scale(type="log").axis(tickCount=5, format="~g")
    return _layered(_rate_lines(data, y), _marks(found))


def _near_knee(found: "Saturation") -> pd.DataFrame:
    """Return the points up to a little beyond the knee; far above it nothing new happens."""
    table = found.table
    return table[table["offered_per_s"] <= BEYOND * max(found.knee_per_s, found.offered_per_s)]


def _long(table: pd.DataFrame, parts: dict[str, "pd.Series[Any]"]) -> pd.DataFrame:
    rows = [
        pd.DataFrame({"offered": table["offered_per_s"], "what": what, "value": values})
        for what, values in parts.items()
        if values.notna().any()
    ]
    data = pd.concat(rows).assign(value=lambda d: d["value"].astype(float))
    return data.dropna()


def _rate_lines(data: pd.DataFrame, y: alt.Y) -> alt.Chart:
    lines: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(point={"size": 45}, strokeWidth=2)
        .encode(
            x=alt.X("offered:Q", title="offered [request/s]").axis(**TICKS),
            y=y,
            color=_by_what(list(dict.fromkeys(data["what"]))),
            tooltip=_rate_tips(),
        )
    )
    return lines


def _by_what(names: list[str]) -> alt.Color:
    legend = alt.Legend(title=None, orient="top")
    return alt.Color("what:N", legend=legend).scale(domain=names, range=[BLUE, GREEN][: len(names)])


def _rate_tips() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("what:N", title="what"),
        alt.Tooltip("offered:Q", title="offered [request/s]", format=".4~g"),
        alt.Tooltip("value:Q", title="value", format=".4~g"),
    ]


def _marks(found: "Saturation") -> Chart:
    """Return rules at the offered rate, the largest good rate and the knee."""
    marks = {"offered": found.offered_per_s, "objectives": found.good_per_s}
    marks |= {"knee": found.knee_per_s if found.saturated else None}
    rows = [{"mark": name, "at": value} for name, value in marks.items() if value]
    colours = {"offered": COLOURS["idle"], "objectives": ORANGE, "knee": RED}
    rules: alt.Chart = (
        alt.Chart(pd.DataFrame(rows))
        .mark_rule(strokeDash=[6, 4], size=2)
        .encode(
            x="at:Q",
            stroke=alt.Stroke("mark:N", legend=alt.Legend(title=None, orient="top")).scale(
                domain=list(colours), range=list(colours.values())
            ),
            tooltip=["mark:N", alt.Tooltip("at:Q", title="[request/s]", format=".4~g")],
        )
    )
    return rules
