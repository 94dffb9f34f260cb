"""``roofcast explain --waterfall`` and ``--against``: optimisations, or models, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sim.explain import Load
    from sim.scenario import Scenario

__all__ = ["show_beside", "show_waterfall"]


def show_waterfall(
    scenario: "Scenario", base: Path, batch: int, out: Path | None, as_json: bool
) -> None:
    """Print the waterfall of a scenario, and write its page where one is wanted."""
    import json

    from formats import InputError
    from sim.cli.output import print_json, print_table, progress_bar
    from sim.exploring.waterfall import waterfall
    from sim.exploring.waterfall_page import HEADS, waterfall_page, waterfall_rows
    from sim.page import write_page

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


WORDS = {
    "weight_bytes": ("weights of one accelerator", "byte"),
    "kv_bytes_per_token": ("KV cache per token", "byte"),
    "decode_s": ("decode step", "s"),
    "prompt_s": ("prompt step", "s"),
    "seconds": ("accelerator time per output token", "s"),
    "joules": ("energy per output token", "J"),
    "usd": ("cost of a million output tokens", "USD"),
}


def show_beside(
    scenario: "Scenario", base: Path, others: list[str], load: "Load", as_json: bool
) -> None:
    """Print a scenario's model beside others, a figure per line."""
    import json

    from sim.cli.output import print_json, print_table, progress_bar
    from sim.exploring.students import beside
    from sim.units import readable

    with progress_bar("simulating", as_json) as move:
        table = beside(scenario, others, load, base, progress=move)
    if as_json:
        print_json(json.loads(table.to_json(orient="records")))
        return
    rows = []
    for name, (words, unit) in WORDS.items():
        rows.append([words, *(readable(value, unit) for value in table[name])])
    rows.insert(0, ["parameters", *(f"{value / 1e9:.3g} billion" for value in table["parameters"])])
    print_table(["", *table["model"]], rows, f"{load.batch} at a time, {load.context} tokens each")
    for model, quality in zip(table["model"], table["quality"], strict=True):
        typer.echo(f"{model}: {quality}")
