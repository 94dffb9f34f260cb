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
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Your own run instead: JSON of vllm bench serve --save-detailed or of GuideLLM, "
            "or requests.csv."
        ),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario of your own run (see roofcast new).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON only.")] = False,
) -> None:
    """Hold predictions against measured runs, kernels and theory, or against a run of yours."""
    if measured is not None:
        _measured(measured, scenario, out, as_json)
        return
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


def _measured(path: Path, scenario: Path | None, out: Path, as_json: bool) -> None:
    """Judge a user's run: print and write predicted beside measured."""
    from formats import InputError, atomic_write
    from sim.cli.output import print_json, print_table, progress_bar
    from sim.scenario import load_scenario
    from sim.units import readable
    from validation.text import percent
    from validation.user_files import read_measured
    from validation.user_runs import judge_user_run

    if scenario is None:
        repair = "add --scenario FILE; `roofcast new` writes one with every key explained"
        raise InputError("--measured needs to know what was deployed", "--scenario", repair=repair)
    run, deployed = read_measured(path), load_scenario(scenario)
    with progress_bar("fitting the host on one half", as_json):
        found = judge_user_run(deployed, run)
    with atomic_write(out / "measured.csv") as temporary:
        found.table.to_csv(temporary, index=False, float_format="%.6g")
    if as_json:
        print_json({"host_slowness": found.host_slowness, "rows": found.table.to_dict("records")})
        return
    rows = [
        [
            str(row["figure"]),
            readable(row["measured"], "s"),
            readable(row["before"], "s"),
            percent(row["error_before"]),
            readable(row["after"], "s"),
            percent(row["error_after"]),
            f"{readable(row['low'], 's')} .. {readable(row['high'], 's')}",
        ]
        for row in found.table.to_dict("records")
    ]
    columns = ["figure", "measured", "predicted", "error", "host fitted", "error", "P10 .. P90"]
    typer.echo(f"{run.kind}: {len(run.requests)} requests. {run.note}".rstrip())
    typer.echo(
        f"host_slowness = {found.host_slowness:.2f} fitted on the first {found.fitted} requests; "
        f"below are the other {found.judged}."
    )
    print_table(columns, rows, f"{deployed.name}, predicted beside measured")
    typer.echo(f"Table: {out / 'measured.csv'}")


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
