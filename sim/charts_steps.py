"""What happens inside a run, part by part of its time: tables and charts of the step log."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.charts import COLOURS, LINES
from sim.step_log import binned, even_edges, with_spans

__all__ = ["clock_share", "gantt", "lines", "phase_shares", "step_bars", "step_bins"]

Floats = npt.NDArray[np.float64]
BINS, HEIGHT, MOST_STEPS = 240, 230, 400
PHASES = ("prefill", "decode", "idle")


def clock_share(steps: pd.DataFrame, knobs: np.void) -> Floats:
    """Return the clock of each row over the full clock, from its watts [1].

    Work that wants more watts than the power limit runs at the full clock until the power window
    reaches the limit, then slower (`sim.core.clock`). The slowdown follows from the row's mean
    watts and how much of its dynamic energy is arithmetic.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv.
    knobs : numpy record
        Parameters of the engine loop.
    """
    cap, base = float(knobs["cap_w"]), float(knobs["base_w"])
    busy = steps["gpu_s"].to_numpy(np.float64)
    joules = steps["energy_j"].to_numpy(np.float64)
    watts = joules / np.maximum(busy, 1e-12)
    dynamic = np.maximum(joules - base * busy, 1e-12)
    flops = float(knobs["j_per_flop"]) * float(knobs["flop_scale"]) * steps["flops"].to_numpy()
    free = float(knobs["clock_free"])
    share = np.clip((watts / cap - free) / (1.0 - free), 0.0, 1.0)
    share = share * np.clip(2.0 * flops / dynamic - 1.0, 0.0, 1.0)
    capped = steps["window_w"].to_numpy() >= 0.999 * cap
    fast = 1.0 - float(knobs["full_clock_gain"]) * share
    slow = 1.0 - float(knobs["capped_gain"]) * share
    hot = np.maximum(steps["temperature_c"].to_numpy() - float(knobs["throttle_c"]), 0.0)
    throttled = 1.0 + float(knobs["throttle_per_k"]) * hot
    return np.asarray(np.where(capped, fast / slow, 1.0) / throttled)


def step_bins(
    steps: pd.DataFrame,
    knobs: np.void,
    start_s: float,
    end_s: float,
    ranks: int = 1,
    replicas: int = 1,
) -> pd.DataFrame:
    """Return what happens in equal parts of a time.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv.
    knobs : numpy record
        Parameters of the engine loop of a replica.
    start_s, end_s : float
        From and to [s].
    ranks, replicas : int
        Accelerators of a replica, replicas.

    Returns
    -------
    DataFrame
        time_s (middle of a part), prefill, decode, idle (shares of the accelerators' time),
        running, waiting [request], kv (share of blocks in use), clock (share of the full one),
        watts (all accelerators).
    """
    spans = with_spans(steps)
    edges = even_edges(start_s, end_s, BINS)
    width = np.diff(edges) * replicas
    tokens = np.maximum(spans["prefill_tokens"] + spans["decode_requests"], 1)
    prompt: npt.ArrayLike = spans["gpu_s"] * spans["prefill_tokens"] / tokens

    def mean(amounts: npt.ArrayLike) -> Floats:
        return binned(spans, amounts, edges)

    busy = mean(spans["gpu_s"])
    prefill = mean(prompt)
    used = mean((1.0 - spans["free_blocks"] / float(knobs["num_blocks"])) * spans["span_s"])
    clock = mean(clock_share(spans, knobs) * spans["gpu_s"].to_numpy())
    rest = np.maximum(width - busy, 0.0)
    watts = (mean(spans["energy_j"]) + float(knobs["idle_w"]) * rest) * ranks
    return pd.DataFrame(
        {
            "time_s": (edges[1:] + edges[:-1]) / 2,
            "prefill": prefill / width,
            "decode": (busy - prefill) / width,
            "idle": rest / width,
            "running": mean(spans["running"] * spans["span_s"]) / width * replicas,
            "waiting": mean(spans["waiting"] * spans["span_s"]) / width * replicas,
            "kv": used / width,
            "clock": np.where(busy > 0, clock / np.maximum(busy, 1e-12), np.nan),
            "watts": watts / (width / replicas),
        }
    ).round(5)


def _time(table: pd.DataFrame) -> alt.X:
    ends = [float(table["time_s"].min()), float(table["time_s"].max())]
    return alt.X("time_s:Q", title="time [s]").scale(nice=False, zero=False, domain=ends)


def phase_shares(table: pd.DataFrame) -> alt.Chart:
    """Return shares of the accelerators' time: prompts, decoding, nothing.

    Parameters
    ----------
    table : DataFrame
        As `step_bins` returns it.
    """
    data = table.melt("time_s", list(PHASES), "phase", "share")
    chart: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_area(interpolate="step")
        .encode(
            x=_time(table),
            y=alt.Y("share:Q", stack="normalize", title="share of the time").axis(
                format="%", tickCount=4
            ),
            color=alt.Color(
                "phase:N", sort=list(PHASES), legend=alt.Legend(title=None, orient="top")
            ).scale(domain=list(PHASES), range=[COLOURS[p] for p in PHASES]),
            tooltip=[
                alt.Tooltip("time_s:Q", title="time [s]", format=".5~g"),
                "phase:N",
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    return chart


def lines(table: pd.DataFrame, names: Mapping[str, str], title: str, form: str = "~s") -> alt.Chart:
    """Return columns over time as lines.

    Parameters
    ----------
    table : DataFrame
        As `step_bins` returns it.
    names : mapping
        Column -> what it is called.
    title, form : str
        Axis title with unit, number format.
    """
    data = table.rename(columns=dict(names)).melt("time_s", list(names.values()), "what", "value")
    shown = list(names.values())
    legend = alt.Legend(title=None, orient="top") if len(shown) > 1 else None
    chart: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(strokeWidth=1.6)
        .encode(
            x=_time(table),
            y=alt.Y("value:Q", title=title).axis(format=form, tickCount=4),
            color=alt.Color("what:N", sort=shown, legend=legend).scale(
                domain=shown, range=list(LINES[: len(shown)])
            ),
            tooltip=[
                alt.Tooltip("time_s:Q", title="time [s]", format=".5~g"),
                "what:N",
                alt.Tooltip("value:Q", title=title, format=".3~g"),
            ],
        )
    )
    return chart


def step_bars(steps: pd.DataFrame, start_s: float, end_s: float) -> alt.Chart | None:
    """Return every row of the step log as a bar, None where there are too many to see.

    Parameters
    ----------
    steps : DataFrame
        As in steps.csv.
    start_s, end_s : float
        From and to [s].
    """
    spans = with_spans(steps)
    rows = spans[(spans["output_s"] > start_s) & (spans["begin_s"] < end_s)]
    if len(rows) > MOST_STEPS:
        return None
    both = (rows["prefill_tokens"] > 0) & (rows["decode_requests"] > 0)
    kind = np.where(both, "both", np.where(rows["prefill_tokens"] > 0, "prefill", "decode"))
    kept = ["replica", "steps", "prefill_tokens", "decode_requests", "begin_s", "output_s"]
    data = rows[kept].assign(kind=kind, ms=rows["gpu_s"] / rows["steps"] * 1e3).round(5)
    kinds = ["prefill", "both", "decode"]
    chart: alt.Chart = (
        alt.Chart(data, height=34 * max(int(data["replica"].nunique()), 1) + 120)
        .mark_bar()
        .encode(
            x=alt.X("begin_s:Q", title="time [s]").scale(
                nice=False, zero=False, domain=[start_s, end_s], clamp=True
            ),
            x2="output_s:Q",
            y=alt.Y("replica:O", title="replica"),
            color=alt.Color(
                "kind:N", sort=kinds, legend=alt.Legend(title=None, orient="top")
            ).scale(domain=kinds, range=[COLOURS["prefill"], COLOURS["queue"], COLOURS["decode"]]),
            tooltip=[
                alt.Tooltip("kind:N", title="step"),
                alt.Tooltip("begin_s:Q", title="from [s]", format=".6~g"),
                alt.Tooltip("output_s:Q", title="to [s]", format=".6~g"),
                alt.Tooltip("steps:Q", title="steps in a row"),
                alt.Tooltip("ms:Q", title="each [ms]", format=".3~g"),
                alt.Tooltip("prefill_tokens:Q", title="prompt tokens"),
                alt.Tooltip("decode_requests:Q", title="sequences decoding"),
            ],
        )
    )
    return chart


def gantt(requests: pd.DataFrame, start_s: float, end_s: float, most: int = 60) -> alt.Chart:
    """Return waiting, prompt and decoding of the requests of a time as bars.

    Parameters
    ----------
    requests : DataFrame
        As in requests.csv.
    start_s, end_s : float
        From and to [s].
    most : int
        Bars at most; the first that are in the system then.
    """
    last = requests["finish_s"].fillna(np.inf)
    inside = requests[(last > start_s) & (requests["arrival_s"] < end_s)].head(most)
    spans = (
        ("queue", "arrival_s", "admitted_s"),
        ("prefill", "admitted_s", "first_token_s"),
        ("decode", "first_token_s", "finish_s"),
    )
    kept = inside[["request", "prompt_tokens", "output_tokens"]]
    parts = [
        kept.assign(
            what=what,
            begin=inside[begin].clip(start_s, end_s),
            end=inside[end].fillna(end_s).clip(start_s, end_s),
            order=range(len(inside)),
        )
        for what, begin, end in spans
    ]
    data = pd.concat(parts, ignore_index=True).dropna(subset=["begin", "end"]).round(4)
    names = [what for what, _, _ in spans]
    chart: alt.Chart = (
        alt.Chart(data, height=max(60, 9 * len(inside)) + 90)
        .mark_bar()
        .encode(
            x=alt.X("begin:Q", title="time [s]").scale(
                nice=False, zero=False, domain=[start_s, end_s]
            ),
            x2="end:Q",
            y=alt.Y("order:O", axis=None),
            color=alt.Color(
                "what:N", sort=names, legend=alt.Legend(title=None, orient="top")
            ).scale(domain=names, range=[COLOURS[name] for name in names]),
            tooltip=[
                alt.Tooltip("request:N"),
                alt.Tooltip("what:N", title="part"),
                alt.Tooltip("begin:Q", title="from [s]", format=".6~g"),
                alt.Tooltip("end:Q", title="to [s]", format=".6~g"),
                alt.Tooltip("prompt_tokens:Q", title="prompt [token]"),
                alt.Tooltip("output_tokens:Q", title="output [token]"),
            ],
        )
    )
    return chart
