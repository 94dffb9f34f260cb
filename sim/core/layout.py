"""Memory layout of one replica: the records that the compiled loop reads and writes.

Structured numpy arrays are the meeting point of Python and the compiled loop: both sides use the
same field names, and nothing is copied between them.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "ITL_BINS",
    "KNOBS",
    "REQUEST",
    "SPREADS",
    "SPREAD_STEP",
    "STATE",
    "STEP",
    "BlockPool",
    "Floats",
    "Integers",
    "Lanes",
    "Record",
    "Records",
    "Status",
    "StepTables",
    "itl_bin_edges",
]

Record = Any  # a numpy record, or an array of them: its fields are known at run time only
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ITL_MIN_S, ITL_BINS_PER_E, ITL_BINS = 1e-5, 200, 4096
SPREAD_STEP, SPREADS = 0.3, 6  # of the last axis of StepTables.uneven


class Status:
    """What became of a request; the numbers stand in `REQUEST.status`."""

    UNFINISHED = 0
    FINISHED = 1
    REJECTED = 2
    TIMED_OUT = 3
    FAILED = 4
    CANCELLED = 5
    NAMES = ("unfinished", "finished", "rejected", "timed_out", "failed", "cancelled")


REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),
        ("ready_s", "f8"),  # when the engine may first see it
        ("admitted_s", "f8"),  # first time in a batch
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("last_token_s", "f8"),  # when its newest token became visible
        ("order_key", "f8"),  # smaller is served first
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("cached_tokens", "i8"),  # prompt tokens found in the prefix cache at first admission
        ("computed", "i8"),  # tokens in the KV cache, counted when scheduled
        ("target", "i8"),  # tokens to compute before the next output token
        ("scheduled", "i8"),  # output tokens scheduled
        ("emitted", "i8"),  # output tokens seen by the client
        ("preemptions", "i8"),
        ("recomputed_tokens", "i8"),  # work repeated after preemption
        ("given_tokens", "i8"),  # KV tokens that come with it from another replica
        ("retries", "i8"),  # times a replica failed under it
        ("prefix_owner", "i8"),  # request whose leading blocks this one repeats, -1 none
        ("prefix_tokens", "i8"),  # leading tokens shared with prefix_owner
        ("hash_start", "i8"),  # first of its entries in Records.hashes
        ("hash_count", "i8"),
        ("priority", "i8"),
        ("slot", "i8"),  # row of its block list, -1 none
        ("status", "i8"),
        ("memory_wait_s", "f8"),  # waited at the head of the queue for free blocks
        ("deadline_s", "f8"),  # leaves the queue (timed_out) when not admitted by then
    ]
)

STATE = np.dtype(
    [
        ("now", "f8"),  # when the engine loop may form the next batch
        ("gpu_end", "f8"),  # when the step in flight leaves the GPU
        ("output_s", "f8"),  # when the newest output became visible
        ("level_until", "f8"),  # the host keeps its level until then
        ("level", "f8"),  # host slowness, 1 = the profile's own
        ("window_w", "f8"),  # mean watts over the power window
        ("temperature_c", "f8"),
        ("busy_s", "f8"),
        ("idle_s", "f8"),
        ("energy_j", "f8"),
        ("idle_energy_j", "f8"),
        ("prefill_energy_j", "f8"),
        ("decode_energy_j", "f8"),
        ("flops", "f8"),
        ("bytes", "f8"),
        ("step_s", "f8"),  # GPU seconds, host seconds, joules and work of the newest step
        ("step_host_s", "f8"),
        ("step_j", "f8"),
        ("step_flops", "f8"),
        ("step_bytes", "f8"),
        ("host_wait_s", "f8"),  # GPU waited for the host
        ("memory_blocked_s", "f8"),  # queue head waited for KV blocks
        ("seed", "u8"),
        ("level_index", "i8"),
        ("step", "i8"),
        ("in_flight", "i8"),  # 1 when a step's output has not been processed
        ("n_flight", "i8"),
        ("n_emitting", "i8"),
        ("n_batch", "i8"),
        ("admitting", "i8"),
        ("blocked", "i8"),  # the head of the queue waits for KV blocks
        ("n_running", "i8"),
        ("n_waiting", "i8"),
        ("n_partial", "i8"),  # running requests whose prompt is not yet computed
        ("n_inbox", "i8"),
        ("next_inbox", "i8"),
        ("free_blocks", "i8"),
        ("preempted", "i8"),
        ("preemptions", "i8"),
        ("generated", "i8"),
        ("prefilled", "i8"),
        ("finished", "i8"),
        ("n_rows", "i8"),
        ("resume", "i8"),  # macro-steps that `until` interrupted
        ("free_slots", "i8"),
        ("hit_blocks", "i8"),
        ("looked_up_blocks", "i8"),
        ("evictions", "i8"),
        ("n_done", "i8"),  # entries of Lanes.done not yet read by Python
    ]
)

KNOBS = np.dtype(
    [
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("long_prefill_token_threshold", "i8"),  # 0 = none
        ("max_num_partial_prefills", "i8"),
        ("block_size", "i8"),
        ("num_blocks", "i8"),
        ("watermark_blocks", "i8"),
        ("units", "i8"),  # micro-batches x data-parallel ranks that share a step, 0 = 1
        ("unit_tokens", "i8"),  # most tokens of one of them
        ("chunked", "i8"),
        ("prefill_first", "i8"),  # a step with prompts decodes nothing
        ("hold", "i8"),  # admit only into an empty batch, and keep it until all are done
        ("fill_size", "i8"),  # wait for that many requests, or for fill_timeout_s
        ("fill_timeout_s", "f8"),
        ("victim", "i8"),  # 0 last admitted, 1 lowest priority, 2 shortest progress
        ("caching", "i8"),
        ("reserve", "i8"),  # contiguous: reserve prompt + this many output tokens, 0 = paged
        ("queue_limit", "i8"),
        ("every_step", "i8"),  # 1: one row per step
        ("log_steps", "i8"),  # 0: keep no step log
        ("fuse", "i8"),  # 0: never take macro-steps
        ("ingest_s", "f8"),
        ("ingest_per_token_s", "f8"),
        ("client_s", "f8"),
        ("client_per_request_s", "f8"),
        ("bookkeeping_s", "f8"),
        ("bookkeeping_per_request_s", "f8"),
        ("visible_s", "f8"),  # GPU end to output seen
        ("graph_dispatch_s", "f8"),
        ("graph_level_share", "f8"),  # part of it that the host's level scales
        ("graph_lead_s", "f8"),  # schedule to first kernel of a graph step
        ("piecewise_dispatch_s", "f8"),
        ("piecewise_gap_s", "f8"),  # GPU time lost between the graph pieces of a step
        ("eager_dispatch_s", "f8"),
        ("eager_lead_s", "f8"),
        ("graph_tokens", "i8"),  # largest captured batch
        ("level_mean_s", "f8"),  # mean time between changes of the host level
        ("level_low", "f8"),
        ("level_high", "f8"),
        ("level_jitter", "f8"),
        ("idle_w", "f8"),
        ("base_w", "f8"),
        ("j_per_flop", "f8"),  # of 16-bit operands
        ("flop_scale", "f8"),  # energy of a FLOP of the linear layers against a 16-bit one
        ("j_per_weight_byte", "f8"),
        ("j_per_kv_byte", "f8"),
        ("cap_w", "f8"),
        ("window_s", "f8"),
        ("clock_free", "f8"),  # share of the cap below which the clock is always full
        ("full_clock_gain", "f8"),  # time saved against the table at the full clock
        ("capped_gain", "f8"),  # time saved against the table at the cap
        ("full_cap_w", "f8"),  # sustained watts at the TDP; cap_w may be lower
        ("power_exponent", "f8"),
        ("time_exponent", "f8"),
        ("memory_exponent", "f8"),
        ("ambient_c", "f8"),
        ("throttle_c", "f8"),
        ("throttle_per_k", "f8"),  # slowdown per kelvin above it
        ("kelvin_per_w", "f8"),
        ("thermal_s", "f8"),
    ]
)

STEP = np.dtype(
    [
        ("schedule_s", "f8"),
        ("output_s", "f8"),
        ("steps", "i8"),
        ("prefill_requests", "i8"),
        ("prefill_tokens", "i8"),
        ("prefill_attention", "f8"),  # causal query-key pairs
        ("decode_requests", "i8"),
        ("decode_context", "i8"),  # of the first step of the row
        ("running", "i8"),
        ("waiting", "i8"),
        ("preempted", "i8"),
        ("free_blocks", "i8"),
        ("gpu_s", "f8"),
        ("host_s", "f8"),
        ("energy_j", "f8"),
        ("flops", "f8"),
        ("bytes", "f8"),
        ("level", "f8"),
        ("window_w", "f8"),
        ("temperature_c", "f8"),
    ]
)


class StepTables(NamedTuple):
    """GPU seconds, FLOPs and bytes of one step, tabulated.

    Attributes
    ----------
    linear_s : (max_tokens + 1,)
        Everything that works token by token (GEMM, experts, element-wise) [s].
    head_s : (max_seqs + 1,)
        Output projection and sampling for that many sequences [s].
    decode_s : (max_seqs + 1, contexts)
        Attention of that many decoding sequences at a mean context [s].
    prefill_s : (chunks, pasts)
        Attention of one prompt chunk over a past [s].
    bounds : (6,)
        log2 of first context and points per octave, of chunk grid, of past grid.
    uneven : (max_seqs + 1, contexts, spreads)
        Relative extra of decode attention by the contexts' deviation over their mean, in steps of
        `SPREAD_STEP` from 0.
    linear_bytes : (max_tokens + 1,)
        Weights that a step reads [byte].
    compute_share : (max_tokens + 1,)
        How compute-bound the token-wise kernels are [0..1].
    counts : (4,)
        Of one rank: FLOPs per token, per logit and per query-key pair, KV bytes per token.
    shared_s : (max_tokens + 1,)
        Experts that serve the tokens of several data-parallel ranks [s]; one entry = none.
    """

    linear_s: Floats
    head_s: Floats
    decode_s: Floats
    prefill_s: Floats
    uneven: Floats
    bounds: Floats
    linear_bytes: Floats
    compute_share: Floats
    counts: Floats
    shared_s: Floats = np.zeros(1)


class BlockPool(NamedTuple):
    """KV blocks: a doubly linked free list in eviction order, and the prefix-cache index."""

    before: Integers
    after: Integers
    references: Integers
    key: Integers
    index_key: Integers
    index_block: Integers


class Lanes(NamedTuple):
    """Working lists of one replica: indices into `Records.requests`."""

    running: Integers
    waiting: Integers
    waiting_key: Floats
    inbox: Integers
    flight: Integers  # requests that get a token from the step in flight
    emitting: Integers  # the same for the step being formed
    batch: Integers
    batch_tokens: Integers
    slots: Integers
    blocks: Integers  # (slots, blocks per request)
    held: Integers  # blocks held, by slot
    done: Integers
    phase: Integers  # decoding sequences by context modulo block size
    gaps: Floats  # inter-token-latency histogram


class Records(NamedTuple):
    """Requests shared by a fleet, and block hashes of traces that carry them."""

    requests: npt.NDArray[np.void]
    hashes: Integers


def itl_bin_edges() -> Floats:
    """Return the lower edges of the inter-token-latency histogram [s], shape (ITL_BINS,)."""
    return ITL_MIN_S * np.exp(np.arange(ITL_BINS) / ITL_BINS_PER_E)
