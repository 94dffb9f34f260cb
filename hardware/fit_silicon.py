"""Calibrates accelerators on NVIDIA's kernel tables, and judges carrying over between them.

    python -m hardware.fit_silicon TABLES [--only ID]   # fit, write data/calibrations, print errors
    python -m hardware.fit_silicon TABLES --pooled      # joint coefficients, leave-one-out errors

One layout in five (a pair (n, k), a set of heads, a set of experts) is kept out of every fit and
judges it. Forms are those of `hardware.kernels_forms`; what they miss is smoothed onto a modest
set of shapes, so that a file holds coefficients and a smooth residual, not the table's rows.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import atomic_write
from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_files import load_calibration, save_calibration
from hardware.calibration_fit import fit_coefficients
from hardware.catalog import load_accelerator
from hardware.kernels import BASE, CALIBRATIONS, POOLED, chip_of
from hardware.kernels_carry import (
    GENERATIONS,
    adapted,
    at_pace,
    by_generation,
    generation,
    pace_of,
    stacked,
)
from hardware.kernels_families import FAMILIES, Family
from hardware.kernels_forms import Array, Chip, Coefficients, Shape
from hardware.silicon import SYSTEMS, TABLES_SOURCE
from hardware.silicon_fit import FIT_ROWS, smooth
from hardware.silicon_forms import as_measured, product_alone
from hardware.silicon_rows import training_rows

__all__ = [
    "LEFT_OUT",
    "TRANSFER",
    "calibrate",
    "calibration_name",
    "error_table",
    "is_held_out",
    "leave_one_out",
    "left_out",
    "pooled",
]

DATE = "not recorded"
"""Day measured; the tables do not say."""
EVERY, KEPT_OUT = 5, 2
TRANSFER = CALIBRATIONS.parent / "transfer.csv"
"""Errors of accelerators left out, as `leave_one_out` returns them."""
LEFT_OUT = CALIBRATIONS / "left-out"
"""Coefficients carried over to each accelerator from the others, as `left_out` returns them."""


def calibration_name(accelerator: str) -> str:
    """Return the file of an accelerator's fit; the H200 has one of our own traces already.

    Examples
    --------
    >>> calibration_name("b200-sxm"), calibration_name("h200-sxm")
    ('b200-sxm', 'h200-sxm-nvidia')
    """
    return f"{accelerator}-nvidia" if accelerator == "h200-sxm" else accelerator


def is_held_out(family: Family, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows belong to layouts that no fit sees: every fifth in ascending order."""
    layouts = rows[list(family.layout)].to_numpy(float)
    _, index = np.unique(layouts, axis=0, return_inverse=True)
    return np.asarray(index.ravel() % EVERY == KEPT_OUT)


def _shapes(family: Family, rows: pd.DataFrame) -> Array:
    return rows[list(family.extents)].to_numpy(dtype=float)


def calibrate(tables: Path, accelerator: str) -> Calibration:
    """Fit every family that NVIDIA measured on one accelerator.

    Parameters
    ----------
    tables : Path
        Folder of the Parquet files.
    accelerator : str
        A key of `hardware.silicon.SYSTEMS`.

    Returns
    -------
    Calibration
        With bands from held-out layouts.
    """
    chip = chip_of(load_accelerator(accelerator))
    made = Calibration(accelerator, TABLES_SOURCE, DATE, {}, {})
    found = training_rows(tables, accelerator, chip)
    for name in (name for name in FAMILIES if name in found):
        family, rows = FAMILIES[name], found[name].table
        fitted = _fit(family, rows, chip, made)
        made = replace(made, families={**made.families, name: fitted})
    return made


def _fit(family: Family, rows: pd.DataFrame, chip: Chip, made: Calibration) -> FamilyFit:
    """Fit the form and its smooth residual to the seen layouts, the band to the others."""
    out = is_held_out(family, rows)
    shapes, seconds = _shapes(family, rows), rows["s"].to_numpy(float)
    some = np.random.default_rng(0).permutation(np.flatnonzero(~out))[:FIT_ROWS]
    start = made.start(family)
    coefficients = fit_coefficients(family, shapes[some], seconds[some], chip, start)
    formed = family.form(family.shape(*shapes.T), chip, coefficients)
    left = np.log(seconds / formed)
    fitted = smooth(family, coefficients, shapes[~out], left[~out])
    low, middle, high = np.quantile(left[out] - residual(family, fitted, shapes[out]), _BAND)
    return replace(fitted, band={"p10": low, "p50": middle, "p90": high})


_BAND, _BAND_NAMES = (0.1, 0.5, 0.9), ("p10", "p50", "p90")


def residual(family: Family, fit: FamilyFit, shapes: Array) -> Array:
    """Return the smooth log residual of a fit at shapes (N, extents); 0 where it has none."""
    process = fit.process(family)
    if process is None:
        return np.zeros(len(shapes))
    parts = np.array_split(shapes, max(1, len(shapes) // 4000))
    return np.concatenate([process.predict(family.matrix(family.shape(*p.T))[0]) for p in parts])


def predict(family: Family, fit: FamilyFit, chip: Chip, shapes: Array) -> Array:
    """Return the time that a fit gives at shapes (N, extents) [s]."""
    formed = family.form(family.shape(*shapes.T), chip, fit.coefficients)
    return formed * np.exp(residual(family, fit, shapes))


def error_table(tables: Path, accelerators: Iterable[str] = tuple(SYSTEMS)) -> pd.DataFrame:
    """Judge the committed calibrations on the layouts that they were not fitted to.

    Returns
    -------
    pandas.DataFrame
        Columns accelerator, family, rows, median, p90 (of |predicted / measured - 1|), and
        form_median, form_p90 (the form without its residual).
    """
    rows = []
    for accelerator in accelerators:
        chip = chip_of(load_accelerator(accelerator))
        calibration = load_calibration(CALIBRATIONS / f"{calibration_name(accelerator)}.toml")
        found = training_rows(tables, accelerator, chip)
        for name in calibration.names:
            family, fit, table = FAMILIES[name], calibration.families[name], found[name].table
            table = table[is_held_out(family, table)]
            bare = replace(fit, hyper=None)
            rows.append(
                {
                    "accelerator": accelerator,
                    "family": name,
                    **_errors(family, fit, chip, table),
                    **_errors(family, bare, chip, table, "form_"),
                }
            )
    return pd.DataFrame(rows).drop(columns="form_rows")


def _errors(
    family: Family, fit: FamilyFit, chip: Chip, table: pd.DataFrame, prefix: str = ""
) -> dict[str, float]:
    error = np.abs(predict(family, fit, chip, _shapes(family, table)) / table["s"] - 1)
    return {
        f"{prefix}rows": len(table),
        f"{prefix}median": float(error.median()),
        f"{prefix}p90": float(error.quantile(0.9)),
    }


def _stack(chips: Sequence[Chip], counts: Sequence[int], precision: str) -> Chip:
    """Return one chip whose numbers are arrays, one entry per row of stacked tables."""

    def per_row(values: Iterable[float]) -> Array:
        return np.repeat(np.array(list(values), dtype=float), counts)

    names = {precision, "bf16"} - {""}
    peaks = {name: per_row(c.peaks[name] for c in chips) for name in names}
    numbers = {
        key: per_row(float(getattr(c, key)) for c in chips)
        for key in ("units", "memory", "l2_bytes", "host", "exponentials")
    }
    return Chip(**numbers, peaks=peaks)  # type: ignore[arg-type]  # arrays stand for numbers


Rows = Mapping[str, Mapping[str, pd.DataFrame]]
"""Accelerator -> family -> rows."""


def _all_rows(tables: Path) -> dict[str, dict[str, pd.DataFrame]]:
    """Return all rows as measured: fp8 products with the quantisation of their activations."""
    chips = {a: chip_of(load_accelerator(a)) for a in SYSTEMS}
    found = {a: training_rows(tables, a, chip, quantised=True) for a, chip in chips.items()}
    return {a: {name: c.table for name, c in part.items()} for a, part in found.items()}


def _joint(family: Family, rows: Rows, donors: Sequence[str]) -> FamilyFit:
    """Fit one set of coefficients, at the reference's pace, to equal numbers of rows of donors."""
    random = np.random.default_rng(0)
    parts = {a: rows[a][family.name] for a in donors}
    parts = {a: p.iloc[random.permutation(len(p))[: FIT_ROWS // 2]] for a, p in parts.items()}
    counts = {a: len(p) for a, p in parts.items()}
    specs = {a: load_accelerator(a) for a in donors}
    chip = _stack([chip_of(s) for s in specs.values()], list(counts.values()), family.precision)
    pace = stacked({a: pace_of(s) for a, s in specs.items()}, counts)
    table = pd.concat(parts.values())
    shapes, seconds = _shapes(family, table), table["s"].to_numpy(float)

    measured = as_measured(family)

    def paced(shape: Shape, chip: Chip, c: Coefficients) -> Array:
        return measured.form(shape, chip, at_pace(c, pace))

    at_reference = replace(measured, form=paced)
    coefficients = fit_coefficients(at_reference, shapes, seconds, chip, measured.start)
    return FamilyFit(coefficients, np.empty((0, len(family.extents))), np.empty(0))


def _donors(rows: Rows, name: str, instructions: str = "", without: str = "") -> list[str]:
    """Return accelerators to fit a family to: of a generation, or all, but for one."""
    return [
        a
        for a in rows
        if name in rows[a]
        and a != without
        and instructions in ("", generation(load_accelerator(a)))
    ]


def leave_one_out(tables: Path, only: Sequence[str] = ()) -> pd.DataFrame:
    """Predict each accelerator from its datasheet and the others' joint coefficients.

    Parameters
    ----------
    tables : Path
        Folder of the Parquet files.
    only : sequence of str
        Families, by default all.

    Returns
    -------
    pandas.DataFrame
        Columns accelerator, family, donors (all, or a generation of matrix instructions), used
        (whether a prediction takes these coefficients), rows, median, p90 (of |predicted /
        measured - 1|), and p10_log, p50_log, p90_log (of log(measured / predicted)).
    """
    return pd.DataFrame([errors for errors, _ in _each_left_out(_all_rows(tables), only)])


def left_out(tables: Path) -> tuple[pd.DataFrame, list[Calibration]]:
    """Return what `leave_one_out` does, and the coefficients that each accelerator took.

    They stand at the clock and memory of the accelerator. Kernels that only `BASE` was measured
    for come from there, on `BASE` itself from where a fit would start.
    """
    judged, taken = [], {a: dict[str, FamilyFit]() for a in SYSTEMS}
    for errors, fit in _each_left_out(_all_rows(tables), ()):
        judged.append(errors)
        fit = replace(fit, coefficients=product_alone(fit.coefficients))
        taken[str(errors["accelerator"])][str(errors["family"])] = fit
    return pd.DataFrame(judged), [_completed(a, fits) for a, fits in taken.items()]


def _completed(accelerator: str, fits: Mapping[str, FamilyFit]) -> Calibration:
    """Return carried coefficients of all families of `BASE`, none from the accelerator's rows."""
    spec, known = load_accelerator(accelerator), load_calibration(CALIBRATIONS / f"{BASE}.toml")
    empty = FamilyFit({}, np.empty((0, 0)), np.empty(0))
    start = {n: replace(empty, coefficients=dict(FAMILIES[n].start)) for n in known.families}
    own = start if accelerator == BASE else adapted(known, spec).families
    bare = {n: replace(empty, coefficients=f.coefficients, band=f.band) for n, f in own.items()}
    return Calibration(f"{accelerator}, left out", TABLES_SOURCE, DATE, {**bare, **fits}, {})


Judged = tuple[dict[str, object], FamilyFit]


def _each_left_out(rows: Rows, only: Sequence[str]) -> Iterator[Judged]:
    for name in only or FAMILIES:
        for accelerator in _donors(rows, name):
            yield from _left_out(FAMILIES[name], rows, accelerator)


def _left_out(family: Family, rows: Rows, accelerator: str) -> Iterator[Judged]:
    """Yield errors and fit of one accelerator without it: from all others, its generation's."""
    spec = load_accelerator(accelerator)
    own = generation(spec) if by_generation(family.name) else ""
    donors = {"all": _donors(rows, family.name, "", accelerator)}
    if own and (alike := _donors(rows, family.name, own, accelerator)):
        donors[own] = alike
    for whose, names in donors.items():
        if names:
            fit = _joint(family, rows, names)
            fit = replace(fit, coefficients=at_pace(fit.coefficients, pace_of(spec)))
            measured, table = as_measured(family), rows[accelerator][family.name]
            errors = _carried_errors(measured, fit, chip_of(spec), table)
            used = whose == list(donors)[-1]
            key = {"accelerator": accelerator, "family": family.name}
            low, middle, high = (float(str(errors[f"{q}_log"])) for q in _BAND_NAMES)
            fit = replace(fit, band=dict(zip(_BAND_NAMES, (low, middle, high), strict=True)))
            yield {**key, "donors": whose, "used": used, **errors}, fit


def _carried_errors(
    family: Family, fit: FamilyFit, chip: Chip, table: pd.DataFrame
) -> dict[str, object]:
    left = np.log(table["s"] / predict(family, fit, chip, _shapes(family, table)))
    low, middle, high = left.quantile(list(_BAND))
    quantiles = {"p10_log": low, "p50_log": middle, "p90_log": high}
    return {**_errors(family, fit, chip, table), **quantiles}


def pooled(tables: Path, judged: pd.DataFrame, instructions: str = "") -> Calibration:
    """Fit joint coefficients to all accelerators, or a generation's, for those without traces.

    Parameters
    ----------
    tables : Path
        Folder of the Parquet files.
    judged : pandas.DataFrame
        From `leave_one_out`; gives the bands: the widest over accelerators of the outer
        quantiles, the median of the middle one.
    instructions : str
        Generation of matrix instructions; empty = all.
    """
    rows = _all_rows(tables)
    fits = {}
    for name, family in FAMILIES.items():
        donors = _donors(rows, name, instructions)
        part = judged[(judged["family"] == name) & (judged["donors"] == (instructions or "all"))]
        if len(donors) > 1 and len(part):
            band = {
                "p10": float(part["p10_log"].min()),
                "p50": float(part["p50_log"].median()),
                "p90": float(part["p90_log"].max()),
            }
            fit = _joint(family, rows, donors)
            fits[name] = replace(fit, coefficients=product_alone(fit.coefficients), band=band)
    name = f"{POOLED}-{instructions}" if instructions else POOLED
    return Calibration(name, TABLES_SOURCE, DATE, fits, {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print the errors of held-out layouts, or of accelerators left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, help="folder of NVIDIA's Parquet tables")
    parser.add_argument("--only", choices=list(SYSTEMS), action="append", help="accelerator")
    parser.add_argument("--pooled", action="store_true", help="joint fit and leave-one-out errors")
    parser.add_argument("--check", action="store_true", help="judge committed files only")
    given = parser.parse_args(arguments)
    chosen = given.only or list(SYSTEMS)
    if given.pooled:
        table, carried_over = left_out(given.tables)
        for made in carried_over:
            name = made.accelerator.partition(",")[0]
            save_calibration(made, LEFT_OUT / f"{name}.toml")
        for instructions in ("", *GENERATIONS):
            made = pooled(given.tables, table, instructions)
            save_calibration(made, CALIBRATIONS / f"{made.accelerator}.toml")
        with atomic_write(TRANSFER) as path:
            table.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
    else:
        for accelerator in [] if given.check else chosen:
            path = CALIBRATIONS / f"{calibration_name(accelerator)}.toml"
            save_calibration(calibrate(given.tables, accelerator), path)
        table = error_table(given.tables, chosen)
    sys.stdout.write(f"{table.round(3).to_string(index=False)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
