"""The page of a validation: predicted beside measured, self-contained HTML."""

import html
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from sim.report import PAGE as REPORT_PAGE
from sim.report import json_script, vega_script
from validation.cases import Validation
from validation.charts import error_dots, latency_overlay, scatter, step_errors
from validation.serving import METRICS, limits
from validation.words import TextTable, percent, tables

__all__ = ["report_html"]

PAGE = Path(__file__).parent / "data" / "report.html"
OVERLAYS = 8  # distributions of at most so many workloads
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
Charts = dict[str, tuple[str, str, Any]]


def report_html(found: Validation) -> str:
    """Return the page as text.

    Parameters
    ----------
    found : Validation
        What was compared.
    """
    charts = _charts(found)
    parts = {
        "title": html.escape(_title(found)),
        "style": _style(),
        "subtitle": html.escape(_subtitle(found)),
        "cards": "\n".join(_cards(found)),
        "charts": "\n".join(_figure(key, *words[:2]) for key, words in charts.items()),
        "tables": "\n".join(_table(t) for t in tables(found)),
        "notes": "\n".join(f"<li>{html.escape(note)}</li>" for note in _notes(found)),
        "specs": json_script({key: words[2].to_dict() for key, words in charts.items()}),
        "vega": vega_script(),
    }
    return Template(PAGE.read_text(encoding="utf-8")).substitute(parts)


def _style() -> str:
    """Return the style of the other reports."""
    text = REPORT_PAGE.read_text(encoding="utf-8")
    return text[text.index("<style>") : text.index("</style>") + len("</style>")]


def _title(found: Validation) -> str:
    if len(found.pairs) == 1:
        run, workload = found.pairs[0]
        return f"{run.scenario.name}: {workload.name}, predicted and measured"
    return "Predicted and measured"


def _subtitle(found: Validation) -> str:
    requests = sum(len(w.requests) for _, w in found.pairs)
    many = "s" if len(found.pairs) > 1 else ""
    return (
        f"{len(found.pairs)} workload{many}, {requests:,} requests, "
        f"{found.selection.seeds} simulations of each"
    )


def _cards(found: Validation) -> Iterable[str]:
    table = found.medians if len(found.pairs) > 1 else found.serving
    column = "median" if len(found.pairs) > 1 else "error"
    for row in table[table["metric"].isin(limits().metrics)].to_dict("records"):
        value = percent(float(row[column]), sign=column == "error")
        label = METRICS[str(row["metric"])].label
        tip = f"limit {percent(row['limit'], sign=False)}"
        yield (
            f'<div class="card" title="{tip}"><b>{value}</b><span>{html.escape(label)}</span></div>'
        )


def _charts(found: Validation) -> Charts:
    out: Charts = {}
    if len(found.serving):
        out["scatter"] = (
            "Predicted against measured",
            "Latencies of every workload; on the dashed line there is no error.",
            scatter(found.serving),
        )
        out["errors"] = (
            "Errors by figure",
            "Predicted / measured - 1 of open-loop workloads.",
            error_dots(found.serving),
        )
    if len(found.steps):
        out["steps"] = (
            "Step times",
            "10th, 50th and 90th percentile of the error of steps and half-second windows.",
            step_errors(found.steps),
        )
    return out | _overlays(found)


def _overlays(found: Validation) -> Charts:
    shown = [p for p in found.pairs if p[1].kind == "open"] or found.pairs
    kinds = list(LATENCIES) if len(shown) == 1 else ["ttft"]
    out: Charts = {}
    for run, workload in shown[:OVERLAYS]:
        if not workload.judged_requests().any():
            continue
        for what in kinds:
            results = found.results[run.name, workload.name]
            title = f"{LATENCIES[what]}: {run.name} {workload.name}"
            text = "Share of requests below each value; one thin line per seed."
            key = f"{what}_{run.name}_{workload.name}"
            out[key] = (title, text, latency_overlay(workload, results, what))
    return out


def _figure(key: str, title: str, text: str) -> str:
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b> {html.escape(text)}</figcaption>"
        f'<div class="chart" id="{key}"></div></figure>'
    )


def _table(table: TextTable) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(_cell(i, cell) for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{html.escape(table.title)}</h2><p class="sub">{html.escape(table.about)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n'
        "</tbody></table></div>"
    )


def _cell(column: int, text: str) -> str:
    number = column > 0 and bool(text) and (text[0].isdigit() or text[0] in "+-")
    return f"<td{' class=num' if number else ''}>{html.escape(text)}</td>"


def _notes(found: Validation) -> Iterable[str]:
    """Yield what the comparison rests on, and what it leaves out."""
    yield (
        "Requests keep their measured arrival, prompt, output and session. The host's speed is "
        "random: predictions are medians over seeds, ranges the least and the greatest."
    )
    for run in {run.name: run for run, _ in found.pairs}.values():
        yield f"{run.name}: {run.scenario.name}; {run.source}; licence {run.licence}."
    for run, workload in found.pairs:
        for gap in workload.exclusions:
            yield (
                f"Left out of {run.name} {workload.name}, {gap.start_s:g} to {gap.end_s:g} s: "
                f"{gap.reason}."
            )
    for what in found.skipped:
        yield f"Not judged: {what}."
    yield (
        "Repeating four of these workloads on another machine of the same kind moved TTFT p50 by "
        "7 %, TTFT mean 5 %, TTFT p99 1.4 %, TPOT 1.6 %, E2E 1.6 %, throughput 0.3 %, energy "
        "2.5 %: no model can show less."
    )
    yield "Host times of the engine profile are fitted (validation.fit_engine) on half of the data."
