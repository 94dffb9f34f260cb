"""Rules that turn scenario values into an engine's options, and what they write into."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Facts", "Rule", "Writer", "at_least", "choose", "entry", "flag", "switch"]

Value = Any
Rule = Callable[["Writer", str, Value], None]


@dataclass(frozen=True)
class Facts:
    """What options rest on beside the scenario's values.

    Attributes
    ----------
    model : str
        Checkpoint to serve.
    native : str
        Number format of its weights.
    kv_tokens : int or None
        Tokens of the KV pool of a replica [token].
    tp, dp : int
        Tensor- and attention data-parallel ranks.
    """

    model: str
    native: str
    kv_tokens: int | None
    tp: int
    dp: int


@dataclass
class Writer:
    """Options of one engine in the making.

    Attributes
    ----------
    facts : Facts
        What rules may look at.
    words : list of str
        Options of the command line.
    config : dict
        Entries of a configuration file, by dotted path.
    unknown : list of str
        Settings without a known option.
    notes : list of str
        What holds only under a condition.
    """

    facts: Facts
    words: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def miss(self, key: str, value: Value, why: str = "") -> None:
        """Say that a setting has no known option."""
        self.unknown.append(f"{key} = {value}" + (f" ({why})" if why else ""))


def flag(name: str) -> Rule:
    """Return the rule of an option that takes the value as it is."""
    return lambda out, _, value: out.words.extend([name, f"{value}"])


def at_least(least: int, name: str) -> Rule:
    """Return the rule of a count that is left out below `least`, where it says nothing."""
    return lambda out, _, value: out.words.extend([name, f"{value}"] if value >= least else [])


def switch(on: str | None, off: str | None) -> Rule:
    """Return the rule of an option without a value."""
    return lambda out, _, value: out.words.extend(w for w in [on if value else off] if w)


def choose(words: Mapping[Any, list[str]], why: str = "") -> Rule:
    """Return the rule of a choice; a value that is not in it has no known option."""

    def rule(out: Writer, key: str, value: Value) -> None:
        if value in words:
            out.words.extend(words[value])
        else:
            out.miss(key, value, why)

    return rule


def entry(path: str, values: Mapping[Any, Any] | None = None) -> Rule:
    """Return the rule of an entry in a configuration file; None in `values` leaves it out."""

    def rule(out: Writer, key: str, value: Value) -> None:
        if values is not None and value not in values:
            out.miss(key, value)
            return
        found = value if values is None else values[value]
        if found is not None:
            out.config[path] = found

    return rule
