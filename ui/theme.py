"""How pages look: a little style of their own, charts that follow the theme, cards of figures."""

from typing import Any

import streamlit as st

__all__ = ["chart", "fault", "heading", "pairs", "style"]

STYLE = """
<style>
.stMainBlockContainer {padding-top: 4.2rem; padding-bottom: 3rem; max-width: 1500px;}
.stMain h1 {font-size: 2rem; padding: 0;}
.stMain h4 {font-size: 1.1rem; padding: .8rem 0 .3rem 0;}
.st-key-cards, .st-key-sums {display: grid; grid-template-columns: repeat(4, 1fr);}
.st-key-sums {grid-template-columns: repeat(3, 1fr);}
.st-key-cards > div, .st-key-sums > div {width: 100% !important;}
.stMetric {padding: 0 !important; width: 100% !important;}
.st-key-cards .stMetric {min-height: 6.5rem;}
.stMetric > div {padding: .6rem .7rem !important;}
[data-testid="stMetricValue"] {font-size: 1.3rem;}
[data-testid="stMetricDelta"] {font-size: .78rem;}
@media (min-width: 1600px) {
  .st-key-cards, .st-key-sums {grid-template-columns: repeat(6, 1fr);}
}
@media (min-width: 641px) and (max-width: 1500px) {
  .stMainBlockContainer {padding-left: 2.5rem; padding-right: 2.5rem;}
}
@media (max-width: 640px) {
  .stMainBlockContainer {padding-left: .8rem; padding-right: .8rem;}
  [data-testid="stMetricValue"] {font-size: 1.2rem;}
  .stMain h1 {font-size: 1.7rem;}
  .st-key-cards, .st-key-sums {grid-template-columns: repeat(2, 1fr);}
  .st-key-files button {padding: .2rem .5rem; min-height: 2.2rem;}
  .st-key-files {gap: .4rem;}
}
</style>
"""


def style() -> None:
    """Apply the style of all pages."""
    st.html(STYLE)


def chart(made: Any, key: str, alt: str, height: int | None = None) -> None:  # noqa: ANN401
    """Show an Altair chart over the whole width.

    Parameters
    ----------
    made : altair chart
        Without a width of its own.
    key : str
        Name of the element on its page.
    alt : str
        What it shows, for those who do not see it.
    height : int, optional
        Height with axes and legend, in place of its own [pixel].
    """
    if height is not None:
        made = made.properties(height=height)
    made = made.properties(padding={"left": 0, "right": 4, "top": 2, "bottom": 4})
    st.altair_chart(made, width="stretch", key=key, alt=alt)


def pairs(made: list[tuple[str, str, Any, str]]) -> None:
    """Show charts two in a row, each under its heading.

    Parameters
    ----------
    made : list of (key, heading, chart, caption)
        In reading order; no caption where it is empty.
    """
    for start in range(0, len(made), 2):
        places = st.columns(2, gap="large")
        for place, (key, words, one, text) in zip(places, made[start : start + 2], strict=False):
            with place:
                heading(words)
                chart(one, key, words)
                if text:
                    st.caption(text)


def heading(words: str) -> None:
    """Write the heading of a part of a page."""
    st.markdown(f"#### {words}")


def fault(message: str) -> None:
    """Show an error as the command line words it."""
    st.error(message, icon=":material/error:")
