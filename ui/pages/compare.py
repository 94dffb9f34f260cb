"""Compare: pinned scenarios side by side, all asked the same requests."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from formats import RoofcastError
from sim.charts_explore import compared_bars, compared_latency, frontier
from sim.metrics import metrics
from sim.scenario import Scenario
from ui import state
from ui.cards import CARDS
from ui.frame import controls, follow, title
from ui.jobs import Job, Teller
from ui.outcome import COST, Outcome, requests_of, run_on, scenario_key
from ui.theme import chart, fault, heading
from ui.words import percent, shown

__all__ = ["page"]

MOST = 6
HERE = "on this page"
SMALLER = ("ttft", "tpot", "e2e", "power", COST.split("_")[0])
Outcomes = dict[str, Outcome]


def page() -> None:
    """Draw the page."""
    scenario = controls()
    title("Compare", scenario)
    if scenario is None:
        return
    chosen = _chosen(scenario)
    if len(chosen) < 2:
        st.info(
            "Pin a scenario, change something in the controls, and both stand side by side here.",
            icon=":material/keep:",
        )
    _manage()
    asked = _asked(chosen)
    job = _job(chosen, asked)
    follow("compare", job)
    if job.value:
        _show(job.value, chosen[asked])


def _chosen(scenario: Scenario) -> dict[str, Scenario]:
    """Return what stands side by side: the pins, and the scenario of the controls."""
    mine = dict(list(state.pins().items())[: MOST - 1])
    if scenario in mine.values():
        return mine
    name = scenario.name if scenario.name not in mine else f"{scenario.name} ({HERE})"
    return mine | {name: scenario}


def _manage() -> None:
    """Draw one button for each pin that takes it away or back into the controls."""
    mine = state.pins()
    if not mine:
        return
    with st.popover(f"Pins ({len(mine)})", icon=":material/keep:"):
        for name in list(mine):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(name)
                if st.button("Edit", key=f"edit {name}", help="Put it into the controls."):
                    state.replace(mine[name])
                    st.rerun()
                if st.button("Remove", key=f"remove {name}"):
                    del mine[name]
                    st.rerun()


def _asked(chosen: dict[str, Scenario]) -> str:
    """Return whose requests all of them get."""
    return str(
        st.selectbox(
            "requests of",
            list(chosen),
            key=f"requests of {len(chosen)}",
            help="All are asked the same requests at the same times, and held to these objectives.",
        )
    )


def _job(chosen: dict[str, Scenario], asked: str) -> Job:
    ready = {name: state.resolved(scenario) for name, scenario in chosen.items()}
    key = "|".join([asked, *(name + scenario_key(s) for name, s in ready.items())])
    job = state.job("compare", key, lambda tell: _run(ready, asked, tell))
    job.wait(0.3)
    return job


def _run(chosen: dict[str, Scenario], asked: str, tell: Teller) -> tuple[Outcomes, dict[str, str]]:
    """Return the outcomes of all that can be run, and why the others cannot."""
    like = chosen[asked]
    requests = requests_of(like)
    found: Outcomes = {}
    faults: dict[str, str] = {}
    for i, (name, scenario) in enumerate(chosen.items()):
        tell((i + 0.5) / len(chosen), f"simulating {name}")
        same = scenario.model_copy(update={"workload": like.workload, "slo": like.slo})
        try:
            found[name] = run_on(same, requests, tell)
        except RoofcastError as e:
            faults[name] = str(e)
    return found, faults


def _show(value: tuple[Outcomes, dict[str, str]], like: Scenario) -> None:
    found, faults = value
    for name, message in faults.items():
        fault(f"{name}: {message}")
    if not found:
        return
    count = len(next(iter(found.values())).result.requests)  # type: ignore[union-attr]
    st.caption(f"All were asked the same {count:,} requests ({like.name}), seed {like.run.seed}.")
    _table(found)
    _charts(found)


def _table(found: Outcomes) -> None:
    """Draw the differences to the first scenario."""
    first = next(iter(found))
    rows: dict[str, dict[str, str]] = {}
    for name, label in CARDS.items():
        unit = "USD" if name == COST else metrics[name].unit
        cells = {
            title: _cell(outcome, found[first], name, unit) for title, outcome in found.items()
        }
        if any(cells.values()):
            rows[label] = cells
    heading("Differences")
    st.dataframe(pd.DataFrame.from_dict(rows, orient="index"), row_height=32)
    st.caption(f"In brackets: against {first}. ▲ better, ▼ worse.")


def _cell(outcome: Outcome, first: Outcome, name: str, unit: str) -> str:
    band = outcome.band(name)
    if band is None:
        return ""
    text, start = shown(band, unit), first.figures.get(name)
    if outcome is first or not start:
        return text
    change = band.value / float(start) - 1.0
    if abs(change) < 5e-4:
        return f"{text} (=)"
    better = (change < 0) == (name.split("_")[0] in SMALLER)
    sign = "+" if change > 0 else "−"
    return f"{text} ({'▲' if better else '▼'} {sign}{percent(abs(change))})"


def _charts(found: Outcomes) -> None:
    makers: list[tuple[str, Callable[[Outcomes], Any], str]] = [
        (
            "Throughput against interactivity",
            _frontier,
            "Each curve: all batch sizes of one design.",
        ),
        (
            "Time to first token",
            lambda f: _latency(f, "ttft"),
            "Share of requests below each value.",
        ),
        ("Time per output token", lambda f: _latency(f, "tpot"), "Share of requests below."),
        ("End to end", lambda f: _latency(f, "e2e"), "Share of requests below each value."),
        ("Cost", _cost, "All of the deployment over its output tokens, at this load."),
        ("Energy", _energy, "Energy of all accelerators over output tokens, at this load."),
    ]
    for i in range(0, len(makers), 2):
        for place, (words, make, text) in zip(
            st.columns(2, gap="large"), makers[i : i + 2], strict=True
        ):
            with place:
                heading(words)
                chart(make(found), words, words)
                st.caption(text)


def _frontier(found: Outcomes) -> Any:  # noqa: ANN401 - layers have no common type
    tables, points = [], []
    for name, outcome in found.items():
        table = outcome.frontier(name)
        tables.append(table)
        far = (table["batch"] - outcome.estimate.batch).abs()
        points.append(table.loc[[far.idxmin()]])
    return frontier(pd.concat(tables), pd.concat(points))


def _latency(found: Outcomes, what: str) -> Any:  # noqa: ANN401
    tables = {name: o.result.requests for name, o in found.items() if o.result is not None}
    return compared_latency(tables, what)


def _cost(found: Outcomes) -> Any:  # noqa: ANN401
    priced = {name: o.figures[COST] for name, o in found.items() if COST in o.figures}
    return compared_bars(list(priced), list(priced.values()), "USD per million output tokens")


def _energy(found: Outcomes) -> Any:  # noqa: ANN401
    values = [float(o.figures["energy_per_output_token_j"] or 0.0) for o in found.values()]
    return compared_bars(list(found), values, "energy per output token [J]")
