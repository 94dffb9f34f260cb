"""Writing TOML: scenarios as files that read back the same."""

import json
from typing import Any

from sim.scenario import Scenario

__all__ = ["scenario_toml", "to_toml", "toml_value"]


def toml_value(value: Any) -> str:  # noqa: ANN401 - a TOML file holds anything
    """Return one value as TOML text; dictionaries become inline tables.

    Examples
    --------
    >>> toml_value({"name": "paged", "kv_blocks": 7, "on": True, "sizes": [1, 2.5]})
    '{ name = "paged", kv_blocks = 7, on = true, sizes = [1, 2.5] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return f"{{ {', '.join(_pairs(value))} }}" if value else "{}"
    return f"[{', '.join(toml_value(v) for v in value)}]"


def _pairs(table: dict[str, Any]) -> list[str]:
    return [f"{_key(k)} = {toml_value(v)}" for k, v in table.items() if v is not None]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else toml_value(key)


def to_toml(data: dict[str, Any], path: str = "") -> str:
    """Return nested dictionaries as TOML text; None is left out.

    Examples
    --------
    >>> print(to_toml({"schema_version": 1, "run": {"seed": 3, "horizon_s": None}}), end="")
    schema_version = 1
    <BLANKLINE>
    [run]
    seed = 3
    """
    own = {k: v for k, v in data.items() if not isinstance(v, dict)}
    parts = ["\n".join([*([f"[{path}]"] if path else []), *_pairs(own)]) + "\n"]
    for key, value in data.items():
        if isinstance(value, dict):
            parts.append(to_toml(value, f"{path}.{_key(key)}" if path else _key(key)))
    return "\n".join(part for part in parts if part.strip())


def scenario_toml(scenario: Scenario) -> str:
    """Return a scenario as TOML text that reads back equal, defaults included."""
    return to_toml(scenario.model_dump())
