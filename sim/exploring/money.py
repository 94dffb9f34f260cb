"""What the deployment of a scenario costs per hour and per million tokens, rented and owned."""

from dataclasses import dataclass

from formats import InputError
from hardware.costs import Cost, cost
from hardware.economics import HOURS_PER_MONTH, JOULES_PER_KWH, owned_cost_per_hour, salvage_value
from hardware.specs import AcceleratorSpec

__all__ = ["WAYS", "Price", "per_million", "price_of"]

WAYS = ("rented", "owned")
RATE, LIFE, DECLINE = "capital.discount-rate", "life.default", "capital.price-decline"
MAINTENANCE, SERVER = "capital.maintenance-share", "server.share-of-accelerators"
POWER, PUE, HOSTING = "electricity.us-industrial", "pue.industry", "hosting.us"


@dataclass(frozen=True)
class Price:
    """What one accelerator costs.

    Attributes
    ----------
    way : str
        "rented" (on demand, energy included) or "owned" (capital and hosting; energy apart).
    per_hour : float
        Of every hour, used or not [USD/h].
    per_joule : float
        Electricity with cooling, 0 where rent includes it [USD/J].
    sources : tuple of str
        The numbers it rests on, with their sources.
    """

    way: str
    per_hour: float
    per_joule: float
    sources: tuple[str, ...]

    def hourly(self, accelerators: int, watts: float) -> float:
        """Return the cost of a deployment [USD/h].

        Parameters
        ----------
        accelerators : int
            How many.
        watts : float
            Mean power of all of them [W].
        """
        return accelerators * self.per_hour + watts * 3600.0 * self.per_joule


def price_of(accelerator: str, spec: AcceleratorSpec, way: str = "rented") -> Price | None:
    """Return the price of an accelerator, None where the cost table has none.

    Parameters
    ----------
    accelerator : str
        Its id, or a file that ends in .toml.
    spec : AcceleratorSpec
        Its specification.
    way : str
        "rented" or "owned".

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> price_of("h200-sxm", load_accelerator("h200-sxm")).per_hour
    3.5
    """
    name = accelerator.removesuffix(".toml").rsplit("/", 1)[-1]
    try:
        return _owned(name, spec) if way == "owned" else _rented(name)
    except InputError:
        return None


def _rented(name: str) -> Price:
    found = cost(f"rent.{name}")
    return Price("rented", found.value, 0.0, (_said(found),))


def _owned(name: str, spec: AcceleratorSpec) -> Price:
    items = [cost(i) for i in (RATE, LIFE, DECLINE, MAINTENANCE, SERVER, POWER, PUE, HOSTING)]
    rate, life, decline, maintenance, server, tariff, pue, hosting = (c.value for c in items)
    bought = cost(f"purchase.{name}")
    price = bought.value * (1 + server)
    left = salvage_value(price, decline, life)
    capital = owned_cost_per_hour(price, rate, life, salvage=left, maintenance=maintenance)
    space = spec.tdp_w / 1e3 * hosting / HOURS_PER_MONTH
    sources = tuple(_said(c) for c in (bought, *items))
    return Price("owned", capital + space, pue * tariff / JOULES_PER_KWH, sources)


def _said(found: Cost) -> str:
    return f"{found.item} = {found.value:g} {found.unit} ({found.kind}: {found.source})"


def per_million(price: Price, accelerators: int, watts: float, tokens_per_s: float) -> float:
    """Return the cost of a million tokens when all of the deployment is paid by them [USD].

    ``1e6 (hourly cost) / (3600 tokens/s)``.

    Examples
    --------
    >>> rented = Price("rented", 3.6, 0.0, ())
    >>> per_million(rented, accelerators=2, watts=700.0, tokens_per_s=1000.0)
    2.0
    """
    hourly = price.hourly(accelerators, watts)
    return 1e6 * hourly / (3600.0 * tokens_per_s) if tokens_per_s > 0 else float("inf")
