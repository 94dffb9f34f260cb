"""``roofcast sweep``: many scenarios over a grid, or the saturation curve of one."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from sim.sweeping.saturation import Saturation

__all__ = ["sweep"]

SHOWN = ("requests_per_s", "output_tokens_per_s", "ttft_p99_s", "tpot_mean_s", "slo_attainment")
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
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 = one per core.")] = 0,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, or local:N.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of sweep.csv, sweep.html; resumed if it exists."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON only.")] = False,
) -> None:
    """Simulate every point of a grid; the table is the same for any number of workers."""
    import os

    from formats import InputError
    from sim.cli.output import progress_bar

    count = workers or os.cpu_count() or 1
    if rate not in {None, "auto"}:
        raise InputError(f"{rate!r} is not auto", "--rate", "auto", "leave it out for a grid")
    with progress_bar("sweeping", as_json) as move:
        if rate == "auto":
            from sim.scenario import load_scenario
            from sim.sweeping.saturation import saturation_curve

            scenario = load_scenario(file)
            found = saturation_curve(
                scenario, workers=count, cluster=cluster, out=out, base=file.parent, progress=move
            )
            table = found.table
        else:
            from sim.sweeping import load_grid, sweep_grid

            grid, scenario = load_grid(file)
            found = None
            table = sweep_grid(
                grid,
                scenario,
                workers=count,
                cluster=cluster,
                out=out,
                base=file.parent,
                progress=move,
            )
    _show(table, found, out, as_json)


def _show(
    table: "pd.DataFrame", found: "Saturation | None", out: Path | None, as_json: bool
) -> None:
    from sim.cli.output import print_json, print_table

    if as_json:
        print_json(table.astype(object).where(table.notna(), None).to_dict("records"))
        return
    columns = _columns(table)
    rows = [[_text(row[c]) for c in columns] for row in table.head(ROWS_SHOWN).to_dict("records")]
    print_table(columns, rows)
    if len(table) > ROWS_SHOWN:
        typer.echo(f"{len(table) - ROWS_SHOWN} more rows are in the table.")
    if found is not None:
        typer.echo(found.sentence())
    if out is not None:
        from sim.sweeping.charts import write_page

        write_page(table, found, out / "sweep.html")
        typer.echo(f"Table and charts in {out}: sweep.csv, sweep.html, sweep.jsonl")


def _columns(table: "pd.DataFrame") -> list[str]:
    """Return the swept keys and a few metrics."""
    names = list(table.columns)
    swept = names[1 : names.index("error")]
    first = ["offered_per_s"] if "offered_per_s" in names else []
    faults = ["error"] if table["error"].notna().any() else []
    return [*swept, *first, *(c for c in SHOWN if c in names), *faults]


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
