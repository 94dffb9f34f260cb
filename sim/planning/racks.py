"""What racks take, and what nodes draw at most."""

from typing import Annotated

from pydantic import Field

from hardware.specs import NodeSpec
from sim.planning.sections import Positive, Section
from sim.planning.supply import Candidate

__all__ = ["Racks", "node_watts", "nodes_per_rack", "rack_fault"]


class Racks(Section):
    """What one rack takes; a node that is too much for it is refused."""

    power_w: Positive | None = Field(None, description="power of one rack [W]")
    units: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="height of one rack [U]"
    )


def rack_fault(candidate: Candidate, racks: Racks) -> str | None:
    """Return why a node does not fit an empty rack, None where it does."""
    node = candidate.node_spec()
    if node is None:
        return None
    watts = node_watts(candidate, node)
    if racks.power_w is not None and watts > racks.power_w:
        return f"a node draws up to {watts / 1e3:.1f} kW and a rack has {racks.power_w / 1e3:.1f}"
    units = node.rack_units.value if node.rack_units else 0.0
    if racks.units is not None and units > racks.units:
        return f"a node is {units:g} U high and a rack has {racks.units}"
    return None


def nodes_per_rack(candidate: Candidate, racks: Racks) -> int | None:
    """Return how many nodes one rack takes, None where nothing limits them."""
    node = candidate.node_spec()
    limits = []
    if racks.power_w is not None:
        limits.append(racks.power_w / node_watts(candidate, node))
    if racks.units is not None and node is not None and node.rack_units is not None:
        limits.append(racks.units / node.rack_units.value)
    return int(min(limits)) if limits else None


def node_watts(candidate: Candidate, node: NodeSpec | None) -> float:
    """Return the most that one node draws: accelerators at their limit, and all around them [W]."""
    limit = candidate.power_cap_w or candidate.spec().tdp_w
    overhead = 0.0 if node is None else node.overhead_w.value
    return candidate.node_accelerators * limit + overhead
