"""The page of a validation: predicted beside measured, self-contained HTML."""

import html
from collections.abc import Iterable

from sim.page import Card, Figure, Page, list_html, table_html
from validation.cases import Validation
from validation.charts import error_dots, latency_overlay, scatter, step_errors
from validation.serving import METRICS, limits
from validation.words import TextTable, percent, tables

__all__ = ["report_html"]

OVERLAYS = 8  # distributions of at most so many workloads
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
Charts = dict[str, Figure]


def report_html(found: Validation) -> str:
    """Return the page as text.

    Parameters
    ----------
    found : Validation
        What was compared.
    """
    sections = {table.title: _table(table) for table in tables(found)}
    sections["How to read this"] = list_html(_notes(found))
    return Page(_title(found), _subtitle(found), _cards(found), _charts(found), sections).text()


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


def _cards(found: Validation) -> dict[str, Card]:
    table = found.medians if len(found.pairs) > 1 else found.serving
    column = "median" if len(found.pairs) > 1 else "error"
    return {
        METRICS[str(row["metric"])].label: Card(
            percent(float(row[column]), sign=column == "error"),
            f"limit {percent(row['limit'], sign=False)}",
        )
        for row in table[table["metric"].isin(limits().metrics)].to_dict("records")
    }


def _charts(found: Validation) -> Charts:
    out: Charts = {}
    if len(found.serving):
        out["scatter"] = Figure(
            "Predicted against measured",
            "Latencies of every workload; on the dashed line there is no error.",
            scatter(found.serving),
        )
        out["errors"] = Figure(
            "Errors by figure",
            "Predicted / measured - 1 of open-loop workloads.",
            error_dots(found.serving),
        )
    if len(found.steps):
        out["steps"] = Figure(
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
            out[key] = Figure(title, text, latency_overlay(workload, results, what))
    return out


def _table(table: TextTable) -> str:
    about = f'<p class="sub">{html.escape(table.about)}</p>'
    return about + table_html(table.columns, table.rows)


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
