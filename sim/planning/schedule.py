"""What to order in each quarter, and what is then in service."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.planning.demand import quarter_names
from sim.planning.fleets import HOURS_PER_QUARTER, Fleet
from sim.planning.load import Load
from sim.planning.money import Bill, lead_quarters
from sim.planning.options import Option

__all__ = ["purchase_plan"]

Ints = npt.NDArray[np.int64]


def purchase_plan(option: Option, load: Load) -> pd.DataFrame:
    """Return the orders of an option, quarter by quarter, in the central world.

    Returns
    -------
    DataFrame
        One row per quarter: `peak_per_s` of all traffic [request/s], `replicas` and `nodes`
        needed (spares in nodes), `accelerators` to have at once, `order` = nodes to order now and
        `order_of` = of which kind, `ready` = nodes that become ready, `in_service` = nodes owned,
        `owned` = accelerators in them, `rented` = mean accelerators rented, `paid` for nodes that
        are ready and `cost` of the quarter [money], `peak_w` = IT power in the busiest hour [W].
    """
    file, held = option.pricing.file, option.bill.holding
    kinds = list(zip(option.fleet.machines, option.bill.machines, strict=True))
    orders = {own.candidate.machine: _orders(own, bill) for own, bill in kinds}
    paid = [
        bill.holding.bought[0] * prices.own.node * prices.price_factors()
        for bill, prices in zip(option.bill.machines, option.pricing.machines, strict=True)
    ]
    owned = [bill.holding.owned[0] * own.candidate.node_accelerators for own, bill in kinds]
    return pd.DataFrame(
        {
            "quarter": quarter_names(file.horizon),
            "peak_per_s": load.busy_rates().sum(axis=0).max(axis=1),
            "replicas": option.fleet.replicas[0],
            "nodes": option.fleet.nodes[0],
            "accelerators": option.accelerators,
            "order": np.sum(list(orders.values()), axis=0),
            "order_of": _in_words(orders),
            "ready": held.bought[0],
            "in_service": held.owned[0],
            "owned": np.sum(owned, axis=0),
            "rented": (held.committed_h[0] + held.hourly_h[0]) / HOURS_PER_QUARTER,
            "paid": np.sum(paid, axis=0),
            "cost": option.bill.total()[0],
            "peak_w": option.peak_watts(),
        }
    )


def _orders(fleet: Fleet, bill: Bill) -> Ints:
    """Return the nodes of one kind to order in each quarter, so that they are ready in time."""
    lead = lead_quarters(fleet.candidate.offer.lead_time_weeks)
    bought = bill.holding.bought[0]
    order = np.zeros_like(bought)
    order[: bought.size - lead] = bought[lead:]
    return np.asarray(order)


def _in_words(orders: dict[str, Ints]) -> list[str]:
    """Return what to order in each quarter, as "3 x hgx-h200-8"; nothing is a dash.

    Examples
    --------
    >>> _in_words({"hgx-h200-8": np.array([2, 0]), "l40s-8": np.array([1, 0])})
    ['2 x hgx-h200-8 + 1 x l40s-8', '-']
    """
    rows = zip(*orders.values(), strict=True)
    words = [
        " + ".join(f"{n} x {name}" for name, n in zip(orders, row, strict=True) if n)
        for row in rows
    ]
    return [text or "-" for text in words]
