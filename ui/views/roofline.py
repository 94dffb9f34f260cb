"""Roofline: operators under the roofs of the chip, its memory, what optimisations bring."""

import pandas as pd
import streamlit as st

from formats import RoofcastError
from sim.charts_roofline import memory_bar, roofs, waterfall_bars
from sim.explain import Explanation, Load, explain
from sim.exploring.waterfall import waterfall
from sim.exploring.waterfall_page import waterfall_rows
from sim.roofline import memory_roofs, peak_roofs
from sim.scenario import Scenario
from sim.units import readable
from ui import state
from ui.frame import controls, follow, title
from ui.jobs import Teller
from ui.outcome import Outcome, quick, scenario_key
from ui.theme import chart, fault, heading
from ui.words import percent
from workloads.counts import kv_bytes_per_token

__all__ = ["page"]

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
TOKENS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
CROWDS = [1, 4, 8, 16, 32, 64, 128]
FIGURES = {
    "seconds": "accelerator time of an output token [ms]",
    "joules": "energy of an output token [J]",
    "usd": "cost of a million output tokens [USD]",
}


def page() -> None:
    """Draw the page."""
    scenario = controls()
    title("Roofline", scenario)
    if scenario is None:
        return
    try:
        with st.spinner("reading the step tables"):
            outcome = quick(state.resolved(scenario))
        _operators(outcome)
        _memory(outcome)
    except RoofcastError as e:
        fault(str(e))
        return
    _waterfall(state.resolved(scenario))


def _operators(outcome: Outcome) -> None:
    """Draw the operators of a decode step and of a prompt."""
    found = explain(outcome.scenario, _load(outcome))
    st.markdown(_words(found))
    made = roofs(found.operators, peak_roofs(found.spec), memory_roofs(found.spec))
    chart(made, "roofs", "Operators under the roofs of the accelerator")
    st.caption(
        "A dot is an operator over all layers, as large as its share of the step. Slopes are "
        "levels of memory, flat lines peaks of arithmetic. Left of the ridge memory decides, "
        "right of it compute; far below both, launches and small shapes."
    )
    with st.expander("As a table"):
        _table(found.operators)


def _load(outcome: Outcome) -> Load:
    left, middle, right = st.columns(3)
    near = min(BATCHES, key=lambda b: abs(b - outcome.estimate.batch - 1))
    batch = left.select_slider(
        "sequences that decode together",
        BATCHES,
        near,
        key="roof batch",
        help="Batch of a decode step; starts where the scenario runs.",
    )
    context = middle.select_slider(
        "context of each [token]", TOKENS, 1024, key="roof context", help="Tokens in its KV cache."
    )
    prompt = right.select_slider(
        "prompt in one step [token]",
        TOKENS[:8],
        2048,
        key="roof prompt",
        help="New tokens of a step that computes a prompt.",
    )
    return Load(int(batch), int(context), int(prompt))


def _words(found: Explanation) -> str:
    """Return what bounds each phase, in plain words."""
    spec, load = found.spec, found.load
    ridge = spec.half_flops_per_s / spec.memory_bytes_per_s
    named = {
        "decode": f"A decode step for {load.batch}",
        "prefill": f"A prompt of {load.prompt:,}",
        "image": "An image",
    }
    parts = [
        f"{named[row['phase']]} does **{_short(row['intensity'])} FLOP per byte** in "
        f"{readable(row['seconds'], 's')}; mostly bound by **{row['bound']}**."
        for row in found.phases.to_dict("records")
    ]
    return f"{' '.join(parts)} The 16-bit ridge of {spec.name} is at {ridge:,.0f} FLOP/byte."


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _table(table: pd.DataFrame) -> None:
    roof_s = table["seconds"] * table[["mfu", "mbu"]].max(axis=1)
    share = table["seconds"] / table.groupby("phase")["seconds"].transform("sum")
    shown = pd.DataFrame(
        {
            "phase": table["phase"],
            "operator": table["operator"],
            "runs in": table["precision"],
            "arithmetic": [readable(v, "FLOP") for v in table["flops"]],
            "moved": [readable(v, "byte") for v in table["bytes"]],
            "FLOP/byte": table["intensity"].map(_short, na_action="ignore").fillna(""),
            "time": [readable(v, "s") for v in table["seconds"]],
            "at the roof": [readable(v, "s") for v in roof_s],
            "of its step": share.map(percent),
            "bound by": table["bound"],
        }
    )
    st.dataframe(shown, hide_index=True)


def _memory(outcome: Outcome) -> None:
    """Draw how the memory of one accelerator is used."""
    deployment = outcome.deployment
    plan, pool = deployment.plan, float(deployment.knobs["num_blocks"][0])
    kv = plan.block * pool
    used = min(outcome.estimate.batch * _held(outcome) / max(pool, 1.0), 1.0) * kv
    heading("Memory")
    parts = {
        "weights": plan.weights,
        "activations": plan.activations,
        "graphs, workspaces": plan.reserved,
        "KV cache in use": used,
        "KV cache free": kv - used,
        "not used by the engine": deployment.spec.memory_bytes - plan.usable,
    }
    chart(memory_bar(parts), "memory", "Memory of one accelerator by use")
    tokens = pool * float(deployment.knobs["block_size"][0])
    each = kv_bytes_per_token(deployment.model, tp=outcome.scenario.hardware.tp)
    st.caption(
        f"The KV cache takes {readable(each, 'byte')} per token and holds {tokens:,.0f} tokens: "
        f"{tokens / 1024:,.0f} sequences of 1,024 tokens, {tokens / 32768:,.0f} of 32,768."
    )


def _held(outcome: Outcome) -> float:
    """Return KV blocks that a decoding sequence holds on average."""
    from ui.outcome import requests_of

    table = requests_of(outcome.scenario)
    prompt, output = table["prompt_tokens"], table["output_tokens"]
    context = float((output * (prompt + output / 2)).sum() / output.sum())
    return context / float(outcome.deployment.knobs["block_size"][0])


def _waterfall(scenario: Scenario) -> None:
    """Draw what each optimisation brings while a queue is full."""
    heading("From naive to optimised")
    left, right = st.columns([1, 1], vertical_alignment="bottom")
    figure = left.segmented_control(
        "per output token",
        list(FIGURES),
        default="seconds",
        required=True,
        key="waterfall of",
        format_func=lambda name: {"seconds": "time", "joules": "energy", "usd": "cost"}[name],
    )
    batch = right.select_slider(
        "requests served at a time",
        CROWDS,
        32,
        key="waterfall batch",
        help="The crowd that waits is served so many at a time.",
    )
    way = str(st.session_state.get("way", "rented"))
    key = scenario_key(scenario, way, "waterfall", str(batch))
    job = state.job("waterfall", key, lambda tell: _climb(scenario, way, int(batch), tell))
    job.wait(1.5)
    if job.value is None:
        follow("waterfall", job)
        return
    _bars(job.value, str(figure))


def _climb(scenario: Scenario, way: str, batch: int, tell: Teller) -> pd.DataFrame:
    words = "simulating one optimisation after the other"
    tell(0.0, words)
    return waterfall(scenario, way=way, batch=batch, progress=lambda share: tell(share, words))


def _bars(table: pd.DataFrame, figure: str) -> None:
    if table.empty or table[figure].isna().all():
        st.caption("No price is known for this accelerator.")
        return
    shown = table.assign(seconds=1e3 * table["seconds"])
    chart(waterfall_bars(shown, figure, FIGURES[figure]), "waterfall", "Savings by step")
    st.caption(
        "Each row adds one step to those above it and is a simulation of its own, while a queue "
        "is full. ÷ says by which factor a step divides the figure; what cannot be run is left out."
    )
    with st.expander("As a table, with what is known about answers"):
        rows = pd.DataFrame(waterfall_rows(table)).assign(answers=table["quality"].tolist())
        heads = ["step", "ms/token", "saves [ms]", "J/token", "saves [J]", "USD/M", "saves [USD]"]
        rows.columns = pd.Index([*heads, "answers"])
        st.dataframe(rows, hide_index=True)
