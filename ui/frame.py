"""What pages about the scenario have in common: controls, link and files, runs and progress."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from formats import RoofcastError, check, parse_toml
from sim.scenario import Scenario
from ui import state
from ui.inputs import scenario_form
from ui.jobs import Job, Teller
from ui.outcome import Outcome, run, scenario_key
from ui.share import scenario_toml
from ui.theme import fault

__all__ = ["act", "asked", "controls", "files", "finished", "follow", "outcome_job", "title"]

PATIENCE_S = 0.35  # how long a run of the page waits for a job before it shows what is there
COMPILING_S = 3.0  # a start that takes longer is the compiler
POLL_S = 1.0


def controls() -> Scenario | None:
    """Draw the controls beside the page; return the scenario, None while something is wrong."""
    wrong = state.adopt_address()
    if wrong:
        fault(wrong)
    with st.sidebar:
        data = scenario_form(state.current())
    try:
        scenario = check(data, Scenario, "scenario")
    except RoofcastError as e:
        fault(str(e))
        return None
    state.update(scenario)
    return scenario


def title(words: str, scenario: Scenario | None) -> None:
    """Draw the title of a page, and beside it what can be done with the scenario."""
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
    ):
        st.title(words, anchor=False, width="content")
        if scenario is not None:
            files(scenario)


def act(words: str, do: Callable[..., None], *args: Any, **options: Any) -> None:  # noqa: ANN401
    """Draw a button that does something.

    It is done before the page is drawn again, so a control moved at once cannot undo it; a button
    asked in the course of the page loses its press when another run of the page overtakes it.

    Parameters
    ----------
    words : str
        What stands on it.
    do : callable
        What it does.
    *args
        What `do` takes.
    **options
        What `streamlit.button` takes.
    """
    st.button(words, on_click=do, args=args, **options)


def asked(words: str, slot: str, key: str, **options: Any) -> bool:  # noqa: ANN401
    """Draw a button that starts long work; return whether it was asked for with this key.

    Parameters
    ----------
    words : str
        What stands on it.
    slot : str
        What kind of work.
    key : str
        What the work is about, as the controls say now.
    **options
        What `streamlit.button` takes.
    """
    press = f"{slot} pressed"
    act(words, st.session_state.__setitem__, press, True, type="primary", **options)
    if st.session_state.pop(press, False):
        st.session_state[f"{slot} asked"] = key
    return bool(st.session_state.get(f"{slot} asked") == key)


def files(scenario: Scenario) -> None:
    """Draw the row of buttons: pin, link, download, upload."""
    with st.container(horizontal=True, gap="small", width="content", key="files"):
        note = "Keep this scenario on the page Compare."
        act("Pin", _pin, scenario, icon=":material/keep:", help=note)
        _link()
        st.download_button(
            "Scenario",
            scenario_toml(scenario),
            file_name="scenario.toml",
            mime="application/toml",
            icon=":material/download:",
            on_click="ignore",
            help="As a file. `roofcast simulate scenario.toml` gives the same numbers.",
        )
        with st.popover("Upload", icon=":material/upload:"):
            _upload()


def _pin(scenario: Scenario) -> None:
    mine, title = state.pins(), scenario.name
    number = 1
    while title in mine and mine[title] != scenario:
        number += 1
        title = f"{scenario.name} ({number})"
    mine[title] = scenario
    st.toast(f"Pinned “{title}”.", icon=":material/keep:")


def _link() -> None:
    with st.popover("Link", icon=":material/link:"):
        st.caption("The address of this page carries the scenario. Copy it, or this end of it:")
        st.code(f"?{state.PARAMETER}={st.session_state.get('link', '')}", wrap_lines=True)


def _upload() -> None:
    given = st.file_uploader(
        "Scenario file (TOML)",
        type=["toml"],
        key=f"upload {state.generation()}",
        help="Checked as the command line checks it; a bad file changes nothing.",
    )
    if given is None:
        return
    try:
        state.replace(parse_toml(given.getvalue(), Scenario, given.name))
    except RoofcastError as e:
        fault(str(e))
    else:
        st.rerun()


def outcome_job(scenario: Scenario, way: str = "rented") -> Job:
    """Return the simulation of a scenario, started if need be and waited for a moment."""
    chosen = state.resolved(scenario)
    key = scenario_key(chosen, way)
    made = state.job("simulation", key, lambda tell: _run(chosen, way, tell))
    made.wait(PATIENCE_S)
    return made


def _run(scenario: Scenario, way: str, tell: Teller) -> Outcome:
    return run(scenario, way, tell)


def follow(slot: str, job: Job, idle: Callable[[], Any] | None = None) -> None:
    """Show how far a job is, with a button that stops it; draw the page anew when it has news.

    Parameters
    ----------
    slot : str
        The job's slot.
    job : Job
        What to follow.
    idle : callable, optional
        Drawn when the job is not running.
    """
    if job.error:
        fault(job.error)
        return
    if job.stopped.is_set():
        st.info("Stopped.", icon=":material/stop_circle:")
        return
    if not job.running:
        if idle is not None:
            idle()
        return
    _watch(slot, job, job.value is not None)


@st.fragment(run_every=POLL_S)
def _watch(slot: str, job: Job, had_value: bool) -> None:
    """Show progress until the job ends or has a first result; then draw the page anew."""
    if not job.running or (job.value is not None) != had_value:
        st.rerun()
    words = job.text
    if job.share < 0.1 and job.seconds > COMPILING_S:
        words += ": the first run on a machine compiles the engine, up to a minute, once"
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.progress(job.share, text=f"{words} …")
    with right:
        act("Cancel", state.stop_job, slot, job.key, key=f"cancel {slot}", width="stretch")


def finished(job: Job) -> bool:
    """Whether a job has a result that may be shown."""
    return job.value is not None and not job.error
