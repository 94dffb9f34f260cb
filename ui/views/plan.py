"""Plan: from a demand to a fleet, its money, watts and doubt."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from formats import RoofcastError, check, parse_toml
from sim.planning import PlanFile, PlanResult, plan
from sim.planning.charts import CHARTS, plan_charts
from sim.planning.words import headline, money, option_rows, sentences, shortlist
from sim.planning.write import plan_json
from sim.toml import to_toml
from ui import state
from ui.frame import asked, follow
from ui.jobs import Job, Teller
from ui.plan_inputs import plan_form, started
from ui.theme import fault, heading, pairs

__all__ = ["page"]

FORM, FILE = "form", "file"


def page() -> None:
    """Draw the page."""
    st.title("Plan", anchor=False)
    st.markdown(
        "From a demand to the least fleet that serves it within its objectives: what to have when, "
        "what it costs, how sure that is."
    )
    file = _asked()
    if file is None:
        return
    job = _job(file)
    if job is None:
        st.caption("Press Compute: each candidate is simulated, which takes some seconds.")
        return
    follow("plan", job)
    if job.value is not None:
        _show(job.value)


def _asked() -> PlanFile | None:
    """Draw the plan as a form or as a file; return it checked, None while something is wrong."""
    how = st.segmented_control(
        "plan as",
        [FORM, FILE],
        default=FORM,
        required=True,
        key="plan as",
        help="A form for the usual, the file for everything: each gives the same plan.",
    )
    present: PlanFile = st.session_state.setdefault("plan", started())
    try:
        if how == FORM:
            st.session_state.pop("plan text", None)
        data = plan_form(present) if how == FORM else _text(present)
        file = check(data, PlanFile, "plan") if isinstance(data, dict) else data
    except RoofcastError as e:
        fault(str(e))
        return None
    st.session_state["plan"] = file
    return file


def _text(present: PlanFile) -> PlanFile:
    """Draw the plan as its file."""
    given = st.file_uploader("Plan file (TOML)", type=["toml"], key="plan upload")
    if given is not None and st.session_state.get("plan taken") != given.file_id:
        st.session_state["plan taken"] = given.file_id
        st.session_state["plan text"] = given.getvalue().decode("utf-8-sig", "replace")
    if "plan text" not in st.session_state:
        st.session_state["plan text"] = to_toml(_plain(present))
    text = st.text_area("plan.toml", key="plan text", height=420)
    return parse_toml(text, PlanFile, "plan.toml")


def _plain(file: PlanFile) -> dict[str, Any]:
    """Return a plan without keys that hold nothing, ready to be written."""
    return _without_none(file.model_dump(mode="json"))  # type: ignore[no-any-return]


def _without_none(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value


def _job(file: PlanFile) -> Job | None:
    """Return the computation of a plan once it was asked for."""
    key = file.model_dump_json()
    if not asked("Compute", "plan", key, icon=":material/calculate:"):
        return None
    return state.job("plan", key, lambda tell: _run(file, tell))


def _run(file: PlanFile, tell: Teller) -> PlanResult:
    return plan(file, Path(), progress=tell)


def _show(result: PlanResult) -> None:
    st.success(f"**{result.file.name}**: {headline(result)}", icon=":material/check_circle:")
    _cards(result)
    left_out = [f"Left out: {name}: {one.what}" for name, one in result.faults.items()]
    st.markdown("\n".join(f"- {sentence}" for sentence in [*sentences(result), *left_out]))
    _charts(result)
    _tables(result)
    _export(result)


def _cards(result: PlanResult) -> None:
    best, coin = result.best, result.file.money.currency
    figures = {
        "accelerators at the peak": f"{int(best.accelerators.max()):,}",
        "present cost": money(best.present, coin),
        "per month": money(best.month, coin),
        "per million input tokens": f"{best.per_million['input']:.3g} {coin}",
        "per million output tokens": f"{best.per_million['output']:.3g} {coin}",
        "IT power at the peak": f"{best.fleet.peak_watts().max() / 1e3:,.1f} kW",
    }
    with st.container(gap="small", key="sums"):
        for label, value in figures.items():
            st.metric(label, value, border=True)


def _charts(result: PlanResult) -> None:
    made = plan_charts(result)
    pairs([(f"plan {key}", CHARTS[key][0], one, CHARTS[key][1]) for key, one in made.items()])


def _tables(result: PlanResult) -> None:
    heading("Options")
    columns, rows = option_rows(result, shortlist(result))
    st.dataframe(pd.DataFrame(rows, columns=columns), hide_index=True)
    with st.expander("Orders by quarter"):
        st.dataframe(result.schedule, hide_index=True)
    with st.expander("What the same tokens cost at list prices of APIs"):
        st.dataframe(result.api, hide_index=True)
    with st.expander("Every number behind it, with its source"):
        st.dataframe(result.assumptions.astype(str), hide_index=True)


def _export(result: PlanResult) -> None:
    heading("Export")
    with st.container(horizontal=True):
        files: dict[str, tuple[Any, str]] = {
            "plan.toml": (to_toml(_plain(result.file)), "application/toml"),
            "plan.csv": (result.table().to_csv(index=False), "text/csv"),
            "plan.json": (lambda: json.dumps(plan_json(result), indent=2), "application/json"),
            "plan.html": (lambda: _page_of(result), "text/html"),
        }
        for name, (content, mime) in files.items():
            st.download_button(
                name,
                content,
                file_name=name,
                mime=mime,
                icon=":material/download:",
                on_click="ignore",
                key=f"get {name}",
            )


def _page_of(result: PlanResult) -> str:
    from sim.planning.page import plan_html

    return plan_html(result)
