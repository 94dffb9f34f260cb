"""Parts of a fleet that is made of several pools: prefill and decode apart, or two accelerators.

Such a fleet is planned in units: a unit is so many replicas of the one pool and so many of the
other, and all that a plan says of a replica holds for a unit.
"""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from formats import InputError
from sim.planning.sections import Price, Section

__all__ = ["BEST", "OFFER", "Mode", "PartSpec", "Ratio", "Role", "counts", "roles"]

Mode = Literal["aggregated", "disaggregated", "mixed"]
Role = Literal["both", "prefill", "decode"]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Ratio = Annotated[str, Field(pattern=r"^(best|\d{1,3}:\d{1,3})$")]
BEST = "best"
OFFER = ("price", "node_price", "rent", "reserved", "spot", "lead_time_weeks", "owned", "limit")
ROLES: dict[Mode, tuple[Role, ...]] = {
    "aggregated": ("both",),
    "disaggregated": ("prefill", "decode"),
    "mixed": ("both", "both"),
}


class PartSpec(Section):
    """What is different in one pool of a candidate; the rest is as in the candidate.

    Prices, stock and limits of the candidate hold here only for the same accelerator.
    """

    accelerator: str | None = Field(None, description="accelerator id, or a .toml")
    node: str | None = Field(None, description="node id, or 'none'")
    weights: str | None = Field(None, description="format of weights")
    tp: Ranks | None = Field(None, description="tensor-parallel ranks [accelerator]")
    pp: Ranks | None = Field(None, description="pipeline stages [stage]")
    dp: Ranks | None = Field(None, description="attention data-parallel ranks [rank]")
    ep: Ranks | None = Field(None, description="expert-parallel ranks of a stage [rank]")
    cp: Ranks | None = Field(None, description="context-parallel ranks [rank]")
    price: Price | None = Field(None, description="per accelerator, without server")
    node_price: Price | None = Field(None, description="whole node, accelerators included")
    rent: Price | None = Field(None, description="on demand, per accelerator and hour")
    reserved: Price | None = Field(None, description="committed, per accelerator and hour")
    spot: Price | None = Field(None, description="spot, per accelerator and hour")
    lead_time_weeks: Annotated[FiniteFloat, Field(ge=0, le=520)] | None = Field(
        None, description="order to ready [week]"
    )
    owned: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="in stock already [accelerator]"
    )
    limit: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="most that can be had [accelerator]"
    )


def roles(mode: Mode) -> tuple[Role, ...]:
    """Return what the pools of a mode compute.

    Examples
    --------
    >>> roles("disaggregated")
    ('prefill', 'decode')
    """
    return ROLES[mode]


def counts(ratio: Ratio, mode: Mode) -> tuple[int, int] | None:
    """Return the replicas of both pools in a unit; None where the bound is to choose them.

    Raises
    ------
    InputError
        Both are 0, a pool that is needed has none, or two kinds leave the ratio open.

    Examples
    --------
    >>> counts("2:4", "mixed"), counts("best", "disaggregated")
    ((2, 4), None)
    """
    if ratio == BEST:
        if mode == "mixed":
            raise InputError(
                "a mixed fleet needs a ratio of its two accelerators",
                "[[candidates]] ratio",
                repair='give one, or several to compare: ratio = ["1:1", "3:1"]',
            )
        return None
    first, second = (int(part) for part in ratio.split(":"))
    if first + second == 0 or (mode == "disaggregated" and 0 in (first, second)):
        what = f"ratio {ratio} leaves a pool without replicas"
        raise InputError(what, "[[candidates]] ratio", "both above 0", 'give such as "1:2"')
    return first, second
