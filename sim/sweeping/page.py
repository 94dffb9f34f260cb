"""A page of charts and tables in the style of the other reports: self-contained, light and dark."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import altair as alt

from formats import atomic_write
from sim.report import PAGE, json_script, vega_script

__all__ = ["Figure", "Page", "table_html", "write_page"]

Chart = alt.Chart | alt.LayerChart


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
    cards : mapping of str to str
        Label -> figure with its unit.
    figures : mapping of str to Figure
        By id.
    sections : mapping of str to str
        Heading -> HTML below the charts.
    """

    title: str
    verdict: str
    cards: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the page as HTML.

        Examples
        --------
        >>> "<h1>a &lt; b</h1>" in Page("a < b", "fine").text()
        True
        """
        style, script = _frame()
        charts = "\n".join(_figure(key, figure) for key, figure in self.figures.items())
        parts = "\n".join(f"<h2>{html.escape(h)}</h2>{body}" for h, body in self.sections.items())
        specs = {key: figure.chart.to_dict() for key, figure in self.figures.items()}
        drawn = f'<h2>Charts</h2><div class="charts">{charts}</div>' if specs else ""
        script = script.replace("$vega", vega_script() if specs else "")
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self.title)}</title>\n{style}\n</head>\n<body>\n<header>\n"
            f'<h1>{html.escape(self.title)}</h1>\n<p class="sub">{html.escape(self.verdict)}</p>\n'
            f'<div class="cards">{_cards(self.cards)}</div>\n</header>\n<main>\n{drawn}\n{parts}\n'
            f"</main>\n{script.replace('$specs', json_script(specs)) if specs else ''}"
            "</body>\n</html>\n"
        )


@lru_cache(maxsize=1)
def _frame() -> tuple[str, str]:
    """Return style and script of the report of a run."""
    text = PAGE.read_text(encoding="utf-8")
    style = text[text.index("<style>") : text.index("</style>") + len("</style>")]
    return style, text[text.index("<script>") : text.index("</body>")]


def _figure(key: str, figure: Figure) -> str:
    words = f"<b>{html.escape(figure.title)}</b> {html.escape(figure.words)}"
    return (
        f"<figure><figcaption>{words}</figcaption>"
        f'<div class="chart" id="{html.escape(key)}"></div></figure>'
    )


def _cards(cards: Mapping[str, str]) -> str:
    return "\n".join(
        f'<div class="card"><b>{_with_unit(value)}</b><span>{html.escape(label)}</span></div>'
        for label, value in cards.items()
    )


def _with_unit(value: str) -> str:
    number, _, unit = html.escape(value).partition(" ")
    return f"{number}<small> {unit}</small>" if unit else number


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls sideways where it is too wide.

    Examples
    --------
    >>> table_html(["a"], [["1.5"]]).count("<td class=num>1.5</td>")
    1
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cell(text: str) -> str:
    number = bool(text) and (text[0].isdigit() or text[0] in "-+") and len(text) < 24
    return f"<td{' class=num' if number else ''}>{html.escape(text)}</td>"


def write_page(page: Page, path: Path) -> None:
    """Write a page as one file that opens without a network."""
    with atomic_write(path) as temporary:
        temporary.write_text(page.text(), encoding="utf-8")
