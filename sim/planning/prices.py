"""From a plan's amounts and the cost table to numbers, keeping where each of them came from."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd

from formats import InputError, Quantity
from hardware.costs import Cost, convert, cost, costs
from hardware.economics import in_price_year, spot_rate
from hardware.power import power_shares
from sim.planning.planfile import PlanFile
from sim.planning.supply import Candidate

__all__ = [
    "Assumption",
    "CandidatePrices",
    "Ledger",
    "SitePrices",
    "candidate_prices",
    "note_power",
]

GIVEN = "plan file"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One number that a plan rests on.

    Attributes
    ----------
    item, value, unit : str, float or str, str
        What it is.
    kind, source, date : str
        datasheet, measured, fitted, assumption, or given; from where; from when.
    """

    item: str
    value: float | str
    unit: str
    kind: str
    source: str
    date: str


@dataclass
class Ledger:
    """Looks up amounts in the plan's money, and writes down each one with its source.

    Parameters
    ----------
    file : PlanFile
        Whose currency and price year hold.
    """

    file: PlanFile
    entries: dict[str, Assumption] = field(default_factory=dict)

    def note(self, item: str, value: float | str, unit: str, kind: str, source: str) -> None:
        """Write down a number that comes from elsewhere."""
        self.entries[item] = Assumption(item, value, unit, kind, source, "")

    def amount(self, item: str, given: float | str | None, unit: str) -> float:
        """Return a number: the one given, or an item of the cost table.

        Parameters
        ----------
        item : str
            Item of the cost table that holds unless `given` is a number, such as
            ``electricity.us-industrial``; a `given` word replaces what follows the dot.
        given : float, str or None
            What the plan file says.
        unit : str
            Unit of a given number.

        Raises
        ------
        InputError
            No such item.
        """
        if isinstance(given, str):
            item = f"{item.split('.')[0]}.{given}"
        elif given is not None:
            self.entries[item] = Assumption(item, given, unit, "given", GIVEN, "")
            return given
        found = cost(item)
        value = self._in_plan_money(found)
        shown = found.unit.replace(found.currency, self.file.money.currency, 1)
        unit = shown if found.currency else found.unit
        self.entries[item] = Assumption(item, value, unit, found.kind, found.source, found.date)
        return value

    def _in_plan_money(self, found: Cost) -> float:
        """Return a value in the currency and the price year of the plan."""
        if not found.currency or found.unit == "ratio":
            return found.value
        money = self.file.money
        value = convert(found.value, found.currency, money.currency)
        rate = self.amount("inflation.usd", None, "1/year")
        return in_price_year(value, found.price_year, money.price_year, rate)

    def table(self) -> pd.DataFrame:
        """Return every number written down, by item."""
        rows = [self.entries[item] for item in sorted(self.entries)]
        columns = ("item", "value", "unit", "kind", "source", "date")
        return pd.DataFrame(
            [[getattr(row, name) for name in columns] for row in rows], columns=list(columns)
        )


def note_power(ledger: Ledger) -> None:
    """Write down the constants that watts and power limits rest on, with kind and source."""
    shares = power_shares()
    for name in type(shares).model_fields:
        found = getattr(shares, name)
        if isinstance(found, Quantity):
            source = f"{found.source}; {found.note}" if found.note else found.source
            ledger.note(f"power {name}", found.value, found.unit, found.kind, source)


@dataclass(frozen=True, slots=True)
class SitePrices:
    """What holds for all candidates; money in the plan's currency.

    Attributes
    ----------
    discount_rate, life_years, salvage_share, resale_decline, maintenance_share : float
        See `Money`.
    hosting_per_kw_month, electricity_per_kwh, pue, carbon_g_per_kwh : float
        See `Site`; hosting is 0 in one's own hall.
    embodied_g : float
        Making one accelerator [gCO2].
    """

    discount_rate: float
    life_years: float
    salvage_share: float
    resale_decline: float
    maintenance_share: float
    hosting_per_kw_month: float
    electricity_per_kwh: float
    pue: float
    carbon_g_per_kwh: float
    embodied_g: float

    @classmethod
    def of(cls, ledger: Ledger) -> "SitePrices":
        """Look up the prices of a plan."""
        money, site, look = ledger.file.money, ledger.file.site, ledger.amount
        coin = money.currency
        hosting = 0.0
        if site.kind == "colocation":
            hosting = look("hosting.us", site.hosting, f"{coin}/kW-month")
        carbon = look(f"carbon.{site.region}", site.carbon_g_per_kwh, "gCO2/kWh")
        pue = look("pue.industry", site.pue, "1")
        if pue < 1:
            raise InputError(f"pue = {pue:g}", "[site] pue", "1 or more", "mend that value")
        return cls(
            discount_rate=look("capital.discount-rate", money.discount_rate, "1/year"),
            life_years=look("life.default", money.life_years, "year"),
            salvage_share=look("capital.salvage-share", money.salvage_share, "1"),
            resale_decline=look("capital.price-decline", money.resale_decline, "1/year"),
            maintenance_share=look("capital.maintenance-share", money.maintenance_share, "1/year"),
            hosting_per_kw_month=hosting,
            electricity_per_kwh=look("electricity.us-industrial", site.electricity, f"{coin}/kWh"),
            pue=pue,
            carbon_g_per_kwh=carbon,
            embodied_g=1e3 * look("embodied.accelerator", None, "kgCO2/accelerator"),
        )


@dataclass(frozen=True, slots=True)
class CandidatePrices:
    """Prices of one candidate in the plan's currency.

    Attributes
    ----------
    node : float
        A node with accelerators, server, network ports and storage.
    on_demand, reserved, spot : float
        Rent per accelerator and hour; spot per useful hour.
    """

    node: float
    on_demand: float
    reserved: float
    spot: float


def candidate_prices(candidate: Candidate, ledger: Ledger) -> CandidatePrices:
    """Look up the prices of a candidate.

    Raises
    ------
    InputError
        An accelerator has no price, with the key that would give it one.
    """
    offer, coin = candidate.offer, ledger.file.money.currency
    chip = candidate.accelerator.removesuffix(".toml").rsplit("/", 1)[-1]

    def priced(group: str, given: float | None, unit: str) -> float:
        if given is not None:
            return _given(candidate, ledger, group, given, unit)
        try:
            return ledger.amount(f"{group}.{chip}", None, unit)
        except InputError:
            key = {"purchase": "price", "rent": "rent"}[group]
            raise InputError(
                f"no {key} is known for {chip}", "[[candidates]]", repair=f"give {key} = ..."
            ) from None

    hourly = f"{coin}/h"
    on_demand = priced("rent", offer.rent, hourly)

    def rent(way: str, given: float | None) -> float:
        if given is not None:
            return _given(candidate, ledger, way, given, hourly)
        return on_demand * ledger.amount(f"rent.{way}-share", None, "1")

    useful = spot_rate(
        rent("spot", offer.spot),
        ledger.amount("rent.spot-interruptions", None, "1/h"),
        ledger.amount("rent.spot-lost-hours", None, "h"),
    )
    node = _node_price(candidate, ledger, priced)
    return CandidatePrices(node, on_demand, rent("reserved", offer.reserved), useful)


def _given(candidate: Candidate, ledger: Ledger, what: str, value: float, unit: str) -> float:
    """Write down a price of one candidate that the plan file gives, and return it."""
    ledger.note(f"{what} {candidate.name}", value, unit, "given", GIVEN)
    return value


def _node_price(
    candidate: Candidate, ledger: Ledger, priced: Callable[[str, float | None, str], float]
) -> float:
    """Return the price of a node with server, network ports and storage."""
    money, offer = ledger.file.money, candidate.offer
    coin = money.currency
    chips = offer.node_price
    if chips is None:
        each = priced("purchase", offer.price, f"{coin}/accelerator")
        server = 0.0
        if candidate.node_spec() is not None:
            server = ledger.amount("server.share-of-accelerators", money.server_share, "1")
        chips = each * candidate.node_accelerators * (1 + server)
    else:
        ledger.note(f"node price {candidate.name}", chips, f"{coin}/node", "given", GIVEN)
    return chips + _port_price(ledger) * money.ports_per_node + _storage_price(ledger)


def _port_price(ledger: Ledger) -> float:
    money = ledger.file.money
    if money.ports_per_node == 0:
        return 0.0
    ledger.note("ports per node", money.ports_per_node, "1", "assumption", GIVEN)
    if money.port is not None:
        return ledger.amount("network.port", money.port, f"{money.currency}/port")
    return ledger.amount("network.switch-port-400g", None, "") + ledger.amount(
        "network.optics-400g", None, ""
    )


def _storage_price(ledger: Ledger) -> float:
    money = ledger.file.money
    if money.storage_tb_per_node == 0:
        return 0.0
    ledger.note("storage per node", money.storage_tb_per_node, "TB", "assumption", GIVEN)
    per_tb = ledger.amount("storage.nvme", money.storage_per_tb, f"{money.currency}/TB")
    return per_tb * money.storage_tb_per_node


def api_prices(ledger: Ledger, model: str) -> pd.DataFrame:
    """Return list prices per million tokens: those named in the plan, and those of its model.

    Returns
    -------
    DataFrame
        Columns api, input, output [money per million tokens].
    """
    items = set(costs()["item"])
    named = {name.removeprefix("api.") for name in ledger.file.money.api}
    stem = model.lower().removesuffix(".toml")
    hosted = {item[4:].rsplit(".", 1)[0] for item in items if item.startswith("api.")}
    chosen = named | {name for name in hosted if stem in name}
    rows = [
        {
            "api": name,
            **{k: ledger.amount(f"api.{name}.{k}", None, "") for k in ("input", "output")},
        }
        for name in sorted(chosen)
    ]
    return pd.DataFrame(rows, columns=["api", "input", "output"])
