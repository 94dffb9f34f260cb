"""Links between accelerators: facts, fitted coefficients, and the catalog of both.

A link is measured (curves fitted to NCCL and vLLM times on that GPU), carried (curves of measured
links of its kind, rates scaled by the datasheet bandwidth) or analytic (networks: latency and
bandwidth per protocol). Facts stand in ``data/links/<id>.toml``, fitted curves in
``data/links/fitted/<id>.toml``, written by ``python -m hardware.fit_interconnect``.
"""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from formats import Catalog, Quantity
from formats.files import check
from hardware import collectives
from hardware.catalog import user_folders
from hardware.collectives import Curve, Topology

__all__ = [
    "SUBSTITUTE",
    "Band",
    "CarriedBands",
    "FittedCurve",
    "FittedLink",
    "Link",
    "Protocol",
    "coefficients",
    "curves_of",
    "link_for",
    "links",
    "load_link",
    "make_link",
]

_FOLDER = Path(__file__).parent / "data" / "links"


def _unit(unit: str) -> AfterValidator:
    def check(quantity: Quantity) -> Quantity:
        if quantity.unit != unit:
            raise ValueError(f"unit {quantity.unit!r} must be {unit!r} (SI base units)")
        if quantity.value <= 0:
            raise ValueError(f"{quantity.value:g} {unit} must be above 0")
        return quantity

    return AfterValidator(check)


Bandwidth = Annotated[Quantity, _unit("byte/s")]
Seconds = Annotated[Quantity, _unit("s")]
Ratio = Annotated[Quantity, _unit("1")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Band(_Strict):
    """Measured over predicted time: where 10 %, 50 % and 90 % of cases lie below."""

    p10: float = Field(gt=0, description="[1]")
    p50: float = Field(gt=0, description="[1]")
    p90: float = Field(gt=0, description="[1]")


class FittedCurve(_Strict):
    """One operation at one number of ranks, and its errors on sizes the fit did not see."""

    op: str = Field(description="operation")
    ranks: int = Field(ge=2, description="ranks that take part")
    start_bytes: tuple[float, ...] = Field(description="buffer at which each piece starts [byte]")
    latency_s: tuple[float, ...] = Field(description="empty message, per piece [s]")
    seconds_per_byte: tuple[float, ...] = Field(description="wire, per rank and direction [s/byte]")
    held_out: int = Field(ge=1, description="sizes the fit did not see")
    median_error: float = Field(ge=0, description="of those, absolute and relative [1]")
    p90_error: float = Field(ge=0, description="of those, absolute and relative [1]")


class FittedLink(_Strict):
    """Coefficients of one measured link."""

    schema_version: Literal[1]
    kind: Literal["fitted"]
    source: str = Field(min_length=3, description="what they were fitted to")
    held_out: str = Field(description="which sizes the fit did not see")
    largest_bytes: float = Field(gt=0, description="largest buffer measured [byte]")
    hop_s: dict[str, float] = Field(description="operation -> one more hop [s]")
    band: dict[str, Band] = Field(description="operation -> held-out measured over predicted")
    ring_share: float = Field(gt=0, description="large rings: rate over link bandwidth [1]")
    nvls_share: float | None = Field(None, description="large in-switch sums, the same [1]")
    curves: tuple[FittedCurve, ...]


class Protocol(_Strict):
    """How a network moves one message: low latency, or full bandwidth."""

    base_s: Seconds = Field(description="start of the operation [s]")
    hop_s: Seconds = Field(description="each message that waits for another [s]")
    share: Ratio = Field(description="attained part of the link bandwidth [1]")


class Link(_Strict):
    """What joins accelerators, and where its times come from.

    Examples
    --------
    >>> link = load_link("nvlink4-h200")
    >>> link.bytes_per_s.value / 1e9, link.ranks, link.fidelity
    (450.0, 8, 'measured')
    """

    schema_version: Literal[1]
    name: str = Field(min_length=2, description="as people call it")
    technology: str = Field(min_length=2, description="nvlink, pcie, infinity-fabric, ici, ...")
    topology: Topology = Field(description="switch, mesh, torus, bus or network")
    bytes_per_s: Bandwidth = Field(description="per accelerator (or port) and direction [byte/s]")
    max_ranks: Ratio = Field(description="largest domain [1]")
    accelerators: tuple[str, ...] = Field((), description="accelerators that come with this link")
    fitted: str = Field("", description="own measured curves, by file name")
    carried_from: tuple[str, ...] = Field((), description="measured links whose curves it takes")
    protocols: dict[str, Protocol] = Field({}, description="analytic form of a network")
    band: Band | None = Field(None, description="of a network: measured over predicted, assumed")
    dims: int = Field(0, ge=0, le=3, description="axes of a torus [1]")
    wrap: int = Field(0, ge=0, description="side from which an axis of a torus closes to a ring")
    note: str = Field("", description="conflicts, rules, what is uncertain")

    @model_validator(mode="after")
    def _one_origin(self) -> "Link":
        given = [bool(self.fitted), bool(self.carried_from), bool(self.protocols)]
        if sum(given) != 1:
            raise ValueError("exactly one of fitted, carried_from and protocols is needed")
        if self.topology == "torus" and not self.dims:
            raise ValueError("a torus needs dims (2 or 3)")
        return self

    @property
    def ranks(self) -> int:
        """Largest domain."""
        return round(self.max_ranks.value)

    @property
    def fidelity(self) -> Literal["measured", "carried", "analytic"]:
        """Where its times come from."""
        if self.fitted:
            return "measured"
        return "carried" if self.carried_from else "analytic"

    def residuals(self, op: str) -> Band:
        """Return measured over predicted time on cases the coefficients did not see.

        Of a carried link: how the curves of one generation predict another's. Of a network: an
        assumption of its file.
        """
        collectives.check_operation(op)
        if self.band is not None:
            return self.band
        if self.topology == "bus" and not self.fitted:
            return _carried_bands()["bus"]
        bands = coefficients(self.fitted).band if self.fitted else _carried_bands()
        while op not in bands and op in SUBSTITUTE:
            op = SUBSTITUTE[op]
        return bands[op]


class CarriedBands(_Strict):
    """How well curves of one generation of links predict another."""

    schema_version: Literal[1]
    kind: Literal["fitted"]
    source: str
    band: dict[str, Band]


def _folders() -> list[Path]:
    return [_FOLDER, *(folder / "links" for folder in user_folders())]


links = Catalog("link", Link, _folders())
_fitted = Catalog("fitted link", FittedLink, [_FOLDER / "fitted"])
_carried = Catalog("band of carried links", CarriedBands, [_FOLDER / "fitted" / "carried"])

SUBSTITUTE = {
    "custom_all_reduce": "all_reduce",
    "custom_all_reduce_eager": "custom_all_reduce",
    "send": "all_to_all",
}
"""Operation that stands in for one that a link has no curve of."""


def load_link(name: str) -> Link:
    """Return a link by name, or from a path that ends in .toml.

    Raises
    ------
    InputError
        No such link, or its file is bad.

    Examples
    --------
    >>> load_link("infiniband-ndr").bytes_per_s.value
    50000000000.0
    """
    return links.load(name)


def link_for(accelerator: str) -> Link | None:
    """Return the scale-up link that an accelerator of the catalog comes with, if any.

    Examples
    --------
    >>> link_for("b200-sxm").name
    'NVLink 5, B200 SXM'
    """
    for name in links:
        link = links.load(name)
        if accelerator in link.accelerators:
            return link
    return None


def make_link(
    name: str,
    bytes_per_s: float,
    max_ranks: int,
    topology: Topology = "switch",
    carried_from: tuple[str, ...] = ("nvlink4-h200", "nvlink5-b200"),
) -> Link:
    """Return a link that does not exist yet: a bandwidth and the curves of measured ones.

    Parameters
    ----------
    name : str
        What to call it.
    bytes_per_s : float
        Per accelerator and direction [byte/s], above 0.
    max_ranks : int
        Largest domain, at least 2.
    topology : {"switch", "mesh", "bus"}
        How ranks are joined.
    carried_from : tuple of str
        Measured links whose curves it takes.

    Examples
    --------
    >>> from hardware.interconnect import collective_s
    >>> link = make_link("twice NVLink 5", 1.8e12, 72)
    >>> bool(collective_s("all_gather", 1e9, 8, link) < collective_s("all_gather", 1e9, 8,
    ...      "nvlink5-b200"))
    True
    """
    given = {"kind": "assumption", "source": "given by the caller"}
    facts = {
        "schema_version": 1,
        "name": name,
        "technology": "hypothetical",
        "topology": topology,
        "bytes_per_s": {"value": bytes_per_s, "unit": "byte/s", **given},
        "max_ranks": {"value": max_ranks, "unit": "1", **given},
        "carried_from": carried_from,
    }
    return check(facts, Link, f"link {name!r}")


@lru_cache(maxsize=64)
def coefficients(name: str) -> FittedLink:
    """Return the fitted coefficients of a measured link by file name."""
    return _fitted.load(name)


@lru_cache(maxsize=1)
def _carried_bands() -> dict[str, Band]:
    return _carried.load("carried").band


@lru_cache(maxsize=64)
def curves_of(name: str) -> dict[str, list[Curve]]:
    """Return operation -> curves ascending in ranks of one measured link."""
    found: dict[str, list[Curve]] = {}
    fit = coefficients(name)
    for c in sorted(fit.curves, key=lambda c: c.ranks):
        starts, latency = np.array(c.start_bytes), np.array(c.latency_s)
        per_byte = np.array(c.seconds_per_byte)
        curve = Curve(c.op, c.ranks, starts, latency, per_byte, fit.hop_s.get(c.op, 0.0))
        found.setdefault(c.op, []).append(curve)
    return found
