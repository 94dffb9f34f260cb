"""A scenario as the flags of the engine that will run it, and as a Kubernetes values snippet.

Option names are those of vLLM 0.24 (`vllm serve`), SGLang 0.5 (`launch_server`) and TensorRT-LLM
1.2 (`trtllm-serve`). What has no option is said, not dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from formats import InputError, did_you_mean
from sim.scenario import Scenario

__all__ = ["ENGINES", "Flags", "deployable"]

Render = Callable[[Any], list[str]]
Option = str | Render | None


def _switch(on: str | None, off: str | None) -> Render:
    return lambda value: [flag for flag in [on if value else off] if flag]


def _known(flag: str, words: dict[str, str]) -> Render:
    return lambda value: [flag, words[value]] if value in words else []


PREFIX = {"prefix-lru": True, "none": False}


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags of one engine.

    Attributes
    ----------
    engine : str
        Engine and version.
    command : list of str
        The command line, word by word.
    unknown : list of str
        Scenario keys that differ from the default and have no option there.
    values : str
        A Kubernetes-ready values snippet (YAML).
    """

    engine: str
    command: list[str]
    unknown: list[str]
    values: str

    def line(self) -> str:
        """Return the command as one line."""
        return " ".join(self.command)


def _count(flag: str, least: int = 2) -> Render:
    return lambda value: [flag, str(value)] if value is not None and value >= least else []


VLLM: dict[str, Option] = {
    "hardware.tp": _count("--tensor-parallel-size"),
    "hardware.pp": _count("--pipeline-parallel-size"),
    "hardware.dp": _count("--data-parallel-size"),
    "hardware.ep": lambda value: ["--enable-expert-parallel"] if value > 1 else [],
    "model.weights": _known(
        "--quantization", {"fp8": "fp8", "int8": "int8", "w4a16": "awq_marlin"}
    ),
    "model.kv": _known("--kv-cache-dtype", {"fp8": "fp8", "fp8_e5m2": "fp8_e5m2"}),
    "engine.max_model_len": "--max-model-len",
    "engine.memory_utilisation": "--gpu-memory-utilization",
    "engine.cuda_graphs": _switch(None, "--enforce-eager"),
    "policies.batching.max_num_seqs": "--max-num-seqs",
    "policies.batching.max_num_batched_tokens": "--max-num-batched-tokens",
    "policies.batching.long_prefill_token_threshold": _count("--long-prefill-token-threshold", 1),
    "policies.batching.max_num_partial_prefills": _count("--max-num-partial-prefills"),
    "policies.memory.block_size": "--block-size",
    "policies.memory.kv_blocks": "--num-gpu-blocks-override",
    "policies.caching.name": lambda value: _switch(
        "--enable-prefix-caching", "--no-enable-prefix-caching"
    )(PREFIX.get(value, True)),
    "policies.ordering.name": _known(
        "--scheduling-policy", {"fcfs": "fcfs", "priority": "priority"}
    ),
}
SGLANG: dict[str, Option] = {
    "hardware.tp": _count("--tp-size"),
    "hardware.pp": _count("--pp-size"),
    "hardware.dp": _count("--dp-size"),
    "hardware.ep": _count("--ep-size"),
    "model.weights": _known("--quantization", {"fp8": "fp8", "w4a16": "awq_marlin"}),
    "model.kv": _known("--kv-cache-dtype", {"fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}),
    "engine.max_model_len": "--context-length",
    "engine.memory_utilisation": "--mem-fraction-static",
    "engine.cuda_graphs": _switch(None, "--disable-cuda-graph"),
    "policies.batching.max_num_seqs": "--max-running-requests",
    "policies.batching.max_num_batched_tokens": "--chunked-prefill-size",
    "policies.batching.long_prefill_token_threshold": None,
    "policies.batching.max_num_partial_prefills": None,
    "policies.memory.block_size": "--page-size",
    "policies.memory.kv_blocks": None,
    "policies.caching.name": lambda value: _switch(None, "--disable-radix-cache")(
        PREFIX.get(value, True)
    ),
    "policies.ordering.name": _known("--schedule-policy", {"fcfs": "fcfs"}),
}
TRTLLM: dict[str, Option] = {
    "hardware.tp": _count("--tp_size"),
    "hardware.pp": _count("--pp_size"),
    "hardware.dp": None,
    "hardware.ep": _count("--ep_size"),
    "model.weights": None,
    "model.kv": None,
    "engine.max_model_len": "--max_seq_len",
    "engine.memory_utilisation": "--kv_cache_free_gpu_memory_fraction",
    "engine.cuda_graphs": None,
    "policies.batching.max_num_seqs": "--max_batch_size",
    "policies.batching.max_num_batched_tokens": "--max_num_tokens",
    "policies.batching.long_prefill_token_threshold": None,
    "policies.batching.max_num_partial_prefills": None,
    "policies.memory.block_size": None,
    "policies.memory.kv_blocks": None,
    "policies.caching.name": None,
    "policies.ordering.name": None,
}
ENGINES: dict[str, tuple[str, list[str], dict[str, Option]]] = {
    "vllm": ("vLLM 0.24", ["vllm", "serve", "MODEL"], VLLM),
    "sglang": (
        "SGLang 0.5",
        ["python", "-m", "sglang.launch_server", "--model-path", "MODEL"],
        SGLANG,
    ),
    "trtllm": ("TensorRT-LLM 1.2", ["trtllm-serve", "MODEL"], TRTLLM),
}
IMAGES = {
    "vllm": "vllm/vllm-openai:v0.24.0",
    "sglang": "lmsysorg/sglang:latest",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.0",
}


def _value(scenario: Scenario, key: str) -> Any:  # noqa: ANN401 - any scenario value
    place: Any = scenario.model_dump()
    for part in key.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def deployable(scenario: Scenario, engine: str = "vllm") -> Flags:
    """Return the flags that make an engine serve as a scenario does.

    Parameters
    ----------
    scenario : Scenario
        The (tuned) deployment.
    engine : {"vllm", "sglang", "trtllm"}
        Which engine.

    Raises
    ------
    InputError
        No such engine.

    Examples
    --------
    >>> tuned = Scenario().changed({"policies.batching.max_num_seqs": 128, "hardware.tp": 2})
    >>> deployable(tuned).line()
    'vllm serve MODEL --tensor-parallel-size 2 --max-num-seqs 128 --enable-prefix-caching \
--scheduling-policy fcfs'
    """
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES)
        raise InputError(f"no flags are known for engine {engine!r}", "--engine", repair=hint)
    title, command, options = ENGINES[engine]
    words, unknown = list(command), []
    default = Scenario()
    for key, option in options.items():
        value = _value(scenario, key)
        if value is None:
            continue
        if option is None:
            if value != _value(default, key):
                unknown.append(key)
        else:
            found = [option, str(value)] if isinstance(option, str) else option(value)
            words += found
            if not found and value != _value(default, key) and _says_something(key, value):
                unknown.append(key)
    unknown += _other_policies(scenario)
    return Flags(title, words, unknown, _values(scenario, engine, words, len(command)))


def _says_something(key: str, value: object) -> bool:
    """Return whether leaving a value out changes anything (a count of 1 does not)."""
    return not (isinstance(value, int) and value <= 1) and not key.endswith("caching.name")


def _other_policies(scenario: Scenario) -> list[str]:
    """Return policies that no engine option stands for."""
    native = {"batching": "chunked-prefill", "memory": "paged", "admission": "all"}
    policies = scenario.policies.model_dump()
    return [
        f"policies.{axis}.name = {policies[axis]['name']}"
        for axis, name in native.items()
        if policies.get(axis, {}).get("name", name) != name
    ]


def _values(scenario: Scenario, engine: str, words: list[str], skip: int) -> str:
    """Return a values snippet: replicas, image, arguments, accelerators per pod."""
    hardware = scenario.hardware
    arguments = "".join(f'  - "{word}"\n' for word in words[skip:])
    per_pod = hardware.accelerators // hardware.replicas
    return (
        f"# {scenario.name}: made by roofcast tune\n"
        f"replicaCount: {hardware.replicas}\n"
        f"image: {IMAGES[engine]}\n"
        f"args:\n{arguments or '  []'}"
        f"resources:\n  limits:\n    nvidia.com/gpu: {per_pod}\n"
    )
