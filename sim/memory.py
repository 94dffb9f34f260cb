"""Memory plan of one accelerator: weights, activations, and the KV blocks that are left."""

from dataclasses import dataclass

import numpy as np

from formats import InputError
from hardware.specs import AcceleratorSpec
from sim.engines import EngineProfile
from sim.parallelism import Parallelism, kv_bytes_per_token_of_rank, weight_bytes_of_rank
from workloads.models import ModelSpec

__all__ = ["MemoryPlan", "plan_memory"]

LOGIT_BYTES = 6  # a logit as the model's 16-bit output and as the sampler's 32-bit copy


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one accelerator, the fullest of a replica [byte].

    Attributes
    ----------
    usable : float
        What the engine may use.
    weights, activations, reserved : float
        Model weights, peak activations of a full step, graphs and workspaces.
    block : float
        Its part of one KV block of the replica.
    blocks : int
        KV blocks of the replica that fit.
    """

    usable: float
    weights: float
    activations: float
    reserved: float
    block: float
    blocks: int

    @property
    def kv(self) -> float:
        """Bytes of the KV pool [byte]."""
        return self.block * self.blocks


def plan_memory(
    spec: AcceleratorSpec,
    model: ModelSpec,
    engine: EngineProfile,
    *,
    parallel: Parallelism | None = None,
    max_tokens: int = 8192,
    max_seqs: int = 512,
    block_size: int = 16,
    utilisation: float | None = None,
    beside: tuple[float, float] = (0.0, 0.0),
) -> MemoryPlan:
    """Return how one accelerator's memory is used.

    Parameters
    ----------
    spec, model, engine
        Hardware, architecture, engine profile.
    parallel : Parallelism, optional
        Ranks of the replica.
    max_tokens, max_seqs, block_size : int
        Limits of a step, tokens of a KV block.
    utilisation : float, optional
        Share of memory the engine may use; left out = the profile's.
    beside : (float, float)
        Weights, and KV cache per token, of what drafts [byte].

    Returns
    -------
    MemoryPlan
        With `blocks` possibly 0 or below: see `require_room`.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> from sim.engines import engines
    >>> from workloads.models import load_model
    >>> spec, model = load_accelerator("h200-sxm"), load_model("llama-3.1-8b")
    >>> plan = plan_memory(spec, model, engines.load("vllm-0.24"))
    >>> 0.97 < plan.blocks * 16 / 896_912 < 1.03  # measured by vLLM on an H200
    True
    """
    share = utilisation or engine.memory.utilisation.value
    usable = spec.memory_bytes * share
    ranks = parallel or Parallelism()
    weights = weight_bytes_of_rank(model, ranks) + beside[0]
    activations = _activation_peak(model, ranks.tp, max_tokens, max_seqs)
    reserved = engine.memory.reserved.value
    block = (kv_bytes_per_token_of_rank(model, ranks) + beside[1]) * block_size
    left = usable - weights - activations - reserved
    blocks = int(left // block) if block > 0 else (1 << 30 if left > 0 else -1)
    return MemoryPlan(usable, weights, activations, reserved, block, blocks)


def _activation_peak(model: ModelSpec, tp: int, max_tokens: int, max_seqs: int) -> float:
    """Return the peak of activations in a full step [byte]: residuals and the widest block."""
    width = 2 * model.intermediate + model.intermediate
    if model.moe:
        width = max(width, 3 * model.moe.intermediate * model.moe.top_k)
        width += model.moe.top_k * model.hidden
    per_token = 2.0 * (3 * model.hidden + width / tp)
    logits = LOGIT_BYTES * max_seqs * model.vocab / tp if model.lm_head else 0.0
    return max_tokens * per_token + logits


def require_room(plan: MemoryPlan, blocks: int, what: str) -> None:
    """Raise InputError with the arithmetic when fewer than `blocks` KV blocks fit."""
    if plan.blocks >= blocks:
        return
    gb = 1e9
    short = blocks * plan.block - (plan.usable - plan.weights - plan.activations - plan.reserved)
    raise InputError(
        f"{what} does not fit: weights {plan.weights / gb:.1f} GB + activations "
        f"{plan.activations / gb:.1f} GB + workspaces {plan.reserved / gb:.1f} GB + "
        f"{blocks * plan.block / gb:.1f} GB of KV cache for one longest request is "
        f"{short / gb:.1f} GB more than the {plan.usable / gb:.1f} GB usable"
    )


def smallest_fix(plans: dict[str, MemoryPlan], blocks: int) -> str:
    """Return the first named change whose plan has room, as advice."""
    fits = [name for name, plan in plans.items() if plan.blocks >= blocks]
    return f"smallest change that fits: {fits[0]}" if fits else "choose a larger accelerator"


def longest_that_fits(plan: MemoryPlan, block_size: int) -> int:
    """Return the longest request that the KV pool holds alone [token]."""
    return int(np.clip(plan.blocks, 0, 1 << 40)) * block_size
