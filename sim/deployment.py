"""From a scenario to a deployment: specs, step tables and knobs of its replicas."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.kernels import KernelModel, Limits, load_kernels
from hardware.links import load_link
from hardware.power import power_model, precision_scale
from hardware.specs import AcceleratorSpec
from policies.rules import BatchRules
from sim.communication import Communication, scale_up_link
from sim.core.knobs import KNOBS
from sim.core.layout import StepTables
from sim.drafts import Drafting, drafting_of
from sim.engines import DispatchKind, EngineProfile, engines
from sim.launches import extra_dispatch_s
from sim.memory import MemoryPlan, plan_memory, require_room, smallest_fix
from sim.one_pass import one_pass_knobs, operator_steps
from sim.parallelism import Parallelism, check_parallelism, legal_tp
from sim.rules import BlockCosts, ServingRules, policy_knobs, serving_rules, share_limits
from sim.scenario import Scenario
from sim.served import served_model
from sim.steptime import Batching, StepTimeModel, graph_sizes
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = [
    "Deployment",
    "deploy",
    "replica_communication",
    "scenario_kernels",
    "scenario_model",
    "step_model",
]

THROTTLE_C, THROTTLE_PER_K = 87.0, 0.02
COPIED_BLOCKS = 256  # blocks of a copy whose rate counts


def scenario_model(scenario: Scenario) -> ModelSpec:
    """Return the model of a scenario after its techniques, in formats that its chip runs."""
    return served_model(scenario, load_accelerator(scenario.hardware.accelerator)).model


def replica_parallelism(scenario: Scenario) -> Parallelism:
    """Return the ranks of one replica."""
    ranks = scenario.hardware
    return Parallelism(ranks.tp, ranks.pp, ranks.dp, ranks.ep, ranks.cp, ranks.micro_batches)


def replica_communication(
    scenario: Scenario, spec: AcceleratorSpec, model: ModelSpec, profile: EngineProfile
) -> Communication:
    """Return the collectives of one replica, its product of ranks checked."""
    hardware, parallel = scenario.hardware, replica_parallelism(scenario)
    inside = scale_up_link(spec, hardware.accelerator, hardware.link)
    check_parallelism(parallel, model, inside.ranks)
    between = load_link(hardware.network)
    own = profile.collectives
    one_shot = own.one_shot.value if own else None
    return Communication(model, parallel, inside, between, hardware.overlap, one_shot)


@dataclass(frozen=True)
class Deployment:
    """What one replica of a scenario is made of.

    Attributes
    ----------
    spec, model, profile : AcceleratorSpec, ModelSpec, EngineProfile
        Hardware, architecture in its number formats, engine.
    plan : MemoryPlan
        Memory of one accelerator.
    tables : StepTables
        Step times of one rank.
    knobs : ndarray of KNOBS, shape (1,)
        Parameters of the engine loop.
    fidelity : str
        "measured" or "datasheet".
    longest : int
        Longest request that may be served [token].
    parallel : Parallelism
        Ranks of the replica.
    notes : tuple of str
        Paths that the hardware takes in place of those asked for.
    quality : tuple of str
        What is known about answers after each technique.
    policies : ServingRules
        What the serving policies say.
    drafting : Drafting or None
        Speculation, None where tokens are decoded one by one.
    """

    spec: AcceleratorSpec
    model: ModelSpec
    profile: EngineProfile
    plan: MemoryPlan
    tables: StepTables
    knobs: npt.NDArray[np.void]
    fidelity: str
    longest: int
    parallel: Parallelism = field(default_factory=Parallelism)
    notes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    policies: ServingRules | None = None
    drafting: Drafting | None = None


@lru_cache(maxsize=8)
def scenario_kernels(
    accelerator: str, limits: Limits | None
) -> tuple[AcceleratorSpec, KernelModel]:
    """Return an accelerator, and kernel times of it or of a part of it."""
    spec = load_accelerator(accelerator)
    return spec, load_kernels(spec, limits)


def step_model(
    scenario: Scenario, kernels: KernelModel, profile: EngineProfile, links: Communication
) -> StepTimeModel:
    """Return the step times of a scenario's kernels on one rank."""
    choice = scenario.kernels
    return StepTimeModel(
        kernels,
        links.model,
        profile.gpu,
        links.parallel,
        scenario.model.expert_skew,
        links,
        choice.fusion,
        choice.attention == "fused",
    )


def deploy(scenario: Scenario, longest: int) -> Deployment:
    """Build one replica of a scenario.

    Parameters
    ----------
    scenario : Scenario
        What to deploy.
    longest : int
        Longest request of the workload, prompt + output [token].

    Raises
    ------
    InputError
        A name is unknown, the model does not fit, or the longest request is too long for it.
    """
    spec, kernels = scenario_kernels(scenario.hardware.accelerator, scenario.kernels.limits)
    served, profile = served_model(scenario, spec), engines.load(scenario.engine.profile)
    model, policies = served.model, serving_rules(scenario.policies)
    _check_length(scenario, model, longest)
    links = replica_communication(scenario, spec, model, profile)
    steps = step_model(scenario, kernels, profile, links)
    limits = _limits(scenario, profile, policies.batch, longest)
    drafting = drafting_of(scenario, steps, limits)
    beside = drafting.steps.extra_bytes() if drafting else (0.0, 0.0)
    plan = _checked_plan(scenario, spec, links, profile, policies, longest, beside)
    tables = _tables(steps, limits, drafting)
    costs = _block_costs(scenario, kernels, steps, tables, plan)
    knobs = _knobs(scenario, spec, model, profile, policy_knobs(policies, costs, longest))
    _set_memory(knobs, policies, plan)
    knobs["graph_tokens"] = limits.graphs.max(initial=0)
    for name, seconds in extra_dispatch_s(steps).items():
        knobs[name] += seconds * scenario.engine.host_slowness
    _share_steps(knobs, links.parallel)
    if model.kind == "encoder":
        one_pass_knobs(knobs, longest)
    if drafting:
        for name, value in drafting.knobs(scenario.run.seed).items():
            knobs[name] = value
    return Deployment(
        spec,
        model,
        profile,
        plan,
        tables,
        knobs,
        kernels.fidelity,
        longest,
        links.parallel,
        served.notes,
        (*served.quality, *(drafting.quality if drafting else ())),
        policies,
        drafting,
    )


def _limits(
    scenario: Scenario, profile: EngineProfile, batch: BatchRules, longest: int
) -> Batching:
    """Return the sizes of the step tables."""
    largest = int(profile.graphs.largest.value) if scenario.engine.cuda_graphs else 0
    graphs = graph_sizes(largest)
    return Batching(batch.max_num_batched_tokens, batch.max_num_seqs, longest, graphs)


def _tables(steps: StepTimeModel, limits: Batching, drafting: Drafting | None) -> StepTables:
    """Return the step tables of a model, or of the operator list that it stands for."""
    listed = operator_steps(steps.kernels, steps.model)
    if listed is not None:
        return listed.tables(limits)
    if drafting is None:
        return steps.tables(limits)
    return drafting.joined(steps.tables(replace(limits, logits=drafting.logits)))


def _set_memory(knobs: npt.NDArray[np.void], policies: ServingRules, plan: MemoryPlan) -> None:
    """Write the KV blocks that there are, and the shares of them that rules keep free."""
    blocks = policies.memory.blocks or plan.blocks
    knobs["num_blocks"] = blocks
    knobs["watermark_blocks"] = int(policies.memory.watermark * blocks)
    knobs["background_free"] = int(policies.order.background_free * blocks)


def _block_costs(
    scenario: Scenario,
    kernels: KernelModel,
    steps: StepTimeModel,
    tables: StepTables,
    plan: MemoryPlan,
) -> BlockCosts:
    """Return what a KV block takes to move and to compute; prompts at the rate of a full step."""
    ranks = scenario.hardware.accelerators // scenario.hardware.replicas
    block = max(plan.block, 1.0)  # a model without a KV cache keeps nothing
    copies = float(kernels.copy(COPIED_BLOCKS * block, "h2d")) / COPIED_BLOCKS
    token_s = float(tables.linear_s[-1]) / (tables.linear_s.size - 1)
    chunk, past = np.array([512.0]), np.array([2048.0])
    pair_s = float(steps.prefill_attention_s(chunk, past)[0]) / (512.0 * (2048.0 + 256.5))
    return BlockCosts(block * ranks, block, copies, token_s, pair_s)


def _check_length(scenario: Scenario, model: ModelSpec, longest: int) -> None:
    limit = scenario.engine.max_model_len or model.max_context
    if longest > limit:
        raise InputError(
            f"a request of {longest} tokens is longer than {model.name} serves",
            "[engine] max_model_len",
            f"up to {limit} tokens",
            "shorten the requests or raise max_model_len",
        )


def _checked_plan(
    scenario: Scenario,
    spec: AcceleratorSpec,
    communication: Communication,
    profile: EngineProfile,
    policies: ServingRules,
    longest: int,
    beside: tuple[float, float],
) -> MemoryPlan:
    """Return the memory plan, or say by how much it does not fit and what would."""
    model, parallel = communication.model, communication.parallel
    batch, rules = policies.batch, policies.memory
    needed = -(-longest // rules.block_size)

    def plan(parallel: Parallelism, weights: str) -> MemoryPlan:
        changed = model.model_copy(update={"weights": weights})
        return plan_memory(
            spec,
            changed,
            profile,
            parallel=parallel,
            max_tokens=batch.max_num_batched_tokens,
            max_seqs=batch.max_num_seqs,
            block_size=rules.block_size,
            utilisation=scenario.engine.memory_utilisation,
            beside=beside,
        )

    found = plan(parallel, model.weights)
    if found.blocks < needed:
        larger = _larger(parallel, model, communication.inside.ranks)
        options = {name: plan(ranks, model.weights) for name, ranks in larger.items()}
        options |= {f"--weights {w}": plan(parallel, w) for w in ("fp8", "w4a16")}
        try:
            require_room(found, needed, f"{model.name} on {spec.name}, {parallel.words}")
        except InputError as e:
            raise InputError(str(e), repair=smallest_fix(options, needed)) from None
    if rules.blocks and rules.blocks < needed:
        raise InputError(
            f"kv_blocks = {rules.blocks} cannot hold one request of {longest} tokens",
            "[policies.memory] kv_blocks",
            f"{needed} or more",
        )
    return found


def _larger(parallel: Parallelism, model: ModelSpec, domain: int) -> dict[str, Parallelism]:
    """Return legal replicas with more tensor ranks, then more stages, by option."""
    wider = {
        f"--tp {t}": replace(parallel, tp=t) for t in legal_tp(model, domain) if t > parallel.tp
    }
    stages = [parallel.pp * n for n in (2, 4, 8, 16) if parallel.pp * n <= model.layers]
    return wider | {f"--pp {n}": replace(parallel, pp=n) for n in stages}


def _share_steps(knobs: npt.NDArray[np.void], parallel: Parallelism) -> None:
    """Widen a step's limits to all micro-batches and data-parallel ranks of the replica."""
    knobs["dp"], knobs["units"] = parallel.dp, parallel.units
    names = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")
    share_limits(knobs, *(int(knobs[name][0]) for name in names))


def _dispatch_kind(model: ModelSpec) -> DispatchKind:
    """Return which dispatch times of the engine profile a model has."""
    if model.moe is not None:
        return "moe"
    return "dense_8bit" if precision(model.weights).bytes <= 1.1 else "dense"


def _thermal(spec: AcceleratorSpec, ambient_c: float) -> dict[str, float]:
    """Return the RC model of an accelerator's temperature."""
    power = spec.power
    throttle, resistance = power.throttle_temperature_c, power.thermal_resistance_k_per_w
    constant = power.thermal_time_constant_s
    rise = THROTTLE_C - 35.0
    return {
        "ambient_c": ambient_c,
        "throttle_c": throttle.value if throttle else THROTTLE_C,
        "throttle_per_k": THROTTLE_PER_K,
        "kelvin_per_w": resistance.value if resistance else 0.6 * rise / spec.tdp_w,
        "thermal_s": constant.value if constant else 20.0,
    }


def _knobs(
    scenario: Scenario,
    spec: AcceleratorSpec,
    model: ModelSpec,
    profile: EngineProfile,
    policies: dict[str, float],
) -> npt.NDArray[np.void]:
    """Collect the parameters of the engine loop from rules, profile and power model."""
    power = power_model(spec, scenario.hardware.power_cap_w)
    values = {
        **policies,
        "every_step": scenario.run.every_step,
        "log_steps": scenario.run.step_log,
        "fuse": 1,
        **profile.host_knobs(model.layers, _dispatch_kind(model), scenario.engine.host_slowness),
        "warm_rows": scenario.engine.warm_requests,
        "idle_w": power.idle_w,
        "base_w": power.base_w,
        "j_per_flop": power.j_per_flop,
        "flop_scale": precision_scale(model.activations),
        "j_per_weight_byte": power.j_per_weight_byte * (power.expert_factor if model.moe else 1),
        "j_per_kv_byte": power.j_per_kv_byte,
        "cap_w": power.cap_w,
        "window_s": power.window_s,
        "clock_free": power.clock_free,
        "full_clock_gain": power.full_clock_gain,
        "capped_gain": power.capped_gain,
        "full_cap_w": power.full_cap_w,
        "power_exponent": power.power_exponent,
        "time_exponent": power.time_exponent,
        "memory_exponent": power.memory_exponent,
        **_thermal(spec, scenario.hardware.ambient_c),
    }
    knobs = np.zeros(1, KNOBS)
    for name, value in values.items():
        knobs[name] = value
    return knobs
