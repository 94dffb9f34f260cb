"""A commented scenario file, generated from the descriptions in the schema."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from policies import registries
from sim.scenario import Scenario
from sim.toml import toml_value

__all__ = ["scenario_template"]

HEAD = """\
# A roofcast scenario: what is deployed, how it serves, what it is asked.
# Every key is optional; what stands behind "#" is not set. Units stand in [brackets].
"""
TITLES = {"schema_version": "format of this file"}
CHOICES = {"decoding": "speculation"}  # sections that are one policy -> its kind
SIGNS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


def scenario_template() -> str:
    """Return the text; it reads back as the default scenario.

    Examples
    --------
    >>> "[hardware]" in scenario_template()
    True
    """
    scenario = Scenario()
    lines = [HEAD]
    sections = []
    for name, field in Scenario.model_fields.items():
        value = getattr(scenario, name)
        if isinstance(value, BaseModel) or name in CHOICES:
            sections.append((name, value))
        else:
            lines += _key_lines(name, field, value)
    for name, section in sections:
        if name in CHOICES:
            lines += ["", f"[{name}]  # {Scenario.model_fields[name].description}"]
            lines += _choice_lines(CHOICES[name], str(section["name"]))
            continue
        lines += ["", f"[{name}]  # {_first_line(section)}"]
        lines += _policy_lines(section) if name == "policies" else _section_lines(section)
    return "\n".join(lines) + "\n"


def _first_line(section: BaseModel) -> str:
    return (type(section).__doc__ or "").strip().splitlines()[0]


def _section_lines(section: BaseModel) -> Iterator[str]:
    """Yield the keys of a section, tables inside it as inline tables."""
    for name, field in type(section).model_fields.items():
        yield from _key_lines(name, field, getattr(section, name))


def _key_lines(name: str, field: FieldInfo, value: object) -> Iterator[str]:
    limits = "".join(f", {text}" for text in _limits(field))
    yield f"# {field.description or TITLES.get(name, name)}{limits}"
    if value is None or value == []:
        yield f"# {name} ="
    else:
        data = value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
        yield f"{name} = {toml_value(data)}"


def _limits(field: FieldInfo) -> Iterator[str]:
    """Yield the range of a number, such as ">= 1", and the choices of a word."""
    for bound in field.metadata:
        for kind, sign in SIGNS.items():
            if isinstance(bound, kind):
                yield f"{sign} {getattr(bound, kind.__name__.lower())}"
    choices = list(_choices(field.annotation))
    if choices:
        yield "one of " + ", ".join(map(str, choices))


def _choices(annotation: Any) -> Iterator[object]:  # noqa: ANN401
    """Yield the words of a Literal inside an annotation."""
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _choices(part)
    elif str(get_origin(annotation)) == "typing.Literal":
        yield from get_args(annotation)


def _policy_lines(section: BaseModel) -> Iterator[str]:
    for axis, field in type(section).model_fields.items():
        choice = getattr(section, axis)
        yield ""
        yield f"[policies.{axis}]  # {field.description}"
        yield from _choice_lines(axis, str(choice["name"]))


def _choice_lines(axis: str, name: str) -> Iterator[str]:
    registry = registries.get(axis)
    if registry is not None:
        for known in registry:
            yield f"#   {known}: {registry.summary(known)}"
    yield f"name = {toml_value(name)}"
    if registry is not None and name in list(registry):
        for parameter in registry.parameters(name):
            yield f"# {parameter.description}"
            default = "" if parameter.default == "None" else f" {parameter.default}"
            yield f"# {parameter.name} ={default}"
