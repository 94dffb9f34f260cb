"""The plan file: demand, supply, site, money and doubt in one TOML file."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from formats import read_toml
from sim.planning.demand import Batch, Horizon, Served, Service, Traffic
from sim.planning.racks import Racks
from sim.planning.sections import Amount, Positive, Range, Section, Share
from sim.planning.supply import CandidateSpec

__all__ = ["Money", "PlanFile", "Search", "Site", "Uncertainty", "load_plan"]

Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
Rate = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Site(Section):
    """Where the machines stand: their power, its price and its carbon."""

    kind: Literal["colocation", "own"] = Field(
        "colocation", description="hosting paid by reserved power, or a hall of one's own"
    )
    hosting: Amount = Field("us", description="colocation, per kW and month, or hosting.<name>")
    electricity: Amount = Field("us-industrial", description="per kWh, or electricity.<name>")
    pue: Amount = Field("industry", description="facility over IT energy, or pue.<name> [1]")
    region: str = Field("usa", min_length=2, description="grid, carbon.<name>")
    carbon_g_per_kwh: Positive | None = Field(None, description="in place of region [gCO2/kWh]")
    power_limit_w: Positive | None = Field(None, description="most IT power of the site [W]")
    rack: Racks = Racks()


class Money(Section):
    """Rates and prices; what is not given comes from the cost table, with its source."""

    currency: Currency = Field("USD", description="currency of every amount of the plan")
    price_year: int = Field(2026, ge=2000, le=2100, description="year of its money")
    discount_rate: Rate | None = Field(None, description="cost of capital [1/year]")
    life_years: Positive | None = Field(None, description="life of a machine [year]")
    salvage_share: Share | None = Field(None, description="value left after its life [1]")
    resale_decline: Share | None = Field(None, description="value lost each year of use [1/year]")
    maintenance_share: Share | None = Field(None, description="of the price, each year [1/year]")
    server_share: Share | None = Field(None, description="server over its accelerators [1]")
    ports_per_node: Annotated[int, Field(ge=0, le=1000)] = Field(
        2, description="400 Gb/s network ports of a node [1]"
    )
    port: Positive | None = Field(None, description="one port: switch and optics")
    storage_tb_per_node: Annotated[FiniteFloat, Field(ge=0, le=1e6)] = Field(
        8.0, description="flash for model weights [TB]"
    )
    storage_per_tb: Positive | None = Field(None, description="flash, per TB")
    staff_per_year: Annotated[FiniteFloat, Field(ge=0, le=1e12)] = Field(
        0.0, description="people who run it, each year"
    )
    software_per_accelerator_year: Annotated[FiniteFloat, Field(ge=0, le=1e9)] = Field(
        0.0, description="licences and support, each accelerator and year"
    )
    price_change_per_year: Annotated[FiniteFloat, Field(gt=-1, le=10)] = Field(
        0.0, description="of purchase prices [1/year]"
    )
    budget: Positive | None = Field(None, description="most that the plan may cost, present value")
    api: list[str] = Field(
        default_factory=list, description="models of the list prices to compare, api.<name>"
    )


class Uncertainty(Section):
    """How far the inputs may lie from what was said: P10 and P90 as factors on the central value.

    Factors are split log-normal round 1; `growth` multiplies the yearly growth factor.
    """

    samples: int = Field(256, ge=8, le=100_000, description="points of the Latin hypercube")
    demand: Range = Field((0.8, 1.25), description="demand at the start [1]")
    growth: Range = Field((0.85, 1.2), description="growth factor of a year [1]")
    prompt: Range = Field((0.8, 1.25), description="tokens of a prompt [1]")
    output: Range = Field((0.8, 1.25), description="tokens of an output [1]")
    electricity: Range = Field((0.8, 1.4), description="tariff [1]")
    price: Range = Field((0.8, 1.2), description="purchase, by accelerator [1]")
    rent: Range = Field((0.75, 1.3), description="rent, by accelerator [1]")
    model: Range | None = Field(
        None, description="capacity of a replica, none = by how it is known [1]"
    )


class Search(Section):
    """How the simulation is run."""

    requests: int = Field(2400, ge=100, le=1_000_000, description="requests of one trial")
    replicas: int = Field(4, ge=1, le=64, description="most replicas simulated at once")
    caps: list[Annotated[FiniteFloat, Field(gt=0, le=1)]] = Field(
        [0.85, 0.7, 0.55], max_length=20, description="power limits to try, share of the TDP [1]"
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="one seed for all random streams")


class PlanFile(Section):
    """Everything that a plan needs.

    Examples
    --------
    >>> file = PlanFile(traffic=[{"requests_per_s": 3}], candidates=[{"accelerator": "h200-sxm"}])
    >>> file.horizon.quarters, file.candidates[0].tp
    (8, 1)
    """

    schema_version: Literal[1] = 1
    name: str = Field("plan", min_length=1, max_length=200, description="title of the plan")
    model: Served = Served()
    traffic: list[Traffic] = Field(
        default_factory=list, max_length=50, description="classes that somebody waits for"
    )
    batch: list[Batch] = Field(
        default_factory=list, max_length=50, description="volumes with a deadline"
    )
    horizon: Horizon = Horizon()
    service: Service = Service()
    candidates: list[CandidateSpec] = Field(
        min_length=1, max_length=100, description="what could be had"
    )
    site: Site = Site()
    money: Money = Money()
    uncertainty: Uncertainty = Uncertainty()
    search: Search = Search()

    @model_validator(mode="after")
    def _something_asked(self) -> Self:
        names = [c.name for c in self.traffic] + [c.name for c in self.batch]
        if not names:
            raise ValueError("nothing is asked; add [[traffic]] or [[batch]]")
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"two classes are called {doubled[0]!r}; give one another name")
        return self


def load_plan(path: Path) -> PlanFile:
    """Read a plan file.

    Raises
    ------
    InputError
        The file is missing, not TOML, or a key or value is wrong.
    """
    return read_toml(path, PlanFile)
