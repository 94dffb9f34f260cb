"""What one visitor works on: scenario, pins, own catalog entries, jobs. All of it in the session.

Nothing here is shared between visitors: every function reads and writes `st.session_state`.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from formats import RoofcastError
from sim.scenario import Scenario
from ui.jobs import Job, Teller
from ui.share import from_link, to_link

__all__ = [
    "Pins",
    "address",
    "adopt_address",
    "current",
    "generation",
    "job",
    "keep_own",
    "own_files",
    "pins",
    "replace",
    "resolved",
    "stop_job",
    "update",
]

START = Scenario.model_validate(
    {"name": "Chat on one H200", "workload": {"named": "chat", "duration_s": 120.0}}
)
KEPT = 12  # finished jobs per slot whose results are kept
PARAMETER = "s"
Pins = dict[str, Scenario]


def current() -> Scenario:
    """Return the scenario that this visitor works on."""
    scenario: Scenario = st.session_state.setdefault("scenario", START)
    return scenario


def generation() -> int:
    """Return how often the scenario was replaced as a whole: controls carry it in their key."""
    count: int = st.session_state.setdefault("generation", 0)
    return count


def update(scenario: Scenario) -> None:
    """Take over what the controls say, and put it into the address."""
    st.session_state["scenario"] = scenario
    address(scenario)


def replace(scenario: Scenario) -> None:
    """Work on another scenario: controls start again from it."""
    st.session_state["generation"] = generation() + 1
    update(scenario)


def address(scenario: Scenario) -> None:
    """Let the page's address carry a scenario."""
    word = to_link(scenario)
    st.session_state["link"] = word
    if st.query_params.get(PARAMETER) != word:
        st.query_params[PARAMETER] = word


def adopt_address() -> str:
    """Take the scenario from the address when somebody opened a link; return what is wrong.

    A link that cannot be read changes nothing.
    """
    word = st.query_params.get(PARAMETER)
    if not word or word == st.session_state.get("link"):
        return ""
    st.session_state["link"] = word
    try:
        replace(from_link(word))
    except RoofcastError as e:
        return str(e)
    return ""


def pins() -> Pins:
    """Return the scenarios to compare, by title."""
    found: Pins = st.session_state.setdefault("pins", {})
    return found


def own_files() -> dict[str, Path]:
    """Return catalog entries that this visitor added: file name -> file of this session."""
    found: dict[str, Path] = st.session_state.setdefault("own", {})
    return found


def keep_own(name: str, text: str) -> Path:
    """Keep a catalog entry for this session; a new text gets a new folder."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if "folder" not in st.session_state:
        st.session_state["folder"] = tempfile.TemporaryDirectory(prefix="roofcast-page-")
    path = Path(st.session_state["folder"].name) / digest / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    own_files()[name] = path
    return path


def resolved(scenario: Scenario) -> Scenario:
    """Return a scenario whose own catalog entries are files that can be opened."""
    mine = own_files()
    changes = {
        key: str(mine[name])
        for key, name in (
            ("hardware.accelerator", scenario.hardware.accelerator),
            ("model.name", scenario.model.name),
        )
        if name in mine
    }
    return scenario.changed(changes) if changes else scenario


def job(slot: str, key: str, work: Callable[[Teller], Any]) -> Job:
    """Return the job of a slot for this key; start it, and stop the one before, if need be.

    Parameters
    ----------
    slot : str
        What kind of work, one at a time for each visitor.
    key : str
        What it is about.
    work : callable
        `Teller` -> result.
    """
    jobs: dict[str, Job] = st.session_state.setdefault(f"jobs of {slot}", {})
    for other in [j for k, j in jobs.items() if k != key and j.running]:
        other.stop()
    for old in [k for k, j in jobs.items() if k != key and j.stopped.is_set()]:
        del jobs[old]
    if key not in jobs:
        for oldest in list(jobs)[: max(0, len(jobs) - KEPT + 1)]:
            del jobs[oldest]
        jobs[key] = Job(key, work, _visitor()).start()
    return jobs[key]


def _visitor() -> Callable[[], bool]:
    """Return a test of whether this visitor's page is still open."""
    context = get_script_run_ctx()
    if context is None or not runtime.exists():
        return lambda: True
    session, instance = context.session_id, runtime.get_instance()
    return lambda: instance.is_active_session(session)


def stop_job(slot: str, key: str) -> None:
    """Stop a job because the visitor said so; it stays stopped until asked for again."""
    jobs: dict[str, Job] = st.session_state.get(f"jobs of {slot}", {})
    if key in jobs:
        jobs[key].stop()
