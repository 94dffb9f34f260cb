"""What to order in each quarter, and what is then in service."""

import numpy as np
import pandas as pd

from sim.planning.demand import quarter_names
from sim.planning.fleets import HOURS_PER_QUARTER
from sim.planning.load import Load
from sim.planning.money import lead_quarters
from sim.planning.options import Option

__all__ = ["purchase_plan"]


def purchase_plan(option: Option, load: Load) -> pd.DataFrame:
    """Return the orders of an option, quarter by quarter, in the central world.

    Returns
    -------
    DataFrame
        One row per quarter: `peak_per_s` of all traffic [request/s], `replicas` and `nodes`
        needed (spares in nodes), `accelerators` to have at once, `order` = nodes to order now,
        `ready` = nodes that become ready, `in_service` = nodes owned, `rented` = mean accelerators
        rented, `paid` for nodes that are ready and `cost` of the quarter [money], `peak_w` = IT
        power in the busiest hour [W].
    """
    file, held = option.pricing.file, option.bill.holding
    lead = lead_quarters(option.rating.candidate.offer.lead_time_weeks)
    bought = held.bought[0]
    order = np.zeros_like(bought)
    order[: bought.size - lead] = bought[lead:]
    rented = (held.committed_h[0] + held.hourly_h[0]) / HOURS_PER_QUARTER
    peaks = load.busy_rates().sum(axis=0).max(axis=1)
    return pd.DataFrame(
        {
            "quarter": quarter_names(file.horizon),
            "peak_per_s": peaks,
            "replicas": option.fleet.replicas[0],
            "nodes": option.fleet.nodes[0],
            "accelerators": option.accelerators,
            "order": order,
            "ready": bought,
            "in_service": held.owned[0],
            "rented": rented,
            "paid": bought * option.pricing.own.node * option.pricing.price_factors(),
            "cost": option.bill.total()[0],
            "peak_w": option.fleet.peak_watts()[0],
        }
    )
