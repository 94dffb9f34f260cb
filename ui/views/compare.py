"""Compare: pinned scenarios side by side, all asked the same requests."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from formats import RoofcastError
from sim.charts_explore import compared_bars, compared_latency, frontier
from sim.comparison import Comparison, compare
from sim.comparison_page import verdict
from sim.metrics import metrics
from sim.scenario import Scenario
from sim.simulation import simulate
from ui import state
from ui.cards import CARDS
from ui.frame import act, controls, follow, title
from ui.jobs import Job, Teller
from ui.outcome import COST, Outcome, quick_on, requests_of, scenario_key, simulated
from ui.theme import fault, heading, pairs
from ui.words import percent, shown, span

__all__ = ["page"]

MOST = 6
HERE = "on this page"
SMALLER = ("ttft", "tpot", "e2e", "power", COST.split("_")[0])
SEEDS = 3  # each scenario is simulated so often
LEVEL = 0.95  # of the intervals
Outcomes = dict[str, Outcome]


@dataclass
class Found:
    """What came out of a comparison.

    Attributes
    ----------
    outcomes : dict
        Title -> outcome, in order.
    faults : dict
        Title -> why it cannot be run.
    paired : Comparison or None
        Paired differences to the first; None where only one runs.
    """

    outcomes: Outcomes
    faults: dict[str, str]
    paired: Comparison | None = None


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
                note = "Put it into the controls."
                act("Edit", state.replace, mine[name], key=f"edit {name}", help=note)
                act("Remove", _forget, name, key=f"remove {name}")


def _forget(name: str) -> None:
    del state.pins()[name]


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


def _run(chosen: dict[str, Scenario], asked: str, tell: Teller) -> Found:
    """Return the outcomes of all that can be run, and why the others cannot."""
    like, found = chosen[asked], Found({}, {})
    requests = requests_of(like)
    for i, (name, scenario) in enumerate(chosen.items()):
        tell(0.1 * i / len(chosen), f"reading the step tables of {name}")
        same = scenario.model_copy(
            update={"name": name, "workload": like.workload, "slo": like.slo, "run": like.run}
        )
        try:
            found.outcomes[name] = quick_on(same, requests)
        except RoofcastError as e:
            found.faults[name] = str(e)
    if len(found.outcomes) > 1:
        _together(found, tell)
    for outcome in found.outcomes.values() if found.paired is None else ():
        simulated(outcome, simulate(outcome.scenario, requests), [])
    return found


def _together(found: Found, tell: Teller) -> None:
    """Serve the same requests by all, several seeds, and fill in what came out."""
    scenarios = [outcome.scenario for outcome in found.outcomes.values()]
    words = f"simulating {len(scenarios)} scenarios, {SEEDS} seeds each"
    found.paired = compare(scenarios, SEEDS, progress=lambda share: tell(0.1 + 0.9 * share, words))
    values = found.paired.values
    for (name, outcome), result in zip(found.outcomes.items(), found.paired.results, strict=True):
        rows = values[values["scenario"] == name].to_dict("records")
        simulated(outcome, result, [{str(k): v for k, v in row.items()} for row in rows[1:]])


def _show(found: Found, like: Scenario) -> None:
    for name, message in found.faults.items():
        fault(f"{name}: {message}")
    if not found.outcomes:
        return
    first = next(iter(found.outcomes.values()))
    count = len(first.result.requests) if first.result else 0
    seeds = f"{SEEDS} seeds from {like.run.seed}" if found.paired else f"seed {like.run.seed}"
    st.caption(f"All were asked the same {count:,} requests ({like.name}), {seeds}.")
    for name in found.paired.names[1:] if found.paired else ():
        st.markdown(verdict(found.paired, name))  # type: ignore[arg-type]
    _table(found)
    _charts(found.outcomes)


def _table(found: Found) -> None:
    """Draw every figure, with its difference to the first scenario."""
    first = next(iter(found.outcomes))
    rows: dict[str, dict[str, str]] = {}
    for name, label in CARDS.items():
        unit = "USD" if name == COST else metrics[name].unit
        cells = {title: _cell(found, title, first, name, unit) for title in found.outcomes}
        if any(cells.values()):
            rows[label] = cells
    heading("Differences" if found.paired else "Figures")
    st.dataframe(
        pd.DataFrame.from_dict(rows, orient="index"),
        row_height=32,
        height=37 + 32 * len(rows),
        column_config={"_index": st.column_config.TextColumn("figure", width=150)},
    )
    st.caption(
        "P10 to P90 after each figure: errors of kernels and seeds. Against the first: ▲ better, "
        f"▼ worse, with the {LEVEL:.0%} interval of the paired difference; ≈ it holds zero."
        if found.paired
        else "P10 to P90 after each figure: errors of kernels."
    )


def _cell(found: Found, title: str, first: str, name: str, unit: str) -> str:
    """Return a figure with its band, and how it differs from that of the first scenario."""
    outcome = found.outcomes[title]
    band = outcome.band(name)
    if band is None:
        return ""
    ends = span(band, unit)
    text = shown(band, unit) + (f" ({ends})" if ends else "")
    start = found.outcomes[first].figures.get(name)
    if title == first or not start or found.paired is None:
        return text
    table = found.paired.differences
    row = table[(table["scenario"] == title) & (table["metric"] == name)]
    change, half = band.value / float(start) - 1.0, 0.0
    if len(row) and bool(row["relative_high"].notna().all()):
        change = float(row["relative"].iloc[0])
        half = float(row["relative_high"].iloc[0]) - change
    if abs(change) <= max(half, 5e-4):
        return f"{text}  ≈"
    better = (change < 0) == (name.split("_")[0] in SMALLER)
    sign, sure = "+" if change > 0 else "−", f" ± {percent(half)}" if half >= 5e-4 else ""
    return f"{text}  {'▲' if better else '▼'} {sign}{percent(abs(change))}{sure}"


def _charts(found: Outcomes) -> None:
    below = "Share of requests that took at most so long."
    cost = "All of the deployment over its output tokens, at this load; the line: P10 to P90."
    energy = "Energy of all accelerators over output tokens; the line: P10 to P90."
    curves = "Each curve: all batch sizes of one design; the dot is this load."
    made = [
        ("Throughput against interactivity", _frontier(found), curves),
        ("Time to first token", _latency(found, "ttft"), below),
        ("Time per output token", _latency(found, "tpot"), below),
        ("End to end", _latency(found, "e2e"), below),
        ("Cost", _cost(found), cost),
        ("Energy", _energy(found), energy),
    ]
    pairs([(words, words, one, text) for words, one, text in made])


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
    return _bars(found, COST, "USD per million output tokens")


def _energy(found: Outcomes) -> Any:  # noqa: ANN401
    return _bars(found, "energy_per_output_token_j", "energy per output token [J]")


def _bars(found: Outcomes, name: str, title: str) -> Any:  # noqa: ANN401
    bands = {key: band for key, o in found.items() if (band := o.band(name)) is not None}
    return compared_bars(bands, title)
