"""``roofcast sweep``: many scenarios over a grid, or the saturation curve of one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from sim.sweeping import Saturation

__all__ = ["sweep"]

ROWS_SHOWN = 40


def sweep(
    file: Annotated[
        Path, typer.Argument(help="Grid file (TOML); with --rate auto a scenario file.")
    ],
    rate: Annotated[
        str | None,
        typer.Option(
            help="auto: find where the scenario saturates and up to which rate it is good."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes; 0 = one per core where that pays.")
    ] = 0,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")
    ] = None,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="Python file that registers policies.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of sweep.csv, sweep.html; resumed if it exists."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON only.")] = False,
) -> None:
    """Simulate every point of a grid; the table is the same for any number of workers."""
    from formats import InputError
    from sim.cli.output import progress_bar
    from sim.cli.overrides import load_plugin

    if rate not in {None, "auto"}:
        raise InputError(f"{rate!r} is not auto", "--rate", "auto", "leave it out for a grid")
    for path in plugin or []:
        load_plugin(path)
    options = {"workers": workers, "cluster": cluster, "out": out, "plugins": plugin or ()}
    with progress_bar("sweeping", as_json) as move:
        if rate == "auto":
            title, found = _curve(file, options | {"progress": move})
            table = found.table
        else:
            title, table = _grid(file, options | {"progress": move})
            found = None
    if out is not None:
        _write(title, table, found, out)
    _show(table, found, out, as_json)


def _curve(file: Path, options: dict[str, object]) -> "tuple[str, Saturation]":
    from sim.scenario import load_scenario
    from sim.sweeping import saturation_curve

    scenario = load_scenario(file)
    found = saturation_curve(scenario, base=file.parent, **options)  # type: ignore[arg-type]
    return scenario.name, found


def _grid(file: Path, options: dict[str, object]) -> "tuple[str, pd.DataFrame]":
    from formats import read_toml
    from sim.sweeping import Grid
    from sim.sweeping import sweep as run

    return read_toml(file, Grid).name, run(file, **options)  # type: ignore[arg-type]


def _write(title: str, table: "pd.DataFrame", found: "Saturation | None", out: Path) -> None:
    import json

    from formats import atomic_write
    from sim.page import write_page
    from sim.sweeping.report import sweep_page
    from sim.sweeping.run import TABLE

    if found is not None:
        with atomic_write(out / "saturation.json") as path:
            path.write_text(json.dumps(found.facts(), indent=2) + "\n")
        with atomic_write(out / TABLE) as path:
            table.to_csv(path, index=False)
    write_page(sweep_page(title, table, found), out / "sweep.html")


def _show(
    table: "pd.DataFrame", found: "Saturation | None", out: Path | None, as_json: bool
) -> None:
    from sim.cli.output import print_json, print_table
    from sim.sweeping.report import shown_columns, text

    if as_json:
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        print_json(rows if found is None else {**found.facts(), "points": rows})
        return
    columns = shown_columns(table)
    cells = [[text(row[c]) for c in columns] for row in table.head(ROWS_SHOWN).to_dict("records")]
    print_table(columns, cells)
    if len(table) > ROWS_SHOWN:
        typer.echo(f"{len(table) - ROWS_SHOWN} more rows are in the table.")
    failed = int(table["error"].notna().sum())
    if failed:
        typer.echo(f"{failed} of {len(table)} points could not run; their error says why.")
    if found is not None:
        typer.echo(found.sentence())
    if out is not None:
        typer.echo(f"Table and charts in {out}: sweep.csv, sweep.html, sweep.jsonl")
