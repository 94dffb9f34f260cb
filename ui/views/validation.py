"""Validation: predictions beside measurements, what they were fitted on, and what was held out."""

from typing import Any

import pandas as pd
import streamlit as st

from sim import charts_explore
from ui import state
from ui.frame import asked, follow
from ui.jobs import Job, Teller
from ui.theme import chart, heading, pairs
from validation import charts
from validation.cases import Selection, Validation, kernel_errors, validate
from validation.kept import transfer_errors
from validation.measured import all_runs
from validation.published import absent, stored
from validation.words import percent, tables

__all__ = ["page"]

EVERYTHING = "everything"
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
OVERLAYS_UP_TO = 1  # workloads
WHOLE = "all of them"
SPLITS = {
    "shape": "shapes left out",
    "layout": "whole layers left out",
    "extent": "beyond the fit",
}


def page() -> None:
    """Draw the page."""
    st.title("Validation", anchor=False)
    st.markdown(
        "How wrong are the predictions, on what, and how is that known? Measured runs are replayed "
        "through the simulator; kernels are judged on shapes that their fit did not see."
    )
    runs, kernels, others = st.tabs(["Serving runs", "Kernels", "Accelerators and runs of others"])
    with runs:
        _runs()
    with kernels:
        _kernels()
    with others:
        _kept()


def _runs() -> None:
    """Draw what to replay, and what came out."""
    run, workload, seeds = _selection()
    job = _job(Selection(None if run == EVERYTHING else run, workload, seeds))
    if job is None:
        st.caption(
            "Choose what to replay and press Replay: predictions stand beside measurements, with "
            "what the constants were fitted on and what was held out. All workloads of a run take "
            "about a minute, everything some minutes."
        )
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
        help="A serving engine on real hardware, logged.",
    )
    listed = [*runs[run].workloads, WHOLE] if run in runs else [WHOLE]
    first = next((i for i, name in enumerate(listed) if name.startswith("conv")), 0)
    workload = middle.selectbox(
        "workload",
        listed,
        index=first,
        disabled=len(listed) == 1,
        format_func=lambda name: WHOLE if name == WHOLE else _spelled(name),
        help="Requests at given times (conv, code: lengths of Azure's traces), users that wait "
        "for answers, or one batch at once.",
    )
    seeds = right.selectbox("seeds", [1, 3, 5], index=1, help="Simulations of each workload.")
    return str(run), None if workload == WHOLE else workload, int(seeds)


def _spelled(name: str) -> str:
    """Return the name of a workload as people read it.

    Examples
    --------
    >>> _spelled("conv_r12"), _spelled("closed_c16")
    ('conv, 12 request/s', 'closed, 16 users')
    """
    words = name.split("_")
    ends = {"r": "{} request/s", "c": "{} users"}
    told = [
        ends[w[0]].format(w[1:].replace("p", ".")) if w[0] in ends and w[1:2].isdigit() else w
        for w in words
    ]
    return ", ".join(told)


def _job(chosen: Selection) -> Job | None:
    """Return the replay of a selection once it was asked for."""
    key = f"{chosen.run} {chosen.workload} {chosen.seeds}"
    if not asked("Replay", "validation", key, icon=":material/replay:"):
        return None
    return state.job("validation", key, lambda tell: _run(chosen, tell))


def _run(chosen: Selection, tell: Teller) -> Validation:
    tell(0.0, "replaying measured requests")
    return validate(chosen, lambda share: tell(share, "replaying measured requests"))


def _kernels() -> None:
    """Draw the errors of kernel times on held-out shapes, which are kept with the calibration."""
    found = kernel_errors()
    own = found[found["method"] == "model"]
    listed = list(dict.fromkeys(own["accelerator"]))
    chosen = st.selectbox(
        "calibration",
        listed,
        index=listed.index("h200-sxm") if "h200-sxm" in listed else 0,
        help="Accelerators whose kernels were timed; errors of shapes that the fit did not see.",
    )
    own = own[own["accelerator"] == chosen]
    held = [SPLITS.get(str(s), str(s)) for s in own["split"]]
    made = charts_explore.kernel_errors(own.assign(split=held))
    chart(made, f"kernels {chosen}", "Errors of kernel times")
    st.caption(
        "Dot: median of the absolute error; line: up to the 90th percentile, cut at 40 %. Gemm: "
        "matrix product; moe: experts; h2d, d2h: copies to and from the host."
    )
    with st.expander("As a table"):
        st.dataframe(_kernel_table(own.assign(split=held)), hide_index=True)


def _kernel_table(own: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "kernel": own["family"].str.replace("_", " "),
            "held out": own["split"],
            "shapes": own["shapes"],
            "median error": [percent(float(v), sign=False) for v in own["median"]],
            "90 % are below": [percent(float(v), sign=False) for v in own["p90"]],
            "mean, signed": [percent(float(v)) for v in own["bias"]],
        }
    )


def _kept() -> None:
    """Draw errors that take long to compute and are kept: other chips, other people's runs."""
    nothing = pd.DataFrame()
    kept = Validation(
        Selection(),
        [],
        nothing,
        nothing,
        transfer=transfer_errors(),
        published=stored(),
        absent=absent(),
    )
    _tables(kept)


def _tables(found: Validation) -> None:
    for part in tables(found):
        heading(part.title)
        st.caption(part.about)
        st.dataframe(pd.DataFrame(part.rows, columns=part.columns), hide_index=True)


def _show(found: Validation) -> None:
    _charts(found)
    _tables(found)
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
    pairs([(words, words, made, "") for words, made in makers])


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
