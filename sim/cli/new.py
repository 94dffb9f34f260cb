"""``roofcast new``: a scenario file with every key, its default and what it means."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["new"]


def new(
    file: Annotated[Path, typer.Argument(help="File to write, - for the terminal.")] = Path(
        "scenario.toml"
    ),
) -> None:
    """Write a commented scenario file; an existing file is left alone."""
    from formats import InputError, atomic_write
    from sim.scenario_template import scenario_template

    if str(file) == "-":
        typer.echo(scenario_template(), nl=False)
        return
    if file.exists():
        raise InputError("is there already", str(file), repair="choose another name")
    with atomic_write(file) as temporary:
        temporary.write_text(scenario_template(), encoding="utf-8")
    typer.echo(f"Wrote {file}; run it with: roofcast simulate {file}")
