"""Every way to have every candidate, with its cost, and in how many worlds it is the cheapest."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from hardware.economics import npv
from sim.planning.fleets import Fleet, Worlds, fleet
from sim.planning.load import Load
from sim.planning.money import (
    Bill,
    Pricing,
    best_bill,
    bill,
    cash_flows,
    discounts,
    quarter_rate,
)
from sim.planning.rated import Fault, Rating
from sim.planning.units import Volume, unit_costs, volumes
from sim.planning.verdict import site_fault
from sim.planning.worlds import Sample, draw, one_at_a_time

__all__ = ["Option", "doubts", "evaluate", "tornado"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CHUNK = 512  # worlds at once


@dataclass(frozen=True)
class Option:
    """A candidate had in one way, in the central world.

    Attributes
    ----------
    rating : Rating
        The candidate after its trials.
    fleet : Fleet
        What it takes.
    pricing : Pricing
        At which prices.
    bill : Bill
        What it costs.
    asked : list of Volume
        What it serves.
    present : float
        Present value of all payments, machines as annuities [money]; options are ranked by it.
    month : float
        Level payment of each month with that present value [money].
    npv : float
        Net present value of the cash flows, machines paid and sold [money]; negative is a cost.
    per_million, per_request, per_user_month : dict of str to float
        See `unit_costs`.
    fault : Fault or None
        Why it cannot be had.
    """

    rating: Rating
    fleet: Fleet
    pricing: Pricing
    bill: Bill
    asked: list[Volume]
    present: float
    month: float
    npv: float
    per_million: dict[str, float]
    per_request: dict[str, float]
    per_user_month: dict[str, float]
    fault: Fault | None

    @property
    def name(self) -> str:
        """Candidate and way."""
        return f"{self.rating.candidate.name}, {self.bill.way}"

    @property
    def accelerators(self) -> Ints:
        """Accelerators that may be had at once in each quarter, spares included, shape (Q,)."""
        candidate, file = self.rating.candidate, self.pricing.file
        if self.bill.way == "buy":
            return np.asarray(self.fleet.accelerators()[0])
        spare = candidate.accelerators
        if self.bill.way == "buy+on-demand":
            spare = sum(kind.node_accelerators for kind in candidate.kinds)
        return np.asarray(
            self.fleet.replicas[0] * candidate.accelerators + file.service.spares * spare
        )

    @cached_property
    def powered(self) -> list[Floats]:
        """Nodes that draw power, by kind of machines, each (1, Q); of rented ones what is had."""
        spares = self.pricing.file.service.spares
        found = []
        for own, paid in zip(self.fleet.machines, self.bill.machines, strict=True):
            node = own.candidate.node_accelerators
            had = (own.replicas + spares) * own.candidate.accelerators / node
            found.append(np.maximum(had, paid.holding.owned).astype(np.float64))
        return found

    def peak_watts(self) -> Floats:
        """Return IT power in the busiest hour of each quarter, shape (Q,) [W]."""
        return np.asarray(self.fleet.peak_watts(self.powered)[0])

    @property
    def fits(self) -> bool:
        """Whether it can be had."""
        return self.fault is None


def evaluate(rating: Rating, load: Load, pricing: Pricing) -> list[Option]:
    """Return the options of a candidate in the central world, one for each way to have it.

    A mix of which nothing is best rented by the hour is left out beside the pure way.
    """
    world, file = Worlds.central(), pricing.file
    needed = fleet(rating, load, file, world)
    fault = site_fault(rating, needed, file)
    asked = volumes(rating, load)
    ways = rating.candidate.offer.acquire
    bills = [best_bill(way, needed, pricing, world) for way in ways]
    same = [b.base == 1.0 and b.way.split("+")[0] in ways and "+" in b.way for b in bills]
    kept = [b for b, doubled in zip(bills, same, strict=True) if not doubled]
    return [_option(b, rating, needed, pricing, asked, fault) for b in kept]


def _option(
    cost: Bill,
    rating: Rating,
    needed: Fleet,
    pricing: Pricing,
    asked: list[Volume],
    fault: Fault | None,
) -> Option:
    rate, budget = pricing.site.discount_rate, pricing.file.money.budget
    present = float(cost.present(rate)[0])
    months = 3.0 * float(discounts(rate, pricing.file.horizon.quarters).sum())
    if fault is None and budget is not None and present > budget:
        what = f"costs {present:,.0f} over the plan, {budget:,.0f} may be spent"
        fault = Fault("money", what, "raise [money] budget, or relax the objectives")
    million, request, user = unit_costs(cost, asked, rate)
    flows = cash_flows(cost, pricing)
    return Option(
        rating,
        needed,
        pricing,
        cost,
        asked,
        present,
        present / months,
        npv(quarter_rate(rate), flows.tolist()),
        million,
        request,
        user,
        fault,
    )


def _chunks(worlds: Worlds) -> Iterator[Worlds]:
    for start in range(0, worlds.count, CHUNK):
        yield worlds.part(slice(start, start + CHUNK))


def _costs(options: list[Option], load: Load, worlds: Worlds) -> tuple[Floats, Floats, Floats]:
    """Return the options' present values (O, S), and replicas and nodes of the last quarter (S,).

    All options are of one candidate; the share bought or reserved in a mix stays as it is in the
    central world. A world in which the site or the supply does not carry the fleet costs infinity.
    """
    first = options[0]
    file = first.pricing.file
    present, replicas, nodes = [], [], []
    for part in _chunks(worlds):
        needed = fleet(first.rating, load, file, part)
        carried = _carried(first, needed)
        costs = [_present(option, needed, part) for option in options]
        present.append(np.where(carried, np.array(costs), np.inf))
        replicas.append(needed.replicas[:, -1])
        nodes.append(needed.nodes[:, -1])
    return np.concatenate(present, axis=1), np.concatenate(replicas), np.concatenate(nodes)


def _present(option: Option, needed: Fleet, worlds: Worlds) -> Floats:
    cost = bill(option.bill.way, needed, option.pricing, worlds, option.bill.base)
    present = cost.present(option.pricing.site.discount_rate)
    budget = option.pricing.file.money.budget
    return present if budget is None else np.where(present <= budget, present, np.inf)


def _carried(option: Option, needed: Fleet) -> npt.NDArray[np.bool_]:
    """Return in which worlds supply and site carry the fleet, shape (S,)."""
    site = option.pricing.file.site
    ok = np.ones(needed.nodes.shape[0], dtype=bool)
    for own in needed.machines:
        limit = own.candidate.offer.limit
        if limit is not None:
            ok &= own.nodes.max(axis=1) * own.candidate.node_accelerators <= limit
    if site.power_limit_w is not None:
        ok &= needed.peak_watts().max(axis=1) <= site.power_limit_w
    return ok


def doubts(options: list[Option], load: Load, sample: Sample) -> pd.DataFrame:
    """Return what the sampled worlds say of every option.

    Returns
    -------
    DataFrame
        One row per option: candidate, way, P10 / P50 / P90 of replicas and nodes in the last
        quarter and of the present value (over the worlds in which it can be had), `can_be_had` =
        chance that it can be had, `cheapest` = chance that it is the cheapest of all.
    """
    rows, costs = [], []
    for group in _by_candidate(options):
        worlds = sample.worlds(_chips(group[0]))
        present, replicas, nodes = _costs(group, load, worlds)
        costs.append(present)
        sizes = {f"replicas_{k}": v for k, v in draw(replicas).items()}
        sizes |= {f"nodes_{k}": v for k, v in draw(nodes).items()}
        for option, values in zip(group, present, strict=True):
            finite = values[np.isfinite(values)]
            band = draw(finite) if finite.size else dict.fromkeys(("p10", "p50", "p90"), np.nan)
            name, way = option.rating.candidate.name, option.bill.way
            row: dict[str, object] = {"candidate": name, "way": way}
            row |= sizes | {f"present_{k}": v for k, v in band.items()}
            rows.append(row | {"can_be_had": finite.size / values.size})
    return pd.DataFrame(rows).assign(cheapest=_cheapest(np.concatenate(costs)))


def _cheapest(costs: Floats) -> Floats:
    """Return the share of worlds (columns) in which each option (rows) costs least."""
    wins = np.zeros(costs.shape[0])
    best = costs.argmin(axis=0)[np.isfinite(costs.min(axis=0))]
    np.add.at(wins, best, 1.0)
    return np.asarray(wins / costs.shape[1])


def _by_candidate(options: list[Option]) -> list[list[Option]]:
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.rating.candidate.name, []).append(option)
    return list(groups.values())


def _chips(option: Option) -> tuple[str, ...]:
    """Return the accelerators of an option, one for each kind of machines."""
    return tuple(kind.accelerator for kind in option.rating.candidate.kinds)


def tornado(option: Option, load: Load, sample: Sample) -> pd.DataFrame:
    """Return what each factor alone does to the cost of an option.

    Returns
    -------
    DataFrame
        Columns factor, low, high (P10 and P90 of the factor), present_low, present_high (cost at
        each [money]), swing; the widest first.
    """
    worlds, names = one_at_a_time(sample, _chips(option))
    needed = fleet(option.rating, load, option.pricing.file, worlds)
    cost = bill(option.bill.way, needed, option.pricing, worlds, option.bill.base)
    present = cost.present(option.pricing.site.discount_rate).reshape(-1, 2)
    limits = np.array([sample.range_of(name, _chips(option)) for name in names])
    table = pd.DataFrame(
        {
            "factor": names,
            "low": limits[:, 0],
            "high": limits[:, 1],
            "present_low": present[:, 0],
            "present_high": present[:, 1],
            "swing": np.abs(present[:, 1] - present[:, 0]),
        }
    )
    return table.sort_values("swing", ascending=False, ignore_index=True)
