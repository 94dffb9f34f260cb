"""A scenario as text: in the page's address, as a download, from an upload."""

import base64
import binascii
import zlib
from typing import Any

from formats import InputError, parse_toml
from sim.scenario import Scenario
from sim.toml import scenario_toml, to_toml

__all__ = ["compact", "from_link", "scenario_toml", "to_link"]

MOST_BYTES = 1 << 20  # of the text in a link


def compact(scenario: Scenario) -> dict[str, Any]:
    """Return what a scenario says beyond the defaults.

    Examples
    --------
    >>> compact(Scenario(hardware={"tp": 2}))
    {'hardware': {'tp': 2}}
    """
    given, usual = scenario.model_dump(), Scenario().model_dump()
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value == usual.get(key):
            continue
        whole = key == "workload" or not isinstance(value, dict) or not isinstance(usual[key], dict)
        found[key] = _without_gaps(value) if whole else _difference(value, usual[key])
    return found


def _difference(value: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_gaps(v) for k, v in value.items() if k not in usual or v != usual[k]}


def _without_gaps(value: Any) -> Any:  # noqa: ANN401 - TOML holds anything
    """Return a value without keys that hold nothing."""
    if not isinstance(value, dict):
        return value
    return {k: _without_gaps(v) for k, v in value.items() if v is not None and v != []}


def to_link(scenario: Scenario) -> str:
    """Return a scenario as a short word for an address; `from_link` reads it back equal.

    Examples
    --------
    >>> scenario = Scenario(hardware={"tp": 2}, run={"seed": 7})
    >>> from_link(to_link(scenario)) == scenario
    True
    """
    text = to_toml(compact(scenario))
    packed = zlib.compress(text.encode(), 9)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def from_link(word: str) -> Scenario:
    """Return the scenario of an address.

    Raises
    ------
    InputError
        The word is not one that this page made, or the scenario in it is wrong.
    """
    try:
        packed = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
        text = _unpacked(packed)
    except (binascii.Error, zlib.error, ValueError) as e:
        what = f"the scenario in it cannot be read ({e})"
        raise InputError(what, "address", repair="copy the whole link") from None
    return parse_toml(text, Scenario, "address")


def _unpacked(packed: bytes) -> str:
    unpack = zlib.decompressobj()
    text = unpack.decompress(packed, MOST_BYTES).decode()
    if unpack.unconsumed_tail or not unpack.eof:
        raise ValueError("too long or cut off")
    return text
