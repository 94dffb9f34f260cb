"""Controls of a scenario, drawn from the schemas that check its file.

A key, a policy or a whole section that is added to the schemas appears here by itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st
from pydantic import BaseModel

from formats import RoofcastError
from hardware.catalog import load_accelerator
from policies.base import registries
from sim.scenario import Policies, Scenario
from ui.labels import CHOICES, LABELS, accelerator_help, choice_label, model_help
from ui.schema import Key, keys_of, policy_keys
from ui.state import generation, own_files, resolved
from ui.workload_inputs import workload_form
from workloads.models import load_model

__all__ = ["control", "scenario_form"]

LARGEST = (1 << 53) - 1  # whole numbers that a browser holds exactly
MAIN = {
    "hardware": ("accelerator", "replicas", "tp"),
    "model": ("name", "weights", "kv"),
    "slo": ("ttft_s", "tpot_s"),
}
SCALES: dict[str, Sequence[int]] = {
    "hardware.replicas": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64),
    "hardware.tp": (1, 2, 4, 8, 16),
    "policies.batching.max_num_seqs": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    "policies.batching.max_num_batched_tokens": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
TITLES = {"hardware": "Hardware", "model": "Model", "slo": "Objectives", "run": "Run"}
ORDER = ("workload", "hardware", "model", "policies", "slo", "engine", "run")
ALWAYS = ("workload", "hardware", "model", "policies", "slo")
OPEN = ("workload", "hardware", "model")


def scenario_form(scenario: Scenario) -> dict[str, Any]:
    """Draw the controls of a scenario and return what they say, unchecked.

    Parameters
    ----------
    scenario : Scenario
        Where the controls start.
    """
    everything = st.toggle(
        "All settings", key="all settings", help="Show every key of a scenario file."
    )
    data = scenario.model_dump()
    data["name"] = st.text_input(
        "title", key=_seed("name", scenario.name), max_chars=200, help="Title of reports and pins."
    )
    known = [name for name in ORDER if name in data]
    others = [name for name in type(scenario).model_fields if name not in known]
    for name in [*known, *(n for n in others if isinstance(getattr(scenario, n), BaseModel))]:
        if name not in ALWAYS and not everything:
            continue
        with st.expander(TITLES.get(name, _titled(name)), expanded=name in OPEN):
            data[name] = _section(name, scenario, data[name], everything)
    return data


def _titled(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(
    name: str, scenario: Scenario, data: dict[str, Any], everything: bool
) -> dict[str, Any]:
    if name == "workload":
        return workload_form(scenario.workload, everything)
    if name == "policies":
        return _policies(data, everything)
    found = dict(data)
    for key in _shown(keys_of(type(getattr(scenario, name))), MAIN.get(name), everything):
        found[key.name] = control(
            key, f"{name}.{key.name}", data[key.name], _help(key, name, scenario)
        )
    return found


def _shown(keys: Iterable[Key], main: Sequence[str] | None, everything: bool) -> list[Key]:
    simple = [key for key in keys if key.kind != "other"]
    return [key for key in simple if everything or main is None or key.name in main]


def _help(key: Key, section: str, scenario: Scenario) -> str:
    """Return hover text; that of an accelerator or model says what it is, with sources."""
    chosen = resolved(scenario)
    try:
        if (section, key.name) == ("hardware", "accelerator"):
            return accelerator_help(load_accelerator(chosen.hardware.accelerator))
        if (section, key.name) == ("model", "name"):
            return model_help(load_model(chosen.model.name))
    except RoofcastError:
        pass
    return key.help


def _policies(data: dict[str, Any], everything: bool) -> dict[str, Any]:
    found = dict(data)
    axes = [axis for axis in Policies.model_fields if axis in registries]
    for axis in axes if everything else axes[:1]:
        if isinstance(data[axis], dict):
            found[axis] = _policy(axis, data[axis], everything)
    return found


def _policy(axis: str, choice: dict[str, Any], everything: bool) -> dict[str, Any]:
    """Draw the choice of one policy and its parameters; only what differs is kept."""
    registry = registries[axis]
    names = list(dict.fromkeys([*registry, choice["name"]]))
    summaries = "\n".join(f"- **{name}**: {registry.summary(name)}" for name in registry)
    name = _select(f"policies.{axis}", axis, names, choice["name"], summaries)
    if name not in list(registry):
        return choice
    found = {"name": name}
    for key in _shown(policy_keys(registry.cls(name)), None, everything):
        same = name == choice["name"] and key.name in choice
        value = control(
            key, f"policies.{axis}.{key.name}", choice[key.name] if same else key.default
        )
        if value != key.default and value is not None:
            found[key.name] = value
    return found


def _select(path: str, label: str, options: list[Any], value: Any, text: str) -> Any:  # noqa: ANN401
    name = _seed(path, value)
    return st.selectbox(
        label, options, key=name, help=text, format_func=lambda v: choice_label(path, v)
    )


def _seed(path: str, value: object) -> str:
    """Return the key of a control; its first value is that of the scenario."""
    name = f"{generation()}/{path}"
    if name not in st.session_state and value is not None:
        st.session_state[name] = value
    return name


def control(key: Key, path: str, value: Any, text: str = "") -> Any:  # noqa: ANN401 - of any kind
    """Draw the control of one key and return its value.

    Parameters
    ----------
    key : Key
        What the schema says of it.
    path : str
        Its dotted name.
    value : object
        Its present value.
    text : str
        Hover text, none = from the schema.
    """
    label, text = LABELS.get(path, key.label), text or key.help
    if path in CHOICES or key.kind == "choice":
        return _from_list(key, path, value, label, text)
    if path in SCALES:
        options = sorted({*SCALES[path], int(value)})
        return st.select_slider(label, options, key=_seed(path, value), help=text)
    if key.kind == "bool":
        return st.checkbox(label, key=_seed(path, value), help=text)
    if key.kind == "str":
        typed = st.text_input(label, key=_seed(path, value or ""), help=text)
        return typed or (None if key.optional else typed)
    return _number(key, path, value, label, text)


def _from_list(key: Key, path: str, value: Any, label: str, text: str) -> Any:  # noqa: ANN401
    mine = [name for name in own_files() if path in ("hardware.accelerator", "model.name")]
    listed = [*CHOICES.get(path, key.choices), *mine]
    options = [None, *listed] if key.optional else listed
    if value not in options:
        options = [*options, value]
    return _select(path, label, options, value, text)


def _number(key: Key, path: str, value: Any, label: str, text: str) -> float | int | None:  # noqa: ANN401
    whole = key.kind == "int"
    kind: type[int] | type[float] = int if whole else float
    ends = [None if end is None else kind(min(end, LARGEST)) for end in (key.low, key.high)]
    options: dict[str, Any] = {
        "min_value": ends[0],
        "max_value": ends[1],
        "value": None if key.optional else "min",
        "step": 1 if whole else None,
        "format": None if whole else "%g",
        "key": _seed(path, None if value is None else kind(value)),
        "help": text,
        "placeholder": "not set" if key.optional else None,
    }
    number: float | int | None = st.number_input(label, **options)
    return number
