"""``roofcast calibrate``: fit kernel times of an accelerator to its traces."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["calibrate"]


def calibrate(
    traces: Annotated[
        Path, typer.Argument(help="Folder of kernel traces, one CSV per kind of kernel.")
    ],
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="The accelerator measured, or its .toml.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Calibration to write, a .toml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the errors as JSON.")] = False,
) -> None:
    """Fit kernel times to traces; print and keep the errors on shapes held out."""
    from hardware.calibration import calibrate as fit
    from hardware.catalog import load_accelerator
    from sim.cli.output import print_json, print_table, progress_bar

    spec = load_accelerator(accelerator)
    with progress_bar("fitting, then again without each group of shapes", as_json) as move:
        errors = fit(traces, spec, out, move)
    if as_json:
        print_json(errors.to_dict("records"))
        return
    shares = ("median", "p90", "bias")
    rows = [
        [f"{row[c]:.2%}" if c in shares else row[c] for c in errors.columns]
        for row in errors.to_dict("records")
    ]
    print_table([str(c) for c in errors.columns], rows, "Errors on shapes held out")
    typer.echo(f"Wrote {out}; name it as `calibration` in the accelerator's file to use it.")
