"""Calibrations: fit kernel traces, judge the fit on shapes held out, keep it.

``roofcast calibrate`` runs `calibrate`. A trace folder holds one CSV per kind of kernel (columns:
`hardware.calibration_traces.TRACE_COLUMNS`), as ``validation/collect/kernel_times.py`` writes.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from formats import InputError, atomic_write
from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_files import load_calibration, save_calibration
from hardware.calibration_fit import fit, fit_coefficients, fit_family
from hardware.calibration_judge import all_held_out, judged, residual_table
from hardware.calibration_traces import read_about, read_traces
from hardware.kernels import chip_of
from hardware.specs import AcceleratorSpec

__all__ = [
    "Calibration",
    "FamilyFit",
    "calibrate",
    "fit",
    "fit_coefficients",
    "fit_family",
    "load_calibration",
    "read_traces",
    "residual_table",
    "save_calibration",
]


def calibrate(
    traces: Path,
    spec: AcceleratorSpec,
    out: Path,
    progress: Callable[[float], None] | None = None,
) -> pd.DataFrame:
    """Fit the traces of a folder and write the calibration with its table of errors.

    Parameters
    ----------
    traces : Path
        Folder of trace tables; ``about.json`` in it may give ``source``, ``date`` and rows to
        leave out.
    spec : AcceleratorSpec
        The accelerator measured.
    out : Path
        The calibration, a name that ends in .toml; ``<name>.residuals.csv.gz`` (points of the
        residual) and ``<name>.errors.csv.gz`` (the table returned) are written beside it.
    progress : callable, optional
        Called with the share that is done [0..1].

    Returns
    -------
    DataFrame
        As `residual_table` returns it. Takes about two minutes for 3,000 shapes, seven for tables
        of thousands per family: a fit takes `hardware.calibration_fit.MOST_POINTS` of each.

    Raises
    ------
    InputError
        A bad folder, table or value, an output that is not .toml or cannot be written, or no
        family that this accelerator has a peak for.
    """
    if out.suffix != ".toml":
        raise InputError(f"{out.name} must end in .toml", "out", repair=f"use {out.stem}.toml")
    tables, about, chip = read_traces(traces), read_about(traces), chip_of(spec)
    made = fit(tables, chip, out.stem, about.source, about.date)
    if not made.families:
        what = f"{spec.name} has no peak for any type measured in {traces}"
        raise InputError(what, "accelerator", repair="choose the accelerator measured")
    left = all_held_out(made, chip, progress=progress)
    save_calibration(judged(made, chip, left), out)
    errors = residual_table(made, chip, left=left)
    with atomic_write(out.with_name(f"{out.stem}.errors.csv.gz")) as temporary:
        text = errors.to_csv(index=False, float_format="%.4g", lineterminator="\n")
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return errors
