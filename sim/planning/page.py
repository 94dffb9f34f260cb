"""plan.html: one page that a manager can read, with what every figure rests on behind it."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

import pandas as pd

from sim.planning.charts import CHARTS, plan_charts
from sim.planning.result import PlanResult
from sim.planning.words import headline, money, option_rows, sentences, shortlist
from sim.report import PAGE as REPORT_PAGE
from sim.report import json_script, vega_script

__all__ = ["plan_html"]

PAGE = Path(__file__).parent / "data" / "plan.html"


def plan_html(result: PlanResult) -> str:
    """Return the page as text.

    Parameters
    ----------
    result : PlanResult
        A plan.
    """
    charts = plan_charts(result)
    parts = {
        "title": html.escape(result.file.name),
        "style": _style(),
        "headline": html.escape(headline(result)),
        "cards": "\n".join(_cards(result)),
        "sentences": "\n".join(f"<li>{html.escape(s)}</li>" for s in sentences(result)),
        "shortlist": _table(*option_rows(result, shortlist(result))),
        "options": _table(*option_rows(result, result.options)),
        "charts": "\n".join(_figure(key) for key in charts),
        "orders": _frame(_orders(result)),
        "prices": _frame(_prices(result)),
        "faults": "\n".join(_faults(result)),
        "assumptions": _frame(result.assumptions.astype(object)),
        "specs": json_script({key: chart.to_dict() for key, chart in charts.items()}),
        "vega": vega_script(),
    }
    return Template(PAGE.read_text(encoding="utf-8")).substitute(parts)


def _style() -> str:
    """Return the style of the other reports."""
    text = REPORT_PAGE.read_text(encoding="utf-8")
    return text[text.index("<style>") : text.index("</style>") + len("</style>")]


def _figure(key: str) -> str:
    title, text, _ = CHARTS[key]
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b> {html.escape(text)}</figcaption>"
        f'<div class="chart" id="{key}"></div></figure>'
    )


def _cards(result: PlanResult) -> Iterable[str]:
    best, coin = result.best, result.file.money.currency
    foot = result.footprints[best.rating.candidate.name]
    figures = {
        "accelerators at the peak": f"{int(best.accelerators.max()):,}",
        "present cost": money(best.present, coin),
        "per month, levelised": money(best.month, coin),
        **{
            f"per million {kind} tokens": f"{value:.{3 if value > 0.01 else 1}g} {coin}"
            for kind, value in best.per_million.items()
            if value
        },
        "IT power at the peak": f"{best.fleet.peak_watts().max() / 1e3:,.1f} kW",
        "energy over the plan": f"{foot.energy_j / 3.6e9:,.0f} MWh",
        "carbon over the plan": f"{foot.carbon_g / 1e6:,.0f} t",
    }
    for label, value in figures.items():
        words = f"<b>{html.escape(value)}</b><span>{html.escape(label)}</span>"
        yield f'<div class="card">{words}</div>'


def _orders(result: PlanResult) -> pd.DataFrame:
    """Return the orders in units that people read."""
    plan, coin = result.schedule, result.file.money.currency
    return pd.DataFrame(
        {
            "quarter": plan["quarter"],
            "peak [requests/s]": plan["peak_per_s"].map("{:,.1f}".format),
            "replicas": plan["replicas"],
            "accelerators needed, with spares": plan["accelerators"],
            "order now": plan["order_of"],
            "become ready [nodes]": plan["ready"],
            "owned [nodes]": plan["in_service"],
            "rented accelerators, mean": plan["rented"].map("{:,.1f}".format),
            f"paid for nodes [{coin}]": plan["paid"].map("{:,.0f}".format),
            f"cost [{coin}]": plan["cost"].map("{:,.0f}".format),
            "peak [kW]": (plan["peak_w"] / 1e3).map("{:,.1f}".format),
        }
    )


def _prices(result: PlanResult) -> pd.DataFrame:
    """Return what the same tokens cost here and at list prices of APIs."""
    coin, best = result.file.money.currency, result.best
    own = {"api": "this plan", "present": best.present, "ratio": 1.0}
    rows = [own | {"input": best.per_million["input"], "output": best.per_million["output"]}]
    table = pd.concat([pd.DataFrame(rows), result.api], ignore_index=True)
    return pd.DataFrame(
        {
            "price": table["api"],
            f"input [{coin}/M tokens]": table["input"].map("{:.3g}".format),
            f"output [{coin}/M tokens]": table["output"].map("{:.3g}".format),
            f"all tokens of the plan [{coin}]": table["present"].map("{:,.0f}".format),
            "over this plan": table["ratio"].map("{:.2f} x".format),
        }
    )


def _faults(result: PlanResult) -> Iterable[str]:
    every = dict(result.faults)
    every |= {o.name: o.fault for o in result.options if o.fault is not None}
    for name, fault in every.items():
        words = f"{fault.what}; {fault.repair}" if fault.repair else fault.what
        yield f"<li><b>{html.escape(name)}</b>: {html.escape(words)}</li>"
    if not every:
        yield "<li>Every candidate can serve the load.</li>"


def _frame(table: pd.DataFrame) -> str:
    rows = [[str(cell) for cell in row] for row in table.itertuples(index=False)]
    return _table(list(table.columns), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cell(text: str) -> str:
    number = bool(text) and (text[0].isdigit() or text[0] == "-") and len(text) < 24
    return f"<td{' class=num' if number else ''}>{html.escape(text)}</td>"
