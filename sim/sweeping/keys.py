"""Swept keys: dotted names, their values or ranges, and whether a scenario knows them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from formats import InputError, check
from hardware.catalog import load_accelerator
from hardware.links import load_link
from policies.base import registries
from policies.speculation import speculation
from sim.engines import engines
from sim.scenario import Scenario
from workloads.models import load_model
from workloads.precision import precision

__all__ = ["Span", "Value", "Values", "change", "check_scenario", "dotted", "effective"]

Value = bool | int | float | str | None | list[Any] | dict[str, Any]


class Span(BaseModel):
    """A range of numbers.

    Examples
    --------
    >>> Span(low=1, high=100, log=True).at(np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 10.0, 100.0]
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: FiniteFloat = Field(description="smallest value")
    high: FiniteFloat = Field(description="largest value")
    log: bool = Field(False, description="evenly spread in the logarithm")
    whole: bool = Field(False, description="round to whole numbers")

    @model_validator(mode="after")
    def _order(self) -> "Span":
        if self.high <= self.low:
            raise ValueError(f"high = {self.high:g} must be above low = {self.low:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low above 0, got {self.low:g}")
        if self.whole and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"whole needs whole ends, got {self.low:g} .. {self.high:g}")
        return self

    def at(self, share: np.ndarray) -> np.ndarray:
        """Return the values at shares of the range, each in [0, 1]."""
        if self.log:
            values = self.low * (self.high / self.low) ** share
        else:
            values = self.low + (self.high - self.low) * share
        return np.asarray(np.round(values) if self.whole else values)

    def share(self, value: float) -> float:
        """Return where in the range a value lies, 0 at its low end and 1 at its high end."""
        if self.log:
            return float(np.log(value / self.low) / np.log(self.high / self.low))
        return (value - self.low) / (self.high - self.low)

    def ends(self) -> list[int | float]:
        """Return both ends, as integers where only whole numbers count."""
        return [int(x) if self.whole else x for x in (self.low, self.high)]


Values = list[Value] | Span


def dotted(data: object, where: str = "keys") -> object:
    """Return keys of a file as dotted keys with lists or ranges, before they are checked.

    TOML reads ``hardware.tp = [1, 2]`` as a table within a table; a single value is a list of one.

    Examples
    --------
    >>> dotted({"hardware": {"tp": [1, 2]}, "run.seed": 3})
    {'hardware.tp': [1, 2], 'run.seed': [3]}
    """
    if not isinstance(data, dict):
        return data
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and not set(value) & set(Span.model_fields):
            inner = dotted(value, f"{where}.{key}")
            found |= {f"{key}.{k}": v for k, v in inner.items()} if isinstance(inner, dict) else {}
        elif isinstance(value, dict):
            found[key] = check(value, Span, f"{where}.{key}")
        else:
            found[key] = value if isinstance(value, list | Span) else [value]
    return found


def change(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """Return a scenario with other values at dotted keys; a number is a place in a list.

    Raises
    ------
    InputError
        A key is not known, goes through a value, or its value is wrong.

    Examples
    --------
    >>> change(Scenario(), {"hardware.tp": 2, "slo.ttft_s": 0.5}).hardware.tp
    2
    """
    data: dict[str, Any] = scenario.model_dump()
    for key, value in changes.items():
        *path, last = key.split(".")
        place: Any = data
        for part in path:
            place = _section(place, part, key)
        if isinstance(place, list):
            place[_place(place, last, key)] = value
        else:
            place[last] = value
    return check(data, Scenario, "scenario")


def _section(place: Any, part: str, key: str) -> Any:  # noqa: ANN401 - sections and lists
    """Return the section or list below a place, made where there is none."""
    name: Any = _place(place, part, key) if isinstance(place, list) else part
    found = place[name] if isinstance(place, list) else place.get(name)
    if found is None:
        found = {}
    elif isinstance(found, tuple):
        found = list(found)
    elif not isinstance(found, dict | list):
        raise InputError(f"{key!r}: {part!r} is a value, not a section", "scenario")
    place[name] = found
    return found


def _place(items: list[Any], word: str, key: str) -> int:
    if not word.isdigit() or int(word) >= len(items):
        allowed = f"0 .. {len(items) - 1}" if items else "none, the list is empty"
        raise InputError(f"{key!r}: {word!r} is no place in the list", "scenario", allowed)
    return int(word)


def check_scenario(scenario: Scenario, where: str) -> None:
    """Check names and policy parameters of a scenario, which are looked up only when it runs.

    Raises
    ------
    InputError
        A name is not known, or a parameter of a policy is wrong.
    """
    try:
        load_accelerator(scenario.hardware.accelerator)
        load_link(scenario.hardware.network)
        load_model(scenario.model.name)
        engines.load(scenario.engine.profile)
        for word in (scenario.model.weights, scenario.model.activations, scenario.model.kv):
            if word is not None:
                precision(word)
        speculation.make(scenario.decoding)
        for axis, choice in scenario.policies.model_dump().items():
            if axis in registries:
                registries[axis].make(choice)
    except InputError as e:
        raise InputError(str(e), where) from None


def effective(scenario: Scenario, key: str) -> Any:  # noqa: ANN401 - any scenario value
    """Return what holds at a dotted key, defaults of policies, model and engine included.

    Examples
    --------
    >>> effective(Scenario(), "policies.batching.max_num_seqs"), effective(Scenario(), "model.kv")
    (512, 'bf16')
    """
    section, _, rest = key.partition(".")
    if section == "policies" and "." in rest:
        axis, _, name = rest.partition(".")
        choice = getattr(scenario.policies, axis, None)
        if axis in registries and choice is not None and name != "name":
            return getattr(registries[axis].make(choice), name, None)
    if section == "decoding" and rest not in ("", "name"):
        return getattr(speculation.make(scenario.decoding), rest, None)
    place: Any = scenario.model_dump()
    for part in key.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    if place is None and key in ("model.weights", "model.kv", "model.activations"):
        return getattr(load_model(scenario.model.name), rest)
    if place is None and key == "engine.memory_utilisation":
        return engines.load(scenario.engine.profile).memory.utilisation.value
    return place
