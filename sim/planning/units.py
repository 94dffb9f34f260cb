"""What a token, a request and a user-month cost, and what the same tokens cost elsewhere."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hardware.economics import (
    HOURS_PER_MONTH,
    Work,
    cost_per_million_tokens,
    cost_per_request,
)
from sim.planning.demand import DAY_S
from sim.planning.fleets import HOURS_PER_QUARTER
from sim.planning.load import Load, growth_factors
from sim.planning.money import Bill, discounts
from sim.planning.phases import Phases
from sim.planning.rated import Rating

__all__ = ["KINDS", "Volume", "api_comparison", "joules_per_token", "unit_costs", "volumes"]

Floats = npt.NDArray[np.float64]
KINDS = ("input", "cached", "output")
SECONDS_PER_QUARTER = HOURS_PER_QUARTER * 3600.0
DAYS_PER_MONTH = HOURS_PER_MONTH / 24.0


@dataclass(frozen=True)
class Volume:
    """What one class asks for over the plan.

    Attributes
    ----------
    name : str
        Class of traffic, or batch.
    requests : ndarray, shape (Q,)
        Requests of each quarter.
    tokens : dict of str to float
        Mean input, cached and output tokens of a request.
    phases : Phases
        Time and energy of such work by cause.
    per_user_month : float or None
        Requests of a user in a month; None where users are not counted.
    """

    name: str
    requests: Floats
    tokens: dict[str, float]
    phases: Phases
    per_user_month: float | None


def volumes(rating: Rating, load: Load) -> list[Volume]:
    """Return what every class asks for, with the tokens that were simulated for a candidate."""
    found: list[Volume] = []
    trial = rating.trial
    mean = load.mean_rates().mean(axis=2) * SECONDS_PER_QUARTER
    if trial is not None:
        for one, requests in zip(load.classes, mean, strict=True):
            spec = one.spec
            monthly = spec.sessions_per_user_day * spec.requests_per_session * DAYS_PER_MONTH
            user = None if spec.users is None else monthly
            tokens = trial.tokens.get(one.name, dict.fromkeys(KINDS, 0.0))
            found.append(Volume(one.name, requests, tokens, trial.phases, user))
    for rate in rating.batches:
        daily = rate.batch.requests_per_day
        growth = growth_factors(rate.batch.growth_per_year, load.quarters, 0.5)
        requests = daily * growth * SECONDS_PER_QUARTER / DAY_S
        found.append(Volume(rate.batch.name, requests, rate.tokens, rate.phases, None))
    return found


def _work(asked: list[Volume], weights: Floats) -> dict[str, Work]:
    """Return discounted tokens of each kind with the time and energy that they caused."""
    total = {kind: np.zeros(3) for kind in KINDS}
    for volume in asked:
        requests = float(volume.requests @ weights)
        for kind in KINDS:
            tokens = requests * volume.tokens[kind]
            simulated = max(volume.phases.tokens[kind], 1e-12)
            per_token = volume.phases.seconds[kind], volume.phases.joules[kind]
            total[kind] += np.array([1.0, *(x / simulated for x in per_token)]) * tokens
    return {kind: Work(*map(float, total[kind])) for kind in KINDS}


def unit_costs(
    bill: Bill, asked: list[Volume], rate: float
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return levelised costs: present value of the bill over that of what it served.

    Parameters
    ----------
    bill : Bill
        What it costs; its first world counts.
    asked : list of Volume
        What it serves.
    rate : float
        Discount rate [1/year].

    Returns
    -------
    per_million : dict of str to float
        Kind of token -> cost of a million [money].
    per_request : dict of str to float
        Class -> cost of a request [money].
    per_user_month : dict of str to float
        Class with users -> cost of a user and month [money].
    """
    weights = discounts(rate, asked[0].requests.size)
    energy = float(bill.parts["energy"][0] @ weights)
    everything = float(bill.total()[0] @ weights)
    million = cost_per_million_tokens(_work(asked, weights), everything - energy, energy)
    request = {v.name: cost_per_request(v.tokens, million) for v in asked}
    months = {
        v.name: request[v.name] * v.per_user_month for v in asked if v.per_user_month is not None
    }
    return million, request, months


def joules_per_token(phases: Phases) -> dict[str, float]:
    """Return energy of a token of each kind while accelerators work [J]."""
    return {
        kind: phases.joules[kind] / phases.tokens[kind] if phases.tokens[kind] else 0.0
        for kind in KINDS
    }


def api_comparison(
    prices: pd.DataFrame, asked: list[Volume], rate: float, present: float
) -> pd.DataFrame:
    """Return what the plan's tokens would cost at list prices of APIs.

    Parameters
    ----------
    prices : DataFrame
        Columns api, input, output [money per million tokens]; cached input is charged as input.
    asked : list of Volume
        What is asked.
    rate : float
        Discount rate [1/year].
    present : float
        Present value of the plan [money].

    Returns
    -------
    DataFrame
        The prices, with `present` value of the same tokens and its `ratio` to the plan's.
    """
    weights = discounts(rate, asked[0].requests.size)
    work = _work(asked, weights)
    read, written = work["input"].tokens + work["cached"].tokens, work["output"].tokens
    cost = (prices["input"] * read + prices["output"] * written) / 1e6
    return prices.assign(present=cost, ratio=cost / present)
