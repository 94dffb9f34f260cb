"""Charts of a result: a table goes in, an Altair chart comes out.

Colours are those of Okabe and Ito, distinguishable with colour-blindness; every axis has a unit.
Tables are reduced to at most a few thousand points: times to equal bins, distributions to
quantiles. Charts have no width of their own, so that a page can stretch them.
"""

from collections.abc import Mapping

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.step_log import binned, even_edges, with_spans

__all__ = [
    "COLOURS",
    "DECADES",
    "energy_split",
    "kv_use",
    "latency_cdf",
    "power",
    "queue",
    "request_gantt",
    "roofline",
    "temperature",
    "token_rates",
    "wait_split",
]

Chart = alt.Chart | alt.LayerChart
Floats = npt.NDArray[np.float64]
BINS, QUANTILES, DOTS, BARS = 300, 400, 1500, 80
HEIGHT = 240
DECADES = [10.0**k for k in range(-6, 10)]  # grid lines of logarithmic axes
LONG_S = 5.0  # from here on a latency axis is in seconds
COLOURS = {
    "prefill": "#0072B2",
    "decode": "#E69F00",
    "idle": "#999999",
    "queue": "#CC79A7",
    "memory": "#D55E00",
    "host": "#56B4E9",
    "recompute": "#F0E442",
    "transfer": "#0072B2",
    "service": "#009E73",
}
LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#999999")


def _colour(field: str, names: list[str], title: str = "") -> alt.Color:
    shades = [COLOURS.get(name, LINES[i % len(LINES)]) for i, name in enumerate(names)]
    legend = alt.Legend(title=title or None, orient="top")
    return alt.Color(f"{field}:N", sort=names, legend=legend).scale(domain=names, range=shades)


def _time_axis(title: str = "time [s]") -> alt.X:
    return alt.X("time_s:Q", title=title).scale(nice=False)


def _long(edges: Floats, columns: Mapping[str, Floats]) -> pd.DataFrame:
    """Return columns of bins as rows (time_s, what, value)."""
    middle = (edges[1:] + edges[:-1]) / 2
    parts = [pd.DataFrame({"time_s": middle, "what": k, "value": v}) for k, v in columns.items()]
    table = pd.concat(parts, ignore_index=True)
    return table.assign(time_s=table["time_s"].round(4), value=table["value"].round(5))


def _bins(spans: pd.DataFrame, end_s: float | None) -> Floats:
    last = float(spans["output_s"].max()) if len(spans) else 1.0
    return even_edges(0.0, end_s or last, BINS)


def latency_cdf(requests: pd.DataFrame, what: str = "ttft", limit_s: float | None = None) -> Chart:
    """Return the share of requests below each latency.

    Parameters
    ----------
    requests : DataFrame
        As in requests.csv.
    what : str
        ttft, tpot or e2e.
    limit_s : float, optional
        Objective, drawn as a rule [s].
    """
    seconds = np.sort(latencies(requests, what))
    long = bool(seconds.size) and float(seconds[-1]) > LONG_S
    scale, unit = (1.0, "s") if long else (1e3, "ms")
    values, title = seconds * scale, f"{what.upper()} [{unit}]"
    share = (np.arange(values.size) + 1) / max(values.size, 1)
    places = np.unique(np.linspace(0, values.size - 1, min(QUANTILES, values.size)).astype(int))
    data = pd.DataFrame({"latency": values[places].round(4), "share": share[places].round(5)})
    line: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(interpolate="step-after", color=LINES[0])
        .encode(
            x=alt.X("latency:Q", title=title),
            y=alt.Y("share:Q", title="share of requests").axis(format="%").scale(domain=[0, 1]),
            tooltip=[
                alt.Tooltip("latency:Q", title=title, format=".4~g"),
                alt.Tooltip("share:Q", title="requests below", format=".1%"),
            ],
        )
    )
    if limit_s is None:
        return line
    rule = alt.Chart(pd.DataFrame({"latency": [limit_s * scale]})).mark_rule(
        color=LINES[4], strokeDash=[6, 4], size=2
    )
    tip = alt.Tooltip("latency:Q", title=f"objective [{unit}]")
    layers: alt.LayerChart = line + rule.encode(x="latency:Q", tooltip=tip)
    return layers


def latencies(requests: pd.DataFrame, what: str) -> Floats:
    first, last, begin = (requests[f"{n}_s"] for n in ("first_token", "finish", "arrival"))
    done = requests["status"] == "finished"
    values = {
        "ttft": first - begin,
        "tpot": ((last - first) / (requests["output_tokens"] - 1).clip(lower=1))[
            done & (requests["output_tokens"] > 1)
        ],
        "e2e": (last - begin)[done],
    }[what]
    return values.dropna().to_numpy(np.float64)


def token_rates(steps: pd.DataFrame, end_s: float | None = None) -> alt.Chart:
    """Return prompt and output tokens computed per second, over time and all replicas."""
    spans = with_spans(steps)
    edges = _bins(spans, end_s)
    width = np.diff(edges)
    rates = {
        "prefill": binned(spans, spans["prefill_tokens"], edges) / width,
        "decode": binned(spans, spans["decode_requests"] * spans["steps"], edges) / width,
    }
    chart: alt.Chart = (
        alt.Chart(_long(edges, rates), height=HEIGHT)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=_time_axis(),
            y=alt.Y("value:Q", title="tokens per second [token/s]").axis(format="~s"),
            color=_colour("what", ["prefill", "decode"]),
            tooltip=_tips("token/s"),
        )
    )
    return chart


def _tips(unit: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("time_s:Q", title="time [s]", format=".2f"),
        alt.Tooltip("what:N", title="what"),
        alt.Tooltip("value:Q", title=unit, format=".4~g"),
    ]


def queue(steps: pd.DataFrame, end_s: float | None = None) -> alt.Chart:
    """Return running and waiting requests over time, summed over replicas."""
    spans = with_spans(steps)
    edges = _bins(spans, end_s)
    width = np.diff(edges)
    names = ["running", "waiting"]
    means = {n: binned(spans, spans[n] * spans["span_s"], edges) / width for n in names}
    chart: alt.Chart = (
        alt.Chart(_long(edges, means), height=HEIGHT)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=_time_axis(),
            y=alt.Y("value:Q", title="requests (batch, queue)"),
            color=_colour("what", names),
            tooltip=_tips("requests"),
        )
    )
    return chart


def kv_use(steps: pd.DataFrame, blocks: npt.ArrayLike, end_s: float | None = None) -> alt.Chart:
    """Return the share of KV blocks in use over time, mean of replicas.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv.
    blocks : array_like, shape (replicas,)
        KV blocks of each replica.
    end_s : float, optional
        End of the axis, None = the last step [s].
    """
    spans = with_spans(steps)
    edges = _bins(spans, end_s)
    each = np.broadcast_to(blocks, spans["replica"].max() + 1) if len(spans) else np.ones(1)
    used = (1.0 - spans["free_blocks"] / each[spans["replica"]]) * spans["span_s"]
    replicas = max(spans["replica"].nunique(), 1)
    share = binned(spans, used, edges) / np.diff(edges) / replicas
    chart: alt.Chart = (
        alt.Chart(_long(edges, {"in use": share}), height=HEIGHT)
        .mark_area(color=LINES[2], opacity=0.6, line={"color": LINES[2]})
        .encode(
            x=_time_axis(),
            y=alt.Y("value:Q", title="KV blocks in use").axis(format="%").scale(domainMax=1),
            tooltip=_tips("share in use"),
        )
    )
    return chart


def power(
    steps: pd.DataFrame,
    idle_w: npt.ArrayLike,
    ranks: npt.ArrayLike = 1,
    end_s: float | None = None,
) -> alt.Chart:
    """Return watts of all accelerators over time.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv; ``energy_j`` is that of one accelerator.
    idle_w, ranks : array_like, shape (replicas,)
        Power of an accelerator that waits [W], accelerators of each replica.
    end_s : float, optional
        End of the axis, None = the last step [s].
    """
    spans = with_spans(steps)
    edges = _bins(spans, end_s)
    width = np.diff(edges)
    each, idle = np.broadcast_arrays(np.atleast_1d(ranks), np.atleast_1d(idle_w))
    place = spans["replica"].to_numpy() if each.size > 1 else np.zeros(len(spans), np.int64)
    joules = each[place] * (spans["energy_j"] - idle[place] * spans["gpu_s"])
    watts = binned(spans, joules, edges) / width + float(each @ idle)
    chart: alt.Chart = (
        alt.Chart(_long(edges, {"power": watts}), height=HEIGHT)
        .mark_line(color=LINES[4], strokeWidth=1.5)
        .encode(
            x=_time_axis(),
            y=alt.Y("value:Q", title="power of all accelerators [W]").axis(format="~s"),
            tooltip=_tips("W"),
        )
    )
    return chart


def temperature(steps: pd.DataFrame) -> alt.Chart:
    """Return the temperature of the hottest accelerator over time."""
    thin = _thin(steps[["output_s", "temperature_c", "replica"]])
    hottest = thin[thin["replica"] == _hottest(steps)]
    data = pd.DataFrame(
        {"time_s": hottest["output_s"].round(4), "value": hottest["temperature_c"].round(2)}
    )
    chart: alt.Chart = (
        alt.Chart(data.assign(what="temperature"), height=HEIGHT)
        .mark_line(color=LINES[3], strokeWidth=1.5)
        .encode(
            x=_time_axis(),
            y=alt.Y("value:Q", title="temperature [°C]").scale(zero=False),
            tooltip=_tips("°C"),
        )
    )
    return chart


def _hottest(steps: pd.DataFrame) -> int:
    return int(steps["replica"].iloc[int(steps["temperature_c"].to_numpy().argmax())])


def _thin(table: pd.DataFrame, most: int = DOTS) -> pd.DataFrame:
    """Return every n-th row so that at most `most` are left."""
    return table.iloc[:: max(1, -(-len(table) // most))]


def request_gantt(requests: pd.DataFrame, most: int = BARS) -> alt.Chart:
    """Return queueing, prefill and decoding of the first requests as bars over time."""
    part = requests[requests["admitted_s"].notna()].head(most)
    spans = (
        ("queue", "arrival_s", "admitted_s"),
        ("prefill", "admitted_s", "first_token_s"),
        ("decode", "first_token_s", "finish_s"),
    )
    rows = [
        part[["request", "prompt_tokens", "output_tokens"]].assign(
            what=name, begin=part[begin], end=part[end], order=range(len(part))
        )
        for name, begin, end in spans
    ]
    data = pd.concat(rows, ignore_index=True).dropna(subset=["begin", "end"])
    data = data.assign(begin=data["begin"].round(4), end=data["end"].round(4))
    chart: alt.Chart = (
        alt.Chart(data, height=max(120, 6 * len(part)))
        .mark_bar(height={"band": 0.8})
        .encode(
            x=alt.X("begin:Q", title="time [s]").scale(zero=False),
            x2="end:Q",
            y=alt.Y("order:O", title="requests in order of arrival", axis=None),
            color=_colour("what", ["queue", "prefill", "decode"]),
            tooltip=[
                alt.Tooltip("request:N"),
                alt.Tooltip("what:N"),
                alt.Tooltip("begin:Q", title="from [s]"),
                alt.Tooltip("end:Q", title="to [s]"),
                alt.Tooltip("prompt_tokens:Q", title="prompt [token]"),
                alt.Tooltip("output_tokens:Q", title="output [token]"),
            ],
        )
    )
    return chart


def _stack(parts: Mapping[str, float], title: str, unit: str) -> alt.Chart:
    """Return one stacked bar of named parts."""
    names = [name for name, value in parts.items() if value > 0]
    data = pd.DataFrame({"what": names, "value": [parts[n] for n in names]})
    data["share"] = data["value"] / max(float(data["value"].sum()), 1e-300)
    data["place"] = range(len(names))
    chart: alt.Chart = (
        alt.Chart(data, height=60)
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=alt.X("value:Q", title=title).axis(format="~s").scale(nice=False),
            color=_colour("what", names),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("what:N"),
                alt.Tooltip("value:Q", title=unit, format=".4~g"),
                alt.Tooltip("share:Q", title="share", format=".1%"),
            ],
        )
    )
    return chart


def energy_split(prefill_j: float, decode_j: float, idle_j: float) -> alt.Chart:
    """Return joules by what caused them as one bar."""
    parts = {"prefill": prefill_j, "decode": decode_j, "idle": idle_j}
    return _stack(parts, "energy [J]", "J")


def wait_split(shares: Mapping[str, float]) -> alt.Chart:
    """Return request time by wait, and what is left as service, as one bar.

    Parameters
    ----------
    shares : mapping
        Wait (queue, memory, host, recompute, transfer) -> share of request time [1].
    """
    service = max(1.0 - sum(shares.values()), 0.0)
    percent = {name: 100 * value for name, value in {**shares, "service": service}.items()}
    return _stack(percent, "share of the requests' time [%]", "%")


def roofline(
    steps: pd.DataFrame, peak_flops_per_s: float, peak_bytes_per_s: float
) -> alt.LayerChart:
    """Return the steps under the roof of the accelerator: FLOP/s over FLOPs per byte.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv, of one rank.
    peak_flops_per_s, peak_bytes_per_s : float
        Peaks of one accelerator.
    """
    thin = _thin(steps[(steps["bytes"] > 0) & (steps["gpu_s"] > 0)])
    kind = np.where(thin["prefill_tokens"] > 0, "prefill", "decode")
    dots = pd.DataFrame(
        {
            "intensity": (thin["flops"] / thin["bytes"]).round(4),
            "rate": (thin["flops"] / thin["gpu_s"] / 1e12).round(4),
            "what": kind,
            "tokens": thin["prefill_tokens"] + thin["decode_requests"],
        }
    )
    ridge = peak_flops_per_s / peak_bytes_per_s
    low = min(float(dots["intensity"].min()) if len(dots) else 1.0, ridge / 10)
    roof = pd.DataFrame({"intensity": [low, ridge, ridge * 20]})
    roof["rate"] = np.minimum(roof["intensity"] * peak_bytes_per_s, peak_flops_per_s) / 1e12
    x = alt.X("intensity:Q", title="arithmetic intensity [FLOP/byte]").scale(type="log")
    y = alt.Y("rate:Q", title="rate [TFLOP/s]").scale(type="log")
    x, y = x.axis(values=DECADES, format="~s"), y.axis(values=DECADES, format="~g")
    line = alt.Chart(roof).mark_line(color=LINES[6], strokeDash=[6, 4]).encode(x=x, y=y)
    points = (
        alt.Chart(dots, height=HEIGHT)
        .mark_circle(opacity=0.6, size=22)
        .encode(
            x=x,
            y=y,
            color=_colour("what", ["prefill", "decode"]),
            tooltip=[
                alt.Tooltip("what:N", title="step"),
                alt.Tooltip("tokens:Q", title="tokens"),
                alt.Tooltip("intensity:Q", title="FLOP/byte", format=".4~g"),
                alt.Tooltip("rate:Q", title="TFLOP/s", format=".4~g"),
            ],
        )
    )
    layers: alt.LayerChart = line + points
    return layers
