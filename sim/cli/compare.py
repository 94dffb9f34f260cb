"""``roofcast compare``: scenarios on the same requests, differences with confidence intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.comparison import Comparison

__all__ = ["compare"]


def compare(
    scenarios: Annotated[
        list[Path], typer.Argument(help="Scenario files (TOML); the first is the base.")
    ],
    replications: Annotated[
        int, typer.Option("--replications", "-n", help="Seeds, 2 or more.")
    ] = 5,
    confidence: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="Python file that registers policies.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Key of every scenario: KEY=VALUE.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of compare.html, differences.csv, values.csv."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Compare scenarios on the same requests: differences and how sure they are."""
    from sim.cli.output import progress_bar
    from sim.cli.overrides import load_plugin, make_scenario
    from sim.comparison import compare as run

    for path in plugin or []:
        load_plugin(path)
    loaded = [_titled(*make_scenario(path, {}, settings or []), path) for path in scenarios]
    base = scenarios[0].parent
    with progress_bar("comparing", as_json) as move:
        found = run(loaded, replications, confidence, base, move)
    _show(found, as_json)
    if out is not None:
        from sim.comparison_page import write_comparison

        with progress_bar("writing", as_json):
            files = write_comparison(found, out)
        if not as_json:
            typer.echo(f"Results in {out}: {', '.join(files)}")


def _titled(scenario: Any, _base: Path, path: Path) -> Any:  # noqa: ANN401 - imported late
    """Return the scenario under the name of its file where it has none of its own."""
    return scenario if scenario.name != "scenario" else scenario.changed({"name": path.stem})


def _show(found: "Comparison", as_json: bool) -> None:
    from sim.cli.output import print_json, print_table
    from sim.comparison_page import COLUMNS, comparison_rows, verdict

    if as_json:
        table = found.differences.astype(object).where(found.differences.notna(), None)
        print_json({"schema_version": 1, "differences": table.to_dict("records")})
        return
    for name in found.names[1:]:
        typer.echo(verdict(found, name))
        print_table(COLUMNS, comparison_rows(found, name), f"{name} against {found.names[0]}")
    typer.echo(f"* the {found.confidence:.0%} interval of the paired difference leaves out zero")
