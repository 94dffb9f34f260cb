"""TOML text of data files that fitting scripts write."""

import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

__all__ = ["to_toml"]


def to_toml(content: BaseModel) -> str:
    """Return the TOML text of a data file; what is empty or absent is left out.

    Examples
    --------
    >>> from workloads.distributions import Constant
    >>> print(to_toml(Constant(tokens=128)), end="")
    kind = "constant"
    tokens = 128
    """
    return "\n".join(_table(content.model_dump(exclude_none=True), "")).lstrip("\n") + "\n"


def _table(data: dict[str, Any], name: str) -> Iterator[str]:
    nested = {k: v for k, v in data.items() if _is_nested(v)}
    for key, value in data.items():
        if key not in nested and value not in ("", []):
            yield from _pair(key, value)
    for key, value in nested.items():
        full = f"{name}.{key}" if name else key
        for part in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{full}]]" if isinstance(value, list) else f"[{full}]")
            yield from _table(part, full)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def _pair(key: str, value: object) -> Iterator[str]:
    if isinstance(value, list) and len(value) > 4:
        yield f"{key} = ["
        for row in value if isinstance(value[0], list) else [value]:
            inner = ", ".join(_scalar(x) for x in row)
            text = f"[{inner}]," if row is not value else inner
            yield textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  ")
        yield "]"
    else:
        yield f"{key} = {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(x) for x in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return f"{value:.10g}" if isinstance(value, float) else str(value)
