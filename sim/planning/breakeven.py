"""When buying is cheaper than renting: cost of an accelerator-hour by how much it is used."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hardware.economics import (
    HOURS_PER_YEAR,
    JOULES_PER_KWH,
    break_even_utilisation,
    owned_cost_per_hour,
)
from sim.planning.demand import QUARTERS_PER_YEAR
from sim.planning.fleets import Fleet
from sim.planning.money import Pricing
from sim.planning.options import Option

__all__ = ["BreakEven", "break_even"]


@dataclass(frozen=True)
class BreakEven:
    """Cost of an accelerator, owned and rented.

    Attributes
    ----------
    owned_per_hour : float
        Capital, maintenance, hosting and idle energy of an accelerator [money/h].
    running_per_hour : float
        Energy beyond idle of an hour at full load [money/h].
    rent_per_hour : float
        On demand [money/h].
    utilisation : float
        Share of hours in use above which owning is cheaper; above 1 it never is.
    needed : float
        Share of hours in which the plan's load uses an accelerator of its fleet.
    """

    owned_per_hour: float
    running_per_hour: float
    rent_per_hour: float
    utilisation: float
    needed: float

    def curve(self) -> pd.DataFrame:
        """Return cost of an hour of use, owned and rented, by utilisation."""
        use = np.linspace(0.05, 1.0, 96)
        owned = self.owned_per_hour / use + self.running_per_hour
        return pd.DataFrame({"utilisation": use, "owned": owned, "rented": self.rent_per_hour})

    def says(self) -> str:
        """Return the comparison in words.

        Examples
        --------
        >>> BreakEven(1.0, 0.5, 2.5, 0.5, 0.6).says()
        'owning pays above 50 % of hours in use; this load uses 60 %'
        """
        if self.utilisation > 1:
            return f"rent is cheaper at any use; this load uses {100 * self.needed:.0f} % of hours"
        return (
            f"owning pays above {100 * self.utilisation:.0f} % of hours in use; this load uses "
            f"{100 * self.needed:.0f} %"
        )


def break_even(option: Option) -> BreakEven:
    """Compare owning and renting an accelerator of a candidate, in the central world.

    Of two kinds of machines it is the mean over the accelerators of a unit.
    """
    kinds = list(zip(option.fleet.machines, option.pricing.machines, strict=True))
    chips = np.array([fleet.candidate.accelerators for fleet, _ in kinds], dtype=np.float64)
    each = np.array([_of_kind(fleet, prices) for fleet, prices in kinds])
    owned, running, rent, share = (float(x) for x in chips @ each / chips.sum())
    even = break_even_utilisation(owned, rent, running)
    return BreakEven(owned, running, rent, even, share)


def _of_kind(needed: Fleet, pricing: Pricing) -> tuple[float, float, float, float]:
    """Return cost of having, running and renting an accelerator [money/h], and its use."""
    site, own, rating = pricing.site, pricing.own, needed.rating
    candidate, node = rating.candidate, rating.candidate.node_spec()
    chips = candidate.node_accelerators
    per_watt_hour = site.pue * site.electricity_per_kwh / JOULES_PER_KWH * 3600.0
    fixed = owned_cost_per_hour(
        own.node / chips,
        site.discount_rate,
        site.life_years,
        site.salvage_share * own.node / chips,
        site.maintenance_share,
    )
    hosting = pricing.node_hosting(candidate) * QUARTERS_PER_YEAR / chips / HOURS_PER_YEAR
    idle = float(rating.power(0.0)) / candidate.accelerators
    busy = float(rating.power(rating.per_replica)) / candidate.accelerators
    around = around_idle = 0.0
    if node is not None:
        around = node.overhead_w.value / chips
        around_idle = (node.overhead_idle_w or node.overhead_w).value / chips
    owned = fixed + hosting + (idle + around_idle) * per_watt_hour
    running = (busy - idle + around - around_idle) * per_watt_hour
    used = np.minimum(needed.serving.mean(axis=2) + needed.batch_hours / 168.0, needed.replicas)
    share = float((used / np.maximum(needed.nodes * candidate.replicas_per_node, 1e-9)).mean())
    return owned, running, own.on_demand, share
