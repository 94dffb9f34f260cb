"""The space of a tuning: which scenario keys may move, and between what."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from formats import InputError, did_you_mean, read_toml
from policies.base import registries
from sim.scenario import Scenario
from sim.sweeping.keys import Span, Values, change, check_scenario, dotted, effective

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["DEFAULT_SPACE", "Setting", "Space", "applied", "check_space", "load_space", "word"]

Setting = dict[str, Any]
Floats = npt.NDArray[np.float64]
STEP = 0.125  # of a range, to a neighbour


class Space(BaseModel):
    """A space file: dotted scenario key -> list of values, or a range {low, high, log, whole}.

    Examples
    --------
    >>> space = Space(knobs={"policies.batching.max_num_seqs": [16, 64], "hardware.tp": [1, 2, 4]})
    >>> space.size()
    6
    >>> space.setting({"policies.batching.max_num_seqs": 1, "hardware.tp": 0})
    {'policies.batching.max_num_seqs': 64, 'hardware.tp': 1}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    knobs: Annotated[dict[str, Values], BeforeValidator(lambda v: dotted(v, "knobs"))] = Field(
        min_length=1, description="dotted scenario key -> values, or a range {low, high}"
    )

    @model_validator(mode="after")
    def _values(self) -> "Space":
        for key, values in self.knobs.items():
            if isinstance(values, list) and not values:
                raise ValueError(f"knob {key} has no values")
        return self

    def distributions(self) -> dict[str, "BaseDistribution"]:
        """Return what Optuna is told of each knob: lists are places, ordered or not."""
        return {key: _distribution(values) for key, values in self.knobs.items()}

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """Return the setting of a trial's parameters: places in lists become their values."""
        found: Setting = {}
        for key, value in params.items():
            values = self.knobs[key]
            found[key] = values[value] if isinstance(values, list) else value
        return found

    def size(self) -> int | None:
        """Return the number of settings, None where a range has no end of them."""
        lists = [v for v in self.knobs.values() if isinstance(v, list)]
        return prod(map(len, lists)) if len(lists) == len(self.knobs) else None

    def places(self) -> Iterator[dict[str, int]]:
        """Yield the parameters of every setting of a space without ranges."""
        counts = [range(len(v)) for v in self.knobs.values() if isinstance(v, list)]
        for found in product(*counts):
            yield dict(zip(self.knobs, found, strict=True))

    def shares(self, params: Mapping[str, Any]) -> list[float]:
        """Return where each parameter lies between the ends of its knob [0..1]."""
        return [_share(values, params[key]) for key, values in self.knobs.items()]

    def at(self, shares: Iterable[float]) -> dict[str, Any]:
        """Return the parameters at shares of each knob."""
        pairs = zip(self.knobs.items(), shares, strict=True)
        return {key: _at(values, share) for (key, values), share in pairs}

    def columns(self, params: Sequence[Mapping[str, Any]]) -> Floats:
        """Return parameters as columns of a model (setting, column).

        A range or an ordered list is one column, any other list of more than two is one per value.
        """
        parts = [_columns(v, [p[key] for p in params]) for key, v in self.knobs.items()]
        return np.hstack(parts)

    def neighbours(self, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield parameters that differ from others in one knob: by a step, or in a choice."""
        for key, values in self.knobs.items():
            for value in _near(values, params[key]):
                yield {**params, key: value}

    def default(self, scenario: Scenario) -> dict[str, Any]:
        """Return parameters of what the scenario has at its knobs, where the space holds it."""
        found: dict[str, Any] = {}
        for key, values in self.knobs.items():
            value = effective(scenario, key)
            if isinstance(values, list):
                if value in values:
                    found[key] = values.index(value)
            elif isinstance(value, int | float) and values.low <= value <= values.high:
                found[key] = value
        return found


def _distribution(values: Values) -> "BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if not isinstance(values, Span):
        if _ordered(values):
            return IntDistribution(0, len(values) - 1)
        return CategoricalDistribution(range(len(values)))
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _share(values: Values, place: float) -> float:
    return (place + 0.5) / len(values) if isinstance(values, list) else values.share(place)


def _at(values: Values, share: float) -> int | float:
    if isinstance(values, list):
        return min(int(share * len(values)), len(values) - 1)
    found = float(values.at(np.array(share)))
    return int(found) if values.whole else found


def _columns(values: Values, places: Sequence[float]) -> Floats:
    if isinstance(values, Span):
        return np.array([[values.share(p)] for p in places])
    if len(values) <= 2 or _ordered(values):
        return np.array([[p / max(1, len(values) - 1)] for p in places])
    return np.asarray(np.equal.outer(places, range(len(values))) / np.sqrt(2.0))


def _near(values: Values, here: float) -> list[float]:
    """Return the parameters beside one: an eighth of a range, or the next place in a list."""
    if isinstance(values, list):
        places = range(len(values))
        return [p for p in places if p != here and (not _ordered(values) or abs(p - here) == 1)]
    shares = np.array([-STEP, STEP]) + values.share(here)
    found = values.at(shares[(shares >= 0) & (shares <= 1)])
    return [int(x) if values.whole else float(x) for x in found if x != here]


def _ordered(values: list[Any]) -> bool:
    """Return whether neighbours in a list are alike: more than two numbers that rise or fall."""
    if len(values) < 3 or not all(type(v) in (int, float) for v in values):
        return False
    pairs = list(pairwise(values))
    return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)


def word(setting: object) -> str:
    """Return a setting, or other plain data, as text that is the same for the same content."""
    return json.dumps(setting, sort_keys=True, default=str)


def applied(scenario: Scenario, setting: Mapping[str, Any]) -> tuple[Scenario, Setting]:
    """Return the scenario with a setting, and the part of the setting that counts.

    Where a setting chooses a policy by name, parameters that this policy lacks do not count.

    Raises
    ------
    InputError
        A key is not known, or its value is wrong.

    Examples
    --------
    >>> chosen = {"policies.caching.name": "none", "policies.caching.blocks": 5, "hardware.tp": 2}
    >>> applied(Scenario(), chosen)[1]
    {'policies.caching.name': 'none', 'hardware.tp': 2}
    """
    chosen = _chosen(scenario, setting)
    active = {k: v for k, v in setting.items() if _counts(k, chosen)}
    kept = {f"policies.{axis}": _kept(scenario, axis, name) for axis, name in chosen.items()}
    moved = {key: value for key, value in kept.items() if key not in active}
    return change(scenario, {**moved, **active}), active


def _chosen(scenario: Scenario, setting: Mapping[str, Any]) -> dict[str, str]:
    """Return the policies that a setting chooses: axis -> name."""
    found = {}
    for key, value in setting.items():
        section, _, rest = key.partition(".")
        if section == "policies" and rest.endswith(".name"):
            found[rest.removesuffix(".name")] = str(value)
        elif section == "policies" and isinstance(value, dict):
            found[rest] = str(value.get("name"))
    return {axis: name for axis, name in found.items() if axis in registries}


def _counts(key: str, chosen: Mapping[str, str]) -> bool:
    parts = key.split(".")
    if len(parts) < 3 or parts[0] != "policies" or parts[1] not in chosen or parts[2] == "name":
        return True
    return parts[2] in _parameters(parts[1], chosen[parts[1]])


def _parameters(axis: str, name: str) -> list[str]:
    return [p.name for p in registries[axis].parameters(name)]


def _kept(scenario: Scenario, axis: str, name: str) -> dict[str, Any]:
    """Return what the scenario says of an axis, as far as another policy knows it."""
    known = {"name", *_parameters(axis, name)}
    choice = {k: v for k, v in getattr(scenario.policies, axis).items() if k in known}
    return {**choice, "name": name}


def check_space(space: Space, scenario: Scenario) -> None:
    """Check every value of a space before anything runs.

    Raises
    ------
    InputError
        A key, a policy's parameter or a value is wrong: the message names the knob.
    """
    for key in space.knobs:
        _check_parameter(key, space, scenario)
    first = {k: v.ends()[0] if isinstance(v, Span) else v[0] for k, v in space.knobs.items()}
    for key, values in space.knobs.items():
        for value in values.ends() if isinstance(values, Span) else values:
            place = f"space: knobs.{key} = {value!r}"
            try:
                changed, _ = applied(scenario, {**first, key: value})
            except InputError as e:
                raise InputError(e.what, place, e.allowed, e.repair) from None
            check_scenario(changed, place)


def _check_parameter(key: str, space: Space, scenario: Scenario) -> None:
    """Check that some policy that may be chosen has a parameter."""
    section, axis, name = (*key.split(".", 2), "", "")[:3]
    if section != "policies" or axis not in registries or name in {"", "name"}:
        return
    names = {str(getattr(scenario.policies, axis)["name"])}
    for other in (f"policies.{axis}.name", f"policies.{axis}"):
        values = space.knobs.get(other, [])
        if isinstance(values, list):
            names |= {str(v["name"] if isinstance(v, dict) else v) for v in values}
    known = {p for found in names for p in _parameters(axis, found)}
    if name.split(".")[0] not in known:
        what = f"no {axis} policy of this space has a parameter {name!r}"
        raise InputError(what, f"space: knobs.{key}", repair=did_you_mean(name, known))


def load_space(path: Path) -> Space:
    """Read a space file.

    Raises
    ------
    InputError
        The file is missing, not TOML, or a value is wrong.
    """
    return read_toml(path, Space)


DEFAULT_SPACE = Space(
    knobs={
        "policies.batching.max_num_seqs": [16, 32, 64, 128, 256, 512],
        "policies.batching.max_num_batched_tokens": [512, 1024, 2048, 4096, 8192, 16384],
    }
)
