"""Speculation of a deployment as the engine loop takes it: tables, knobs, chances of requests."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import stats

from formats import InputError
from policies.speculation import SpeculationRules, speculation
from sim.core.draft_tables import DraftTables
from sim.core.layout import Records, StepTables
from sim.scenario import Scenario
from sim.speculation import SpeculativeSteps, served_experts_s
from sim.steptime import Batching, StepTimeModel, decode_contexts, prompt_grid, shared
from sim.streams import stream
from workloads.counts import kv_bytes_per_token

__all__ = ["Drafting", "drafting_of", "give_luck"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
LEVELS = 64  # rates of their own that requests have
CONTEXT = 1024.0  # tokens at which the best length is chosen


@dataclass(frozen=True)
class Drafting:
    """Speculation of one replica.

    Attributes
    ----------
    rules : SpeculationRules
        Who drafts, how many, how often they are right.
    steps : SpeculativeSteps
        Times of drafts and of their verification.
    limits : Batching
        Sizes of the tables.
    """

    rules: SpeculationRules
    steps: SpeculativeSteps
    limits: Batching

    @property
    def quality(self) -> tuple[str, ...]:
        """What is known about answers, and what about acceptance."""
        chosen = ", ".join(f"{chance:.3g}" for chance in self.rules.acceptance)
        return (
            "speculation: the same answers as without (arXiv:2211.17192, theorem 1; Medusa's own "
            f"acceptance is looser); chances of acceptance by position as stated, {chosen}: "
            "measure them",
        )

    @property
    def logits(self) -> int:
        """Most tokens of a step that need logits, on all ranks [token]."""
        most = self.limits.max_seqs * self.rules.verified(self.rules.tokens)
        return min(most, self.limits.max_tokens) * self._ranks

    @property
    def _ranks(self) -> int:
        """Data-parallel ranks, each of which drafts for its own requests and verifies them."""
        return self.steps.target.parallel.dp

    @cached_property
    def tables(self) -> DraftTables:
        """What the loop looks up, by the sequences of all ranks."""
        sequences, shares = shared(self.limits.max_seqs * self._ranks, self._ranks)
        contexts = decode_contexts(self.limits)
        grid = (sequences[:, None], contexts[None, :])
        target, query = self.steps.target, self.rules.verified(self.rules.tokens)
        plain = target.decode_attention_s(*grid)
        more = np.maximum(target.decode_attention_s(*grid, query) - plain, 0.0)
        lengths = self.steps.lengths(sequences, CONTEXT)[shares]
        return DraftTables(
            np.concatenate([lengths[:1], lengths]),
            chances(self.rules),
            _with_empty(self.steps.draft_s(*grid)[shares]),
            _with_empty(more[shares]),
            self._prompt_s(),
        )

    def joined(self, tables: StepTables) -> StepTables:
        """Return step tables with the prompt attention of what drafts."""
        draft = self.steps.draft
        if draft is None:
            return tables
        each, call = draft.prefill_parts_s(*prompt_grid(self.limits))
        return tables._replace(
            prefill_s=tables.prefill_s + each, prefill_call_s=tables.prefill_call_s + call
        )

    def _prompt_s(self) -> Floats:
        draft, most = self.steps.draft, (self.limits.max_tokens + 1) * self._ranks
        if draft is None:
            return np.zeros(most + 1)
        tokens, shares = shared(most, self._ranks)
        rows, where = np.unique(self.limits.padded(tokens), return_inverse=True)
        seconds = draft.linear_s(rows)[where] + served_experts_s(draft, tokens, rows[where])
        return np.concatenate([[0.0], seconds[shares]])

    def knobs(self, seed: int) -> dict[str, float | int]:
        """Return the parameters of the loop.

        Parameters
        ----------
        seed : int
            Seed of the scenario; draws come from its stream "speculation".
        """
        draft, rules, steps = self.steps.draft, self.rules, self.steps
        weights, _ = steps.extra_bytes()
        kv = 0.0 if draft is None else kv_bytes_per_token(draft.model, tp=draft.tp)
        return {
            "draft_tokens": rules.tokens,
            "draft_candidates": rules.candidates,
            "draft_adaptive": rules.length == "adaptive",
            "draft_once": rules.source == "heads",
            "draft_flops": steps.draft_flops() / self._ranks,
            "draft_bytes": weights,
            "draft_kv_bytes": kv / self._ranks,
            "in_step": rules.source == "free",
            "draft_seed": int(stream(seed, "speculation").integers(1 << 62)),
        }


def _with_empty(values: Floats) -> Floats:
    """Return the rows behind one of zeros."""
    return np.ascontiguousarray(np.vstack([np.zeros(values.shape[1]), values]))


def chances(rules: SpeculationRules) -> Floats:
    """Return the chance of each position, by the level of a request.

    Levels are equally likely quantiles of Beta(c a, c (1 - a)) with mean a and concentration c, so
    that requests differ and the mean over them is that of the rules.

    Examples
    --------
    >>> chances(SpeculationRules("free", 2, (0.8, 0.5))).tolist()
    [[0.8, 0.5]]
    """
    mean = np.array(rules.acceptance, dtype=np.float64)[None, :]
    if rules.concentration == 0:
        return mean
    place = (np.arange(LEVELS)[:, None] + 0.5) / LEVELS
    inside = np.clip(mean, 1e-9, 1 - 1e-9)
    spread = rules.concentration * inside, rules.concentration * (1 - inside)
    own = np.asarray(stats.beta.ppf(place, *spread))
    scaled: Floats = np.clip(own * (mean / np.maximum(own.mean(axis=0), 1e-12)), 0.0, 1.0)
    return np.where((mean == 0) | (mean == 1), mean, scaled)


def give_luck(records: Records, scenario: Scenario, requests: int) -> None:
    """Draw how well each request can be guessed; what follows a hand-off of it has the same.

    Parameters
    ----------
    records : Records
        Rows of `requests` requests, once or twice.
    scenario : Scenario
        Speculation and seed.
    requests : int
        Requests that are asked.
    """
    rules = speculation.make(scenario.decoding).rules()
    levels = 1 if rules.concentration == 0 else LEVELS
    drawn = stream(scenario.run.seed, "acceptance").integers(levels, size=requests)
    rows = len(records.requests)
    records.requests["draft_level"] = np.resize(drawn, rows) if requests else 0
    records.requests["draft_length"] = rules.tokens


def drafting_of(scenario: Scenario, steps: StepTimeModel, limits: Batching) -> Drafting | None:
    """Return the speculation of a scenario, None where it decodes token by token.

    Raises
    ------
    InputError
        The policy is unknown, what drafts does not fit, or ranks share steps in ways that
        speculation is not modelled for.
    """
    rules = speculation.make(scenario.decoding).rules()
    if rules.source == "none" or steps.model.kind != "decoder":
        return None
    if steps.parallel.batches > 1:
        what = f"speculation with {steps.parallel.words} is not modelled"
        raise InputError(what, "[decoding]", "one micro-batch at a time", "set pp = 1")
    if rules.verified(rules.tokens) > limits.max_tokens:
        raise InputError(
            f"{rules.verified(rules.tokens)} tokens to verify for each request",
            "[decoding] tokens",
            f"up to max_num_batched_tokens = {limits.max_tokens}",
        )
    return Drafting(rules, SpeculativeSteps(steps, rules, limits), limits)
