"""``roofcast plan``: how many of what to have when, at what cost, and how sure that is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.planning import PlanResult

__all__ = ["plan"]


def plan(
    demand: Annotated[
        Path, typer.Argument(help="Plan file (TOML): demand, candidates, site, money.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for plan.html, plan.csv and plan.json."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes for candidates; 0 = one per core.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json only.")] = False,
) -> None:
    """Plan a purchase: least fleet per candidate, money, watts, carbon and doubt."""
    import os

    from sim.cli.output import progress_bar
    from sim.planning import plan as make_plan

    count = workers or min(os.cpu_count() or 1, 8)
    with progress_bar("planning") as move:
        result = make_plan(demand, workers=count, progress=lambda share, _text: move(share))
    if out is not None:
        from sim.planning.write import write_plan

        with progress_bar("writing"):
            write_plan(result, out)
    _show(result, out, as_json)


def _show(result: "PlanResult", out: Path | None, as_json: bool) -> None:
    from sim.cli.output import print_json, print_table
    from sim.planning.words import headline, option_rows, sentences, shortlist
    from sim.planning.write import PLAN_FILES, plan_json

    if as_json:
        print_json(plan_json(result))
        return
    typer.echo(f"{result.file.name}: {headline(result)}\n")
    shown = shortlist(result)
    print_table(*option_rows(result, shown))
    count = f"{len(shown)} of {len(result.options)} options"
    typer.echo(f"{count}: every way to have the best candidate, the others at their best.\n")
    for sentence in sentences(result):
        typer.echo(f"- {sentence}")
    for name, fault in result.faults.items():
        typer.echo(f"- left out: {name}: {fault.what}")
    if out is not None:
        typer.echo(f"\nWrote {', '.join(PLAN_FILES)} to {out}")
