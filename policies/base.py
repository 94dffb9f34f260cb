"""Registries of policies: one dataclass with one decorator is a policy, everywhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from formats import InputError, did_you_mean

__all__ = ["ParameterInfo", "Registry", "registries"]

Policy = TypeVar("Policy")

registries: "dict[str, Registry[Any]]" = {}


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter of a policy, as listed on the command line and drawn in the page."""

    name: str
    type: str
    default: str
    description: str


def _description(schema: dict[str, Any]) -> str:
    """Return the words on a parameter; one that may be left out has them in an alternative."""
    parts = [schema, *schema.get("anyOf", [])]
    return next((str(p["description"]) for p in parts if "description" in p), "")


@dataclass
class Registry(Generic[Policy]):
    """Policies of one axis of choice, by name.

    Parameters
    ----------
    axis : str
        The axis, as in a scenario's ``[policies.<axis>]``.

    Examples
    --------
    >>> ordering = Registry[object]("example")
    >>> @ordering("first-come")
    ... @dataclass
    ... class FirstCome:
    ...     '''Serve in order of arrival. Use it when fairness is all.'''
    ...     limit: int = 4
    >>> ordering.make({"name": "first-come", "limit": 8}).limit
    8
    >>> ordering.make({"name": "first-com"})
    Traceback (most recent call last):
    formats.errors.InputError: [policies.example] name: no example policy named 'first-com'; \
did you mean 'first-come'? (known: first-come)
    """

    axis: str
    _classes: dict[str, type[Policy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        registries[self.axis] = self

    def __call__(self, name: str) -> Callable[[type[Policy]], type[Policy]]:
        """Return the decorator that registers a dataclass under `name`."""

        def register(cls: type[Policy]) -> type[Policy]:
            if not is_dataclass(cls):
                raise InputError(f"policy {name!r} must be a dataclass", repair="add @dataclass")
            self._classes[name] = cls
            return cls

        return register

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def cls(self, name: str) -> type[Policy]:
        """Return the class registered under `name`."""
        if name not in self._classes:
            hint = did_you_mean(name, self._classes)
            what = f"no {self.axis} policy named {name!r}"
            raise InputError(what, f"[policies.{self.axis}] name", repair=hint)
        return self._classes[name]

    def make(self, choice: dict[str, Any]) -> Policy:
        """Build a policy from ``{"name": ..., parameter: value, ...}``.

        Raises
        ------
        InputError
            No such policy, an unknown parameter, or a value out of range.
        """
        if "name" not in choice:
            repair = f"add name = one of {', '.join(self)}"
            raise InputError("the name is missing", f"[policies.{self.axis}]", repair=repair)
        parameters = {k: v for k, v in choice.items() if k != "name"}
        cls = self.cls(str(choice.get("name", "")))
        known = [p.name for p in self.parameters(str(choice["name"]))]
        where = f"[policies.{self.axis}]"
        for key in parameters:
            if key not in known:
                raise InputError(f"no parameter {key!r}", where, repair=did_you_mean(key, known))
        try:
            return TypeAdapter(cls).validate_python(parameters)
        except ValidationError as e:
            faults = "; ".join(
                f"{'.'.join(map(str, x['loc']))}: {x['msg']}, got {x['input']!r}"
                for x in e.errors()
            )
            raise InputError(faults, where) from None

    def parameters(self, name: str) -> list[ParameterInfo]:
        """Return the parameters of a policy with type, default and description."""
        cls: Any = self.cls(name)
        schema = TypeAdapter(cls).json_schema().get("properties", {})
        return [
            ParameterInfo(
                f.name,
                str(getattr(f.type, "__name__", f.type)),
                str(schema.get(f.name, {}).get("default", "required")),
                _description(schema.get(f.name, {})),
            )
            for f in fields(cls)
            if f.init
        ]

    def summary(self, name: str) -> str:
        """Return the first line of a policy's docstring."""
        return (self.cls(name).__doc__ or "").strip().splitlines()[0]
