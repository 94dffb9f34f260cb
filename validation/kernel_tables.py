"""Kernel errors of every accelerator that NVIDIA measured, on what no fit saw.

    python -m validation.kernel_tables ../shared/silicon [--only ID]

writes ``hardware/data/calibrations/ID.errors.csv.gz``: split ``layout`` is one layout in five,
which the committed calibration never saw; split ``shape`` a tenth of the shapes of the other
layouts, form and residual fitted again without them. The tables are not part of the project.
"""

import argparse
import gzip
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import atomic_write
from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_files import load_calibration
from hardware.calibration_judge import METHODS, Measured, error_row
from hardware.catalog import load_accelerator
from hardware.fit_silicon import calibration_name, is_held_out, predict
from hardware.kernels import CALIBRATIONS, chip_of
from hardware.kernels_families import FAMILIES
from hardware.kernels_forms import Array
from hardware.silicon import SYSTEMS
from hardware.silicon_fit import FIT_ROWS, LARGEST, nodes_of, through
from hardware.silicon_rows import training_rows

__all__ = ["COLUMNS", "errors_of", "main"]

COLUMNS = ["family", "split", "method", "shapes", "median", "p90", "bias"]
ASKED = 2000
"""Rows of a split that every method predicts."""
SIMPLE = ("form", "interpolation", "roofline")
"""Simpler ways beside the model, keys of `METHODS`."""
Rows = npt.NDArray[np.intp]


def errors_of(tables: Path, accelerator: str, families: Sequence[str] = ()) -> pd.DataFrame:
    """Judge the committed calibration of an accelerator on what it was not fitted to.

    Parameters
    ----------
    tables : Path
        Folder of NVIDIA's Parquet files.
    accelerator : str
        A key of `hardware.silicon.SYSTEMS`.
    families : sequence of str
        All that were measured, by default.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`; errors are |predicted / measured - 1|, the bias is signed.
    """
    chip = chip_of(load_accelerator(accelerator))
    made = load_calibration(CALIBRATIONS / f"{calibration_name(accelerator)}.toml")
    found = training_rows(tables, accelerator, chip)
    rows: list[tuple[object, ...]] = []
    for name in families or made.names:
        family, table = FAMILIES[name], found[name].table
        shapes, seconds = table[list(family.extents)].to_numpy(float), table["s"].to_numpy(float)
        everything = Measured(family, chip, made.start(family), None, shapes, seconds)
        out = is_held_out(family, table)
        rows += [error_row(name, "layout", *r) for r in _by_layout(everything, out, made)]
        rows += [error_row(name, "shape", *r) for r in _by_shape(everything, out, made)]
    return pd.DataFrame(rows, columns=COLUMNS)


Judged = Iterator[tuple[str, Array]]
"""Method and log(measured / predicted)."""


def _by_layout(table: Measured, out: npt.NDArray[np.bool_], made: Calibration) -> Judged:
    asked = table.part(_some(out, ASKED))
    fit = made.families[table.family.name]
    yield "model", np.log(asked.seconds / predict(table.family, fit, table.chip, asked.shapes))
    yield from _simply(table.part(_some(~out, FIT_ROWS)), asked)


def _by_shape(table: Measured, out: npt.NDArray[np.bool_], made: Calibration) -> Judged:
    tenth = np.random.default_rng(1).random(len(out)) < 0.1
    known, asked = table.part(~out & ~tenth), table.part(_some(~out & tenth, ASKED))
    fit = _again(known, made.families[table.family.name])
    yield "model", np.log(asked.seconds / predict(table.family, fit, table.chip, asked.shapes))
    yield from _simply(known.part(_some(np.ones(len(known.shapes), dtype=bool), FIT_ROWS)), asked)


def _some(rows: npt.NDArray[np.bool_], most: int) -> Rows:
    chosen: Rows = np.random.default_rng(0).permutation(np.flatnonzero(rows))[:most]
    return chosen


def _simply(known: Measured, asked: Measured) -> Judged:
    for method in SIMPLE:
        yield method, np.log(asked.seconds / METHODS[method](known, asked))


def _again(known: Measured, fit: FamilyFit) -> FamilyFit:
    """Fit form and residual to these rows; the lengths of the residual are kept."""
    family, shapes = known.family, known.shapes
    some = known.part(_some(np.ones(len(shapes), dtype=bool), FIT_ROWS))
    again = replace(fit, coefficients=some.fitted, hyper=None, weights=None)
    if fit.hyper is None:
        return again
    left = np.log(known.seconds / predict(family, again, known.chip, shapes))
    middle = float(np.median(left))
    target = middle + np.clip(left - middle, -LARGEST, LARGEST)
    x, _ = family.matrix(family.shape(*shapes.T))
    random = np.random.default_rng(0)
    nodes = nodes_of(family, shapes, np.ones(len(x), dtype=bool), random)
    process = through(fit.hyper, x[nodes], x, target)
    smoothed = process.predict(x[nodes])
    return FamilyFit(again.coefficients, shapes[nodes], smoothed, fit.hyper, process.weights)


def _write_errors(tables: Path, accelerator: str) -> Path:
    path = CALIBRATIONS / f"{calibration_name(accelerator)}.errors.csv.gz"
    text = errors_of(tables, accelerator).to_csv(
        index=False, float_format="%.4g", lineterminator="\n"
    )
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the errors, and print where to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, help="folder of NVIDIA's Parquet tables")
    parser.add_argument("--only", choices=list(SYSTEMS), action="append", help="accelerator")
    given = parser.parse_args(arguments)
    for accelerator in given.only or SYSTEMS:
        sys.stdout.write(f"{_write_errors(given.tables, accelerator)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
