"""Charts of a tuning: progress, Pareto front, importance, gains of finalists."""

from typing import TYPE_CHECKING, Any, cast

import altair as alt
import pandas as pd

from sim.charts import COLOURS
from sim.metrics import metrics
from sim.sweeping.charts import knob_axis, plain
from sim.sweeping.task import COST

if TYPE_CHECKING:
    from sim.tuning.tuner import TuneResult

__all__ = ["by_knob", "front", "gains", "history", "importance", "label", "title_of"]

HEIGHT = 260
BLUE, ORANGE, GREEN, RED = (COLOURS[n] for n in ("prefill", "decode", "service", "memory"))
GREY = COLOURS["idle"]
STATES = {"complete": BLUE, "misses constraints": RED}
LATENCIES = ("ttft", "tpot", "itl", "e2e", "slo", "kv")


def label(name: str) -> str:
    """Return a metric's name for people.

    Examples
    --------
    >>> label("goodput_per_s"), label("ttft_p99_s"), label("usd_per_million_output_tokens")
    ('goodput', 'TTFT p99', 'rent')
    """
    if name == COST:
        return "rent"
    for unit in ("_per_s", "_s", "_j", "_w"):
        name = name.removesuffix(unit)
    words = name.split("_")
    return " ".join(w.upper() if w in LATENCIES else w for w in words)


def title_of(name: str) -> str:
    """Return a metric's axis title.

    Examples
    --------
    >>> title_of("goodput_per_s")
    'goodput [request/s]'
    """
    return f"{label(name)} [{'USD/Mtoken' if name == COST else metrics[name].unit}]"


def _shown(result: "TuneResult", *names: str) -> pd.DataFrame:
    """Return trials with values of metrics, knobs as text in `setting`."""
    found = result.trials.dropna(subset=list(names))
    settings = [
        ", ".join(f"{k.rsplit('.', 1)[-1]} {row[k]}" for k in result.knobs)
        for row in found.to_dict("records")
    ]
    keep = found[["trial", "state", "on_front", *dict.fromkeys(names)]]
    return keep.assign(setting=settings)


def _by_state(data: pd.DataFrame) -> alt.Color:
    names = [name for name in STATES if (data["state"] == name).any()]
    legend = alt.Legend(title=None, orient="top")
    shades = [STATES[name] for name in names]
    return alt.Color("state:N", legend=legend).scale(domain=names, range=shades)


def _tips(*names: str) -> list[alt.Tooltip]:
    values = [alt.Tooltip(f"{n}:Q", title=n, format=".4~g") for n in names]
    return [alt.Tooltip("trial:Q"), alt.Tooltip("setting:N"), *values]


def history(result: "TuneResult") -> alt.LayerChart:
    """Return the first objective by trial, with the best so far."""
    objective = result.objectives[0]
    name = objective.metric
    data = _shown(result, name)
    good = data[data["state"] == "complete"].sort_values("trial")
    best = good[name].cummax() if objective.direction == "maximize" else good[name].cummin()
    x = alt.X("trial:Q", title="trial").axis(tickMinStep=1)
    y = alt.Y(f"{name}:Q", title=title_of(name)).scale(zero=False)
    dots = (
        alt.Chart(data, height=HEIGHT)
        .mark_point(filled=True, size=45, opacity=0.8)
        .encode(x=x, y=y, color=_by_state(data), tooltip=_tips(name))
    )
    line = (
        alt.Chart(good.assign(**{name: best}))
        .mark_line(interpolate="step-after", color=GREEN, strokeWidth=2)
        .encode(x=x, y=y)
    )
    return _layered(line, dots)


def _layered(*charts: Any) -> alt.LayerChart:  # noqa: ANN401 - encode() has no better type
    return cast("alt.LayerChart", alt.layer(*charts))


def front(result: "TuneResult") -> alt.LayerChart | None:
    """Return the first two objectives against each other with their Pareto front."""
    if len(result.objectives) < 2:
        return None
    a, b = (o.metric for o in result.objectives[:2])
    data = _shown(result, a, b)
    base = alt.Chart(data, height=HEIGHT).encode(
        x=alt.X(f"{a}:Q", title=title_of(a)).scale(zero=False),
        y=alt.Y(f"{b}:Q", title=title_of(b)).scale(zero=False),
    )
    line = base.transform_filter("datum.on_front").mark_line(
        color=GREEN, strokeDash=[5, 3], strokeWidth=2
    )
    dots = base.mark_point(filled=True, size=60, opacity=0.85).encode(
        color=_by_state(data), tooltip=_tips(a, b)
    )
    return _layered(line, dots)


def by_knob(result: "TuneResult", key: str) -> alt.LayerChart:
    """Return the first objective against one knob: a dot per setting, the best drawn through."""
    objective = result.objectives[0]
    name = objective.metric
    data = _shown(result, name).assign(knob=plain(result.trials[key])).dropna(subset=["knob"])
    good = data[data["state"] == "complete"]
    groups = good.groupby("knob", sort=False)[name]
    best = (groups.max() if objective.direction == "maximize" else groups.min()).reset_index()
    x = knob_axis(list(data["knob"]), key)
    y = alt.Y(f"{name}:Q", title=title_of(name)).scale(zero=False)
    dots = alt.Chart(data, height=HEIGHT).mark_point(filled=True, size=40, opacity=0.7)
    line = alt.Chart(best).mark_line(color=GREEN, strokeWidth=2)
    return _layered(
        line.encode(x=x, y=y), dots.encode(x=x, y=y, color=_by_state(data), tooltip=_tips(name))
    )


def importance(result: "TuneResult") -> alt.Chart | None:
    """Return bars of what each knob explains of each objective."""
    rows = [
        (label(metric), knob.removeprefix("policies."), share)
        for metric, shares in result.importance.items()
        for knob, share in shares.items()
    ]
    if not rows:
        return None
    data = pd.DataFrame(rows, columns=["objective", "knob", "share"])
    names = list(dict.fromkeys(data["objective"]))
    legend = alt.Legend(title=None, orient="top") if len(names) > 1 else None
    shades = [BLUE, ORANGE, GREEN, RED]
    chart: alt.Chart = (
        alt.Chart(data, height=alt.Step(18))
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the variation [%]").axis(format="%", tickCount=5),
            y=alt.Y("knob:N", title=None, sort="-x").axis(labelLimit=260),
            yOffset=alt.YOffset("objective:N", sort=names),
            color=alt.Color("objective:N", legend=legend, sort=names).scale(
                domain=names, range=[shades[i % len(shades)] for i in range(len(names))]
            ),
            tooltip=["knob", "objective", alt.Tooltip("share:Q", format=".1%")],
        )
    )
    return chart


def gains(result: "TuneResult") -> alt.LayerChart | None:
    """Return the gains of finalists with their intervals, on seen and on later requests."""
    rows = []
    for place, found in enumerate(result.finalists):
        for part, measured in (("seen by the search", found.seen), ("later", found.later)):
            gain = None if measured is None else measured.gain
            if gain is not None:
                low = gain.mean if gain.low is None else gain.low
                high = gain.mean if gain.high is None else gain.high
                rows.append((f"finalist {place + 1}", part, gain.mean, low, high))
    if not rows:
        return None
    data = pd.DataFrame(rows, columns=["finalist", "requests", "gain", "low", "high"])
    x = alt.X("gain:Q", title="gain over the scenario as it is [%]").axis(format="%", tickCount=6)
    names = list(dict.fromkeys(data["requests"]))
    legend = alt.Legend(title=None, orient="top")
    base = alt.Chart(data, height=alt.Step(18)).encode(
        y=alt.Y("finalist:N", title=None),
        yOffset=alt.YOffset("requests:N", sort=names),
        color=alt.Color("requests:N", legend=legend, sort=names).scale(
            domain=names, range=[BLUE, ORANGE][: len(names)]
        ),
    )
    tips = [
        "finalist",
        "requests",
        *(alt.Tooltip(n, format="+.2%") for n in ("gain", "low", "high")),
    ]
    bars = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q"), x2="high:Q", tooltip=tips)
    dots = base.mark_point(filled=True, size=70).encode(x=x, tooltip=tips)
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color=GREY, strokeDash=[3, 3])
    return _layered(zero.encode(x="x:Q"), bars, dots)
