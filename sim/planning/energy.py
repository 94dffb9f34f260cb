"""Energy and carbon of a fleet: by phase, over the day, and in all."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hardware.economics import carbon_grams
from sim.planning.demand import QUARTERS_PER_YEAR
from sim.planning.options import Option
from sim.planning.units import joules_per_token

__all__ = ["Footprint", "day_power", "footprint"]


@dataclass(frozen=True)
class Footprint:
    """Energy and carbon of a fleet over the plan: all nodes that are owned, what is had of others.

    Attributes
    ----------
    energy_j : float
        Of the whole facility, PUE included [J].
    carbon_g : float
        From that energy and from making the accelerators, by the time of their life [gCO2].
    per_token_j : dict of str to float
        Kind of token -> energy while the accelerators work on it [J].
    output_token_j : float
        All IT energy over all output tokens [J].
    output_token_g : float
        All carbon over all output tokens [gCO2].
    """

    energy_j: float
    carbon_g: float
    per_token_j: dict[str, float]
    output_token_j: float
    output_token_g: float


def footprint(option: Option) -> Footprint:
    """Return energy and carbon of an option's fleet in the central world."""
    site, needed = option.pricing.site, option.fleet
    spares = option.pricing.file.service.spares
    joules = 0.0
    chips = 0.0
    for own, nodes in zip(needed.machines, option.powered, strict=True):
        carried = np.asarray((own.nodes - spares) * own.candidate.replicas_per_node)
        joules += float(own.joules_of(nodes, carried).sum())
        chips += float(nodes[0].mean()) * own.candidate.node_accelerators
    years = needed.nodes.shape[1] / QUARTERS_PER_YEAR
    making = chips * site.embodied_g * years / site.life_years
    grams = carbon_grams(joules, site.carbon_g_per_kwh, site.pue, making)
    tokens = sum(float(v.requests.sum()) * v.tokens["output"] for v in option.asked)
    phases = option.asked[0].phases
    return Footprint(
        joules * site.pue,
        grams,
        joules_per_token(phases),
        joules / tokens if tokens else 0.0,
        grams / tokens if tokens else 0.0,
    )


def day_power(option: Option) -> pd.DataFrame:
    """Return IT power over the day in the quarter that draws most.

    Returns
    -------
    DataFrame
        Columns hour, mean_w and max_w (over the days of a mean week), busy_w (the busiest day of a
        busy week) and limit_w [W].
    """
    needed, site = option.fleet, option.pricing.file.site
    quarter = int(option.peak_watts().argmax())
    busy = needed.busy_watts(option.powered)[0, quarter]
    days = needed.watts(option.powered)[0, quarter].reshape(7, 24)
    return pd.DataFrame(
        {
            "hour": range(24),
            "mean_w": days.mean(axis=0),
            "max_w": days.max(axis=0),
            "busy_w": busy.reshape(7, 24).max(axis=0),
            "limit_w": site.power_limit_w,
        }
    )
