"""Speculative decoding on step times: what drafts cost, what they bring, and where that ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from policies.speculation import SpeculationRules, expected_tokens
from sim.parallelism import weight_bytes_of_rank
from sim.steptime import Batching, StepTimeModel
from workloads.counts import kv_bytes_per_token, linear_flops_per_token, lm_head_flops
from workloads.models import ModelSpec, load_model
from workloads.precision import precision

__all__ = ["SpeculativeSteps", "break_even_batch", "draft_model", "served_experts_s"]

Array = npt.NDArray[np.float64]


def draft_model(target: ModelSpec, rules: SpeculationRules) -> ModelSpec | None:
    """Return what runs for one drafted token: a model, or layers of the target's kind.

    Examples
    --------
    >>> layers = SpeculationRules(source="layers", tokens=2, acceptance=(0.8, 0.8), layers=1)
    >>> draft_model(load_model("llama-3.1-8b"), layers).layers
    1
    """
    if rules.source == "model":
        return load_model(rules.model)
    if rules.source == "layers":
        moe = target.moe.model_copy(update={"first_dense": 0}) if target.moe else None
        return target.model_copy(update={"layers": rules.layers, "moe": moe})
    return None


def served_experts_s(steps: StepTimeModel, tokens: Array, rows: Array) -> Array:
    """Return seconds of routed experts where every data-parallel rank has `tokens`, alike."""
    links = steps.communication
    if links is None or not links.exchanges:
        return steps.experts_s(tokens, rows)
    all_tokens = tokens * steps.parallel.dp
    return steps.experts_s(all_tokens, all_tokens)


@dataclass(frozen=True)
class SpeculativeSteps:
    """Decode steps that draft and verify, on each data-parallel rank alike.

    Parameters
    ----------
    target : StepTimeModel
        Steps of the model served.
    rules : SpeculationRules
        Who drafts, how many tokens, how often they are right.
    batching : Batching
        Limits and captured batch sizes.
    """

    target: StepTimeModel
    rules: SpeculationRules
    batching: Batching

    @property
    def draft(self) -> StepTimeModel | None:
        """Steps of what drafts, None where nothing runs token by token."""
        model, links = draft_model(self.target.model, self.rules), self.target.communication
        if model is None:
            return None
        return replace(
            self.target, model=model, communication=links and replace(links, model=model)
        )

    def verify_s(self, sequences: Array, context: Array, drafted: int) -> Array:
        """Return seconds in which the target computes drafts and one more token of each sequence.

        Parameters
        ----------
        sequences, context : array
            Decoding sequences and their mean context, any common shape.
        drafted : int
            Drafts of each sequence; 0 is plain decoding.
        """
        query = self.rules.verified(drafted)
        tokens = np.asarray(sequences, dtype=np.float64) * query
        rows = self.batching.padded(tokens)
        linear = self.target.linear_s(rows) + served_experts_s(self.target, tokens, rows)
        attention = self.target.decode_attention_s(sequences, context, query)
        return np.asarray(linear + self.target.head_s(tokens) + attention)

    def draft_s(self, sequences: Array, context: Array) -> Array:
        """Return seconds of one drafted token of each sequence; of all heads where they draft."""
        n, shape = np.asarray(sequences, np.float64), np.broadcast(sequences, context).shape
        if self.rules.source == "heads":
            return np.broadcast_to(self._heads_s(n), shape).copy()
        if self.draft is None:
            return np.zeros(shape)
        rows = self.batching.padded(n)
        experts = served_experts_s(self.draft, n, rows)
        each = self.draft.linear_s(rows) + experts + self.draft.head_s(n)
        if self.rules.source == "layers":
            each = each + self._join_s(rows)
        return np.asarray(each + self.draft.decode_attention_s(n, context))

    def _heads_s(self, sequences: Array) -> Array:
        """Return seconds of parallel heads: a residual block and an output head each."""
        model = self.target.model
        block = self.target.kernels.gemm(sequences, model.hidden, model.hidden, model.dtype)
        return np.asarray(self.rules.tokens * (block + self.target.head_s(sequences)))

    def _join_s(self, rows: Array) -> Array:
        """Return seconds of joining a token's embedding with the target's state."""
        model = self.target.model
        return self.target.kernels.gemm(rows, model.hidden, 2 * model.hidden, model.dtype)

    def step_s(self, sequences: Array, context: Array, drafted: int) -> Array:
        """Return seconds of a step with so many drafts of each sequence."""
        runs = (drafted > 0) if self.rules.source == "heads" else drafted
        verified = self.verify_s(sequences, context, drafted)
        return np.asarray(verified + runs * self.draft_s(sequences, context))

    def tokens(self, drafted: int) -> float:
        """Return the mean tokens that a step brings each sequence."""
        return expected_tokens(self.rules.acceptance[:drafted])

    def speed_up(self, sequences: Array, context: Array, drafted: int) -> Array:
        """Return tokens per second over those of plain decoding."""
        plain = self.step_s(sequences, context, 0)
        return np.asarray(self.tokens(drafted) * plain / self.step_s(sequences, context, drafted))

    def lengths(self, sequences: Array, context: float) -> npt.NDArray[np.int64]:
        """Return how many tokens the rules draft at each batch (length adaptive: at most).

        "best" takes the length with most tokens per second at a context.
        """
        rules, n = self.rules, np.asarray(sequences, dtype=np.float64)
        fixed = np.full(n.size, rules.tokens, dtype=np.int64)
        if rules.length == "batch":
            return np.where(n <= rules.largest_batch, fixed, np.int64(0))
        if rules.length != "best":
            return fixed
        at = np.full(n.size, context)
        rates = [self.tokens(g) / self.step_s(n, at, g) for g in range(rules.tokens + 1)]
        return np.asarray(np.argmax(np.array(rates), axis=0), dtype=np.int64)

    def table(self, batches: Sequence[int], context: float) -> pd.DataFrame:
        """Return what speculation brings at several batches.

        Returns
        -------
        DataFrame
            batch, drafted, tokens (per step and sequence), step_s, plain_s [s], speed_up.
        """
        n = np.array(batches, dtype=np.float64)
        drafted, at = self.lengths(n, context), np.full(len(batches), context)
        plain, steps = self.step_s(n, at, 0), np.empty(n.size)
        for g in np.unique(drafted):
            chosen = drafted == g
            steps[chosen] = self.step_s(n[chosen], at[chosen], int(g))
        tokens = np.array([self.tokens(int(g)) for g in drafted])
        return pd.DataFrame(
            {
                "batch": np.array(batches),
                "drafted": drafted,
                "tokens": tokens,
                "step_s": steps,
                "plain_s": plain,
                "speed_up": tokens * plain / steps,
            }
        )

    def extra_bytes(self) -> tuple[float, float]:
        """Return (weights, KV per token) that drafting adds to an accelerator [byte]."""
        model, tp = self.target.model, self.target.tp
        wide = precision(model.dtype).bytes
        draft = draft_model(model, self.rules)
        if self.rules.source == "heads":
            each = model.hidden * (model.hidden + model.vocab) * wide
            return self.rules.tokens * each / tp, 0.0
        if draft is None:
            return 0.0, 0.0
        weights = weight_bytes_of_rank(draft, self.target.parallel)
        if self.rules.source == "layers":
            tables = 1 if model.tied_embeddings else 2
            weights -= tables * model.vocab * model.hidden * wide / tp
            weights += 2.0 * model.hidden**2 * wide
        return weights, kv_bytes_per_token(draft, tp=tp)

    def draft_flops(self) -> float:
        """Return FLOPs of one drafted token, attention left out [FLOP]."""
        model, draft = self.target.model, draft_model(self.target.model, self.rules)
        if self.rules.source == "heads":
            return 2.0 * model.hidden**2 + lm_head_flops(model, self.target.tp)
        if draft is None:
            return 0.0
        tp = self.target.tp
        return linear_flops_per_token(draft, tp) + lm_head_flops(draft, tp)


def break_even_batch(steps: SpeculativeSteps, context: float, most: int = 512) -> int | None:
    """Return the largest batch up to which speculation gains, 0 if never, None if beyond `most`.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> from hardware.kernels import load_kernels
    >>> from policies.speculation import DraftModel
    >>> from sim.engines import engines
    >>> from sim.steptime import GRAPH_SIZES
    >>> kernels = load_kernels(load_accelerator("h200-sxm"))
    >>> gpu = engines.load("vllm-0.24").gpu
    >>> target = StepTimeModel(kernels, load_model("llama-3.1-8b"), gpu)
    >>> limits = Batching(8192, 512, 4096, GRAPH_SIZES)
    >>> right = SpeculativeSteps(target, DraftModel(acceptance=0.7).rules(), limits)
    >>> wrong = SpeculativeSteps(target, DraftModel(acceptance=0.1).rules(), limits)
    >>> break_even_batch(wrong, 1000.0) == 0 < break_even_batch(right, 1000.0)
    True
    """
    batches = np.arange(1.0, most + 1.0)
    gains = steps.speed_up(batches, np.full(most, context), steps.rules.tokens)
    losing = np.flatnonzero(gains < 1.0)
    return int(losing[0]) if losing.size else None
