"""Charts of a validation: predicted against measured, errors, distributions overlaid."""

from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.charts import LINES
from sim.simulation import Result
from validation.measured import MeasuredWorkload
from validation.serving import METRICS

__all__ = ["error_dots", "latency_overlay", "scatter", "step_errors"]

HEIGHT, POINTS = 260, 300
KEY_FIGURES = (
    "ttft_p50_s",
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "output_tokens_per_s",
    "energy_j",
)
Floats = npt.NDArray[np.float64]


def _labelled(serving: pd.DataFrame) -> pd.DataFrame:
    table = serving[serving["metric"].isin(KEY_FIGURES) & serving["error"].notna()]
    labels = table["metric"].map({name: figure.label for name, figure in METRICS.items()})
    return table.assign(figure=labels, case=table["run"] + " " + table["workload"])


def scatter(serving: pd.DataFrame) -> Any:  # noqa: ANN401 - layers have no common type
    """Return predicted against measured latencies on logarithmic axes, with the line of no error.

    Parameters
    ----------
    serving : DataFrame
        Rows of `validation.serving.compare`.
    """
    table = _labelled(serving)
    table = table[table["unit"] == "s"].assign(
        measured_ms=lambda t: t["measured"] * 1e3, predicted_ms=lambda t: t["predicted"] * 1e3
    )
    low, high = table[["measured_ms", "predicted_ms"]].min().min(), table["measured_ms"].max()
    line = pd.DataFrame({"measured_ms": [low, high], "predicted_ms": [low, high]})
    x = alt.X("measured_ms:Q", title="measured [ms]").scale(type="log", nice=False)
    y = alt.Y("predicted_ms:Q", title="predicted [ms]").scale(type="log", nice=False)
    names = [METRICS[name].label for name in KEY_FIGURES if METRICS[name].unit == "s"]
    dots = (
        alt.Chart(table, height=HEIGHT + 60)
        .mark_point(filled=True, size=55, opacity=0.8)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "figure:N", sort=names, legend=alt.Legend(title=None, orient="top", columns=2)
            ).scale(domain=names, range=list(LINES[: len(names)])),
            shape=alt.Shape(
                "kind:N", legend=alt.Legend(title=None, orient="top", symbolFillColor="#808080")
            ),
            tooltip=["case:N", "figure:N", *_tips("measured_ms", "predicted_ms"), _percent()],
        )
    )
    return alt.Chart(line).mark_line(color="#999999", strokeDash=[4, 4]).encode(x=x, y=y) + dots


def _tips(*names: str) -> list[alt.Tooltip]:
    titles = {"measured_ms": "measured [ms]", "predicted_ms": "predicted [ms]"}
    return [alt.Tooltip(f"{n}:Q", title=titles[n], format=".4~g") for n in names]


def _percent() -> alt.Tooltip:
    return alt.Tooltip("error:Q", title="error", format="+.1%")


def error_dots(serving: pd.DataFrame) -> Any:  # noqa: ANN401 - layers have no common type
    """Return the signed error of the key figures of every open-loop workload."""
    table = _labelled(serving)
    opened = table[table["kind"] == "open"]
    table = opened if len(opened) else table
    order = [METRICS[name].label for name in KEY_FIGURES]
    zero = alt.Chart(pd.DataFrame({"error": [0.0]})).mark_rule(color="#999999").encode(x="error:Q")
    dots = (
        alt.Chart(table, height=alt.Step(26))
        .mark_point(filled=True, size=60, opacity=0.85)
        .encode(
            x=alt.X("error:Q", title="predicted / measured - 1").axis(format="+%"),
            y=alt.Y("figure:N", sort=order, title=None),
            color=alt.Color(
                "case:N", legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=320)
            ).scale(range=list(LINES)),
            tooltip=["case:N", "figure:N", _percent()],
        )
    )
    return zero + dots


def latency_overlay(workload: MeasuredWorkload, results: list[Result], what: str) -> alt.Chart:
    """Return the distribution of a latency, measured and simulated (one line per seed).

    Parameters
    ----------
    workload : MeasuredWorkload
        The measurement.
    results : list of Result
        Its simulations.
    what : str
        ttft, tpot or e2e.
    """
    keep = workload.judged_requests()
    parts = [_curve(_latency(workload.requests[keep], what), "measured", 0)]
    parts += [
        _curve(_latency(result.requests[keep], what), "simulated", seed)
        for seed, result in enumerate(results)
    ]
    data = pd.concat(parts, ignore_index=True)
    chart: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("latency:Q", title=f"{what.upper()} [ms]").scale(type="log", nice=False),
            y=alt.Y("share:Q", title="share of requests").axis(format="%").scale(domain=[0, 1]),
            color=alt.Color("who:N", legend=alt.Legend(title=None, orient="top")).scale(
                domain=["measured", "simulated"], range=[LINES[4], LINES[0]]
            ),
            strokeWidth=alt.condition("datum.who == 'measured'", alt.value(2.5), alt.value(1.0)),
            detail="seed:N",
            tooltip=[
                "who:N",
                alt.Tooltip("latency:Q", title=f"{what.upper()} [ms]", format=".4~g"),
                alt.Tooltip("share:Q", title="requests below", format=".1%"),
            ],
        )
    )
    return chart


def _latency(requests: pd.DataFrame, what: str) -> Floats:
    """Return a latency of every request that has it [s]."""
    if what == "ttft":
        spread = requests["first_token_s"] - requests["arrival_s"]
    elif what == "e2e":
        spread = requests["finish_s"] - requests["arrival_s"]
    else:
        several = requests[requests["output_tokens"] > 1]
        spread = (several["finish_s"] - several["first_token_s"]) / (several["output_tokens"] - 1)
    return spread.to_numpy(np.float64)


def _curve(seconds: Floats, who: str, seed: int) -> pd.DataFrame:
    values = np.sort(seconds) * 1e3
    share = (np.arange(values.size) + 1) / max(values.size, 1)
    places = np.unique(np.linspace(0, values.size - 1, min(POINTS, values.size)).astype(int))
    columns = {"latency": values[places].round(4), "share": share[places].round(5)}
    return pd.DataFrame({**columns, "who": who, "seed": f"{who} {seed}"})


def step_errors(steps: pd.DataFrame) -> Any:  # noqa: ANN401 - layers have no common type
    """Return the spread of the step-time error by run: 10th, 50th, 90th percentile.

    Parameters
    ----------
    steps : DataFrame
        Rows of `validation.steps.judge_workload`.
    """
    groups = steps.groupby(["run", "kind"], sort=False)["error"]
    columns = {
        name: groups.quantile(q) for name, q in (("low", 0.1), ("middle", 0.5), ("high", 0.9))
    }
    table = pd.DataFrame(columns).reset_index()
    shown = [alt.Tooltip(f"{name}:Q", format="+.1%") for name in columns]
    base = alt.Chart(table, height=alt.Step(28)).encode(
        y=alt.Y("run:N", title=None),
        yOffset="kind:N",
        color=alt.Color("kind:N", legend=alt.Legend(title=None, orient="top")).scale(
            domain=["decode", "window"], range=[LINES[1], LINES[0]]
        ),
        tooltip=["run:N", "kind:N", *shown],
    )
    x = alt.X("low:Q", title="predicted / measured - 1").axis(format="+%")
    bars = base.mark_rule(size=5, opacity=0.5).encode(x=x, x2="high:Q")
    return bars + base.mark_point(filled=True, size=70).encode(x="middle:Q")
