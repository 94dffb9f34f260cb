"""What a policy decides: plain rules that the engine follows, and the views it may look at.

A policy with fixed rules returns them once; one that adapts gets an `EngineView` when the requests
in queue or batch have changed, or when its last rules expire. Policies never see the future.
"""

from dataclasses import dataclass
from math import exp, inf, nan
from typing import Literal, Protocol, runtime_checkable

from policies.base import Registry

__all__ = [
    "AdaptiveBatching",
    "Admission",
    "AdmissionRules",
    "BatchRules",
    "Batching",
    "CacheRules",
    "Caching",
    "EngineView",
    "Memory",
    "MemoryRules",
    "OrderRules",
    "Ordering",
    "RequestView",
    "admission",
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
        Choose a batch once and admit nobody else until all of it is done.
    together : bool
        With `hold`: who is done stays in the batch, and leaves it with the last.
    fill_size, fill_timeout_s : int, float
        With `hold`: start with that many requests, or when the oldest has waited so long [s].
    long_prefill_token_threshold : int
        Most prompt tokens of one request in one step, 0 = no limit [token].
    max_num_partial_prefills : int
        Requests whose prompt is cut, admitted in one step.
    role : {"both", "prefill", "decode"}
        "prefill": a request ends with its first token; "decode": the KV cache of its prompt, but
        for the last token, comes from elsewhere.
    valid_s : float
        Of adaptive rules: ask again after this time [s], sooner when the requests change.
    """

    max_num_seqs: int = 512
    max_num_batched_tokens: int = 8192
    chunked: bool = True
    prefill_first: bool = False
    hold: bool = False
    together: bool = False
    fill_size: int = 1
    fill_timeout_s: float = inf
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    role: Literal["both", "prefill", "decode"] = "both"
    valid_s: float = inf


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
    contiguous : bool
        One run of blocks per request, reserved when it starts.
    reserve_tokens : int
        Contiguous: tokens reserved, 0 = the longest request that is served [token].
    reserve_beside_prompt : bool
        They come on top of the prompt: the reservation is for outputs only.
    victim : int
        Who is preempted: 0 last admitted, 1 lowest priority, 2 shortest progress.
    swap_bytes : float
        Host memory that takes the blocks of preempted requests, 0 = recompute [byte].
    """

    block_size: int = 16
    blocks: int | None = None
    watermark: float = 0.0
    contiguous: bool = False
    reserve_tokens: int = 0
    reserve_beside_prompt: bool = False
    victim: int = 0
    swap_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Which KV blocks of earlier prompts are kept and found again.

    Parameters
    ----------
    prefix : bool
        Full blocks are found again by the hash chain of their tokens.
    eviction : int
        Which free block goes first: 0 least recently used, 1 least often used, 2 cheapest to
        compute again.
    ttl_s : float
        A block is a hit so long after its last use [s].
    dram_bytes, ssd_bytes : float
        Capacity of the tiers below, 0 = none [byte].
    dram_bytes_per_s : float or None
        Rate of fetching from host memory; None = the accelerator's measured link [byte/s].
    ssd_bytes_per_s : float
        Rate of fetching from SSD [byte/s].
    dram_latency_s, ssd_latency_s : float
        Time before the first byte of a fetch [s].
    fetch_always : bool
        Fetch whatever is there; otherwise only what computing would take longer for.
    fetch_beside : bool
        The step runs while its blocks are fetched layer by layer; otherwise it waits for them.
    write_premium, read_discount : float
        Of caches that are sold: more than the list price for a prompt token that is computed and
        kept, less for one that is found [1].
    """

    prefix: bool = True
    eviction: int = 0
    ttl_s: float = inf
    dram_bytes: float = 0.0
    ssd_bytes: float = 0.0
    dram_bytes_per_s: float | None = None
    ssd_bytes_per_s: float = 5e9
    dram_latency_s: float = 0.0
    ssd_latency_s: float = 0.0
    fetch_always: bool = False
    fetch_beside: bool = False
    write_premium: float = 0.0
    read_discount: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderRules:
    """What an order needs of the engine beside the keys of requests.

    Parameters
    ----------
    fair : bool
        The waiting client that was served least goes first; its requests by key.
    input_weight, output_weight : float
        Service that a prompt token and an output token count for.
    background_class : str
        Traffic class that fills valleys: it starts after all others and is preempted first.
    background_deadline_s : float
        Deadline of background requests that have none of their own [s].
    background_margin_s : float
        A background request counts as any other so long before its deadline, or from half of the
        time on where that is later [s].
    background_seqs : int
        Running background requests at most.
    background_tokens : int
        Their prompt tokens in one step at most.
    background_free : float
        Share of KV blocks that their admission leaves free [0..1].
    """

    fair: bool = False
    input_weight: float = 1.0
    output_weight: float = 2.0
    background_class: str = ""
    background_deadline_s: float = 86_400.0
    background_margin_s: float = 0.0
    background_seqs: int = 1 << 30
    background_tokens: int = 1 << 30
    background_free: float = 0.0

    def urgent_after_s(self, due_s: float) -> float:
        """Return when a background request due so long after arrival counts as any other [s].

        Examples
        --------
        >>> rules = OrderRules(background_margin_s=3600.0)
        >>> rules.urgent_after_s(86_400.0), rules.urgent_after_s(1800.0)
        (82800.0, 900.0)
        """
        return max(due_s - self.background_margin_s, 0.5 * due_s)


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Who is let in, and who gives up.

    Parameters
    ----------
    queue_limit : int or None
        Requests in the queue at most; one more is rejected.
    timeout_s : float
        A request that is not in a batch so long after it reached the engine is timed out [s].
    patience_s : float
        Mean time after which a client without a first token leaves (cancelled) [s].
    patience_cv : float
        Standard deviation over mean of that time; 0 = all alike.
    client_rate_per_s, client_burst : float
        Token bucket of each client [request/s, request]; more is rejected at the door.
    shed_ttft_s : float
        Reject a request whose predicted time to first token is longer [s].
    """

    queue_limit: int | None = None
    timeout_s: float = inf
    patience_s: float = inf
    patience_cv: float = 0.0
    client_rate_per_s: float = inf
    client_burst: float = 1.0
    shed_ttft_s: float = inf


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a batching policy may look at when it is asked for rules.

    Counts are the share of one data-parallel rank, whose limits the policy sets.

    Attributes
    ----------
    now_s : float
        Time [s].
    waiting, running : int
        Requests in queue and batch.
    free_blocks, total_blocks, block_size : int
        KV pool.
    waiting_prompt_tokens : int
        Prompt tokens in the queue.
    oldest_wait_s : float
        Longest wait in the queue [s].
    step_s : float
        Time of the newest step on the accelerator [s].
    mean_kv_tokens, mean_emitted_tokens : float
        Of running requests: tokens in the cache, output tokens so far.
    preemptions : int
        Preemptions so far.
    """

    now_s: float
    waiting: int
    running: int
    free_blocks: int
    total_blocks: int
    waiting_prompt_tokens: int
    oldest_wait_s: float
    step_s: float = 0.0
    block_size: int = 16
    mean_kv_tokens: float = 0.0
    mean_emitted_tokens: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestView:
    """What an ordering or routing policy may look at when a request arrives.

    The output length is not known then: a policy that wants it asks `predicted_output`.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int
    ttft_objective_s: float
    client: str
    traffic_class: str = ""
    deadline_s: float = nan
    luck: float = 0.0

    def predicted_output(self, error: float) -> float:
        """Return a prediction of the output length with a lognormal error.

        Parameters
        ----------
        error : float
            Standard deviation of log(predicted / true); 0 = perfect. The draw belongs to the
            request, so every policy sees the same prediction.
        """
        return self.output_tokens * exp(error * self.luck)


class Batching(Protocol):
    """A batching policy."""

    def rules(self) -> BatchRules:
        """Return the rules of every step; of an adaptive policy, its limits."""


@runtime_checkable
class AdaptiveBatching(Protocol):
    """A batching policy whose rules follow the state of the engine."""

    def rules(self) -> BatchRules:
        """Return the limits that `adapt` stays within."""

    def adapt(self, view: EngineView) -> BatchRules:
        """Return the rules of the next steps."""


class Memory(Protocol):
    """A KV memory policy."""

    def rules(self) -> MemoryRules:
        """Return the rules of the pool."""


class Caching(Protocol):
    """A prompt-caching policy."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""


class Admission(Protocol):
    """An admission policy."""

    def rules(self) -> AdmissionRules:
        """Return the rules of the door and the queue."""


class Ordering(Protocol):
    """An order of the waiting requests: the smallest key is served first.

    A class that also needs the engine's help has a method `rules` that returns `OrderRules`.
    """

    def key(self, request: RequestView) -> float:
        """Return the key of a request that has just arrived; ties go by arrival."""


batching: Registry[Batching] = Registry("batching")
memory: Registry[Memory] = Registry("memory")
caching: Registry[Caching] = Registry("caching")
ordering: Registry[Ordering] = Registry("ordering")
admission: Registry[Admission] = Registry("admission")
