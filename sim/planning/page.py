"""plan.html: one page that a manager can read, with what every figure rests on behind it."""

import html
from collections.abc import Iterable, Sequence

import pandas as pd

from sim.page import Figure, Page, details_html, list_html, table_html
from sim.planning.charts import CHARTS, plan_charts
from sim.planning.options import Option
from sim.planning.result import PlanResult
from sim.planning.words import headline, money, option_rows, sentences, shortlist

__all__ = ["plan_html"]


def plan_html(result: PlanResult) -> str:
    """Return the page as text.

    Parameters
    ----------
    result : PlanResult
        A plan.
    """
    charts = plan_charts(result)
    every = details_html("All options, cheapest first", _options(result, result.options))
    appendix = details_html(
        "Appendix: every assumption, with its kind, source and date",
        _frame(result.assumptions.astype(object)),
    )
    return Page(
        result.file.name,
        headline(result),
        _cards(result),
        {key: Figure(*CHARTS[key][:2], chart) for key, chart in charts.items()},
        {
            "What to order, quarter by quarter": _frame(_orders(result)),
            "Against list prices of APIs": _frame(_prices(result)),
            "What cannot be had, and why": list_html(_faults(result), escape=False) + appendix,
        },
        f"{list_html(sentences(result))}\n<h2>The best way to have each candidate</h2>\n"
        f"{_options(result, shortlist(result))}{every}",
    ).text()


def _cards(result: PlanResult) -> dict[str, str]:
    best, coin = result.best, result.file.money.currency
    foot = result.footprints[best.name]
    return {
        "accelerators at the peak": f"{int(best.accelerators.max()):,}",
        "present cost": money(best.present, coin),
        "per month, levelised": money(best.month, coin),
        **{
            f"per million {kind} tokens": f"{value:.{3 if value > 0.01 else 1}g} {coin}"
            for kind, value in best.per_million.items()
            if value
        },
        "IT power at the peak": f"{best.peak_watts().max() / 1e3:,.1f} kW",
        "energy over the plan": f"{foot.energy_j / 3.6e9:,.0f} MWh",
        "carbon over the plan": f"{foot.carbon_g / 1e6:,.0f} t",
    }


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
        yield f"<b>{html.escape(name)}</b>: {html.escape(words)}"
    if not every:
        yield "Every candidate can serve the load."


def _options(result: PlanResult, options: Sequence[Option]) -> str:
    return table_html(*option_rows(result, options))


def _frame(table: pd.DataFrame) -> str:
    rows = [[str(cell) for cell in row] for row in table.itertuples(index=False)]
    return table_html(list(table.columns), rows)
