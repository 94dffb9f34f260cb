"""``roofcast explain --waterfall``: from naive to optimised, step by step."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sim.scenario import Scenario

__all__ = ["show_waterfall"]


def show_waterfall(
    scenario: "Scenario", base: Path, batch: int, out: Path | None, as_json: bool
) -> None:
    """Print the waterfall of a scenario, and write its page where one is wanted."""
    import json

    from formats import InputError
    from sim.cli.output import print_json, print_table, progress_bar
    from sim.exploring.waterfall import waterfall
    from sim.exploring.waterfall_page import HEADS, waterfall_page, waterfall_rows
    from sim.sweeping.page import write_page

    with progress_bar("simulating", as_json) as move:
        table = waterfall(scenario, base, batch=batch, progress=move)
    if table.empty:
        what = f"no step of the waterfall runs on {scenario.hardware.accelerator}"
        raise InputError(what, "--waterfall", repair="raise --tp, or choose a smaller model")
    if out is not None:
        write_page(waterfall_page(table, scenario, batch), out)
    if as_json:
        print_json(json.loads(table.to_json(orient="records")))
        return
    title = f"{scenario.model.name} on {scenario.hardware.accelerator}, {batch} requests at a time"
    print_table(list(HEADS), waterfall_rows(table), title)
    for note in dict.fromkeys(n for cell in table["quality"] for n in cell.split("; ") if n):
        typer.echo(note)
    if out is not None:
        typer.echo(f"Waterfall in {out}")
