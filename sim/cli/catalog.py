"""``roofcast list`` and ``roofcast show``: what there is, and every number with its source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["list_entries", "show"]

PLUGIN = "Python file that registers policies."
WHAT = "accelerators, nodes, models, workloads, lengths, engines, policies or metrics."


def list_entries(
    what: Annotated[str, typer.Argument(help=WHAT)],
    contains: Annotated[
        str | None, typer.Option("--contains", help="Only lines that contain this word.")
    ] = None,
    plugin: Annotated[list[Path] | None, typer.Option(help=PLUGIN)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, SI units.")] = False,
) -> None:
    """List accelerators, nodes, models, workloads, lengths, engines, policies or metrics."""
    from sim.cli.kinds import kinds
    from sim.cli.output import print_json, print_table
    from sim.cli.overrides import load_plugin

    for path in plugin or []:
        load_plugin(path)
    _, kind = next(kinds(what))
    rows = [kind.row(name, load()) for name, load in kind.entries().items()]
    if contains:
        rows = [r for r in rows if contains.lower() in " ".join(map(str, r.values())).lower()]
    if as_json:
        print_json(rows)
        return
    columns = list(rows[0]) if rows else [what]
    print_table(columns, [[_cell(r[c], kind.units.get(c)) for c in columns] for r in rows])
    typer.echo(f"{len(rows)} {what}; `roofcast show NAME` prints one with its sources.")


def _cell(value: object, unit: str | None) -> str:
    from sim.units import readable

    if value is None:
        return "-"
    if unit == "":
        return f"{float(str(value)) / 1e9:,.3g} B"
    if unit is not None and isinstance(value, (int, float)):
        return readable(value, unit)
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(
    name: Annotated[str, typer.Argument(help="Name of an entry, see `roofcast list`, or a .toml.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="Where to look, when a name stands twice.")
    ] = None,
    plugin: Annotated[list[Path] | None, typer.Option(help=PLUGIN)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one entry: every number with its unit, kind and source."""
    from sim.cli.output import print_json
    from sim.cli.overrides import load_plugin

    for path in plugin or []:
        load_plugin(path)
    found = _read_file(name, kind) if name.endswith(".toml") else dict(_find(name, kind))
    if as_json:
        print_json({key: _plain(entry) for key, entry in found.items()})
        return
    for key, entry in found.items():
        typer.secho(f"{name} ({key})", bold=True)
        _print_entry(entry)


def _read_file(path: str, wanted: str | None) -> dict[str, Any]:
    """Return the entry of a file, of the first kind that it is a file of."""
    from formats import InputError
    from sim.cli.kinds import kinds

    faults: list[InputError] = []
    for key, kind in kinds(wanted):
        if kind.read is not None:
            try:
                return {key: kind.read(path)}
            except InputError as e:
                faults.append(e)
    if wanted is None and Path(path).is_file():
        raise InputError("is no file of any kind", path, repair="name its kind with --kind")
    raise faults[0] if faults else InputError(f"{wanted} have no files", path)


def _find(name: str, wanted: str | None) -> Iterator[tuple[str, Any]]:
    """Yield (kind, entry) of every entry of that name; policies also by their short name."""
    from formats import InputError, did_you_mean
    from sim.cli.kinds import kinds

    known: list[str] = []
    missing = True
    for key, kind in kinds(wanted):
        for entry_name, load in kind.entries().items():
            short = entry_name.split("/")[-1]
            known.append(short)
            if name in (entry_name, short):
                missing = False
                yield (f"{key}: {entry_name}" if short != entry_name else key), load()
    if missing:
        raise InputError(f"nothing is called {name!r}", repair=did_you_mean(name, known))


def _plain(entry: Any) -> Any:  # noqa: ANN401
    from dataclasses import fields

    if hasattr(entry, "model_dump"):
        return entry.model_dump()
    return {f.name: getattr(entry, f.name) for f in fields(entry) if f.name != "function"}


def _print_entry(entry: Any) -> None:  # noqa: ANN401
    from sim.cli.output import print_table

    if not hasattr(entry, "model_dump"):
        plain = _plain(entry)
        parameters = plain.pop("parameters", [])
        print_table(["key", "value"], [[k, v] for k, v in plain.items()])
        if parameters:
            print_table(list(parameters[0]), [list(p.values()) for p in parameters])
        return
    numbers, texts = [], []
    for key, field, value in _walk(entry):
        if hasattr(value, "source") and hasattr(value, "unit"):
            note = f"{value.source} ({value.note})" if value.note else value.source
            numbers.append([key, f"{value.value:.6g}", value.unit, value.kind, note])
        else:
            texts.append([key, field, _short(value)])
    if texts:
        print_table(["key", "what", "value"], texts)
    if numbers:
        print_table(["number", "value", "unit", "kind", "source"], numbers)


def _walk(model: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401
    """Yield (dotted key, description, value) of every leaf that is set."""
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), f"{path}.{name}" if path else name
        if value is None or value in ("", [], ()):
            continue
        quantity = hasattr(value, "source") and hasattr(value, "unit")
        if hasattr(type(value), "model_fields") and not quantity:
            yield from _walk(value, key)
        else:
            yield key, field.description or "", value


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({len(text)} characters)"
