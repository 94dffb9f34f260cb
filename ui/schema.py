"""What a form needs to know of a key, read from the schema that checks the file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

__all__ = ["Key", "keys_of", "policy_keys"]

Kind = Literal["int", "float", "bool", "str", "choice", "other"]
KINDS: dict[str, Kind] = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
UNIT = re.compile(r"\s*\[([^\]]+)\]\s*$")


@dataclass(frozen=True)
class Key:
    """One key of a scenario, a policy or a plan.

    Attributes
    ----------
    name : str
        As in the file.
    kind : str
        int, float, bool, str, choice, or other where no simple control fits.
    optional : bool
        It may be left empty.
    low, high : float or None
        Range, both ends allowed unless `low_open`.
    choices : tuple of str
        What may be chosen.
    default : object
        Value where nothing is said; None as well where it must be given.
    text, unit : str
        What it means, and its unit.
    """

    name: str
    kind: Kind
    optional: bool
    low: float | None
    high: float | None
    low_open: bool
    choices: tuple[str, ...]
    default: Any
    text: str
    unit: str

    @property
    def label(self) -> str:
        """Name and unit as a control shows them.

        Examples
        --------
        >>> keys_of(Example)[0].label
        'max tokens'
        """
        words = self.name.replace("_per_s", "").replace("_", " ")
        words = re.sub(r" (s|w|c|h)$", "", words)
        return words if self.unit in ("", "1") else f"{words} [{self.unit}]"

    @property
    def help(self) -> str:
        """Hover text: meaning, range, default."""
        parts = [self.text[:1].upper() + self.text[1:] if self.text else self.name]
        if self.low is not None or self.high is not None:
            parts.append(
                f"Range: {self._range()}{'' if self.unit in ('', '1') else ' ' + self.unit}"
            )
        if self.default is not None:
            parts.append(f"Default: {self.default}")
        return ". ".join(parts) + f". Key in the file: `{self.name}`."

    def _range(self) -> str:
        low = "" if self.low is None else f"{'above ' if self.low_open else ''}{self.low:,g}"
        if self.high is None:
            return low if self.low_open else f"{low} or more"
        return f"{low} to {self.high:,g}" if low else f"up to {self.high:,g}"


class Example(BaseModel):
    """For the examples of this module."""

    max_tokens: int = 4


def keys_of(model: type[BaseModel]) -> list[Key]:
    """Return the keys of one section.

    Examples
    --------
    >>> [(key.name, key.kind, key.default) for key in keys_of(Example)]
    [('max_tokens', 'int', 4)]
    """
    return list(_keys(model.model_json_schema()))


def policy_keys(policy: type[Any]) -> list[Key]:
    """Return the parameters of a policy; what it keeps for itself is none."""
    given = {f.name for f in fields(policy) if f.init}
    return [key for key in _keys(TypeAdapter(policy).json_schema()) if key.name in given]


def _keys(schema: dict[str, Any]) -> Iterator[Key]:
    shared = schema.get("$defs", {})
    for name, found in schema.get("properties", {}).items():
        yield _key(name, found, shared)


def _resolved(found: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in found:
        return found
    rest = {k: v for k, v in found.items() if k != "$ref"}
    target: dict[str, Any] = shared.get(found["$ref"].rsplit("/", 1)[-1], {})
    return target | rest


def _key(name: str, found: dict[str, Any], shared: dict[str, Any]) -> Key:
    options = [_resolved(o, shared) for o in found.get("anyOf", [_resolved(found, shared)])]
    real = [o for o in options if o.get("type") != "null"]
    one = real[0] if len(real) == 1 else {}
    low_open = "exclusiveMinimum" in one
    text = str(found.get("description") or one.get("description") or "")
    unit = UNIT.search(text)
    return Key(
        name=name,
        kind="choice" if "enum" in one else KINDS.get(str(one.get("type")), "other"),
        optional=len(real) < len(options),
        low=one.get("exclusiveMinimum", one.get("minimum")),
        high=one.get("maximum", one.get("exclusiveMaximum")),
        low_open=low_open,
        choices=tuple(map(str, one.get("enum", ()))),
        default=found.get("default"),
        text=UNIT.sub("", text),
        unit=unit.group(1) if unit else "",
    )
