"""A plan in words and short tables: for the terminal and for the page."""

from collections.abc import Iterable, Sequence

import numpy as np

from sim.planning.options import Option
from sim.planning.result import PlanResult

__all__ = ["headline", "money", "option_rows", "sentences", "shortlist"]


def money(value: float, currency: str) -> str:
    """Return an amount as people write it.

    Examples
    --------
    >>> money(715624.7, "USD"), money(2_340_000, "EUR"), money(12.3, "USD")
    ('715,625 USD', '2.34 million EUR', '12.3 USD')
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.2f} million {currency}"
    return f"{value:,.0f} {currency}" if abs(value) >= 100 else f"{value:.3g} {currency}"


def headline(result: PlanResult) -> str:
    """Return the answer in one sentence."""
    best, coin = result.best, result.file.money.currency
    row = result.doubt(best)
    what = " + ".join(_machines(best, i) for i in range(len(best.fleet.machines)))
    return (
        f"{what} at the peak, {_way(best)}: "
        f"{money(best.present, coin)} over {result.file.horizon.quarters} quarters "
        f"(P10 to P90 {money(row['present_p10'], coin)} to {money(row['present_p90'], coin)}), "
        f"the cheapest option in {100 * row['cheapest']:.0f} % of sampled worlds."
    )


def _machines(option: Option, kind: int) -> str:
    """Return how many of one kind of machines an option has at the peak."""
    own = option.fleet.machines[kind]
    whole = option.rating.candidate
    share = own.candidate.accelerators / whole.accelerators
    nodes = int(own.nodes[0].max())
    count = option.accelerators.max() * share
    if own.candidate.node == "none":
        return f"{round(count)} x {own.rating.deployment.spec.name}"
    if option.bill.way == "buy":
        chips = nodes * own.candidate.node_accelerators
        return f"{nodes} x {own.candidate.node} ({chips} x {own.rating.deployment.spec.name})"
    return f"{round(count)} x {own.rating.deployment.spec.name}"


def _way(option: Option) -> str:
    words = {
        "buy": "bought",
        "on-demand": "rented by the hour",
        "reserved": "reserved for each quarter",
        "spot": "rented as spot capacity",
    }
    share = f"{100 * option.bill.base:.0f} %"
    mixed = {
        "buy+on-demand": f"{share} bought and the rest rented by the hour",
        "reserved+on-demand": f"{share} reserved and the rest rented by the hour",
    }
    return (words | mixed)[option.bill.way]


def sentences(result: PlanResult) -> Iterable[str]:
    """Yield what a reader should know beside the cost."""
    best, coin = result.best, result.file.money.currency
    name = best.rating.candidate.name
    yield f"{name}: {result.verdicts[name].sentence}."
    yield f"{name}: {result.break_evens[name].says()}."
    yield from _orders(result)
    yield from _limits(result)
    second = next((o for o in result.options if o.fits and o.rating.candidate.name != name), None)
    if second is not None:
        more = 100 * (second.present / best.present - 1)
        yield f"Next best candidate: {second.name}, {more:.0f} % dearer."
    for key, cost in best.per_request.items():
        yield f"A request of {key} costs {cost:.3g} {coin}."
    for key, cost in best.per_user_month.items():
        yield f"A user of {key} costs {cost:.3g} {coin} a month."
    if best.rating.candidate.parts:
        yield f"A unit of {name} is {best.rating.candidate.made_of}; replicas are counted in units."
    if best.rating.candidate.power_cap_w is not None:
        yield (
            f"Its power limit of {best.rating.candidate.power_cap_w:g} W slows work by an assumed "
            "law, not a measured one (power_exponent and memory_exponent in the assumptions)."
        )
    factor = result.tornado.iloc[0]
    yield (
        f"What matters most is {factor['factor']}: between its P10 and P90 the cost goes from "
        f"{money(factor['present_low'], coin)} to {money(factor['present_high'], coin)}."
    )


def _orders(result: PlanResult) -> Iterable[str]:
    """Yield what to order when, and what is rented until it is there."""
    plan = result.schedule
    orders = plan[plan["order"] > 0]
    if len(orders):
        what = "; ".join(
            f"{o} in {q}" for o, q in zip(orders["order_of"], orders["quarter"], strict=True)
        )
        yield f"To order: {what}."
    waiting = plan[(plan["rented"] > 0) & (plan["ready"].cumsum() < plan["ready"].sum())]
    if result.best.bill.way == "buy" and len(waiting):
        most, last = waiting["rented"].max(), waiting["quarter"].iloc[-1]
        yield f"Until all is there, up to {most:.1f} accelerators (mean) are rented, to {last}."


def _limits(result: PlanResult) -> Iterable[str]:
    """Yield power, energy, carbon and cost against what site and budget allow."""
    best, file = result.best, result.file
    foot = result.footprints[best.name]
    watts, limit = float(best.peak_watts().max()), file.site.power_limit_w
    power = f"IT power peaks at {watts / 1e3:,.1f} kW"
    if limit is not None:
        power += f", {100 * (1 - watts / limit):.0f} % below the site's {limit / 1e3:,.1f} kW"
    yield (
        f"{power}; all nodes together use {foot.energy_j / 3.6e9:,.0f} MWh and cause "
        f"{foot.carbon_g / 1e6:,.0f} t of CO2 over the plan."
    )
    coin = file.money.currency
    for row in result.api.to_dict("records"):
        change = 100 * (row["ratio"] - 1)
        side = "more" if change > 0 else "less"
        yield (
            f"The same tokens at the list price of {row['api']} cost "
            f"{money(row['present'], coin)}, {abs(change):.0f} % {side}."
        )
    budget = file.money.budget
    if budget is not None:
        spare = 100 * (1 - best.present / budget)
        yield f"Of the budget of {money(budget, coin)}, {spare:.0f} % is left."


def shortlist(result: PlanResult) -> list[Option]:
    """Return the best way to have each candidate, and every way to have the best one."""
    best, seen = result.best.rating.candidate.name, set[str]()
    found = []
    for option in result.options:
        name = option.rating.candidate.name
        if name == best or name not in seen:
            found.append(option)
        seen.add(name)
    return found


def option_rows(result: PlanResult, options: Sequence[Option]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of a table of options."""
    coin = result.file.money.currency
    columns = ["option", "replicas", "nodes", f"{coin}", "P10", "P90", "cheapest in"]
    columns += [f"{coin}/M in", f"{coin}/M out", "J/out token", "peak kW", "to spare", "limit"]
    rows = []
    for option in options:
        name = option.rating.candidate.name
        doubt, seen = result.doubt(option), result.verdicts[name]
        rows.append(
            [
                option.name,
                str(int(option.fleet.replicas[0].max())),
                str(int(option.fleet.nodes[0].max())),
                f"{option.present:,.0f}",
                f"{doubt['present_p10']:,.0f}" if option.fits else "-",
                f"{doubt['present_p90']:,.0f}" if option.fits else "-",
                f"{100 * doubt['cheapest']:.0f} %",
                f"{option.per_million['input']:.3g}",
                f"{option.per_million['output']:.3g}",
                f"{result.footprints[option.name].output_token_j:.3g}",
                f"{option.peak_watts().max() / 1e3:,.1f}",
                "-" if np.isnan(seen.spare) else f"{100 * seen.spare:.0f} %",
                seen.limit if option.fault is None else f"no: {option.fault.limit}",
            ]
        )
    return columns, rows
