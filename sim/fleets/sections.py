"""Sections of a scenario that say what a fleet is made of, and what happens to it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

__all__ = [
    "AutoscalingSection",
    "ColdStart",
    "FailuresSection",
    "FleetSection",
    "HandOff",
    "PoolSection",
    "SharedCacheSection",
]

Choice = dict[str, Any]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=1e12)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Role = Literal["both", "prefill", "decode"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class PoolSection(_Section):
    """Replicas of one kind; what is left out is as in the scenario's own sections."""

    name: str = Field(min_length=1, max_length=80, description="what it is called")
    role: Role = Field("both", description="computes prompts, outputs, or both")
    replicas: int = Field(1, ge=0, le=100_000, description="replicas at the start [replica]")
    accelerator: str | None = Field(None, description="accelerator id, or a .toml")
    tp: Ranks | None = Field(None, description="tensor-parallel ranks [accelerator]")
    pp: Ranks | None = Field(None, description="pipeline stages [stage]")
    dp: Ranks | None = Field(None, description="attention data-parallel ranks [rank]")
    ep: Ranks | None = Field(None, description="expert-parallel ranks [rank]")
    cp: Ranks | None = Field(None, description="context-parallel ranks [rank]")
    power_cap_w: Positive | None = Field(None, description="limit per accelerator [W]")
    model: str | None = Field(None, description="model id, .toml or config.json")
    weights: str | None = Field(None, description="format of weights")
    kv: str | None = Field(None, description="format of the KV cache")
    profile: str | None = Field(None, description="engine profile id, or a .toml")
    batching: Choice | None = Field(None, description="how a step is filled")
    memory: Choice | None = Field(None, description="how KV memory is handed out")
    caching: Choice | None = Field(None, description="which prompts are kept")
    routing: Choice | None = Field(None, description="which of its replicas serves")
    classes: tuple[str, ...] = Field((), description="classes of traffic it serves, none = all")
    models: tuple[str, ...] = Field(
        (), description="values of the requests' model that it serves, none = all"
    )

    def changes(self) -> dict[str, Any]:
        """Return the scenario's keys that this pool sets, dotted."""
        places = {
            "hardware": ("accelerator", "tp", "pp", "dp", "ep", "cp", "power_cap_w"),
            "model": ("weights", "kv"),
            "engine": ("profile",),
            "policies": ("batching", "memory", "caching", "routing"),
        }
        found = {
            f"{section}.{name}": getattr(self, name)
            for section, names in places.items()
            for name in names
            if getattr(self, name) is not None
        }
        if self.model is not None:
            found["model.name"] = self.model
        return found | {"hardware.replicas": max(self.replicas, 1)}


class FleetSection(_Section):
    """What routers know, and when."""

    load_refresh_s: Seconds = Field(0.0, description="age at which loads are read again [s]")
    count_sent: bool = Field(
        True, description="a router adds what it has sent to a load that it has read before"
    )


class HandOff(_Section):
    """How KV caches go from prefill to decode replicas."""

    link: str = Field("infiniband-ndr", description="link of each accelerator to other nodes")
    layerwise: bool = Field(True, description="layers are sent while later ones are computed")


class SharedCacheSection(_Section):
    """A pool of KV blocks that all replicas read and write, in the memory of the nodes."""

    bytes: Positive = Field(1e12, description="capacity of all nodes together [byte]")
    link: str = Field("infiniband-ndr", description="link of a replica to the pool")
    ports: Positive = Field(1.0, description="links of a replica [1]")
    least_tokens: int = Field(
        256, ge=0, le=1 << 27, description="more tokens than cached here to fetch [token]"
    )


class ColdStart(_Section):
    """What a replica does before it serves: read weights, copy them to the chip, start."""

    storage_bytes_per_s: Positive = Field(2.0e9, description="read rate of a node [byte/s]")
    network_bytes_per_s: Positive = Field(
        1.25e10, description="network between storage and node [byte/s]"
    )
    engine_s: Seconds = Field(80.0, description="engine start without weights [s]")
    cached: bool = Field(False, description="weights are in the node's memory already")
    accelerators_per_node: int = Field(8, ge=1, le=1024, description="in a node [accelerator]")


class AutoscalingSection(_Section):
    """Which policy sets the number of replicas, how often, and within what."""

    policy: Choice = Field({"name": "target-utilisation"}, description="desired counts")
    pools: tuple[str, ...] = Field((), description="pools that are scaled, none = all")
    interval_s: FiniteFloat = Field(15.0, ge=0.01, le=1e9, description="between two decisions [s]")
    least: int = Field(1, ge=0, le=100_000, description="replicas at least [replica]")
    most: int = Field(8, ge=1, le=100_000, description="replicas at most [replica]")
    up_cooldown_s: Seconds = Field(0.0, description="between two starts [s]")
    down_cooldown_s: Seconds = Field(60.0, description="after any change, before a stop [s]")

    @model_validator(mode="after")
    def _order(self) -> "AutoscalingSection":
        if self.least > self.most:
            raise ValueError(f"least = {self.least} must not exceed most = {self.most}")
        return self


class FailuresSection(_Section):
    """What breaks, how long it takes to repair, and what becomes of the requests."""

    accelerator_mtbf_s: Positive | None = Field(
        None, description="mean time between failures of one accelerator, none = never [s]"
    )
    node_mtbf_s: Positive | None = Field(
        None, description="the same of a node, its host and network [s]"
    )
    accelerators_per_node: int = Field(8, ge=1, le=1024, description="in a node [accelerator]")
    mttr_s: Seconds = Field(3600.0, description="mean time to repair or replace [s]")
    at: tuple[tuple[Seconds, int], ...] = Field(
        (), description="failures in addition: time, replica [s, 1]"
    )
    restart_every_s: Positive | None = Field(
        None, description="rolling restart of one replica after another, none = never [s]"
    )
    detection_s: Seconds = Field(1.0, description="until the router knows [s]")
    requests: Literal["retry", "lose"] = Field("retry", description="what becomes of requests")
    retries: int = Field(10, ge=0, le=1000, description="of one request at most [1]")
    spares: int = Field(
        0, ge=0, le=100_000, description="started replicas that wait for a failure [replica]"
    )
