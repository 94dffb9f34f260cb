"""How one replica is spread over accelerators: which products are legal, and what each rank holds.

A replica has `pp` stages of `tp x cp x dp` ranks. Tensor parallelism cuts matrices and heads,
context parallelism cuts prompts and the KV cache by tokens, data parallelism gives every rank
requests of its own (attention only, in a model with experts), and expert parallelism spreads the
experts over the ranks of a stage; what is left cuts each expert's width.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formats import InputError
from workloads.counts import (
    ExpertLayer,
    distinct_experts,
    expert_layers,
    kv_bytes_per_token,
    weight_bytes,
    weight_bytes_touched,
)
from workloads.layers import split
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = [
    "Parallelism",
    "check_parallelism",
    "kv_bytes_per_token_of_rank",
    "legal_tp",
    "rank_experts",
    "weight_bytes_of_rank",
    "weight_bytes_touched_by_rank",
]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Ranks of one replica along each axis.

    Parameters
    ----------
    tp, pp, dp, ep, cp : int
        Tensor ranks, pipeline stages, data-parallel attention ranks, expert ranks (of one stage,
        not more ranks but a way to use them), context ranks.
    micro_batches : int, optional
        Batches in flight in the pipeline; None = one per stage.

    Examples
    --------
    >>> Parallelism(tp=4, pp=2).accelerators, Parallelism(tp=2, dp=4, ep=8).expert_tp
    (8, 1)
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    cp: int = 1
    micro_batches: int | None = None

    @property
    def stage(self) -> int:
        """Ranks of one pipeline stage [accelerator]."""
        return self.tp * self.dp * self.cp

    @property
    def accelerators(self) -> int:
        """Ranks of the replica [accelerator]."""
        return self.stage * self.pp

    @property
    def expert_tp(self) -> int:
        """Ranks that share the width of one expert."""
        return max(self.stage // self.ep, 1)

    @property
    def batches(self) -> int:
        """Micro-batches that a step of the replica is cut into."""
        return self.micro_batches or self.pp

    @property
    def units(self) -> int:
        """Parts that a step's requests are spread over: micro-batches x data-parallel ranks."""
        return self.batches * self.dp

    def rounds(self) -> float:
        """Return a step's time over that of one micro-batch in all stages.

        A micro-batch takes `pp` stage times and starts again when it is through; `m` of them
        share the stages, so a round takes max(m, pp) stage times: with m < pp, stages idle
        (pp - m) / pp of the time.

        Examples
        --------
        >>> Parallelism(pp=4, micro_batches=2).rounds(), Parallelism(pp=4, micro_batches=8).rounds()
        (1.0, 2.0)
        """
        return max(self.batches, self.pp) / self.pp

    def stretch(self, layers: int) -> float:
        """Return the largest stage over the mean one: layers do not always divide evenly.

        Examples
        --------
        >>> Parallelism(pp=4).stretch(30)
        1.0666666666666667
        """
        return split(layers, self.pp) * self.pp / layers

    @property
    def words(self) -> str:
        """The axes above 1, such as "tp 4, pp 2"."""
        axes = [(name, getattr(self, name)) for name in ("tp", "pp", "dp", "ep", "cp")]
        return ", ".join(f"{name} {n}" for name, n in axes if n > 1) or "tp 1"


def legal_tp(model: ModelSpec, domain: int) -> list[int]:
    """Return the numbers of tensor ranks that a model and a fast domain allow, ascending."""
    kv = model.kv_heads
    fits = (t for t in range(1, min(model.heads, domain) + 1) if model.heads % t == 0)
    return [t for t in fits if kv % t == 0 or t % kv == 0]


def _nearest(legal: Iterable[int], wanted: int) -> str:
    """Return the legal numbers on both sides of the wanted one."""
    ordered = sorted(legal)
    below = [n for n in ordered if n < wanted][-1:]
    above = [n for n in ordered if n > wanted][:1]
    return " or ".join(map(str, below + above))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _refuse(axis: str, wanted: int, why: str, legal: Iterable[int]) -> None:
    raise InputError(
        f"{axis} = {wanted} {why}",
        f"[hardware] {axis}",
        repair=f"nearest choice: {axis} = {_nearest(legal, wanted)}",
    )


def check_parallelism(parallel: Parallelism, model: ModelSpec, domain: int) -> None:
    """Refuse a product that no engine could run, with the reason and the nearest legal choices.

    Parameters
    ----------
    parallel : Parallelism
        What is asked for.
    model : ModelSpec
        Its heads, layers and experts must divide.
    domain : int
        Accelerators that a fast link joins; tensor ranks stay inside.

    Raises
    ------
    InputError
        Heads or experts do not divide, more stages than layers, tensor ranks beyond the domain,
        experts spread over ranks that are not there, or micro-batches without a pipeline.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> check_parallelism(Parallelism(tp=6), load_model("llama-3.1-8b"), 8)
    Traceback (most recent call last):
    formats.errors.InputError: [hardware] tp: tp = 6 does not divide 32 heads (8 KV heads); \
nearest choice: tp = 4 or 8
    """
    _check_tensor(parallel, model, domain)
    if parallel.pp > model.layers:
        choices = range(1, model.layers + 1)
        _refuse("pp", parallel.pp, f"exceeds the {model.layers} layers of {model.name}", choices)
    _check_experts(parallel, model)
    if parallel.micro_batches and parallel.pp == 1:
        what = f"micro_batches = {parallel.micro_batches} needs a pipeline"
        raise InputError(what, "[hardware] micro_batches", repair="set pp above 1, or leave it out")


def _check_tensor(parallel: Parallelism, model: ModelSpec, domain: int) -> None:
    legal = legal_tp(model, domain)
    if parallel.tp in legal:
        return
    why = f"does not divide {model.heads} heads ({model.kv_heads} KV heads)"
    if parallel.tp in legal_tp(model, model.heads):
        why = f"exceeds the {domain} accelerators that a fast link joins"
    _refuse("tp", parallel.tp, why, legal)


def _check_experts(parallel: Parallelism, model: ModelSpec) -> None:
    if parallel.ep == 1:
        return
    if model.moe is None:
        _refuse("ep", parallel.ep, f"needs experts, and {model.name} has none", [1])
        return
    legal = [d for d in _divisors(parallel.stage) if model.moe.experts % d == 0]
    if parallel.ep in legal:
        return
    why = f"does not divide {model.moe.experts} experts"
    if model.moe.experts % parallel.ep == 0:
        why = f"does not divide the {parallel.stage} ranks of a stage (tp x dp x cp)"
    _refuse("ep", parallel.ep, why, legal)


def rank_experts(model: ModelSpec, parallel: Parallelism) -> list[ExpertLayer]:
    """Return the routed experts that one rank holds; `top_k` stays that of a token."""
    return [
        ExpertLayer(
            block.count,
            block.experts // parallel.ep,
            block.top_k,
            block.hidden,
            block.intermediate,
            block.gated,
            block.dtype,
            block.weights,
        )
        for block in expert_layers(model, parallel.expert_tp)
    ]


def _expert_bytes(blocks: Iterable[ExpertLayer]) -> float:
    return sum(b.count * b.experts * b.expert_elements * precision(b.weights).bytes for b in blocks)


def weight_bytes_of_rank(model: ModelSpec, parallel: Parallelism) -> float:
    """Return the weights of the fullest rank [byte]: its stage's layers, embedding or output head.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> model = load_model("llama-3.1-70b")
    >>> round(weight_bytes_of_rank(model, Parallelism(tp=4)) / 1e9, 1)
    35.3
    >>> round(weight_bytes_of_rank(model, Parallelism(tp=2, pp=2)) / 1e9, 1)
    35.3
    """
    wide = precision(model.dtype).bytes
    table = split(model.vocab, parallel.tp) * model.hidden * wide
    head = table if model.lm_head else 0.0
    embedding = 0.0 if model.tied_embeddings and model.lm_head else table
    dense = weight_bytes(model, parallel.tp) - _expert_bytes(expert_layers(model, parallel.tp))
    layers = dense - head - embedding + _expert_bytes(rank_experts(model, parallel))
    ends = head + embedding if parallel.pp == 1 else max(head, embedding)
    return layers * split(model.layers, parallel.pp) / model.layers + ends


def kv_bytes_per_token_of_rank(model: ModelSpec, parallel: Parallelism) -> float:
    """Return what one token of the replica's KV cache takes on its fullest rank [byte].

    A token lies on one data-parallel and one context rank, in the layers of each stage: over
    many tokens each rank holds 1 / (dp x cp) of them.
    """
    stage = split(model.layers, parallel.pp) / model.layers
    return kv_bytes_per_token(model, tp=parallel.tp) * stage / (parallel.dp * parallel.cp)


def weight_bytes_touched_by_rank(
    model: ModelSpec, parallel: Parallelism, tokens: Array, skew: float = 0.0
) -> Array:
    """Return the weights that one rank reads in a step [byte].

    Every micro-batch reads its stage's weights once; experts serve all data-parallel ranks.

    Parameters
    ----------
    tokens : ndarray
        Tokens of one micro-batch on one data-parallel rank.
    skew : float
        Zipf exponent of the experts' popularity.
    """
    touched = weight_bytes_touched(model, tokens, parallel.tp, exponent=skew)
    pairs = zip(expert_layers(model, parallel.tp), rank_experts(model, parallel), strict=True)
    for alone, shared in pairs:
        size = precision(shared.weights).bytes * shared.count
        for block, served, ranks in (
            (alone, tokens, -1.0),
            (shared, tokens * parallel.dp, float(parallel.ep)),
        ):
            found = distinct_experts(alone.experts, alone.top_k, served, skew)
            touched = touched + found * block.expert_elements * size / ranks
    return np.asarray(touched * parallel.batches / parallel.pp)
