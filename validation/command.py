"""``roofcast validate``: predictions beside measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validation import SEEDS

if TYPE_CHECKING:
    from validation.cases import Validation

__all__ = ["validate"]


def validate(
    run: Annotated[str | None, typer.Option(help="One measured run, such as llama8b_bf16.")] = None,
    workload: Annotated[str | None, typer.Option(help="One workload, such as conv_r12.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Simulations per workload.")] = SEEDS,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of table, page and summary.")
    ] = Path("out/validation"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON only.")] = False,
) -> None:
    """Hold predictions against measured runs, kernels and theory."""
    from sim.cli.output import print_json, progress_bar
    from validation.cases import Selection, select
    from validation.cases import validate as run_cases

    chosen = Selection(run, workload, seeds)
    count = len(select(chosen))
    if not as_json:
        typer.echo(f"Replaying {count} measured workload{'s' if count > 1 else ''}, {seeds} seeds")
    with progress_bar("validating", as_json) as move:
        found = run_cases(chosen, move)
    written = _write(found, out)
    if as_json:
        print_json(_records(found))
    else:
        _show(found, written)


def _write(found: "Validation", out: Path) -> list[Path]:
    """Write table, page and summary; return their paths."""
    from formats import atomic_write
    from validation.report import report_html
    from validation.words import markdown

    texts = {
        "validation.csv": found.table().to_csv(index=False, float_format="%.6g"),
        "validation.html": report_html(found),
        "summary.md": markdown(found),
    }
    for name, text in texts.items():
        with atomic_write(out / name) as path:
            path.write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _records(found: "Validation") -> list[dict[str, object]]:
    table = found.table().astype(object)
    rows = table.where(table.notna(), None).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


def _show(found: "Validation", written: list[Path]) -> None:
    from sim.cli.output import print_table
    from validation.words import tables

    for table in tables(found):
        if rows := table.brief():
            print_table(table.columns, rows, f"{table.title}. {table.about}")
    page = next(path for path in written if path.suffix == ".html")
    typer.echo(f"Report: {page}  (table: validation.csv, text: summary.md)")
