"""What a fleet costs each quarter, by the way its machines are had.

Bought machines cost an annuity from the quarter they are ready to the end of the plan, so that a
horizon shorter than their life does not charge them in full. Payments fall at the start of each
quarter and are discounted from there. Arrays have the shape (S, Q): worlds and quarters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hardware.economics import JOULES_PER_KWH, annuity, facility_cost, salvage_value
from sim.planning.demand import QUARTERS_PER_YEAR
from sim.planning.fleets import HOURS_PER_QUARTER, Fleet, Worlds
from sim.planning.planfile import PlanFile
from sim.planning.prices import CandidatePrices, SitePrices
from sim.planning.racks import node_watts
from sim.planning.supply import Acquisition, Candidate

__all__ = [
    "PARTS",
    "Bill",
    "Holding",
    "Pricing",
    "best_bill",
    "bill",
    "cash_flows",
    "discounts",
    "hold",
    "lead_quarters",
    "purchases",
    "quarter_rate",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PARTS = ("capital", "maintenance", "hosting", "energy", "rent", "software", "staff")
WEEKS_OF_A_QUARTER = 52 / 4
SECONDS_PER_QUARTER = HOURS_PER_QUARTER * 3600.0
BASES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


def quarter_rate(rate: float) -> float:
    """Return the discount rate of a quarter: ``(1 + r)^(1/4) - 1``.

    Examples
    --------
    >>> round(quarter_rate(0.08), 6)
    0.019427
    """
    return float((1.0 + rate) ** (1.0 / QUARTERS_PER_YEAR) - 1.0)


def discounts(rate: float, quarters: int) -> Floats:
    """Return the present value of 1 paid at the start of each quarter, shape (quarters,).

    Examples
    --------
    >>> discounts(0.21, 5).round(4).tolist()
    [1.0, 0.9535, 0.9091, 0.8668, 0.8264]
    """
    return np.asarray((1.0 + rate) ** (-np.arange(quarters) / QUARTERS_PER_YEAR))


def lead_quarters(weeks: float) -> int:
    """Return the first quarter in which a machine ordered now can serve.

    Examples
    --------
    >>> lead_quarters(0), lead_quarters(13), lead_quarters(14)
    (0, 1, 2)
    """
    return int(np.ceil(weeks / WEEKS_OF_A_QUARTER))


@dataclass(frozen=True)
class Pricing:
    """All prices that hold for a candidate, and what its machines need.

    Attributes
    ----------
    file : PlanFile
        Staff, software, price changes.
    site : SitePrices
        Rates and tariffs.
    own : CandidatePrices
        Prices of node and rents.
    kinds : tuple of Pricing
        The same of each kind of machines, where there are two; empty with one kind.
    """

    file: PlanFile
    site: SitePrices
    own: CandidatePrices
    kinds: tuple["Pricing", ...] = ()

    @classmethod
    def of(cls, file: PlanFile, site: SitePrices, own: Sequence[CandidatePrices]) -> "Pricing":
        """Return the pricing of a candidate, from the prices of each of its kinds of machines."""
        each = tuple(cls(file, site, prices) for prices in own)
        return each[0] if len(each) == 1 else replace(each[0], kinds=each)

    @property
    def machines(self) -> tuple["Pricing", ...]:
        """The pricing of each kind of machines; itself with one kind."""
        return self.kinds or (self,)

    def node_annuity(self) -> float:
        """Return the yearly payment for one node over its life [money/year]."""
        price, site = self.own.node, self.site
        return annuity(price, site.discount_rate, site.life_years, site.salvage_share * price)

    def node_hosting(self, candidate: Candidate) -> float:
        """Return what the space and power path of one node cost each quarter [money]."""
        watts = node_watts(candidate, candidate.node_spec())
        return facility_cost(watts, self.site.hosting_per_kw_month, SECONDS_PER_QUARTER)

    def price_factors(self) -> Floats:
        """Return purchase prices of each quarter over today's, shape (Q,)."""
        quarters = np.arange(self.file.horizon.quarters)
        change = self.file.money.price_change_per_year
        return np.asarray((1.0 + change) ** (quarters / QUARTERS_PER_YEAR))


@dataclass(frozen=True)
class Holding:
    """Which machines are there, and for how long.

    Attributes
    ----------
    owned, bought : ndarray of int, shape (S, Q)
        Nodes in service, those in stock included, and nodes that become ready.
    committed_h, hourly_h : ndarray, shape (S, Q)
        Accelerator-hours of a commitment, and those rented by the hour [h].
    carried : ndarray, shape (S, Q)
        Replicas that owned or reserved machines carry without their spares.
    """

    owned: Ints
    bought: Ints
    committed_h: Floats
    hourly_h: Floats
    carried: Floats


def hold(way: Acquisition, fleet: Fleet, file: PlanFile, base: float) -> Holding:
    """Return the machines of a fleet, had in one way.

    Parameters
    ----------
    way : str
        How.
    fleet : Fleet
        What is needed.
    file : PlanFile
        Spares.
    base : float
        Share of the replicas that is bought or reserved; the rest is rented by the hour.
    """
    spares, chips = file.service.spares, fleet.candidate.accelerators
    none = np.zeros_like(fleet.nodes)
    if way.startswith("buy"):
        owned, bought = purchases(fleet, base, spares)
        carried = np.maximum(owned - spares, 0) * fleet.candidate.replicas_per_node
        hourly = fleet.hours_beyond(carried, np.where(owned == 0, spares, 0))
        return Holding(owned, bought, np.zeros(none.shape), hourly * chips, carried)
    if way.startswith("reserved"):
        carried = np.ceil(base * fleet.replicas)
        committed = (carried + spares) * HOURS_PER_QUARTER
        hourly = fleet.hours_beyond(carried, none)
        return Holding(none, none, committed * chips, hourly * chips, carried)
    hourly = fleet.hours_beyond(np.zeros(none.shape), none + spares)
    return Holding(none, none, np.zeros(none.shape), hourly * chips, np.zeros(none.shape))


def purchases(fleet: Fleet, base: float, spares: int) -> tuple[Ints, Ints]:
    """Return nodes in service and nodes that become ready in each quarter, each (S, Q).

    What is in stock serves from the start; nothing ordered is ready before its lead time, and
    nothing bought is given back.
    """
    candidate = fleet.candidate
    stock = candidate.offer.owned // candidate.node_accelerators
    wanted = np.ceil(base * fleet.replicas / candidate.replicas_per_node - 1e-9) + spares
    owned = np.maximum(np.maximum.accumulate(wanted.astype(np.int64), axis=1), stock)
    owned[:, : lead_quarters(candidate.offer.lead_time_weeks)] = stock
    return owned, np.diff(owned, axis=1, prepend=stock)


@dataclass(frozen=True)
class Bill:
    """What one way to have a fleet costs.

    Attributes
    ----------
    way : str
        buy, on-demand, reserved, spot or a mix of two.
    base : float
        Share of the replicas that is bought or reserved.
    holding : Holding
        The machines.
    parts : dict of str to ndarray, shape (S, Q)
        Cost of each quarter by `PARTS` [money].
    kinds : tuple of Bill
        The same by kind of machines, where there are two; empty with one kind.
    """

    way: Acquisition
    base: float
    holding: Holding
    parts: dict[str, Floats]
    kinds: tuple["Bill", ...] = ()

    @property
    def machines(self) -> tuple["Bill", ...]:
        """The bill of each kind of machines; itself with one kind."""
        return self.kinds or (self,)

    def total(self) -> Floats:
        """Return the cost of each quarter, shape (S, Q) [money]."""
        return np.asarray(sum(self.parts.values()))

    def present(self, rate: float) -> Floats:
        """Return the present value of all quarters, shape (S,) [money]."""
        total = self.total()
        return np.asarray(total @ discounts(rate, total.shape[1]))


def bill(
    way: Acquisition, fleet: Fleet, pricing: Pricing, worlds: Worlds, base: float = 1.0
) -> Bill:
    """Return what a fleet costs when its machines are had in one way.

    Parameters
    ----------
    way : str
        How.
    fleet : Fleet
        What is needed.
    pricing : Pricing
        At which prices.
    worlds : Worlds
        Factors on them.
    base : float
        See `hold`.
    """
    if not fleet.kinds:
        return _bill_of_kind(way, fleet, pricing, worlds, base)
    bills = [
        _bill_of_kind(way, own, prices, worlds.of_kind(i), base)
        for i, (own, prices) in enumerate(zip(fleet.kinds, pricing.kinds, strict=True))
    ]
    parts = {name: np.asarray(sum(b.parts[name] for b in bills)) for name in PARTS}
    parts["staff"] = bills[0].parts["staff"]  # the same people
    return Bill(way, base, _joined([b.holding for b in bills]), parts, tuple(bills))


def _joined(held: Sequence[Holding]) -> Holding:
    """Return the machines of all kinds together; replicas are carried where all kinds are there."""
    return Holding(
        np.asarray(sum(h.owned for h in held)),
        np.asarray(sum(h.bought for h in held)),
        np.asarray(sum(h.committed_h for h in held)),
        np.asarray(sum(h.hourly_h for h in held)),
        np.min([h.carried for h in held], axis=0),
    )


def _bill_of_kind(
    way: Acquisition, fleet: Fleet, pricing: Pricing, worlds: Worlds, base: float
) -> Bill:
    held = hold(way, fleet, pricing.file, base)
    site, own, money = pricing.site, pricing.own, pricing.file.money
    by_hour = own.spot if way == "spot" else own.on_demand
    rent = held.committed_h * own.reserved + held.hourly_h * by_hour
    rented = (held.committed_h + held.hourly_h) / HOURS_PER_QUARTER
    chips = held.owned * fleet.candidate.node_accelerators + rented
    joules = fleet.joules_of(held.owned, held.carried)
    per_joule = site.pue * site.electricity_per_kwh / JOULES_PER_KWH
    capital = np.cumsum(held.bought * pricing.price_factors(), axis=1) * pricing.node_annuity()
    upkeep = held.owned * own.node * site.maintenance_share
    parts = {
        "capital": capital * worlds.price[:, None] / QUARTERS_PER_YEAR,
        "maintenance": upkeep * worlds.price[:, None] / QUARTERS_PER_YEAR,
        "hosting": held.owned * pricing.node_hosting(fleet.candidate),
        "energy": joules * per_joule * worlds.electricity[:, None],
        "rent": rent * worlds.rent[:, None],
        "software": chips * money.software_per_accelerator_year / QUARTERS_PER_YEAR,
        "staff": np.full(rent.shape, money.staff_per_year / QUARTERS_PER_YEAR),
    }
    return Bill(way, base, held, parts)


def best_bill(way: Acquisition, fleet: Fleet, pricing: Pricing, worlds: Worlds) -> Bill:
    """Return the cheapest bill of a way, over the shares that a mix may buy or reserve."""
    bases = BASES if "+" in way else (1.0,)
    bills = [bill(way, fleet, pricing, worlds, base) for base in bases]
    return min(bills, key=lambda b: float(b.present(pricing.site.discount_rate).mean()))


def cash_flows(bill: Bill, pricing: Pricing) -> Floats:
    """Return money received (+) and paid (-) at the start of each quarter and at the end.

    A machine is paid when it is ready, paid again when its life is over, and sold at the end of the
    plan for what its age leaves of its price.

    Returns
    -------
    ndarray, shape (Q + 1,)
        Of the first world [money].
    """
    running = bill.total()[0] - bill.parts["capital"][0]
    flows = np.append(-running, 0.0)
    for own, prices in zip(bill.machines, pricing.machines, strict=True):
        flows += _machine_flows(own.holding.bought[0], prices)
    return flows


def _machine_flows(bought: Ints, pricing: Pricing) -> Floats:
    """Return payments for nodes of one kind and what they are sold for, shape (Q + 1,) [money]."""
    site, quarters = pricing.site, pricing.file.horizon.quarters
    flows, factors = np.zeros(quarters + 1), pricing.price_factors()
    life = max(1, round(site.life_years * QUARTERS_PER_YEAR))
    for start in np.flatnonzero(bought):
        ready = np.arange(start, quarters, life)
        paid = bought[start] * pricing.own.node * factors[ready]
        flows[ready] -= paid
        age = (quarters - ready[-1]) / QUARTERS_PER_YEAR
        flows[-1] += salvage_value(float(paid[-1]), site.resale_decline, age)
    return flows
