"""Pages of results: self-contained, so that they open without a network, light and dark."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Template

import altair as alt

from formats import atomic_write

__all__ = [
    "Card",
    "Figure",
    "Page",
    "details_html",
    "frame_html",
    "list_html",
    "table_html",
    "write_page",
]

DATA = Path(__file__).parent / "data"
NUMBER_STARTS, LONGEST_NUMBER = "0123456789+-", 24
Chart = alt.Chart | alt.LayerChart


@dataclass(frozen=True)
class Card:
    """A figure at the top of a page.

    Parameters
    ----------
    value : str
        The figure with its unit.
    tip : str
        What it is, told under the pointer.
    under : str
        A second line.
    """

    value: str
    tip: str = ""
    under: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with its title and what to see in it."""

    title: str
    words: str
    chart: Chart


@dataclass
class Page:
    """What stands on a page, from top to bottom.

    Attributes
    ----------
    title, verdict : str
        Heading, and the answer in a sentence.
    cards : mapping of str to str or Card
        Label -> figure with its unit.
    figures : mapping of str to Figure
        By id.
    sections : mapping of str to str
        Heading -> HTML below the charts.
    opening : str
        HTML above the charts.
    """

    title: str
    verdict: str
    cards: Mapping[str, str | Card] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    opening: str = ""

    def text(self) -> str:
        """Return the page as HTML.

        Examples
        --------
        >>> "<h1>a &lt; b</h1>" in Page("a < b", "fine").text()
        True
        """
        charts = "\n".join(_figure(key, figure) for key, figure in self.figures.items())
        parts = {
            "title": html.escape(self.title),
            "style": _read("page.css"),
            "verdict": html.escape(self.verdict),
            "cards": "\n".join(_card(label, card) for label, card in self.cards.items()),
            "opening": self.opening,
            "charts": f'<h2>Charts</h2>\n<div class="charts">\n{charts}\n</div>' if charts else "",
            "sections": "\n".join(
                f"<h2>{html.escape(head)}</h2>\n{body}" for head, body in self.sections.items()
            ),
            "scripts": _scripts(self.figures) if charts else "",
        }
        return Template(_read("page.html")).substitute(parts)


@lru_cache
def _read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def _figure(key: str, figure: Figure) -> str:
    words = f"<b>{html.escape(figure.title)}</b> {html.escape(figure.words)}"
    return (
        f"<figure><figcaption>{words}</figcaption>"
        f'<div class="chart" id="{html.escape(key)}"></div></figure>'
    )


def _card(label: str, card: str | Card) -> str:
    made = Card(card) if isinstance(card, str) else card
    value, tip, under = map(html.escape, (made.value, made.tip, made.under))
    number, _, unit = value.partition(" ")
    shown = f"{number}<small> {unit}</small>" if unit else number
    head = f'<div class="card" title="{tip}">' if tip else '<div class="card">'
    below = f"<br>{under}" if under else ""
    return f"{head}<b>{shown}</b><span>{html.escape(label)}{below}</span></div>"


def _scripts(figures: Mapping[str, Figure]) -> str:
    """Return the script elements that draw the charts."""
    specs = {key: figure.chart.to_dict() for key, figure in figures.items()}
    text = json.dumps(specs, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    drawing = f"const specs = {text};\n{_read('page.js')}"
    return f"<script>{_vega()}</script>\n<script>\n{drawing}</script>"


@lru_cache(maxsize=1)
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls sideways where it is too wide.

    Examples
    --------
    >>> table_html(["a"], [["1.5"]]).count("<td class=num>1.5</td>")
    1
    """
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return frame_html(columns, body)


def frame_html(columns: Sequence[str], body: str) -> str:
    """Return the same table around rows that are HTML already."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cell(text: str) -> str:
    number = bool(text) and text[0] in NUMBER_STARTS and len(text) < LONGEST_NUMBER
    return f"<td{' class=num' if number else ''}>{html.escape(text)}</td>"


def list_html(items: Iterable[str], *, escape: bool = True) -> str:
    """Return a list of sentences; `escape` unless they are HTML already.

    Examples
    --------
    >>> "<li>a &lt; b</li>" in list_html(["a < b"])
    True
    """
    rows = "\n".join(f"<li>{html.escape(item) if escape else item}</li>" for item in items)
    return f'<ul class="facts">\n{rows}\n</ul>'


def details_html(summary: str, body: str) -> str:
    """Return something that opens on a press."""
    return f"<details><summary>{html.escape(summary)}</summary>\n{body}\n</details>"


def write_page(page: Page, path: Path) -> None:
    """Write a page as one file that opens without a network."""
    with atomic_write(path) as temporary:
        temporary.write_text(page.text(), encoding="utf-8")
