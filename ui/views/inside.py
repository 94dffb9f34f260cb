"""Inside a run: what the engine and its requests do, second by second."""

import gzip
import json

import pandas as pd
import streamlit as st

from formats import RoofcastError
from sim.charts_steps import gantt, lines, phase_shares, step_bars, step_bins
from sim.chrome_trace import chrome_trace
from sim.metrics import Observed
from sim.simulation import Result
from ui import state
from ui.frame import controls, follow, outcome_job, title
from ui.outcome import Outcome, quick
from ui.theme import chart, fault, heading
from ui.words import percent

__all__ = ["page"]

FIRST_VIEW_S = 20.0


def page() -> None:
    """Draw the page."""
    scenario = controls()
    title("Inside a run", scenario)
    if scenario is None:
        return
    try:
        with st.spinner("reading the step tables"):
            quick(state.resolved(scenario))
    except RoofcastError as e:
        fault(str(e))
        return
    job = outcome_job(scenario, str(st.session_state.get("way", "rented")))
    outcome: Outcome | None = job.value
    if outcome is None or outcome.result is None:
        follow("simulation", job)
        return
    if not len(outcome.result.steps):
        st.info("This run keeps no step log; switch `step log` on under All settings, Run.")
        return
    _show(outcome.result)


def _show(result: Result) -> None:
    seen = Observed.of(result)
    start, end = _window(float(seen.window.end_s))
    table = step_bins(
        result.steps,
        result.deployment.knobs[0],
        start,
        end,
        round(seen.ranks.mean()),
        seen.replicas,
    )
    _summary(table)
    heading("What the accelerators do")
    chart(phase_shares(table), "phases", "Shares of time for prompts, decoding and nothing")
    st.caption(
        "Prefill computes prompts and writes first tokens; decode writes one token more for each "
        "running request a step; idle: no request is there."
    )
    bars = step_bars(result.steps, start, end)
    if bars is None:
        st.caption("Choose a shorter part of the run to see single steps.")
    else:
        heading("Steps of the engine")
        chart(bars, "steps", "Engine steps as bars")
        st.caption("A bar is a step, or a row of equal decode steps that the log keeps together.")
    _lines(table)
    heading("Requests")
    chart(
        gantt(result.requests, start, end), "gantt", "Requests as bars: waiting, prompt, decoding"
    )
    st.caption("One bar for each request in order of arrival, at most 60.")
    _download(result)


def _window(end_s: float) -> tuple[float, float]:
    """Return the part of the run that is looked at."""
    last = max(round(end_s, 1), 0.1)
    chosen = st.slider(
        "part of the run [s]",
        0.0,
        last,
        (0.0, min(FIRST_VIEW_S, last)),
        step=max(round(last / 500, 2), 0.01),
        key=f"window {last}",
        help="Zoom: move the ends. All charts below show this part.",
    )
    start, end = (float(x) for x in chosen)
    return start, max(end, start + 0.01)


def _summary(table: pd.DataFrame) -> None:
    mean = table.mean(numeric_only=True)
    st.markdown(
        f"Here the accelerators compute prompts **{percent(mean['prefill'])}** of the time, "
        f"decode **{percent(mean['decode'])}** and wait **{percent(mean['idle'])}**; "
        f"**{mean['running']:.3g}** requests run on average, **{mean['waiting']:.3g}** wait; "
        f"mean power **{mean['watts']:,.0f} W**."
    )


def _lines(table: pd.DataFrame) -> None:
    left, right = st.columns(2, gap="large")
    with left:
        heading("Batch and queue")
        names = {"running": "in a batch", "waiting": "in the queue"}
        chart(lines(table, names, "requests"), "batch", "Requests that run and wait over time")
        heading("Power of all accelerators")
        chart(lines(table, {"watts": "power"}, "power [W]"), "power", "Watts over time")
    with right:
        heading("KV memory in use")
        made = lines(table, {"kv": "in use"}, "KV blocks in use", ".1%")
        chart(made, "kv", "Share of KV blocks in use over time")
        heading("Clock, share of the full one")
        made = lines(table, {"clock": "clock"}, "clock", ".0%")
        chart(made, "clock", "Clock over time; falls when the power limit is reached")
        st.caption("It falls when the power limit is reached; nothing is drawn while idle.")


def _download(result: Result) -> None:
    st.download_button(
        "Chrome trace",
        lambda: gzip.compress(json.dumps(chrome_trace(result), separators=(",", ":")).encode()),
        file_name="trace.json.gz",
        mime="application/gzip",
        icon=":material/download:",
        on_click="ignore",
        help="Open it in Perfetto (ui.perfetto.dev) or chrome://tracing: steps and requests.",
    )
