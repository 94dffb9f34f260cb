"""From the rules that policies return to the knobs of the engine loop, once or at every change."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formats import InputError
from policies.reuse import AnswerRules, answers
from policies.rules import (
    AdaptiveBatching,
    AdmissionRules,
    BatchRules,
    CacheRules,
    EngineView,
    MemoryRules,
    OrderRules,
    admission,
    batching,
    caching,
    memory,
    ordering,
)
from sim.core.layout import Lanes, StepTables
from sim.scenario import Policies

__all__ = [
    "BlockCosts",
    "ServingRules",
    "adaptive_policy",
    "ask",
    "check_sizes",
    "check_tables",
    "engine_view",
    "policy_knobs",
    "serving_rules",
    "share_limits",
]

NO_LIMIT = 1 << 60
LEAST_HOLD_S = 1e-6  # rules hold at least so long, so that time goes on


@dataclass(frozen=True, slots=True)
class ServingRules:
    """The rules of all serving policies of a scenario."""

    batch: BatchRules
    memory: MemoryRules
    cache: CacheRules
    order: OrderRules
    admission: AdmissionRules
    answers: AnswerRules
    adaptive: bool = False


def serving_rules(policies: Policies) -> ServingRules:
    """Return the rules of a scenario's policies.

    Raises
    ------
    InputError
        No such policy, a bad parameter, or two policies that contradict each other.
    """
    order = ordering.make(policies.ordering)
    own = getattr(order, "rules", None)
    batch = batching.make(policies.batching)
    rules = ServingRules(
        batch.rules(),
        memory.make(policies.memory).rules(),
        caching.make(policies.caching).rules(),
        own() if own else OrderRules(),
        admission.make(policies.admission).rules(),
        answers.make(policies.answers).rules(),
        isinstance(batch, AdaptiveBatching),
    )
    if rules.memory.contiguous and rules.cache.prefix:
        raise InputError(
            "contiguous memory cannot share blocks between requests",
            "[policies.caching] name",
            "none with contiguous memory",
            'set name = "none", or use paged memory',
        )
    return rules


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """What a KV block of a replica takes to keep elsewhere, and to compute again.

    Parameters
    ----------
    bytes : float
        One block of all ranks [byte].
    rank_bytes : float
        The part of one rank, which has a host link of its own [byte].
    copy_s : float
        Seconds to move a block from or to host memory [s].
    token_s, pair_s : float
        Seconds to compute a prompt token, and a query-key pair [s].
    """

    bytes: float
    rank_bytes: float
    copy_s: float
    token_s: float
    pair_s: float


def policy_knobs(rules: ServingRules, blocks: BlockCosts, longest: int) -> dict[str, float]:
    """Return the policies' part of the engine loop's knobs.

    Parameters
    ----------
    rules : ServingRules
        What the policies say.
    blocks : BlockCosts
        Of the accelerator and the model.
    longest : int
        Longest request that is served, which contiguous memory reserves by default [token].
    """
    return (
        _batching(rules.batch)
        | _memory(rules.memory, blocks, longest)
        | _caching(rules.cache, blocks)
        | _ordering(rules.order)
        | _admission(rules.admission, blocks)
        | {"answer_s": rules.answers.lookup_s, "interactive": rules.adaptive}
    )


def adaptive_policy(policies: Policies) -> AdaptiveBatching | None:
    """Return a batching policy that wants to be asked, None for one with fixed rules."""
    made = batching.make(policies.batching)
    return made if isinstance(made, AdaptiveBatching) else None


def _batching(rules: BatchRules) -> dict[str, float]:
    # a batch that stays together decodes all its rows, padding too, in every step
    most = rules.max_num_batched_tokens if rules.together else NO_LIMIT
    return {
        "max_num_seqs": min(rules.max_num_seqs, most),
        "max_num_batched_tokens": rules.max_num_batched_tokens,
        "long_prefill_token_threshold": rules.long_prefill_token_threshold,
        "max_num_partial_prefills": rules.max_num_partial_prefills,
        "chunked": rules.chunked,
        "prefill_first": rules.prefill_first,
        "hold": rules.hold,
        "together": rules.together,
        "fill_size": rules.fill_size,
        "fill_timeout_s": rules.fill_timeout_s,
        "output_limit": 1 if rules.role == "prefill" else NO_LIMIT,
        "receive": rules.role == "decode",
    }


def _memory(rules: MemoryRules, blocks: BlockCosts, longest: int) -> dict[str, float]:
    reserve = (rules.reserve_tokens or longest) if rules.contiguous else 0
    return {
        "block_size": rules.block_size,
        "reserve": reserve,
        "reserve_prompt": rules.reserve_beside_prompt,
        "victim": rules.victim,
        "swap_blocks": int(rules.swap_bytes // blocks.bytes),
        "swap_out_s": blocks.copy_s,
        "swap_in_s": blocks.copy_s,
    }


def _caching(rules: CacheRules, blocks: BlockCosts) -> dict[str, float]:
    link_s = blocks.copy_s
    if rules.dram_bytes_per_s is not None:
        link_s = blocks.rank_bytes / rules.dram_bytes_per_s
    return {
        "caching": rules.prefix,
        "eviction": rules.eviction,
        "ttl_s": rules.ttl_s,
        "recompute_token_s": blocks.token_s,
        "recompute_pair_s": blocks.pair_s,
        "dram_blocks": int(rules.dram_bytes // blocks.bytes),
        "ssd_blocks": int(rules.ssd_bytes // blocks.bytes),
        "dram_s": link_s,
        "ssd_s": max(blocks.bytes / rules.ssd_bytes_per_s, link_s),
        "dram_latency_s": rules.dram_latency_s,
        "ssd_latency_s": rules.ssd_latency_s,
        "fetch_always": rules.fetch_always,
        "fetch_beside": rules.fetch_beside,
    }


def _ordering(rules: OrderRules) -> dict[str, float]:
    return {
        "fair": rules.fair,
        "input_weight": rules.input_weight,
        "output_weight": rules.output_weight,
        "background_seqs": rules.background_seqs,
        "background_tokens": rules.background_tokens,
    }


def _admission(rules: AdmissionRules, blocks: BlockCosts) -> dict[str, float]:
    return {
        "queue_limit": NO_LIMIT if rules.queue_limit is None else rules.queue_limit,
        "impatient": bool(np.isfinite(rules.patience_s)),
        "shed_ttft_s": rules.shed_ttft_s,
        "shed_token_s": blocks.token_s,
    }


def check_tables(tables: StepTables, knobs: np.void) -> None:
    """Refuse a step that is larger than its tables: the loop checks no index.

    Raises
    ------
    InputError
        The tables hold fewer tokens or sequences than a step may have.
    """
    for name, table in (
        ("max_num_batched_tokens", tables.linear_s),
        ("max_num_seqs", tables.head_s),
    ):
        if int(knobs[name]) >= table.size:
            what = f"{name} is {int(knobs[name])}, the step tables end at {table.size - 1}"
            raise InputError(what, "step tables", repair="make larger tables")


def check_sizes(longest: int, requests: npt.NDArray[np.void], knobs: np.void) -> None:
    """Refuse requests that the engine could never serve.

    Parameters
    ----------
    longest : int
        Prompt + output of the longest request [token]; its last token is not stored.
    requests : ndarray of REQUEST
        Looked at where a reservation depends on the prompt.
    knobs : record of KNOBS
        The engine.

    Raises
    ------
    InputError
        A request needs more KV blocks than there are, more than it may reserve, or its prompt
        is longer than a step that may not cut it.
    """
    pool = int(knobs["num_blocks"]) * int(knobs["block_size"])
    _refuse(longest - 1, pool, "the KV pool holds", "kv_blocks")
    if knobs["reserve_prompt"] and len(requests):
        output = int(requests["output_tokens"].max())
        _refuse(output, int(knobs["reserve"]), "reserved for outputs are", "max_output_tokens")
        whole = int(requests["prompt_tokens"].max()) + int(knobs["reserve"])
        _refuse(whole, pool, "the KV pool holds", "kv_blocks")
    elif knobs["reserve"]:
        _refuse(longest - 1, int(knobs["reserve"]), "reserved are", "max_tokens")
        _refuse(int(knobs["reserve"]), pool, "the KV pool holds", "kv_blocks")
    if not knobs["chunked"]:
        most = int(knobs["max_num_batched_tokens"])
        _refuse(longest - 1, most, "a step cuts no prompt and takes", "max_num_batched_tokens")


def _refuse(tokens: int, most: int, why: str, repair: str) -> None:
    if tokens > most:
        what = f"a request takes {tokens} tokens of KV cache, but {why} {most}"
        raise InputError(what, "[policies]", f"up to {most} tokens", f"raise {repair}")


def engine_view(
    state: np.void, knobs: np.void, requests: npt.NDArray[np.void], lanes: Lanes
) -> EngineView:
    """Return what a batching policy may look at: the share of one data-parallel rank."""
    ranks = max(int(knobs["dp"]), 1)
    waiting = lanes.waiting[: int(state["n_waiting"])]
    running = requests[lanes.running[: int(state["n_running"])]]
    oldest = float(requests["ready_s"][waiting].min()) if waiting.size else float(state["now"])
    count = max(running.size, 1)
    return EngineView(
        now_s=float(state["now"]),
        waiting=-(-waiting.size // ranks),
        running=-(-running.size // ranks),
        free_blocks=int(state["free_blocks"]) // ranks,
        total_blocks=int(knobs["num_blocks"]) // ranks,
        waiting_prompt_tokens=int(state["waiting_tokens"]) // ranks,
        oldest_wait_s=float(state["now"]) - oldest,
        step_s=float(state["step_s"]),
        block_size=int(knobs["block_size"]),
        mean_kv_tokens=float(state["kv_tokens"]) / count,
        mean_emitted_tokens=float(running["emitted"].sum()) / count,
        preemptions=int(state["preemptions"]),
    )


def share_limits(knobs: npt.NDArray[np.void], seqs: int, tokens: int, threshold: int) -> None:
    """Set a step's limits on all micro-batches and data-parallel ranks of a replica.

    A prompt stays on one data-parallel rank, in as many pieces as there are micro-batches.

    Parameters
    ----------
    knobs : ndarray of KNOBS, shape (1,)
        With the ranks and micro-batches; written to.
    seqs, tokens : int
        Sequences of a rank, tokens of one of its micro-batches.
    threshold : int
        Prompt tokens of one request per step, 0 = all [token].
    """
    ranks, units = max(int(knobs["dp"][0]), 1), max(int(knobs["units"][0]), 1)
    knobs["unit_tokens"] = tokens
    knobs["max_num_batched_tokens"] = tokens * units
    knobs["max_num_seqs"] = seqs * ranks
    if ranks > 1:
        most = tokens * units // ranks
        threshold = min(threshold or most, most)
    knobs["long_prefill_token_threshold"] = threshold


def ask(
    policy: AdaptiveBatching,
    state: npt.NDArray[np.void],
    knobs: npt.NDArray[np.void],
    requests: npt.NDArray[np.void],
    lanes: Lanes,
    tables: StepTables,
) -> None:
    """Let a policy set the rules of the next steps, within its own limits and the step tables'.

    It sets those of one data-parallel rank and micro-batch; the replica has so many of each.
    """
    view = engine_view(state[0], knobs[0], requests, lanes)
    rules, most = policy.adapt(view), policy.rules()
    ranks, units = max(int(knobs["dp"][0]), 1), max(int(knobs["units"][0]), 1)
    seqs = min(max(rules.max_num_seqs, 1), most.max_num_seqs, (tables.head_s.size - 1) // ranks)
    tokens = max(rules.max_num_batched_tokens, seqs, view.running)
    largest = min(most.max_num_batched_tokens, (tables.linear_s.size - 1) // units)
    share_limits(knobs, seqs, min(tokens, largest), rules.long_prefill_token_threshold)
    knobs["max_num_partial_prefills"] = rules.max_num_partial_prefills
    state["rules_until_s"] = state["now"] + max(rules.valid_s, LEAST_HOLD_S)
    state["changed"] = 0
