"""How a step is filled with prompts and decodes."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from policies.rules import BatchRules, EngineView, batching

__all__ = [
    "Adaptive",
    "ChunkedPrefill",
    "Continuous",
    "DecodeOnly",
    "Dynamic",
    "PrefillOnly",
    "Static",
]

Seqs = Annotated[int, Field(ge=1, le=65536, description="sequences of a step at most [sequence]")]
Tokens = Annotated[int, Field(ge=1, le=1 << 20, description="tokens of a step at most [token]")]
Threshold = Annotated[
    int,
    Field(ge=0, le=1 << 20, description="prompt tokens of one request per step, 0 = all [token]"),
]
Partials = Annotated[int, Field(ge=1, le=1024, description="cut prompts per step [request]")]
Timeout = Annotated[
    float, Field(ge=0, le=1e6, description="start a smaller batch after this wait [s]")
]
Preferred = Annotated[
    int, Field(ge=1, le=65536, description="start as soon as so many wait [request]")
]
Objective = Annotated[float, Field(gt=0, le=1e3, description="time of a step to aim at [s]")]
Interval = Annotated[float, Field(gt=0, le=1e3, description="time between adjustments [s]")]
Reserve = Annotated[float, Field(ge=0, lt=1, description="share of KV blocks kept for growth [1]")]


@batching("static")
@dataclass(frozen=True)
class Static:
    """Take whoever waits, serve them to the end together. Use it as the baseline of old servers."""

    max_num_seqs: Seqs = 32
    max_num_batched_tokens: Tokens = 8192

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefill_first=True,
            hold=True,
            together=True,
        )


@batching("dynamic")
@dataclass(frozen=True)
class Dynamic:
    """Wait for a full batch or a timeout, serve it together (Triton). Use it for short models."""

    max_num_seqs: Seqs = 32
    max_num_batched_tokens: Tokens = 8192
    preferred_batch_size: Preferred = 32
    max_queue_delay_s: Timeout = 0.1

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefill_first=True,
            hold=True,
            together=True,
            fill_size=self.preferred_batch_size,
            fill_timeout_s=self.max_queue_delay_s,
        )


@batching("continuous")
@dataclass(frozen=True)
class Continuous:
    """Whole prompts first, decodes wait (Orca, vLLM V0). Use it for short times to first token."""

    max_num_seqs: Seqs = 256
    max_num_batched_tokens: Tokens = 16384

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            chunked=False,
            prefill_first=True,
        )


@batching("chunked-prefill")
@dataclass(frozen=True)
class ChunkedPrefill:
    """Decode first, fill up with prompt chunks (vLLM V1, Sarathi). Use it by default."""

    max_num_seqs: Seqs = 512
    max_num_batched_tokens: Tokens = 8192
    long_prefill_token_threshold: Threshold = 0
    max_num_partial_prefills: Partials = 1

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_num_partial_prefills=self.max_num_partial_prefills,
        )


@batching("adaptive")
@dataclass
class Adaptive:
    """Limits that follow memory, lengths and step time. Use it to hold a TPOT under bursts.

    Sequences are limited to what the KV pool holds at the mean length seen so far; tokens of a
    step rise by a tenth while steps are shorter than the objective and halve when they are longer.
    """

    max_num_seqs: Seqs = 512
    max_num_batched_tokens: Tokens = 8192
    step_objective_s: Objective = 0.05
    interval_s: Interval = 0.25
    growth_reserve: Reserve = 0.1
    _tokens: int = field(default=0, init=False, repr=False)

    def rules(self) -> BatchRules:
        """Return the limits of the limits."""
        return BatchRules(self.max_num_seqs, self.max_num_batched_tokens)

    def adapt(self, view: EngineView) -> BatchRules:
        """Return the rules until the next adjustment."""
        self._tokens = self._next_tokens(view)
        return BatchRules(
            max_num_seqs=self._seqs(view),
            max_num_batched_tokens=self._tokens,
            valid_s=self.interval_s,
        )

    def _next_tokens(self, view: EngineView) -> int:
        now = self._tokens or self.max_num_batched_tokens
        wanted = now // 2 if view.step_s > self.step_objective_s else now + now // 10 + 1
        return min(max(wanted, view.running + 64), self.max_num_batched_tokens)

    def _seqs(self, view: EngineView) -> int:
        if view.running == 0:
            return self.max_num_seqs
        room = view.total_blocks * (1.0 - self.growth_reserve) * view.block_size
        return max(int(room / max(view.mean_kv_tokens, 1.0)), 1)


@batching("prefill-only")
@dataclass(frozen=True)
class PrefillOnly:
    """Prompts only, a request ends with its first token. Use it in front of decode-only engines."""

    max_num_seqs: Seqs = 512
    max_num_batched_tokens: Tokens = 8192

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(self.max_num_seqs, self.max_num_batched_tokens, role="prefill")


@batching("decode-only")
@dataclass(frozen=True)
class DecodeOnly:
    """Decodes only, prompts arrive as KV cache. Use it behind prefill-only engines."""

    max_num_seqs: Seqs = 512
    max_num_batched_tokens: Tokens = 8192

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(self.max_num_seqs, self.max_num_batched_tokens, role="decode")
