"""Options of serving engines, by the scenario key that they stand for.

Names are those of the engines' own documentation: vLLM 0.24 (`vllm serve`), SGLang 0.5 (server
arguments), TensorRT-LLM 1.2 (`trtllm-serve` and the LLM API's YAML file) and the model parameters
of Triton's TensorRT-LLM backend. A key that is not listed has no known option.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.tuning.drafting import (
    Drafts,
    sglang_drafts,
    trtllm_drafts,
    unknown_drafts,
    vllm_drafts,
)
from sim.tuning.writer import Rule, Writer, at_least, choose, entry, flag, switch

__all__ = ["ENGINES", "Engine"]

SIXTEEN_BIT = ("bf16", "fp16")
BATCHING = "policies.batching"
PARTIAL = "vLLM 0.24 refuses --max-num-partial-prefills above 1"
V1_RULES = "the V1 scheduler always serves decodes first and fills up with prompt chunks"
DEFAULT_BLOCK = 16


@dataclass(frozen=True)
class Engine:
    """One serving engine and what of it is known.

    Attributes
    ----------
    title : str
        Name and version.
    command : callable
        Checkpoint -> first words of the command line.
    rules : mapping
        Scenario key -> rule.
    image, tag : str
        Container; an empty tag is for the user to choose.
    also : callable
        What does not follow from a single key.
    started : tuple of str
        How a pod starts it, where that is not `command`.
    drafts : callable
        How it is told to speculate.
    """

    title: str
    command: Callable[[str], list[str]]
    rules: Mapping[str, Rule]
    image: str
    tag: str = ""
    also: Callable[[Writer], None] = field(default=lambda _: None)
    started: tuple[str, ...] = ()
    drafts: Callable[[Writer, Drafts], None] = unknown_drafts


def _weights(online: Mapping[str, str]) -> Rule:
    """Return the rule of the weights' format: some engines quantise a 16-bit checkpoint."""

    def rule(out: Writer, key: str, value: Any) -> None:  # noqa: ANN401 - any scenario value
        if value == out.facts.native:
            return
        if value in online and out.facts.native in SIXTEEN_BIT:
            out.words.extend(["--quantization", online[value]])
            out.notes.append(f"{online[value]}: the 16-bit checkpoint is quantised as it is loaded")
        else:
            out.notes.append(
                f"{key} = {value} needs a checkpoint quantised to it, served in place of "
                f"{out.facts.model}; the engine reads the format from it, no option is needed"
            )

    return rule


def _kv(words: Mapping[str, str], write: Callable[[Writer, str], None]) -> Rule:
    def rule(out: Writer, key: str, value: Any) -> None:  # noqa: ANN401 - any scenario value
        if value in words:
            write(out, words[value])
        elif value not in SIXTEEN_BIT:
            out.miss(key, value)

    return rule


def _kv_flag(out: Writer, word: str) -> None:
    out.words.extend(["--kv-cache-dtype", word])


def _kv_entry(out: Writer, word: str) -> None:
    out.config["kv_cache_config.dtype"] = word


def _partials(out: Writer, key: str, value: int) -> None:
    if value > 1:
        out.miss(key, value, PARTIAL)


def _block(out: Writer, _: str, value: int) -> None:
    if value != DEFAULT_BLOCK:
        out.words.extend(["--block-size", f"{value}"])


def _nothing(*_: object) -> None:
    """Write nothing: another rule tells it."""


VLLM: dict[str, Rule] = {
    "hardware.tp": at_least(2, "--tensor-parallel-size"),
    "hardware.pp": at_least(2, "--pipeline-parallel-size"),
    "hardware.dp": at_least(2, "--data-parallel-size"),
    "hardware.ep": lambda out, _, v: out.words.extend(["--enable-expert-parallel"] * (v > 1)),
    "model.weights": _weights({"fp8": "fp8"}),
    "model.kv": _kv({"fp8": "fp8", "fp8_e5m2": "fp8_e5m2"}, _kv_flag),
    "engine.max_model_len": flag("--max-model-len"),
    "engine.memory_utilisation": flag("--gpu-memory-utilization"),
    "engine.cuda_graphs": switch(None, "--enforce-eager"),
    f"{BATCHING}.name": choose({"chunked-prefill": []}, V1_RULES),
    f"{BATCHING}.max_num_seqs": flag("--max-num-seqs"),
    f"{BATCHING}.max_num_batched_tokens": flag("--max-num-batched-tokens"),
    f"{BATCHING}.long_prefill_token_threshold": at_least(1, "--long-prefill-token-threshold"),
    f"{BATCHING}.max_num_partial_prefills": _partials,
    "policies.memory.block_size": _block,
    "policies.memory.kv_blocks": flag("--num-gpu-blocks-override"),
    "policies.caching.name": choose(
        {"prefix-lru": ["--enable-prefix-caching"], "none": ["--no-enable-prefix-caching"]},
        "prefix blocks are evicted by LRU only",
    ),
    "policies.ordering.name": choose({w: ["--scheduling-policy", w] for w in ("fcfs", "priority")}),
}


def _sglang_ranks(out: Writer) -> None:
    tp, dp = out.facts.tp, out.facts.dp
    if tp * dp > 1:
        out.words.extend(["--tp-size", f"{tp * dp}"])
    if dp > 1:
        out.words.extend(["--dp-size", f"{dp}", "--enable-dp-attention"])
    if out.facts.kv_tokens is not None:
        out.words.extend(["--max-total-tokens", f"{out.facts.kv_tokens}"])
    out.notes.append(
        "--mem-fraction-static is left at its default: it covers weights and KV pool only, "
        "so it is not the scenario's share of memory; --max-total-tokens sets the pool instead"
    )


SGLANG_BATCHING = {
    "chunked-prefill": ["--enable-mixed-chunk"],
    "continuous": ["--chunked-prefill-size", "-1"],
}


def _sglang_tokens(out: Writer, _: str, value: int) -> None:
    chunked = "--enable-mixed-chunk" in out.words
    out.words.extend(["--chunked-prefill-size" if chunked else "--max-prefill-tokens", f"{value}"])


SGLANG: dict[str, Rule] = {
    "hardware.tp": _nothing,
    "hardware.dp": _nothing,
    "hardware.pp": at_least(2, "--pp-size"),
    "hardware.ep": at_least(2, "--ep-size"),
    "model.weights": _weights({"fp8": "fp8"}),
    "model.kv": _kv({"fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}, _kv_flag),
    "engine.max_model_len": flag("--context-length"),
    "engine.memory_utilisation": _nothing,
    "engine.cuda_graphs": switch(None, "--disable-cuda-graph"),
    f"{BATCHING}.name": choose(SGLANG_BATCHING),
    f"{BATCHING}.max_num_seqs": flag("--max-running-requests"),
    f"{BATCHING}.max_num_batched_tokens": _sglang_tokens,
    "policies.memory.block_size": flag("--page-size"),
    "policies.memory.kv_blocks": _nothing,
    "policies.caching.name": choose(
        {
            "prefix-lru": ["--radix-eviction-policy", "lru"],
            "prefix-lfu": ["--radix-eviction-policy", "lfu"],
            "none": ["--disable-radix-cache"],
        }
    ),
    "policies.ordering.name": choose(
        {
            "fcfs": ["--schedule-policy", "fcfs"],
            "priority": ["--enable-priority-scheduling", "--schedule-low-priority-values-first"],
        }
    ),
}


def _trtllm_ranks(out: Writer) -> None:
    tp, dp = out.facts.tp, out.facts.dp
    if tp * dp > 1:
        out.words.extend(["--tp_size", f"{tp * dp}"])
    if dp > 1:
        out.config["enable_attention_dp"] = True
    if out.facts.kv_tokens is not None:
        out.config["kv_cache_config.max_tokens"] = out.facts.kv_tokens
    out.notes.append(
        "kv_cache_config.free_gpu_memory_fraction is left at its default: it is a share of what "
        "weights leave free; max_tokens limits the pool instead"
    )


TRTLLM: dict[str, Rule] = {
    "hardware.tp": _nothing,
    "hardware.dp": _nothing,
    "hardware.pp": at_least(2, "--pp_size"),
    "hardware.ep": at_least(2, "--ep_size"),
    "model.weights": _weights({}),
    "model.kv": _kv({"fp8": "fp8"}, _kv_entry),
    "engine.max_model_len": flag("--max_seq_len"),
    "engine.memory_utilisation": _nothing,
    "engine.cuda_graphs": lambda out, _, v: v or out.config.update({"cuda_graph_config": None}),
    f"{BATCHING}.name": entry(
        "enable_chunked_prefill", {"chunked-prefill": True, "continuous": False}
    ),
    f"{BATCHING}.max_num_seqs": flag("--max_batch_size"),
    f"{BATCHING}.max_num_batched_tokens": flag("--max_num_tokens"),
    "policies.memory.name": entry(
        "scheduler_config.capacity_scheduler_policy",
        {"paged": "MAX_UTILIZATION", "contiguous": "GUARANTEED_NO_EVICT"},
    ),
    "policies.memory.block_size": entry("kv_cache_config.tokens_per_block"),
    "policies.memory.kv_blocks": _nothing,
    "policies.caching.name": entry(
        "kv_cache_config.enable_block_reuse", {"prefix-lru": True, "none": False}
    ),
    "policies.ordering.name": choose({"fcfs": []}),
}


def _triton_rest(out: Writer) -> None:
    if out.facts.kv_tokens is not None:
        out.config["max_tokens_in_paged_kv_cache"] = out.facts.kv_tokens
    out.config.setdefault("max_queue_delay_microseconds", 0)
    if out.facts.tp > 1:
        out.notes.append(f"start Triton with --world_size={out.facts.tp}")
    out.notes.append(
        "limits of a step are those of the engine: build it with the trtllm-build line; "
        "chunked context needs paged context attention"
    )


def _microseconds(out: Writer, _: str, value: float) -> None:
    out.config["max_queue_delay_microseconds"] = round(value * 1e6)


IN_FLIGHT, AT_ONCE = "inflight_fused_batching", "V1"


def _triton_batching(out: Writer, key: str, value: str) -> None:
    chunks = {"chunked-prefill": True, "continuous": False}
    if value in chunks:
        out.config |= {"batching_strategy": IN_FLIGHT, "enable_chunked_context": chunks[value]}
    elif value in {"static", "dynamic"}:
        out.config["batching_strategy"] = AT_ONCE
    else:
        out.miss(key, value)


def _triton_seqs(out: Writer, _: str, value: int) -> None:
    out.config["triton_max_batch_size"] = value
    out.words.extend(["--max_batch_size", f"{value}"])


TRITON: dict[str, Rule] = {
    "hardware.tp": _nothing,
    "model.weights": _weights({}),
    "engine.max_model_len": flag("--max_seq_len"),
    "engine.memory_utilisation": _nothing,
    "engine.cuda_graphs": entry("cuda_graph_mode"),
    f"{BATCHING}.name": _triton_batching,
    f"{BATCHING}.max_num_seqs": _triton_seqs,
    f"{BATCHING}.max_num_batched_tokens": flag("--max_num_tokens"),
    f"{BATCHING}.preferred_batch_size": entry("preferred_batch_size"),
    f"{BATCHING}.max_queue_delay_s": _microseconds,
    "policies.memory.name": entry(
        "batch_scheduler_policy",
        {"paged": "max_utilization", "contiguous": "guaranteed_no_evict"},
    ),
    "policies.memory.block_size": flag("--tokens_per_block"),
    "policies.memory.kv_blocks": _nothing,
    "policies.caching.name": entry("enable_kv_cache_reuse", {"prefix-lru": True, "none": False}),
    "policies.ordering.name": choose({"fcfs": []}),
}
ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        "vLLM 0.24",
        lambda model: ["vllm", "serve", model],
        VLLM,
        "vllm/vllm-openai",
        "v0.24.0",
        drafts=vllm_drafts,
    ),
    "sglang": Engine(
        "SGLang 0.5",
        lambda model: ["python", "-m", "sglang.launch_server", "--model-path", model],
        SGLANG,
        "lmsysorg/sglang",
        also=_sglang_ranks,
        drafts=sglang_drafts,
    ),
    "trtllm": Engine(
        "TensorRT-LLM 1.2",
        lambda model: ["trtllm-serve", model],
        TRTLLM,
        "nvcr.io/nvidia/tensorrt-llm/release",
        "1.2.0",
        also=_trtllm_ranks,
        drafts=trtllm_drafts,
    ),
    "triton": Engine(
        "Triton 25.12 with the TensorRT-LLM backend",
        lambda _: ["trtllm-build", "--checkpoint_dir", "CHECKPOINT"],
        TRITON,
        "nvcr.io/nvidia/tritonserver",
        "25.12-trtllm-python-py3",
        also=_triton_rest,
        started=("tritonserver", "--model-repository=/models"),
    ),
}
