"""What if: one deployment under one load, its figures, what limits it, what to change."""

import streamlit as st

from formats import RoofcastError
from sim import charts
from sim.charts_explore import cause_split, frontier
from sim.exploring.advice import GOALS, Advice, Tried, advise
from sim.exploring.bottleneck import Causes, causes, sentences
from sim.exploring.money import WAYS
from sim.metrics import Observed
from sim.metrics.devices import peak_flops_per_s
from sim.metrics.rates import limits
from sim.scenario import Scenario
from ui import state
from ui.cards import cards
from ui.frame import act, controls, follow, outcome_job, title
from ui.outcome import Outcome, quick, scenario_key
from ui.theme import chart, fault, heading
from ui.words import percent

__all__ = ["page"]

LATENCIES = {"ttft": "first token", "tpot": "per token", "e2e": "end to end"}
SATURATED = 0.85  # offered over largest load, from which on the estimate is rough
ROUGH = (
    " So close to saturation the estimate is rough: its bands reach up to the steady state that a "
    "longer run would come to."
)


def page() -> None:
    """Draw the page."""
    scenario = controls()
    title("What if", scenario)
    if scenario is None:
        return
    way = _way()
    try:
        with st.spinner("reading the step tables"):
            estimated = quick(state.resolved(scenario), way)
    except RoofcastError as e:
        fault(str(e))
        return
    job = outcome_job(scenario, way)
    outcome: Outcome = job.value or estimated
    _subtitle(outcome)
    place = st.container()
    cards(outcome)
    follow("simulation", job, lambda: _run_words(outcome))
    with place:
        _verdict(outcome)
        if job.ended.is_set() and outcome.result is not None:
            _advice(scenario, way)
    _charts(outcome)


def _way() -> str:
    return str(st.session_state.get("way", WAYS[0]))


def _subtitle(outcome: Outcome) -> None:
    hardware, deployment = outcome.scenario.hardware, outcome.deployment
    split = [f"{name.upper()} {getattr(hardware, name)}" for name in ("tp", "pp", "dp", "ep")]
    split = [text for text in split if not text.endswith(" 1")]
    ways = f" ({', '.join(split)})" if split else ""
    kind = (
        "" if deployment.fidelity == "measured" else " Kernel times carried over from other parts."
    )
    st.markdown(
        f"**{deployment.model.name}** on **{hardware.accelerators} × {deployment.spec.name}**"
        f"{ways}, {deployment.profile.name}.{kind}"
    )


def _run_words(outcome: Outcome) -> None:
    """Say what the figures rest on."""
    count, seeds = outcome.figures.get("requests"), 1 + len(outcome.others)
    load = outcome.estimate.load
    most = outcome.estimate.curve.most_per_s * outcome.scenario.hardware.replicas
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.caption(
        f"Simulated: {count:,} requests, {seeds} seed{'s' if seeds > 1 else ''}. Small figures: "
        "P10 to P90 from kernel errors and seeds. "
        f"Load: {percent(load)} of the {most:.2g} requests/s that the step tables allow."
    )
    right.selectbox(
        "cost", WAYS, key="way", label_visibility="collapsed", help="Rented by the hour, or owned."
    )


def _verdict(outcome: Outcome) -> None:
    """Say what limits the run."""
    if outcome.result is None:
        share = outcome.estimate.load
        st.info(
            f"Estimate from step tables at {percent(min(share, 9.99))} of the load that can be "
            f"served; the simulation follows.{ROUGH if share > SATURATED else ''}",
            icon=":material/bolt:",
        )
        return
    said = sentences(_causes(outcome))
    st.info(" ".join(said), icon=":material/troubleshoot:")


def _causes(outcome: Outcome) -> Causes:
    assert outcome.result is not None
    return causes(outcome.result, outcome.figures)


def _advice(scenario: Scenario, way: str) -> None:
    """Try one-step changes behind the page and name the best."""
    chosen = state.resolved(scenario)
    key = scenario_key(chosen, way)
    job = state.job("advice", key, lambda tell: advise(chosen, way=way, progress=tell))
    if job.value is None:
        follow("advice", job)
        return
    found: Advice = job.value
    with st.container(horizontal=True, vertical_alignment="center"):
        goal = found.goal(str(st.session_state.get("goal", "automatic")))
        ranked = found.ranked(goal)
        if not ranked or ranked[0][0] < 5e-4:
            st.markdown(
                f"**Next best change:** none of {len(found.tried)} tried improves {goal.words}."
            )
        else:
            _best(*ranked[0], goal.words, scenario)
        with st.popover("All changes tried", icon=":material/list:"):
            _tried(found)


def _best(gain: float, best: Tried, words: str, scenario: Scenario) -> None:
    share = "" if gain == float("inf") else f" by {percent(gain)}"
    st.markdown(f"**Next best change:** {best.change.words}. It improves {words}{share}.")
    changed, note = scenario.changed(best.change.keys), "Take this change over."
    act("Apply", state.replace, changed, icon=":material/done:", key="apply", help=note)


def _tried(found: Advice) -> None:
    names = ["automatic", *GOALS]
    goal = st.selectbox(
        "better means",
        names,
        key="goal",
        format_func=lambda n: GOALS[n].words if n in GOALS else "objectives first, then cost",
        help="Each change was simulated on the same requests. Changes that lose objectives which "
        "are met now are left out.",
    )
    table = found.table(found.goal(goal))
    columns = {
        "change": st.column_config.Column(width=225),
        "gain": st.column_config.NumberColumn("better by", format="percent", width=78),
        "ttft_p99_s": st.column_config.NumberColumn("TTFT p99 [s]", format="%.3f", width=92),
        "tpot_mean_s": st.column_config.NumberColumn("TPOT [s]", format="%.4f", width=76),
        "slo_attainment": st.column_config.NumberColumn(
            "met", format="percent", width=66, help="Share of requests that met every objective."
        ),
        "usd_per_million": st.column_config.NumberColumn(
            "USD/M tokens", format="%.2f", width=104, help="Per million output tokens."
        ),
    }
    st.dataframe(table, hide_index=True, column_config=columns)
    for tried in (t for t in found.tried if t.fault):
        st.caption(f"Cannot be run: {tried.change.words}: {tried.fault}")


def _charts(outcome: Outcome) -> None:
    left, right = st.columns(2, gap="large")
    with left:
        _speed(outcome)
    if outcome.result is None:
        return
    with right:
        _where(outcome)
    left, right = st.columns(2, gap="large")
    with left:
        _latency(outcome)
    with right:
        _roofline(outcome)


def _speed(outcome: Outcome) -> None:
    heading("Speed for one user, output for all")
    table = outcome.frontier(outcome.scenario.name)
    now = table.assign(far=(table["batch"] - outcome.estimate.batch).abs()).nsmallest(1, "far")
    made = frontier(table, now[["scenario", "user", "accelerator"]])
    chart(made, "speed", "Tokens per second of one user against those of one accelerator")
    st.caption(
        "Larger batches share one read of the weights: more output in all, slower for each user. "
        "The dot is this load."
    )


def _where(outcome: Outcome) -> None:
    heading("Where the time of requests goes")
    chart(cause_split(_causes(outcome).shares), "causes", "Share of request time by cause")
    st.caption(
        "Decoding is split by what a step would take at the chip's peak: reading weights, reading "
        "the KV cache; all else is launches and kernels below the peak."
    )


def _latency(outcome: Outcome) -> None:
    assert outcome.result is not None
    heading("How long requests take")
    what = st.segmented_control(
        "latency",
        list(LATENCIES),
        default="ttft",
        required=True,
        format_func=lambda name: LATENCIES[name],
        key="latency",
        label_visibility="collapsed",
    )
    seen = Observed.of(outcome.result)
    limit = limits(seen).get(str(what))
    made = charts.latency_cdf(seen.requests, str(what), None if limit is None else float(limit[0]))
    chart(made, "cdf", f"Share of requests below each {what}", height=300)
    st.caption("Share of requests that took at most so long; the dashed rule is the objective.")


def _roofline(outcome: Outcome) -> None:
    assert outcome.result is not None
    heading("Why: steps under the roof of the chip")
    seen = Observed.of(outcome.result)
    bandwidth = outcome.deployment.spec.memory_bytes_per_s
    made = charts.roofline(outcome.result.steps, peak_flops_per_s(seen), bandwidth)
    chart(made, "steps", "Engine steps under the roofline of the accelerator", height=340)
    st.caption(
        "On the slope memory decides, under the flat roof arithmetic. A decode step does little "
        "arithmetic for each byte it reads, so it sits on the slope; prompts reach the flat roof."
    )
