"""What could be bought or rented: the candidates of a plan file, taken apart and checked."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat

from formats import InputError
from hardware.catalog import load_accelerator, load_node, nodes
from hardware.specs import AcceleratorSpec, NodeSpec
from sim.planning.demand import Served
from sim.planning.parts import OFFER, Mode, PartSpec, Ranks, Ratio, Role, counts, roles
from sim.planning.sections import Positive, Price, Section

__all__ = [
    "Acquisition",
    "Candidate",
    "CandidateSpec",
    "Part",
    "expand",
]

Acquisition = Literal["buy", "on-demand", "reserved", "spot", "buy+on-demand", "reserved+on-demand"]
Choice = TypeVar("Choice")
DEFAULT_WAYS: list[Acquisition] = ["buy", "on-demand", "reserved", "buy+on-demand"]
ALONE = "none"
BALANCED = {"name": "least-outstanding"}
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
    mode: Mode | list[Mode] = Field(
        "aggregated",
        description="aggregated; disaggregated = prefill and decode replicas apart; mixed = two "
        "accelerators behind one router, by load over speed",
    )
    ratio: Ratio | list[Ratio] = Field(
        "best",
        description="replicas of a unit, prefill : decode or first : second; best = prefill and "
        "decode such that the peak costs least rent by the bound",
    )
    prefill: PartSpec = Field(PartSpec(), description="what is different in the prefill pool")
    decode: PartSpec = Field(PartSpec(), description="what is different in the decode pool")
    second: PartSpec = Field(PartSpec(), description="what is different in the second pool")
    link: str = Field("infiniband-ndr", description="of each accelerator, for KV hand-offs")
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
    parts: tuple["Part", ...] = ()
    unsettled: bool = False  # the bound is to choose how many replicas each part has

    @property
    def accelerators(self) -> int:
        """Accelerators of one replica, or of one unit of all parts."""
        if self.parts:
            return sum(part.count * part.design.accelerators for part in self.parts)
        return self.tp * self.pp * self.dp * self.cp

    @property
    def kinds(self) -> tuple["Candidate", ...]:
        """The machines apart, by accelerator, node and price: each carries its share of a unit."""
        groups: dict[tuple[object, ...], list[Part]] = {}
        for part in self.parts:
            terms = [getattr(part.design.offer, name) for name in OFFER]
            key = part.design.accelerator, part.design.node, *terms
            groups.setdefault(key, []).append(part)
        if len(groups) < 2:
            return (self,)
        return tuple(
            group[0].design.model_copy(update={"parts": tuple(group), "mode": self.mode})
            for group in groups.values()
        )

    @property
    def machine(self) -> str:
        """What is ordered: the node, or the accelerators that come together."""
        return self.accelerator if self.node == ALONE else self.node

    @property
    def made_of(self) -> str:
        """A replica, or the pools of a unit, in words.

        Examples
        --------
        >>> spec = CandidateSpec(accelerator="h200-sxm", mode="disaggregated", ratio="1:2")
        >>> next(iter(expand([spec], Served()))).made_of
        '1 prefill h200-sxm tp1 + 2 decode h200-sxm tp1'
        """
        if not self.parts:
            ranks = [f"{a}{getattr(self, a)}" for a in RANKS if a == "tp" or getattr(self, a) > 1]
            return " ".join([self.accelerator, *ranks])
        roles = {"both": ""}
        return " + ".join(
            f"{p.count} {roles.get(p.role, p.role + ' ')}{p.design.made_of}" for p in self.parts
        )

    def with_counts(self, replicas: Sequence[int]) -> "Candidate":
        """Return the candidate with so many replicas of each part in a unit."""
        parts = tuple(
            part.model_copy(update={"count": count})
            for part, count in zip(self.parts, replicas, strict=True)
        )
        name = f"{self.name} {':'.join(map(str, replicas))}" if self.unsettled else self.name
        return self.model_copy(update={"parts": parts, "unsettled": False, "name": name})

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
        if self.parts and self.node != ALONE:
            return 1.0 / sum(part.count / part.design.replicas_per_node for part in self.parts)
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
        changes |= {f"engine.{key}": value for key, value in self.offer.engine.items()}
        return changes | self.scaled(1)

    def scaled(self, replicas: int, share: float | None = None) -> dict[str, Any]:
        """Return what a scenario of so many replicas, or units, sets.

        Parameters
        ----------
        replicas : int
            How many.
        share : float, optional
            Power limit of each accelerator over its TDP.
        """

        def cap(design: Candidate) -> float | None:
            limit = None if share is None else share * design.spec().tdp_w
            return design.power_cap_w if limit is None else limit

        balance = {} if "routing" in self.offer.policies else {"policies.routing": BALANCED}
        if not self.parts:
            own = {"hardware.replicas": replicas, "hardware.power_cap_w": cap(self)}
            return own | (balance if replicas > 1 else {})
        pools = [
            {"name": part.name, "role": part.role, "replicas": replicas * part.count}
            | {"power_cap_w": cap(part.design), "weights": part.design.weights}
            | {"accelerator": part.design.accelerator}
            | {axis: getattr(part.design, axis) for axis in RANKS}
            for part in self.parts
        ]
        return {"pools": pools, "hand_off.link": self.offer.link} | balance


class Part(Section):
    """One pool of a unit.

    Attributes
    ----------
    name, role : str
        What it is called, and what it computes.
    count : int
        Replicas in a unit.
    design : Candidate
        One of them.
    """

    name: str
    role: Role
    count: int
    design: Candidate


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
    axes = ("accelerator", "node", "weights", "kv", *RANKS, "mode", "ratio")
    choices = [_as_list(getattr(spec, axis)) for axis in axes]
    several = [axis for axis, given in zip(axes, choices, strict=True) if len(given) > 1]
    seen = set[str]()
    for combination in product(*choices):
        chosen = dict(zip(axes, combination, strict=True))
        ratio = chosen.pop("ratio")
        words = several if chosen["mode"] != "aggregated" else [a for a in several if a != "ratio"]
        name = _name(spec, chosen | {"ratio": ratio}, words)
        if name in seen and "ratio" in several and chosen["mode"] == "aggregated":
            continue  # a ratio makes no difference to it
        seen.add(name)
        plain = _plain(spec, served, name, chosen)
        yield plain if chosen["mode"] == "aggregated" else _with_parts(plain, ratio)


def _plain(spec: CandidateSpec, served: Served, name: str, chosen: Mapping[str, Any]) -> Candidate:
    """Return a candidate of one pool, its node found."""
    ranks = chosen["tp"] * chosen["pp"] * chosen["dp"] * chosen["cp"]
    node = _node(chosen["accelerator"], chosen["node"], ranks)
    model, cap = spec.model or served.name, spec.power_cap_w
    own = dict(chosen) | {"node": node}
    return Candidate(name=name, model=model, power_cap_w=cap, offer=spec, **own)


def _with_parts(plain: Candidate, ratio: Ratio) -> Candidate:
    """Return a candidate of two pools; that of a single kind of replica where one has none."""
    given = counts(ratio, plain.mode)
    if plain.mode == "mixed":
        pools = {"first": PartSpec(), "second": plain.offer.second}
    else:
        pools = {"prefill": plain.offer.prefill, "decode": plain.offer.decode}
    parts = [
        Part(name=name, role=role, count=count, design=_design(plain, name, pool))
        for (name, pool), role, count in zip(
            pools.items(), roles(plain.mode), given or (1, 1), strict=True
        )
    ]
    kept = tuple(part for part in parts if part.count)
    if len(kept) == 1:
        return kept[0].design.model_copy(update={"name": plain.name, "mode": "aggregated"})
    whole = {"name": plain.name, "mode": plain.mode, "parts": kept, "unsettled": given is None}
    return kept[0].design.model_copy(update=whole)


def _design(plain: Candidate, name: str, pool: PartSpec) -> Candidate:
    """Return a replica of one pool: the candidate's, with what is different here."""
    given = pool.model_dump(exclude_none=True)
    design = {key: value for key, value in given.items() if key not in OFFER}
    offer = {key: value for key, value in given.items() if key in OFFER}
    if design.get("accelerator", plain.accelerator) != plain.accelerator:
        offer = {key: CandidateSpec.model_fields[key].default for key in OFFER} | offer
        design = {"node": None} | design
    made = plain.model_copy(update=design)
    node = _node(made.accelerator, made.node, made.accelerators)
    own = plain.offer.model_copy(update=offer)
    return made.model_copy(
        update={"node": node, "offer": own, "name": f"{plain.name}: {name}", "mode": "aggregated"}
    )


def _as_list(given: Choice | list[Choice]) -> list[Choice]:
    return given if isinstance(given, list) else [given]


def _name(spec: CandidateSpec, chosen: dict[str, Any], several: list[str]) -> str:
    """Return the title: the one given and what varies, or accelerator, format and ranks."""
    stem = str(chosen["accelerator"]).removesuffix(".toml").rsplit("/", 1)[-1]
    parts = {"accelerator": stem, **{axis: f"{axis}{chosen[axis]}" for axis in RANKS}}
    parts["kv"] = f"kv-{chosen['kv']}"
    words = {axis: parts.get(axis, str(chosen[axis])) for axis in chosen}
    if chosen["mode"] == "mixed":
        words["mode"] = f"with {spec.second.accelerator or stem}"
    if spec.name is not None:
        return " ".join([spec.name, *(words[axis] for axis in several)])
    always = ["accelerator", *(a for a in ("weights", "kv") if chosen[a] is not None), "tp"]
    always += [axis for axis in RANKS[1:] if chosen[axis] > 1]
    if chosen["mode"] != "aggregated":
        always += ["mode", *(["ratio"] if chosen["ratio"] != "best" else [])]
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
