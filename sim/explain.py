"""Why a step takes as long as it does: every operator against the roofs, and what memory holds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from formats import InputError
from hardware.kernels import KernelModel
from hardware.kernels_families import BYTES_PER_ELEMENT
from hardware.kernels_forms import GEMM_TYPES
from hardware.specs import AcceleratorSpec
from policies.speculation import speculation
from sim.deployment import replica_communication, scenario_kernels, step_model
from sim.encoder import vision_s
from sim.engines import engines
from sim.launches import launches
from sim.memory import MemoryPlan, plan_memory
from sim.one_pass import OperatorSteps, operator_steps
from sim.parallelism import rank_experts
from sim.scenario import Scenario
from sim.served import served_model
from sim.speculation import SpeculativeSteps, break_even_batch
from sim.steptime import Batching, StepTimeModel, graph_sizes
from workloads.counts import (
    attention_flops,
    distinct_experts,
    elementwise_ops,
    kv_bytes,
    kv_bytes_per_token,
    kv_read_bytes,
    linear_layers,
    parameters,
    vision_flops,
)
from workloads.models import ModelSpec
from workloads.precision import precision
from workloads.traffic import linear_bytes

__all__ = ["Explanation", "Load", "explain"]

PHASES = ("decode", "prefill")
COLUMNS = ["phase", "operator", "calls", "flops", "bytes", "seconds", "precision"]
BLOCK = 16
NEAR_ROOF = 0.25  # a call that takes over four times its roof, and only so many times an empty
SHORT = 10.0  # kernel, is bound by launching


@dataclass(frozen=True, slots=True)
class Load:
    """What the two steps compute.

    Parameters
    ----------
    batch, context : int
        Sequences that decode, and tokens of each, the new one included.
    prompt : int
        Tokens of the prompt of the other step.
    """

    batch: int = 32
    context: int = 1024
    prompt: int = 2048

    def __post_init__(self) -> None:
        for name in ("batch", "context", "prompt"):
            if not 1 <= getattr(self, name) <= 1 << 27:
                raise InputError(f"{name} = {getattr(self, name)}", allowed="1 to 134217728")


@dataclass(frozen=True)
class Explanation:
    """Operators and memory of one rank.

    Attributes
    ----------
    scenario : Scenario
        What is explained.
    spec, model : AcceleratorSpec, ModelSpec
        Hardware, and architecture in its number formats.
    load : Load
        Sizes of the steps.
    operators : DataFrame
        phase, operator, calls, flops [FLOP], bytes [byte], seconds [s], precision, intensity
        [FLOP/byte], ridge [FLOP/byte] (intensity at which compute and memory take as long), bound
        (compute, memory, launch or link), mfu, mbu [1].
    phases : DataFrame
        The sums of each phase: phase, tokens, flops, bytes, seconds, intensity, bound, mfu, mbu.
    plan : MemoryPlan
        Memory of one accelerator.
    notes : tuple of str
        Paths that the hardware takes in place of those asked for.
    quality : tuple of str
        What is known about answers after each technique.
    launches : int
        Kernels of a decode step.
    launch_s : (float, float)
        What launching them takes the host one by one, and the accelerator in a graph [s].
    speculation : DataFrame or None
        What drafts bring at several batches, as `sim.speculation.SpeculativeSteps.table`.
    break_even : int or None
        Largest batch up to which drafts gain; None = beyond all batches, or no drafts.
    """

    scenario: Scenario
    spec: AcceleratorSpec
    model: ModelSpec
    load: Load
    operators: pd.DataFrame
    phases: pd.DataFrame
    plan: MemoryPlan
    notes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    launches: int = 0
    launch_s: tuple[float, float] = (0.0, 0.0)
    speculation: pd.DataFrame | None = None
    break_even: int | None = None

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that a token takes in the KV cache of one rank [byte]."""
        return kv_bytes_per_token(self.model, tp=self.scenario.hardware.tp)

    def largest(self) -> pd.DataFrame:
        """Return how many sequences of a context fit, and the longest context of one.

        Returns
        -------
        DataFrame
            context [token], sequences.
        """
        tp, left = self.scenario.hardware.tp, max(self.plan.blocks, 0) * self.plan.block
        lengths = [2**n for n in range(9, 24) if 2**n <= self.model.max_context]
        lengths = sorted({*lengths, min(self.load.context, self.model.max_context)})
        held = np.asarray(kv_bytes(self.model, np.array(lengths, dtype=np.float64), tp=tp))
        fits = [int(left // size) if size else self.load.batch for size in held]
        return pd.DataFrame({"context": lengths, "sequences": fits})


def explain(scenario: Scenario, load: Load | None = None) -> Explanation:
    """Return where the time of a decode step and of a prompt step goes.

    Parameters
    ----------
    scenario : Scenario
        Model, accelerator, formats and ranks.
    load : Load, optional
        Sizes of the steps.

    Raises
    ------
    InputError
        A name is unknown, or the ranks do not fit the model.

    Examples
    --------
    >>> found = explain(Scenario(), Load(batch=1, context=1000, prompt=2048))
    >>> found.phases.set_index("phase")["bound"].to_dict()
    {'decode': 'memory', 'prefill': 'compute'}
    """
    wanted = load or Load()
    spec, kernels = scenario_kernels(scenario.hardware.accelerator, scenario.kernels.limits)
    served, profile = served_model(scenario, spec), engines.load(scenario.engine.profile)
    model = served.model
    links = replica_communication(scenario, spec, model, profile)
    steps = step_model(scenario, kernels, profile, links)
    largest = int(profile.graphs.largest.value) if scenario.engine.cuda_graphs else 0
    limits = Batching(1, 1, wanted.context, graph_sizes(largest))
    maker = _Operators(steps, limits, wanted)
    phases = PHASES if model.kind == "decoder" else PHASES[1:]
    listed = operator_steps(kernels, model)
    rows = [row for phase in phases for row in maker.rows(phase)]
    if listed is not None:
        rows = list(_listed(listed, wanted))
    rows += _image(steps)
    table = _judged(pd.DataFrame(rows, columns=COLUMNS), spec, kernels)
    share = scenario.engine.memory_utilisation
    plan = plan_memory(spec, model, profile, parallel=links.parallel, utilisation=share)
    sums = _sums(table, spec, wanted)
    count = launches(model, steps.tp, steps.fusion, steps.fused_attention)
    drafts = _drafts(scenario, steps, limits, wanted)
    return Explanation(
        scenario,
        spec,
        model,
        wanted,
        table,
        sums,
        plan,
        served.notes,
        served.quality,
        count,
        (count * kernels.launch(graph=False), count * kernels.launch()),
        *drafts,
    )


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def _drafts(
    scenario: Scenario, steps: StepTimeModel, limits: Batching, load: Load
) -> tuple[pd.DataFrame | None, int | None]:
    """Return what speculation brings by batch, and where it ends."""
    rules = speculation.make(scenario.decoding).rules()
    if rules.source == "none" or steps.model.kind != "decoder":
        return None, None
    drafting = SpeculativeSteps(steps, rules, limits)
    at = float(load.context)
    table = drafting.table(sorted({*BATCHES, load.batch}), at)
    return table, break_even_batch(drafting, at)


Row = tuple[str, str, int, float, float, float, str]


def _image(steps: StepTimeModel) -> list[Row]:
    """Return the encoder's work on one image, nothing for a model without a vision encoder."""
    vision = steps.model.vision
    if vision is None:
        return []
    one = np.array([1.0])
    moved = parameters(steps.model).vision * precision(steps.model.dtype).bytes
    seconds, flops = float(vision_s(steps.kernels, vision, one)[0]), float(vision_flops(vision, 1))
    return [("image", "vision encoder", vision.layers, flops, moved, seconds, "bf16")]


def _listed(steps: OperatorSteps, load: Load) -> Iterator[Row]:
    """Yield the operators of a list for as many samples as the prompt has tokens."""
    samples, element = float(load.prompt), precision(steps.model.activations).bytes
    word = GEMM_TYPES[steps.word].precision
    for op in steps.operators.operators:
        seconds = float(steps.operator_s(op, np.array([samples]))[0])
        moved = op.count * float(op.bytes(samples, element))
        flops = op.count * op.flops * samples
        yield "prefill", op.name, op.count, flops, moved, seconds, word if flops else ""


@dataclass(frozen=True)
class _Operators:
    """The operators of one step on one rank."""

    steps: StepTimeModel
    limits: Batching
    load: Load

    def rows(self, phase: str) -> Iterator[Row]:
        yield from self._products(phase)
        yield from self._experts(phase)
        yield self._attention(phase)
        yield from self._elementwise(phase)
        yield from self._links(phase)

    def _tokens(self, phase: str) -> float:
        return float(self.load.batch if phase == "decode" else self.load.prompt)

    def _run_rows(self, phase: str) -> float:
        """Return the rows that kernels run: those of the captured graph in decoding."""
        tokens = self._tokens(phase)
        return float(self.limits.padded(np.array([tokens]))[0]) if phase == "decode" else tokens

    def _logits(self, phase: str) -> float:
        return float(self.load.batch) if phase == "decode" else 1.0

    def _products(self, phase: str) -> Iterator[Row]:
        steps, model = self.steps, self.steps.model
        read, wide = precision(model.activations).bytes, precision(model.dtype).bytes
        for gemm in linear_layers(model, steps.tp):
            if gemm.tokens not in ("all", "logits", phase):
                continue
            logits = gemm.tokens == "logits"
            rows = self._logits(phase) if logits else self._tokens(phase)
            run = rows if logits else self._run_rows(phase)
            n = gemm.n * gemm.batch
            moved = linear_bytes(model, gemm)
            moved += gemm.count * rows * (gemm.k * gemm.batch * read + n * wide)
            each = float(steps.products.gemm(run, n, gemm.k, gemm.dtype))
            each *= 1.0 if logits else steps.product_factor(gemm.dtype)
            kind, word = GEMM_TYPES[gemm.dtype], gemm.name.replace("_", " ")
            flops = 2.0 * rows * gemm.elements
            yield phase, word, gemm.count, flops, moved, gemm.count * each, kind.precision

    def _experts(self, phase: str) -> Iterator[Row]:
        steps, model = self.steps, self.steps.model
        tokens, run = self._tokens(phase), self._run_rows(phase)
        for block in rank_experts(model, steps.parallel):
            per_rank = tokens * steps.parallel.dp
            share = block.top_k / steps.parallel.ep
            flops = 2.0 * per_rank * block.count * share * block.expert_elements
            everywhere = block.experts * steps.parallel.ep
            skew = steps.popularity
            touched = float(distinct_experts(everywhere, block.top_k, per_rank, skew))
            size = block.expert_elements * precision(block.weights).bytes
            moved = block.count * touched / steps.parallel.ep * size
            seconds = float(steps.experts_s(np.array([tokens]), np.array([run]))[0])
            kind = GEMM_TYPES[block.dtype]
            yield phase, "experts", block.count, flops, moved, seconds, kind.precision

    def _attention(self, phase: str) -> Row:
        steps, model, load = self.steps, self.steps.model, self.load
        if phase == "decode":
            count, new, past = load.batch, 1, load.context - 1
            at = np.array([float(load.batch)]), np.array([float(past)])
            seconds = float(steps.decode_attention_s(*at)[0])
        else:
            count, new, past = 1, load.prompt, 0
            at = np.array([float(new)]), np.array([0.0])
            seconds = float(steps.prefill_attention_s(*at)[0])
        flops = count * float(attention_flops(model, new, past, steps.tp))
        moved = count * float(kv_read_bytes(model, new + past, new, tp=steps.tp))
        groups = steps.attention.groups
        wide = sum(g.count * g.heads * (g.head_dim + g.value_dim) for g in groups)
        moved += count * new * wide * precision(model.dtype).bytes
        if not steps.fused_attention:
            moved = steps.attention.moved_unfused(count, new + past, new)
        peaks = steps.kernels.chip.peaks
        half = next(p for p in (model.dtype, "bf16", "fp16", *peaks) if p in peaks)
        return phase, "attention", model.layers, flops, moved, seconds, half

    def _elementwise(self, phase: str) -> Iterator[Row]:
        steps = self.steps
        parts: dict[str, list[float]] = {}
        wider = precision(steps.model.dtype).bytes / 2.0
        for op in elementwise_ops(steps.model, steps.tp, greedy=True, fusion=steps.fusion):
            rows = self._logits(phase) if op.tokens == "logits" else self._run_rows(phase)
            found = parts.setdefault(op.name, [0.0, 0.0, 0.0])
            found[0] += op.count
            found[1] += op.count * rows * op.width * BYTES_PER_ELEMENT[op.op] * wider
            left = 1.0 if op.tokens == "logits" else steps.elementwise_left
            found[2] += left * op.count * float(steps.wide.elementwise(op.op, rows, op.width))
        for name, (calls, moved, seconds) in parts.items():
            yield phase, name.replace("_", " "), int(calls), 0.0, moved, seconds, ""

    def _links(self, phase: str) -> Iterator[Row]:
        links = self.steps.communication
        if links is None or links.parallel.accelerators == 1:
            return
        tokens = np.array([self._tokens(phase)])
        seconds = float(links.layers_s(tokens)[0])
        seconds += float(links.head_s(np.array([self._logits(phase)]))[0])
        yield phase, "collectives", 2 * self.steps.model.layers, 0.0, 0.0, seconds, "link"


def _judged(table: pd.DataFrame, spec: AcceleratorSpec, kernels: KernelModel) -> pd.DataFrame:
    """Return the operators with intensity, ridge, bound, MFU and MBU."""
    peaks = kernels.chip.peaks
    half = kernels.chip.attention_peak
    peak = np.array([peaks.get(word, half) for word in table["precision"]])
    memory = spec.memory_bytes_per_s
    compute_s, memory_s = table["flops"] / peak, table["bytes"] / memory
    roof = np.maximum(compute_s, memory_s)
    launching = roof < NEAR_ROOF * table["seconds"]
    launching &= table["seconds"] < SHORT * table["calls"] * kernels.launch()
    bound = np.where(memory_s >= compute_s, "memory", "compute")
    bound = np.where(launching, "launch", bound)
    bound = np.where(table["precision"] == "link", "link", bound)
    return table.assign(
        intensity=table["flops"] / table["bytes"].where(table["bytes"] > 0),
        ridge=peak / memory,
        bound=bound,
        mfu=compute_s / table["seconds"],
        mbu=memory_s / table["seconds"],
    )


def _sums(table: pd.DataFrame, spec: AcceleratorSpec, load: Load) -> pd.DataFrame:
    """Return each phase as a whole; its bound is that of the operators that take most time."""
    rows = []
    for phase, part in table.groupby("phase", sort=False):
        seconds = float(part["seconds"].sum())
        by_bound = part.groupby("bound")["seconds"].sum()
        rows.append(
            {
                "phase": phase,
                "tokens": {"decode": load.batch, "prefill": load.prompt}.get(str(phase), 1),
                "flops": float(part["flops"].sum()),
                "bytes": float(part["bytes"].sum()),
                "seconds": seconds,
                "intensity": float(part["flops"].sum() / part["bytes"].sum()),
                "bound": str(by_bound.idxmax()),
                "mfu": float((part["mfu"] * part["seconds"]).sum() / seconds),
                "mbu": float((part["mbu"] * part["seconds"]).sum() / seconds),
            }
        )
    return pd.DataFrame(rows)
