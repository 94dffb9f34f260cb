"""A scenario as what an engine needs to serve like it: command line, files, Kubernetes values.

What has no known option is said, not dropped.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from formats import InputError, RoofcastError, did_you_mean
from hardware.catalog import load_accelerator
from policies.base import registries
from policies.speculation import speculation
from sim.deployment import deploy
from sim.scenario import Scenario
from sim.sweeping.keys import effective
from sim.tuning.drafting import Drafts
from sim.tuning.options import ENGINES, Engine
from sim.tuning.writer import Facts, Writer
from workloads.models import load_model

__all__ = ["ENGINES", "Flags", "check_engine", "deployable", "yaml"]

RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "habana.ai/gaudi"}
# keys that describe the world or the simulation, not the engine
WORLD = {
    "hardware.accelerator",
    "hardware.replicas",
    "hardware.link",
    "hardware.network",
    "hardware.overlap",
    "hardware.ambient_c",
    "hardware.power_cap_w",
    "hardware.micro_batches",
    "model.name",
    "model.expert_skew",
    "engine.profile",
    "engine.host_slowness",
}
QUESTION = {"schema_version", "name", "workload", "slo", "run"}  # sections that no engine reads


@dataclass(frozen=True)
class Flags:
    """What one engine needs.

    Attributes
    ----------
    engine : str
        Engine and version.
    command : list of str
        The command line, word by word.
    config : dict
        Entries of its configuration file, by dotted path; empty where it has none.
    unknown : list of str
        Settings without a known option.
    notes : list of str
        What holds only under a condition.
    values : str
        A Kubernetes-ready values snippet (YAML).
    """

    engine: str
    command: list[str]
    config: dict[str, Any]
    unknown: list[str]
    notes: list[str]
    values: str

    def line(self) -> str:
        """Return the command as one line for a shell."""
        return shlex.join(self.command)

    def text(self) -> str:
        """Return everything but the values snippet, for a terminal."""
        rest = "".join(f"\n  {line}" for line in self._settings().splitlines())
        said = "".join(f"\n  # {line}" for line in self._remarks())
        return f"{self.engine}:\n  {self.line()}{rest}{said}"

    def _remarks(self) -> list[str]:
        return [*self.notes, *(f"no known option for {key}" for key in self.unknown)]

    def _settings(self) -> str:
        if "batching_strategy" in self.config:
            pairs = ",".join(f"{k}:{_word(v)}" for k, v in self.config.items())
            return f"python3 tools/fill_template.py -i tensorrt_llm/config.pbtxt {pairs}"
        return yaml(nested(self.config)) if self.config else ""

    def files(self) -> dict[str, str]:
        """Return the files to deploy: name -> content."""
        remarks = "".join(f"# {line}\n" for line in self._remarks())
        found = {"command.sh": f"{remarks}{self.line()}\n"}
        if "batching_strategy" in self.config:
            found["command.sh"] += self._settings() + "\n"
            found["config.pbtxt"] = _pbtxt(self.config)
        elif self.config:
            found["config.yaml"] = self._settings()
        return found | {"values.yaml": self.values}

    def facts(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "engine": self.engine,
            "command": self.line(),
            "config": nested(self.config),
            "no_known_option": self.unknown,
            "notes": self.notes,
            "values": self.values,
        }


def check_engine(name: str) -> Engine:
    """Return an engine.

    Raises
    ------
    InputError
        Nothing is known of such an engine.
    """
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES)
        raise InputError(f"no options are known of an engine {name!r}", "--engine", repair=hint)
    return ENGINES[name]


def deployable(scenario: Scenario, engine: str = "vllm") -> Flags:
    """Return what makes an engine serve as a scenario does.

    Parameters
    ----------
    scenario : Scenario
        The (tuned) deployment.
    engine : {"vllm", "sglang", "trtllm", "triton"}
        Which engine.

    Raises
    ------
    InputError
        No such engine.

    Examples
    --------
    >>> tuned = Scenario().changed({"policies.batching.max_num_seqs": 128, "hardware.tp": 2})
    >>> deployable(tuned).line()
    'vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.9 \
--max-num-seqs 128 --max-num-batched-tokens 8192 --enable-prefix-caching --scheduling-policy fcfs'
    """
    known = check_engine(engine)
    out = Writer(_facts(scenario))
    for key, rule in known.rules.items():
        value = effective(scenario, key)
        if value is not None:
            rule(out, key, value)
    known.also(out)
    known.drafts(out, _drafts(scenario))
    for key, value in _others(scenario, known):
        out.miss(key, value)
    if scenario.model.weights is not None or scenario.model.kv is not None:
        out.notes.append("other number formats change answers: check their quality, not simulated")
    if scenario.hardware.power_cap_w is not None:
        watts = scenario.hardware.power_cap_w
        out.notes.append(f"the power cap of {watts:g} W is set outside (nvidia-smi -pl {watts:g})")
    command = [*known.command(out.facts.model), *out.words]
    if known.title.startswith("TensorRT") and out.config:
        command += ["--config", "config.yaml"]
        out.notes.append("--config is called --extra_llm_api_options before TensorRT-LLM 1.2")
    values = _values(scenario, known, command, out)
    return Flags(known.title, command, out.config, out.unknown, out.notes, values)


def _checkpoint(name: str, unknown: str) -> str:
    """Return the published checkpoint of a model, or a word for one that is not known."""
    named = re.search(r"config\.json of ([\w.-]+/[\w.-]+)", load_model(name).source)
    return named.group(1) if named else unknown


def _drafts(scenario: Scenario) -> Drafts:
    rules = speculation.make(scenario.decoding).rules()
    drafter = _checkpoint(rules.model, "DRAFT_MODEL") if rules.model else ""
    return Drafts(str(scenario.decoding["name"]), rules, drafter)


def _facts(scenario: Scenario) -> Facts:
    """Return what options rest on beside the scenario's values."""
    model = load_model(scenario.model.name)
    try:
        made = deploy(scenario, 2)
        pool = int(made.knobs["num_blocks"][0]) * effective(scenario, "policies.memory.block_size")
    except RoofcastError:
        pool = None
    ranks = scenario.hardware
    return Facts(_checkpoint(scenario.model.name, "MODEL"), model.weights, pool, ranks.tp, ranks.dp)


def _others(scenario: Scenario, engine: Engine) -> Iterator[tuple[str, Any]]:
    """Yield settings that differ from the default and that no rule of an engine tells."""
    usual = Scenario().model_dump(exclude=QUESTION)
    for key, value in _flat(scenario.model_dump(exclude=QUESTION)):
        if key.startswith("decoding."):
            continue  # told as a whole
        if key not in engine.rules and key not in WORLD and value != _usual(usual, key, scenario):
            yield key, value


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _usual(data: Mapping[str, Any], key: str, scenario: Scenario) -> Any:  # noqa: ANN401
    """Return the default at a key: of the scenario, or of the policy that it names."""
    section, *path = key.split(".")
    if section == "policies" and len(path) == 2 and path[1] != "name" and path[0] in registries:
        name = getattr(scenario.policies, path[0])["name"]
        return getattr(registries[path[0]].make({"name": name}), path[1], None)
    place: Any = data
    for part in (section, *path):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted entries as nested dictionaries.

    Examples
    --------
    >>> nested({"a.b": 1, "a.c": True, "d": None})
    {'a': {'b': 1, 'c': True}, 'd': None}
    """
    found: dict[str, Any] = {}
    for path, value in config.items():
        *parents, last = path.split(".")
        place = found
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def yaml(data: Mapping[str, Any], indent: int = 0) -> str:
    """Return nested dictionaries, lists and plain values as YAML.

    Examples
    --------
    >>> print(yaml({"args": ["--a", "1"], "limits": {"gpu": 1}}), end="")
    args:
      - "--a"
      - "1"
    limits:
      gpu: 1
    """
    space, text = "  " * indent, ""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            text += f"{space}{key}:\n{yaml(value, indent + 1)}"
        elif isinstance(value, list) and value:
            text += f"{space}{key}:\n" + "".join(f"{space}  - {json.dumps(v)}\n" for v in value)
        else:
            text += f"{space}{key}: {json.dumps(value)}\n"
    return text


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _pbtxt(config: Mapping[str, Any]) -> str:
    """Return the batching part of a Triton model configuration."""
    most = config["triton_max_batch_size"]
    preferred = config.get("preferred_batch_size", most)
    delay = config["max_queue_delay_microseconds"]
    return (
        f"max_batch_size: {most}\n"
        "dynamic_batching {\n"
        f"  preferred_batch_size: [ {preferred} ]\n"
        f"  max_queue_delay_microseconds: {delay}\n"
        "}\n"
    )


def _values(scenario: Scenario, engine: Engine, command: list[str], out: Writer) -> str:
    """Return a values snippet: replicas, image, command, accelerators per pod, files."""
    vendor = load_accelerator(scenario.hardware.accelerator).vendor
    per_pod = scenario.hardware.accelerators // scenario.hardware.replicas
    resource = RESOURCES.get(vendor)
    if resource is None:
        out.unknown.append(f"Kubernetes resource of accelerators of {vendor}")
    if vendor != "NVIDIA":
        out.notes.append(f"the image in values.yaml is for NVIDIA; take that for {vendor}")
    if not engine.tag:
        out.notes.append("choose the tag of the image in values.yaml")
    started = list(engine.started) or command
    content: dict[str, Any] = {
        "replicaCount": scenario.hardware.replicas,
        "image": {"repository": engine.image, "tag": engine.tag},
        "command": started[:1],
        "args": started[1:],
        "resources": {"limits": {resource or "ACCELERATOR": per_pod}},
    }
    head = f"# {scenario.name}, served by {engine.title}\n"
    if out.config:
        content["engineConfig"] = nested(out.config)
        head += "# engineConfig goes into the engine's own file beside this one\n"
    return head + yaml(content)
