"""Money: capital, hosting, energy, rent, break-even, cost per token and carbon.

The pure functions behind every price that a plan prints, gathered under one name. Energy is in
joule, power in watt, time in second; quoted prices keep their customary unit (per kWh, per
kW-month, per hour, per million tokens).

Examples
--------
An H200 bought at the shipped price, over the default life and rate, in USD per hour:

>>> from hardware.costs import cost
>>> price = cost("purchase.h200-sxm").value
>>> rate, years = cost("capital.discount-rate").value, cost("life.default").value
>>> round(owned_cost_per_hour(price, rate, years), 3)
1.001
"""

from hardware.capital import (
    HOURS_PER_MONTH,
    HOURS_PER_YEAR,
    JOULES_PER_KWH,
    annuity,
    capital_recovery_factor,
    energy_cost,
    facility_cost,
    npv,
    owned_cost_per_hour,
    salvage_value,
)
from hardware.renting import (
    break_even_hours,
    break_even_utilisation,
    rent_cost,
    reserved_cost,
    spot_rate,
)
from hardware.unit_costs import (
    Work,
    carbon_grams,
    cost_per_million_tokens,
    cost_per_request,
    in_price_year,
    learned_price,
)

__all__ = [
    "HOURS_PER_MONTH",
    "HOURS_PER_YEAR",
    "JOULES_PER_KWH",
    "Work",
    "annuity",
    "break_even_hours",
    "break_even_utilisation",
    "capital_recovery_factor",
    "carbon_grams",
    "cost_per_million_tokens",
    "cost_per_request",
    "energy_cost",
    "facility_cost",
    "in_price_year",
    "learned_price",
    "npv",
    "owned_cost_per_hour",
    "rent_cost",
    "reserved_cost",
    "salvage_value",
    "spot_rate",
]
