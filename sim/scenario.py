"""The scenario: one TOML file that says what is deployed, how it serves and what it is asked."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from formats import check, read_toml
from hardware.kernels import Limits
from sim.fleets.sections import (
    AutoscalingSection,
    ColdStart,
    FailuresSection,
    FleetSection,
    HandOff,
    PoolSection,
    SharedCacheSection,
)
from workloads.elementwise import Fusion
from workloads.named import WorkloadSpec

__all__ = [
    "ClassSlo",
    "Engine",
    "Hardware",
    "Kernels",
    "Model",
    "Policies",
    "Run",
    "Scenario",
    "Slo",
    "load_scenario",
]

Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Choice = dict[str, Any]
DEFAULT_WORKLOAD = WorkloadSpec.model_validate(
    {
        "arrivals": {"kind": "poisson", "rate_per_s": 2.0},
        "lengths": "azure-conv",
        "duration_s": 60.0,
    }
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Hardware(_Section):
    """What is deployed."""

    accelerator: str = Field("h200-sxm", min_length=1, description="accelerator id, or a .toml")
    replicas: int = Field(1, ge=1, le=100_000, description="independent engines [replica]")
    tp: Ranks = Field(1, description="tensor-parallel ranks of a replica [accelerator]")
    pp: Ranks = Field(1, description="pipeline stages of a replica [stage]")
    dp: Ranks = Field(1, description="attention data-parallel ranks of a replica [rank]")
    ep: Ranks = Field(1, description="expert-parallel ranks of a replica [rank]")
    cp: Ranks = Field(1, description="context-parallel ranks of a replica [rank]")
    micro_batches: int | None = Field(
        None, ge=1, le=1024, description="batches in a pipeline at once, none = pp [batch]"
    )
    link: str | None = Field(None, description="link inside a node, none = the accelerator's own")
    network: str = Field("infiniband-ndr", description="link between nodes")
    overlap: FiniteFloat = Field(
        0.0, ge=0, le=1, description="share of collectives that runs beside computation [1]"
    )
    power_cap_w: FiniteFloat | None = Field(
        None, gt=0, le=1e5, description="power limit per accelerator, none = TDP [W]"
    )
    ambient_c: FiniteFloat = Field(25.0, ge=-40, le=60, description="inlet temperature [degC]")

    @property
    def accelerators(self) -> int:
        """Accelerators of the whole deployment."""
        return self.replicas * self.tp * self.pp * self.dp * self.cp


class Model(_Section):
    """Which model is served, in which number formats."""

    name: str = Field("llama-3.1-8b", min_length=1, description="model id, .toml or config.json")
    weights: str | None = Field(None, description="format of weights, none = the file's")
    activations: str | None = Field(None, description="format of GEMM inputs, none = by weights")
    kv: str | None = Field(None, description="format of the KV cache, none = the file's")
    experts: str | None = Field(None, description="format of routed experts, none = by weights")
    accumulation: str | None = Field(None, description="format of sums, none = the file's")
    expert_skew: FiniteFloat = Field(
        0.0, ge=0, le=5, description="Zipf exponent of how often experts are chosen [1]"
    )
    techniques: dict[str, dict[str, Any]] = Field(
        {}, description="compression and attention variants, by name, in order"
    )


class Kernels(_Section):
    """How kernels are made, and how much of an accelerator they use."""

    fusion: Fusion = Field("compiled", description="element-wise work: compiler, hand, or eager")
    attention: Literal["fused", "unfused"] = Field(
        "fused", description="scores stay on chip, or pass memory"
    )
    tiled: bool = Field(True, description="products are tiled for what is on chip")
    units: int | None = Field(
        None, ge=1, le=10**7, description="compute units busy, none = all [core or SM]"
    )
    simd_bits: int | None = Field(
        None, ge=8, le=65536, description="vector width used, none = all of it [bit]"
    )
    sram_bytes: FiniteFloat | None = Field(
        None, ge=1, le=1e12, description="memory of a unit that tiles may fill, none = all [byte]"
    )

    @property
    def limits(self) -> Limits | None:
        """The part of an accelerator that is used, None for all of it."""
        found = Limits(self.units, self.simd_bits, self.sram_bytes, self.tiled)
        return None if found == Limits() else found


class Engine(_Section):
    """Which serving engine runs it."""

    profile: str = Field("vllm-0.24", min_length=1, description="engine profile id, or a .toml")
    cuda_graphs: bool = Field(True, description="capture decode steps as CUDA graphs")
    memory_utilisation: FiniteFloat | None = Field(
        None, gt=0, le=1, description="share of memory the engine may use, none = profile's [1]"
    )
    max_model_len: int | None = Field(
        None, ge=2, le=1 << 27, description="longest prompt + output, none = the model's [token]"
    )
    samples: int = Field(1, ge=1, le=1024, description="answers to each prompt [answer]")
    lora_adapters: int = Field(0, ge=0, description="LoRA adapters served (not modelled: refused)")
    structured_output: bool = Field(
        False, description="answers follow a grammar (not modelled: refused)"
    )
    host_slowness: FiniteFloat = Field(
        1.0, gt=0, le=100, description="factor on all host times of the profile [1]"
    )
    warm_requests: int = Field(
        1 << 20,
        ge=0,
        le=1 << 20,
        description="most requests of a step since the engine started; larger ones load kernels "
        "[request]",
    )


class Policies(_Section):
    """How it serves: each is {name = ..., parameter = value, ...}."""

    batching: Choice = Field({"name": "chunked-prefill"}, description="how a step is filled")
    ordering: Choice = Field({"name": "fcfs"}, description="who is served first")
    memory: Choice = Field({"name": "paged"}, description="how KV memory is handed out")
    caching: Choice = Field({"name": "prefix-lru"}, description="which prompts are kept")
    admission: Choice = Field({"name": "all"}, description="who is let in")
    answers: Choice = Field({"name": "none"}, description="whole answers that are known")
    encoder: Choice = Field({"name": "none"}, description="work of image tokens before the model")
    routing: Choice = Field({"name": "round-robin"}, description="which replica serves")
    placement: Choice = Field(
        {"name": "disaggregated"}, description="where prompts are computed, with prefill pools"
    )


class ClassSlo(_Section):
    """Objectives of a request; a request is good when it meets all that are given."""

    ttft_s: Seconds | None = Field(None, description="time to first token [s]")
    tpot_s: Seconds | None = Field(None, description="time per output token [s]")
    e2e_s: Seconds | None = Field(None, description="arrival to last token [s]")
    percentile: FiniteFloat = Field(
        99.0, gt=0, le=100, description="share of requests that must be good [%]"
    )


class Slo(ClassSlo):
    """Objectives of all requests, and of classes of traffic that have their own."""

    classes: dict[str, ClassSlo] = Field(
        {}, description="objectives of a class, in place of those of all requests"
    )


class Run(_Section):
    """How it is simulated."""

    seed: int = Field(0, ge=0, le=2**63 - 1, description="one seed for all random streams")
    horizon_s: FiniteFloat | None = Field(
        None, gt=0, le=1e9, description="stop here, none = when all is done [s]"
    )
    warmup: Literal["none", "mser"] | Seconds = Field(
        "none", description="left out of the metrics at the start: a rule, or seconds [s]"
    )
    every_step: bool = Field(False, description="one row per engine step in steps.csv")
    step_log: bool = Field(True, description="keep the step log; off saves memory in long runs")


class Scenario(_Section):
    """Everything one simulation needs.

    Examples
    --------
    >>> scenario = Scenario(workload={"named": "chat", "duration_s": 60})
    >>> scenario.hardware.accelerator, scenario.model.name
    ('h200-sxm', 'llama-3.1-8b')
    """

    schema_version: Literal[1] = 1
    name: str = Field("scenario", min_length=1, max_length=200, description="title of reports")
    hardware: Hardware = Hardware()
    model: Model = Model()
    engine: Engine = Engine()
    kernels: Kernels = Kernels()
    decoding: Choice = Field({"name": "none"}, description="speculation at every decode step")
    workload: WorkloadSpec = DEFAULT_WORKLOAD
    policies: Policies = Policies()
    pools: tuple[PoolSection, ...] = ()
    fleet: FleetSection = FleetSection()
    hand_off: HandOff = HandOff()
    shared_cache: SharedCacheSection | None = None
    autoscaling: AutoscalingSection | None = None
    cold_start: ColdStart = ColdStart()
    failures: FailuresSection | None = None
    slo: Slo = Slo()
    run: Run = Run()

    def changed(self, changes: dict[str, Any]) -> "Scenario":
        """Return a scenario with other values at dotted keys.

        Examples
        --------
        >>> Scenario().changed({"hardware.tp": 2, "policies.batching.max_num_seqs": 64}).hardware.tp
        2
        """
        data = self.model_dump(exclude_unset=False)
        for key, value in changes.items():
            *path, last = key.split(".")
            place = data
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
        return check(data, Scenario, "scenario")


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file.

    Raises
    ------
    InputError
        The file is missing, not TOML, or a key or value is wrong.
    """
    return read_toml(path, Scenario)
