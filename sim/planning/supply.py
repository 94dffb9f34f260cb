"""What could be bought or rented: the candidates of a plan file, taken apart and checked."""

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat

from formats import InputError
from hardware.catalog import load_accelerator, load_node, nodes
from hardware.specs import AcceleratorSpec, NodeSpec
from sim.planning.demand import Served
from sim.planning.sections import Positive, Price, Section

__all__ = [
    "Acquisition",
    "Candidate",
    "CandidateSpec",
    "Racks",
    "expand",
    "node_watts",
    "nodes_per_rack",
    "rack_fault",
]

Acquisition = Literal["buy", "on-demand", "reserved", "spot", "buy+on-demand", "reserved+on-demand"]
Mode = Literal["aggregated"]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Choice = TypeVar("Choice")
DEFAULT_WAYS: list[Acquisition] = ["buy", "on-demand", "reserved", "buy+on-demand"]
ALONE = "none"
RANKS = ("tp", "pp", "dp", "ep", "cp")


class CandidateSpec(Section):
    """One kind of fleet, or several: a list at a key makes one candidate of each entry."""

    name: str | None = Field(None, min_length=1, max_length=80, description="title, none = made")
    accelerator: str | list[str] = Field(description="accelerator id, or a .toml")
    node: str | list[str] | None = Field(
        None, description="node id; 'none' = accelerators alone; none given = smallest that fits"
    )
    model: str | None = Field(None, description="model, none = the plan's")
    weights: str | list[str] | None = Field(None, description="format of weights")
    kv: str | list[str] | None = Field(None, description="format of the KV cache")
    tp: Ranks | list[Ranks] = Field(1, description="tensor-parallel ranks [accelerator]")
    pp: Ranks | list[Ranks] = Field(1, description="pipeline stages [stage]")
    dp: Ranks | list[Ranks] = Field(1, description="attention data-parallel ranks [rank]")
    ep: Ranks | list[Ranks] = Field(1, description="expert-parallel ranks of a stage [rank]")
    cp: Ranks | list[Ranks] = Field(1, description="context-parallel ranks [rank]")
    mode: Mode | list[Mode] = Field("aggregated", description="serving mode")
    policies: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="[policies] of the scenario"
    )
    engine: dict[str, Any] = Field(default_factory=dict, description="[engine] of the scenario")
    power_cap_w: Positive | None = Field(None, description="limit per accelerator [W]")
    acquire: list[Acquisition] = Field(
        DEFAULT_WAYS, min_length=1, description="ways to get the machines"
    )
    price: Price | None = Field(None, description="per accelerator, without server")
    node_price: Price | None = Field(None, description="whole node, accelerators included")
    rent: Price | None = Field(None, description="on demand, per accelerator and hour")
    reserved: Price | None = Field(None, description="committed, per accelerator and hour")
    spot: Price | None = Field(None, description="spot, per accelerator and hour")
    lead_time_weeks: Annotated[FiniteFloat, Field(ge=0, le=520)] = Field(
        0.0, description="order to ready [week]"
    )
    owned: int = Field(0, ge=0, le=1_000_000, description="in stock already [accelerator]")
    limit: int | None = Field(
        None, ge=1, le=10_000_000, description="most that can be had [accelerator]"
    )


class Racks(Section):
    """What one rack takes; a node that is too much for it is refused."""

    power_w: Positive | None = Field(None, description="power of one rack [W]")
    units: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="height of one rack [U]"
    )


class Candidate(Section):
    """One design of a replica, the node that carries it, and how it can be had.

    Examples
    --------
    >>> spec = CandidateSpec(accelerator="h200-sxm", tp=[1, 2])
    >>> [c.name for c in expand([spec], Served())]
    ['h200-sxm tp1', 'h200-sxm tp2']
    """

    name: str
    accelerator: str
    node: str
    model: str
    weights: str | None
    kv: str | None
    tp: int
    pp: int
    dp: int
    ep: int
    cp: int
    mode: Mode
    power_cap_w: float | None
    offer: CandidateSpec

    @property
    def accelerators(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp * self.dp * self.cp

    def spec(self) -> AcceleratorSpec:
        """Return the accelerator."""
        return load_accelerator(self.accelerator)

    def node_spec(self) -> NodeSpec | None:
        """Return the node, None where accelerators are counted alone."""
        return None if self.node == ALONE else load_node(self.node)

    @property
    def node_accelerators(self) -> int:
        """Accelerators that come together: those of a node, or of one replica."""
        node = self.node_spec()
        return self.accelerators if node is None else node.accelerators

    @property
    def replicas_per_node(self) -> float:
        """Replicas that one node carries; below 1 where a replica spans nodes."""
        fit = self.node_accelerators // self.accelerators
        return float(fit) if fit else 1.0 / -(-self.accelerators // self.node_accelerators)

    def changes(self) -> dict[str, Any]:
        """Return what a scenario of this candidate sets, by dotted key."""
        changes: dict[str, Any] = {
            "name": self.name,
            "hardware.accelerator": self.accelerator,
            **{f"hardware.{axis}": getattr(self, axis) for axis in RANKS},
            "hardware.power_cap_w": self.power_cap_w,
            "model.name": self.model,
            "model.weights": self.weights,
            "model.kv": self.kv,
        }
        changes |= {f"policies.{axis}": choice for axis, choice in self.offer.policies.items()}
        return changes | {f"engine.{key}": value for key, value in self.offer.engine.items()}


def expand(specs: list[CandidateSpec], served: Served) -> list[Candidate]:
    """Return one candidate for each combination of the lists in each entry.

    Raises
    ------
    InputError
        A name is unknown, a node carries another accelerator, or two candidates are the same.
    """
    found = [candidate for spec in specs for candidate in _combinations(spec, served)]
    doubled = sorted({c.name for c in found if sum(d.name == c.name for d in found) > 1})
    if doubled:
        what = f"two candidates are called {doubled[0]!r}"
        raise InputError(what, "[[candidates]]", repair="give one of them another name")
    return found


def _combinations(spec: CandidateSpec, served: Served) -> Iterator[Candidate]:
    axes = ("accelerator", "node", "weights", "kv", *RANKS, "mode")
    choices = [_as_list(getattr(spec, axis)) for axis in axes]
    several = [axis for axis, given in zip(axes, choices, strict=True) if len(given) > 1]
    for combination in product(*choices):
        chosen = dict(zip(axes, combination, strict=True))
        ranks = chosen["tp"] * chosen["pp"] * chosen["dp"] * chosen["cp"]
        chosen["node"] = _node(chosen["accelerator"], chosen["node"], ranks)
        yield Candidate(
            name=_name(spec, chosen, several),
            model=spec.model or served.name,
            power_cap_w=spec.power_cap_w,
            offer=spec,
            **chosen,
        )


def _as_list(given: Choice | list[Choice]) -> list[Choice]:
    return given if isinstance(given, list) else [given]


def _name(spec: CandidateSpec, chosen: dict[str, Any], several: list[str]) -> str:
    """Return the title: the one given and what varies, or accelerator, format and ranks."""
    stem = str(chosen["accelerator"]).removesuffix(".toml").rsplit("/", 1)[-1]
    parts = {"accelerator": stem, **{axis: f"{axis}{chosen[axis]}" for axis in RANKS}}
    parts["kv"] = f"kv-{chosen['kv']}"
    words = {axis: parts.get(axis, str(chosen[axis])) for axis in chosen}
    if spec.name is not None:
        return " ".join([spec.name, *(words[axis] for axis in several)])
    always = ["accelerator", *(a for a in ("weights", "kv") if chosen[a] is not None), "tp"]
    always += [axis for axis in RANKS[1:] if chosen[axis] > 1]
    return " ".join(words[axis] for axis in [*always, *(a for a in several if a not in always)])


def _node(accelerator: str, node: str | None, ranks: int) -> str:
    """Return the node of a candidate: the one named, or the smallest that carries a replica."""
    load_accelerator(accelerator)
    if node == ALONE:
        return ALONE
    if node is not None:
        _check_carries(accelerator, node)
        return node
    sizes = {
        name: spec.accelerators
        for name, spec in ((n, nodes.load(n)) for n in nodes)
        if spec.accelerator == accelerator
    }
    fits = {name: size for name, size in sizes.items() if size >= ranks}
    return min(fits or sizes, key=lambda n: (sizes[n], n), default=ALONE)


def _check_carries(accelerator: str, node: str) -> None:
    carried = load_node(node).accelerator
    if carried != accelerator:
        raise InputError(
            f"node {node!r} carries {carried}, not {accelerator}",
            "[[candidates]] node",
            repair=f"name a node with {accelerator}, or 'none' for accelerators alone",
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
