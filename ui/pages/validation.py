"""Validation: predictions beside measurements, what they were fitted on, and what was held out."""

from typing import Any

import pandas as pd
import streamlit as st

from sim import charts_explore
from ui import state
from ui.frame import follow
from ui.jobs import Job, Teller
from ui.theme import chart, heading
from validation import charts
from validation.cases import Selection, Validation, kernel_errors, validate
from validation.measured import all_runs
from validation.words import percent, tables

__all__ = ["page"]

EVERYTHING = "everything"
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
OVERLAYS_UP_TO = 1  # workloads


def page() -> None:
    """Draw the page."""
    st.title("Validation", anchor=False)
    st.markdown(
        "How wrong are the predictions, on what, and how is that known? Measured runs are replayed "
        "through the simulator; kernels are judged on shapes that their fit did not see."
    )
    run, workload, seeds = _selection()
    _kernels()
    heading("Serving runs")
    chosen = Selection(None if run == EVERYTHING else run, workload, seeds)
    job = _job(chosen)
    if job is None:
        st.caption("Choose a run and press Replay.")
        return
    follow("validation", job)
    if job.value is not None:
        _show(job.value)


def _selection() -> tuple[str, str | None, int]:
    """Draw what to replay, and return it."""
    runs = all_runs()
    left, middle, right = st.columns([2, 2, 1])
    run = left.selectbox(
        "measured run",
        [*runs, EVERYTHING],
        format_func=lambda name: name if name == EVERYTHING else runs[name].scenario.name or name,
        help="A serving engine on real hardware, logged. Everything takes minutes.",
    )
    listed = list(runs[run].workloads) if run in runs else []
    first = next((i for i, name in enumerate(listed) if name.startswith("conv")), 0)
    workload = middle.selectbox(
        "workload",
        listed,
        index=first if listed else None,
        disabled=not listed,
        help="Open loop (conv, code): requests at given times. Closed loop: users that wait. "
        "Static: one batch at once.",
    )
    seeds = right.selectbox("seeds", [1, 3, 5], index=1, help="Simulations of each workload.")
    return str(run), workload, int(seeds)


def _job(chosen: Selection) -> Job | None:
    """Return the replay of a selection once it was asked for."""
    key = f"{chosen.run} {chosen.workload} {chosen.seeds}"
    if st.button("Replay", icon=":material/replay:", type="primary"):
        st.session_state["replayed"] = key
    if st.session_state.get("replayed") != key:
        return None
    return state.job("validation", key, lambda tell: _run(chosen, tell))


def _run(chosen: Selection, tell: Teller) -> Validation:
    tell(0.0, "replaying measured requests")
    return validate(chosen, lambda share: tell(share, "replaying measured requests"))


def _kernels() -> None:
    """Draw the errors of kernel times on held-out shapes, which are kept with the calibration."""
    found = kernel_errors()
    if found.empty:
        return
    heading("Kernels")
    names = {
        "shape": "shapes left out",
        "layout": "whole layers left out",
        "extent": "beyond the fit",
    }
    own = found[found["method"] == "model"]
    table = pd.DataFrame(
        {
            "accelerator": own["accelerator"],
            "kernel": own["family"].str.replace("_", " "),
            "held out": [names.get(str(s), str(s)) for s in own["split"]],
            "shapes": own["shapes"],
            "median error": [percent(float(v), sign=False) for v in own["median"]],
            "90 % are below": [percent(float(v), sign=False) for v in own["p90"]],
            "mean, signed": [percent(float(v)) for v in own["bias"]],
        }
    )
    shown = own.assign(split=table["held out"])
    for name in shown["accelerator"].unique():
        part = shown[shown["accelerator"] == name]
        chart(charts_explore.kernel_errors(part), f"kernels {name}", "Errors of kernel times")
        st.caption(f"{name}: kernel times of shapes that the fit did not see.")
    with st.expander("All kernels"):
        st.dataframe(table, hide_index=True)


def _show(found: Validation) -> None:
    for part in tables(found)[:8]:
        heading(part.title)
        st.caption(part.about)
        st.dataframe(pd.DataFrame(part.rows, columns=part.columns), hide_index=True)
    _charts(found)
    _fitted(found)


def _charts(found: Validation) -> None:
    if found.serving.empty:
        return
    makers: list[tuple[str, Any]] = [
        ("Predicted against measured", charts.scatter(found.serving)),
        ("Signed errors", charts.error_dots(found.serving)),
    ]
    if len(found.pairs) <= OVERLAYS_UP_TO:
        _, workload = found.pairs[0]
        results = next(iter(found.results.values()))
        makers += [
            (words, charts.latency_overlay(workload, results, what))
            for what, words in LATENCIES.items()
        ]
    places = st.columns(2, gap="large")
    for i, (words, made) in enumerate(makers):
        with places[i % 2]:
            heading(words)
            chart(made, words, words)


def _fitted(found: Validation) -> None:
    """Say which of these runs the engine profile was fitted on."""
    rows = found.table()
    kept = rows[["case", "fitted", "source"]].drop_duplicates()
    words = {"yes": "fitted on", "half": "half of it fitted on", "no": "held out"}
    heading("What was held out")
    st.dataframe(
        kept.assign(fitted=[words.get(str(f), str(f)) for f in kept["fitted"]]),
        hide_index=True,
        column_config={"fitted": "engine profile", "case": "case", "source": "source"},
    )
