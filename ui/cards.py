"""Cards of figures, each with its band and hover text."""

import streamlit as st

from sim.metrics import metrics
from ui.outcome import COST, Outcome
from ui.words import shown, span

__all__ = ["CARDS", "cards"]

# figure -> what the card is called; metrics say unit and meaning
CARDS = {
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_mean_s": "TPOT mean",
    "e2e_p50_s": "E2E p50",
    "e2e_p99_s": "E2E p99",
    "output_tokens_per_s": "output",
    "goodput_per_s": "goodput",
    "slo_attainment": "objectives met",
    "power_mean_w": "power",
    COST: "per million tokens",
    "mfu": "MFU",
    "mbu": "MBU",
}
MEANING = {
    "ttft": "TTFT, time to first token: from arrival until the first token is there; p50 is "
    "the median, 99 of 100 requests are faster than p99.",
    "tpot": "TPOT, time per output token after the first.",
    "e2e": "E2E, end to end: from arrival until the last token is there; p50 is the median.",
    "mfu": "MFU, model FLOPs utilisation: useful arithmetic over the chip's peak.",
    "mbu": "MBU, memory bandwidth utilisation: bytes that had to move over the peak bandwidth.",
    "goodput": "Requests per second that met every objective.",
    "slo": "Share of requests that met every objective.",
    "power": "Mean watts of all accelerators over the run, waiting included.",
    "output": "Output tokens per second of the whole deployment.",
}


def cards(outcome: Outcome) -> None:
    """Draw all figures that exist."""
    with st.container(gap="small", key="cards"):
        for name, label in CARDS.items():
            band = outcome.band(name)
            if band is None:
                continue
            unit = "USD" if name == COST else metrics[name].unit
            st.metric(
                label,
                shown(band, unit),
                span(band, unit) or None,
                delta_color="off",
                delta_arrow="off",
                help=_help(name, outcome),
                border=True,
            )


def _help(name: str, outcome: Outcome) -> str:
    if name == COST:
        return _cost_help(outcome)
    meaning = MEANING.get(name.split("_")[0], "")
    return f"{meaning} Key: `{name}`. Below: P10 to P90 of kernel errors and other seeds."


def _cost_help(outcome: Outcome) -> str:
    from sim.exploring.money import price_of

    hardware = outcome.scenario.hardware
    way = st.session_state.get("way", "rented")
    price = price_of(hardware.accelerator, outcome.deployment.spec, way)
    rows = "\n".join(f"- {source}" for source in (price.sources if price else ()))
    return f"All costs of the deployment over its million output tokens, at this load.\n\n{rows}"
