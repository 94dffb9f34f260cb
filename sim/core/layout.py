"""Memory layout of one replica: the records that the compiled loop reads and writes.

Structured numpy arrays are the meeting point of Python and the compiled loop: both sides use the
same field names, and nothing is copied between them.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.core.jit import record_type

__all__ = [
    "ITL_BINS",
    "REQUEST",
    "SPREADS",
    "SPREAD_STEP",
    "STATE",
    "STEP",
    "BlockPool",
    "Floats",
    "Gate",
    "Integers",
    "Lanes",
    "Record",
    "Records",
    "Status",
    "StepTables",
    "Tiers",
    "itl_bin_edges",
]

Record = Any  # a numpy record, or an array of them: its fields are known at run time only
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ITL_MIN_S, ITL_BINS_PER_E, ITL_BINS = 1e-5, 200, 4096
SPREAD_STEP, SPREADS = 0.3, 6  # of the last axis of StepTables.uneven
PROMPT_OCTAVE, PROMPTS = 6, 5  # log2 of the first entry, and entries, of StepTables.beside


class Status:
    """What became of a request; the numbers stand in `REQUEST.status`."""

    UNFINISHED = 0
    FINISHED = 1
    REJECTED = 2
    TIMED_OUT = 3
    FAILED = 4
    CANCELLED = 5
    NAMES = ("unfinished", "finished", "rejected", "timed_out", "failed", "cancelled")


class Gate:
    """What is decided about a request before the engine sees it; stands in `REQUEST.gate`."""

    OPEN = 0
    REFUSED = 1  # over its client's rate
    ANSWERED = 2  # the whole answer is known


REQUEST = record_type(
    [
        # what the inner loops touch stands together
        ("computed", "i8"),  # tokens in the KV cache, counted when scheduled
        ("target", "i8"),  # tokens to compute before the next output token
        ("scheduled", "i8"),  # output tokens scheduled
        ("emitted", "i8"),  # output tokens seen by the client
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("slot", "i8"),  # row of its block list, -1 none
        ("last_token_s", "f8"),  # when its newest token became visible
        ("arrival_s", "f8"),
        ("ready_s", "f8"),  # when the engine may first see it
        ("admitted_s", "f8"),  # first time in a batch
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("order_key", "f8"),  # smaller is served first
        ("priority", "i8"),
        ("client", "i8"),  # number of the client, for fair shares
        ("background", "i8"),  # 1: fills valleys, is preempted first
        ("urgent_s", "f8"),  # a background request counts as any other from then on
        ("timeout_s", "f8"),  # leaves the queue (timed_out) when not admitted by then
        ("patience_s", "f8"),  # its client leaves (cancelled) without a first token by then
        ("gate", "i8"),  # decided at the door: see `Gate`
        ("extra_s", "f8"),  # GPU seconds of its first chunk besides the model, as an encoder's
        ("extra_flops", "f8"),
        ("draft_level", "i8"),  # row of Lanes.draft_chances
        ("draft_length", "i8"),  # tokens to draft, where the length is adaptive
        ("saved_s", "f8"),  # GPU seconds that a cache of encoder outputs saved
        ("cached_tokens", "i8"),  # prompt tokens found in the prefix cache at first admission
        ("dram_tokens", "i8"),  # of them fetched from host memory
        ("ssd_tokens", "i8"),  # of them fetched from SSD
        ("stored", "i8"),  # KV tokens kept elsewhere that come back at admission
        ("swaps", "i8"),  # times its KV blocks went to host memory
        ("preemptions", "i8"),
        ("recomputed_tokens", "i8"),  # work repeated after preemption
        ("given_tokens", "i8"),  # KV tokens that come with it from another replica
        ("retries", "i8"),  # times a replica failed under it
        ("memory_wait_s", "f8"),  # waited while the head of the queue lacked free blocks
        ("prefix_owner", "i8"),  # request whose leading blocks this one repeats, -1 none
        ("prefix_tokens", "i8"),  # leading tokens shared with prefix_owner
        ("hash_start", "i8"),  # first of its entries in Records.hashes
        ("hash_count", "i8"),
        ("status", "i8"),
    ]
)

STATE = record_type(
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
        ("point_s", "f8"),  # newest scheduling point
        ("next_leave_s", "f8"),  # a waiting request may leave the queue from then on
        ("next_urgent_s", "f8"),  # a background request becomes urgent then
        ("rules_until_s", "f8"),  # the policy's rules hold until then
        ("front_s", "f8"),  # the front end has done all it was given
        ("front_lag_s", "f8"),  # it sends output so long after the engine had it
        ("copy_s", "f8"),  # the next step waits for copies of KV blocks
        ("fetch_s", "f8"),  # the same, beside the step
        ("copied_s", "f8"),  # all of both so far
        ("extra_s", "f8"),  # GPU seconds and FLOPs of the next step besides the model
        ("extra_flops", "f8"),
        ("extra_bytes", "f8"),  # weights that it reads besides those of the model
        ("verified", "i8"),  # tokens of the next step beyond one per decoding request
        ("drafted", "i8"),  # tokens drafted, and accepted, so far
        ("accepted", "i8"),
        ("decoded", "i8"),  # decodes that drafts stood behind
        ("cache_clock", "f8"),  # rank of the block evicted last
        ("idle_squares", "f8"),  # sum of squared contexts of padding rows
        ("seed", "u8"),
        ("level_index", "i8"),
        ("loaded", "i8"),  # bit i: kernels of 8 i + 1 to 8 i + 8 rows are loaded
        ("step", "i8"),
        ("in_flight", "i8"),  # 1 when a step's output has not been processed
        ("n_flight", "i8"),
        ("n_emitting", "i8"),
        ("n_batch", "i8"),
        ("blocked", "i8"),  # why the head of the queue waits: see sim.core.schedule
        ("changed", "i8"),  # 1: queue or batch has other requests than at the last rules
        ("n_running", "i8"),
        ("n_waiting", "i8"),
        ("waiting_tokens", "i8"),  # prompt tokens in the queue
        ("n_inbox", "i8"),
        ("next_inbox", "i8"),
        ("next_front", "i8"),  # first of the inbox that the front end has not taken in
        ("fill_left", "i8"),  # requests that may still join a held batch
        ("n_padding", "i8"),  # ended requests that stay in a held batch
        ("padding_context", "i8"),
        ("n_background", "i8"),  # running requests of the background class
        ("background_left", "i8"),  # prompt tokens that they may still take of this step
        ("free_blocks", "i8"),
        ("held_blocks", "i8"),  # sum over running requests, shared blocks counted by each
        ("kv_tokens", "i8"),  # tokens in them
        ("largest_free", "i8"),  # largest free run of blocks
        ("n_extents", "i8"),
        ("preempted", "i8"),  # by the newest step
        ("displaced", "i8"),  # background requests among them that made room for the queue
        ("preemptions", "i8"),
        ("swapped_blocks", "i8"),  # in host memory
        ("swaps", "i8"),
        ("generated", "i8"),
        ("prefilled", "i8"),
        ("finished", "i8"),
        ("n_rows", "i8"),
        ("resume", "i8"),  # macro-steps that `until` interrupted
        ("free_slots", "i8"),
        ("hit_blocks", "i8"),
        ("dram_hit_blocks", "i8"),
        ("ssd_hit_blocks", "i8"),
        ("looked_up_blocks", "i8"),
        ("evictions", "i8"),
        ("n_evicted", "i8"),  # keys in BlockPool.evicted that wait for the next tier
        ("demoted_blocks", "i8"),
        ("releases", "i8"),
        ("n_done", "i8"),  # entries of Lanes.done not yet read by Python
    ]
)

STEP = record_type(
    [
        ("schedule_s", "f8"),
        ("output_s", "f8"),
        ("steps", "i8"),
        ("prefill_requests", "i8"),
        ("prefill_tokens", "i8"),
        ("prefill_attention", "f8"),  # causal query-key pairs
        ("decode_requests", "i8"),
        ("decode_context", "i8"),  # of the first step of the row
        ("padding", "i8"),  # ended requests computed along in a held batch
        ("running", "i8"),
        ("waiting", "i8"),
        ("preempted", "i8"),
        ("free_blocks", "i8"),
        ("unused_tokens", "i8"),  # room in the running requests' blocks without a token
        ("largest_free_blocks", "i8"),  # largest free run; all free blocks where memory is paged
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
    prefill_s, prefill_call_s : (chunks, pasts)
        Attention of a prompt chunk over a past: what it adds to a call, and what the call takes
        besides, once for all its prompts [s].
    bounds : (6,)
        log2 of first context and points per octave, of chunk grid, of past grid.
    uneven : (max_seqs + 1, contexts, spreads)
        Relative extra of decode attention by the contexts' deviation over their mean, in steps of
        `SPREAD_STEP` from 0.
    beside : (max_seqs + 1, contexts, prompts)
        Relative extra of decode attention in steps that compute prompts, by log2 of their tokens;
        no entries = none.
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
    prefill_call_s: Floats
    uneven: Floats
    bounds: Floats
    linear_bytes: Floats
    compute_share: Floats
    counts: Floats
    shared_s: Floats = np.zeros(1)
    beside: Floats = np.zeros((0, 0, 0))


class BlockPool(NamedTuple):
    """KV blocks: the free ones in eviction order, and the prefix-cache index.

    Least recently used order is a doubly linked list (before, after); any other order is a heap
    over `rank`, whose arrays have one entry when the list serves.
    """

    before: Integers
    after: Integers
    references: Integers
    key: Integers
    index_key: Integers
    index_block: Integers
    rank: Floats  # (blocks, 5): score, release number, recompute seconds, uses, last use
    heap: Integers  # free blocks
    spot: Integers  # place of each block in the heap
    evicted: Integers  # keys on their way to the next tier


class Tiers(NamedTuple):
    """Prefix caches below the KV pool, each least recently used."""

    dram: BlockPool
    ssd: BlockPool


class Lanes(NamedTuple):
    """Working lists of one replica: indices into `Records.requests`."""

    running: Integers
    waiting: Integers
    waiting_key: Floats
    waiting_level: Integers
    inbox: Integers
    flight: Integers  # requests that get a token from the step in flight
    emitting: Integers  # the same for the step being formed
    batch: Integers
    batch_tokens: Integers
    batch_drafts: Integers  # tokens drafted for each, 0 = none
    flight_tokens: Integers  # tokens that each of `flight`, and of `emitting`, gets
    emitting_tokens: Integers
    slots: Integers
    blocks: Integers  # (slots, blocks per request)
    held: Integers  # blocks held, by slot
    done: Integers
    phase: Integers  # decoding sequences by context modulo block size
    gaps: Floats  # inter-token-latency histogram
    served: Floats  # weighted tokens served, by client
    draft_lengths: Integers  # speculation: see sim.drafts.DraftTables
    draft_chances: Floats
    draft_s: Floats
    verify_s: Floats
    draft_prompt_s: Floats
    extent_start: Integers  # free runs of contiguous memory
    extent_size: Integers


class Records(NamedTuple):
    """Requests shared by a fleet, and block hashes of traces that carry them."""

    requests: npt.NDArray[np.void]
    hashes: Integers


def itl_bin_edges() -> Floats:
    """Return the lower edges of the inter-token-latency histogram [s], shape (ITL_BINS,)."""
    return ITL_MIN_S * np.exp(np.arange(ITL_BINS) / ITL_BINS_PER_E)
