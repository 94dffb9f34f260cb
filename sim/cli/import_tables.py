"""``roofcast import``: other people's kernel tables as traces that ``roofcast calibrate`` takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardware.silicon import Converted

__all__ = ["import_tables"]


def import_tables(
    tables: Annotated[
        Path, typer.Argument(help="Folder of NVIDIA's kernel tables (Parquet, see the recipe).")
    ],
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="Accelerator id, such as b200-sxm.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of traces to write.")],
    date: Annotated[
        str, typer.Option(help="Day measured, YYYY-MM-DD; the tables do not say.")
    ] = "1970-01-01",
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Turn NVIDIA's kernel tables into traces for `roofcast calibrate`.

    The tables come with the packages aiconfigurator-core and aisimulate (Apache-2.0), in
    systems/data; name that folder, or one with files named SYSTEM__OPERATION_perf.parquet.
    """
    from hardware.silicon import TABLES_SOURCE, read_traces, write_tables
    from sim.cli.output import print_json, print_table

    found = read_traces(tables, accelerator)
    source = TABLES_SOURCE.replace("fitted to", "taken from")
    written = write_tables(found, out, source, date)
    counts = [c for name in found for c in _counts(name, found)]
    if as_json:
        print_json({"files": [str(path) for path in written], "rows": counts})
        return
    texts = [[str(row["table"]), f"{row['rows']:,}", str(row["what"])] for row in counts]
    print_table(["table", "rows", "what became of them"], texts, f"{accelerator}, NVIDIA's tables")
    typer.echo(f"Wrote {len(written)} traces and about.json to {out}")
    typer.echo(f"Next: roofcast calibrate {out} --accelerator {accelerator} --out mine.toml")


def _counts(name: str, found: "Mapping[str, Converted]") -> list[dict[str, object]]:
    """Return one row per fate of the rows of a table: taken, averaged, or left out and why."""
    converted = found[name]
    lost = sum(converted.dropped.values())
    repeated = converted.rows - lost - len(converted.table)
    fates = {"taken": len(converted.table), "same shape as another row: averaged": repeated}
    fates |= {f"left out: {reason}": n for reason, n in converted.dropped.items()}
    return [{"table": name, "rows": n, "what": what} for what, n in fates.items() if n]
