"""What a policy decides: plain rules that the engine follows, and the views it may look at.

A policy with fixed rules returns them once; one that adapts gets an `EngineView` at every
scheduling point and returns the rules for the next step. Policies never see the future.
"""

from dataclasses import dataclass
from math import inf
from typing import Protocol

from policies.base import Registry

__all__ = [
    "BatchRules",
    "Batching",
    "CacheRules",
    "Caching",
    "EngineView",
    "Memory",
    "MemoryRules",
    "Ordering",
    "RequestView",
    "batching",
    "caching",
    "memory",
    "ordering",
]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How a step is filled.

    Parameters
    ----------
    max_num_seqs, max_num_batched_tokens : int
        Limits of a step [sequence, token].
    chunked : bool
        A prompt may be cut to fit the token limit.
    prefill_first : bool
        A step that starts prompts decodes nothing.
    hold : bool
        Admit only into an empty batch and keep the batch until all of it is done.
    fill_size, fill_timeout_s : int, float
        With `hold`: start with that many requests, or when the oldest has waited so long [s].
    long_prefill_token_threshold : int
        Most prompt tokens of one request in one step, 0 = no limit [token].
    max_num_partial_prefills : int
        Requests whose prompt is cut, admitted in one step.
    """

    max_num_seqs: int = 512
    max_num_batched_tokens: int = 8192
    chunked: bool = True
    prefill_first: bool = False
    hold: bool = False
    fill_size: int = 1
    fill_timeout_s: float = inf
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How KV memory is handed out.

    Parameters
    ----------
    block_size : int
        Tokens of a KV block.
    blocks : int or None
        Blocks of the pool; None = what fits the accelerator's memory.
    watermark : float
        Share of blocks kept free at admission [0..1].
    reserve_tokens : int
        Contiguous: output tokens reserved per request at admission, 0 = paged.
    victim : int
        Who is preempted: 0 last admitted, 1 lowest priority, 2 shortest progress.
    """

    block_size: int = 16
    blocks: int | None = None
    watermark: float = 0.0
    reserve_tokens: int = 0
    victim: int = 0


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Whether full KV blocks of earlier prompts are kept and found again."""

    prefix: bool = True


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a batching policy may look at when a step is formed."""

    now_s: float
    waiting: int
    running: int
    free_blocks: int
    total_blocks: int
    waiting_prompt_tokens: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class RequestView:
    """What an ordering policy may look at when a request arrives."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int
    ttft_objective_s: float
    client: str


class Batching(Protocol):
    """A batching policy."""

    def rules(self) -> BatchRules:
        """Return the rules of every step."""


class Memory(Protocol):
    """A KV memory policy."""

    def rules(self) -> MemoryRules:
        """Return the rules of the pool."""


class Caching(Protocol):
    """A prompt-caching policy."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""


class Ordering(Protocol):
    """An order of the waiting requests: the smallest key is served first."""

    def key(self, request: RequestView) -> float:
        """Return the key of a request that has just arrived."""


batching: Registry[Batching] = Registry("batching")
memory: Registry[Memory] = Registry("memory")
caching: Registry[Caching] = Registry("caching")
ordering: Registry[Ordering] = Registry("ordering")
