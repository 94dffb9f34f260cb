"""Errors on shapes held out, of the kernel model and of simpler ways to predict a time.

Shapes are held out in three ways: ``shape`` (a random tenth), ``layout`` (every shape of one
layout: one (n, k), one set of heads, one set of experts) and ``extent`` (every shape with one
value of the first running extent, such as one m). Everything fitted is fitted again without them;
only the length scales of the residual process are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator

from hardware.calibration_data import Calibration
from hardware.calibration_fit import fit_coefficients
from hardware.kernels_families import FAMILIES, Family
from hardware.kernels_forms import Array, Chip, Coefficients, Shape
from hardware.kernels_residual import Hyper, condition
from hardware.kernels_work import work

__all__ = ["METHODS", "SPLITS", "Measured", "error_row", "held_out", "judged", "residual_table"]

SPLITS = ("shape", "layout", "extent")
SHAPE_FOLDS = 10
MOST_FOLDS = 40
FEWEST_LAYOUTS = 3  # from here on a band comes from whole layouts held out
NEIGHBOURS = 32


@dataclass(frozen=True)
class Measured:
    """Measured shapes (N, extents) and seconds (N,) of one family on one chip."""

    family: Family
    chip: Chip
    start: Coefficients
    hyper: Hyper | None
    shapes: Array
    seconds: Array

    def part(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Measured":
        """Return some of the rows."""
        return replace(self, shapes=self.shapes[rows], seconds=self.seconds[rows])

    def shape(self) -> Shape:
        """Return the shapes as a form takes them."""
        return self.family.shape(*self.shapes.T)

    def fitted(self) -> Coefficients:
        """Return the coefficients of the form, fitted to these rows."""
        return fit_coefficients(self.family, self.shapes, self.seconds, self.chip, self.start)


def _by_model(known: Measured, asked: Measured) -> Array:
    """Form and residual process, as `KernelModel` predicts."""
    family, chip, coefficients = known.family, known.chip, known.fitted()
    formed = family.form(asked.shape(), chip, coefficients)
    if known.hyper is None:
        return formed
    left = np.log(known.seconds / family.form(known.shape(), chip, coefficients))
    process = condition(known.hyper, family.matrix(known.shape())[0], left)
    return formed * np.exp(process.predict(family.matrix(asked.shape())[0]))


def _by_form(known: Measured, asked: Measured) -> Array:
    """Form alone, its coefficients fitted."""
    return known.family.form(asked.shape(), known.chip, known.fitted())


def _by_roofline(known: Measured, asked: Measured) -> Array:
    """Launch + max(FLOPs, bytes over their peaks), three shares fitted."""
    form = _roofline(known.family)
    roofline = replace(known.family, form=form, start=_ROOFLINE_START, uneven=())
    fitted = replace(known, family=roofline, start=_ROOFLINE_START).fitted()
    return roofline.form(asked.shape(), known.chip, fitted)


_ROOFLINE_START = {"matrix": 0.7, "memory": 0.8, "launch_s": 3e-6}


def _roofline(family: Family) -> Callable[[Shape, Chip, Coefficients], Array]:
    def form(shape: Shape, chip: Chip, c: Coefficients) -> Array:
        compute, memory = work(family.name, shape, chip)
        return c["launch_s"] + np.maximum(compute / c["matrix"], memory / c["memory"])

    return form


def _by_interpolation(known: Measured, asked: Measured) -> Array:
    """Log time, interpolated in the logs of all extents between the nearest measured shapes."""
    at, to = (np.log2(t.shapes + 1) for t in (known, asked))
    varying = np.ptp(at, axis=0) > 0
    trend = [np.column_stack([np.ones(len(p)), p]) for p in (at, to)]
    logs = np.log(known.seconds)
    slope = np.linalg.lstsq(trend[0], logs, rcond=None)[0]
    smooth: Array = np.exp(trend[1] @ slope)
    if not varying.any():
        return smooth
    left, count = logs - trend[0] @ slope, min(NEIGHBOURS, len(logs))
    near = RBFInterpolator(at[:, varying], left, neighbors=count, kernel="linear", degree=0)
    return smooth * np.exp(near(to[:, varying]))


Method = Callable[[Measured, Measured], Array]
METHODS: dict[str, Method] = {
    "model": _by_model,
    "form": _by_form,
    "interpolation": _by_interpolation,
    "roofline": _by_roofline,
}


def _by_parts(known: Measured, asked: Measured) -> Array:
    """Decode part plus prefill part, at the mean context."""
    shape = asked.shape()
    return shape["decode_s"] + shape["prefill_s"]


def held_out(
    calibration: Calibration, name: str, chip: Chip, split: str, method: str = "model"
) -> Array:
    """Return log(measured / predicted) of every shape, predicted without its own group.

    Parameters
    ----------
    calibration : Calibration
        Holds the shapes and times it was fitted to.
    name : str
        Family.
    split : str
        shape, layout or extent.
    method : str
        A key of `METHODS`, or for mixed attention ``parts`` (the sum of its two parts).

    Returns
    -------
    array (N,)
        Empty where there are fewer than two groups.
    """
    table, predict = _table(calibration, name, chip), {**METHODS, "parts": _by_parts}[method]
    left = [
        np.log(table.seconds[out] / predict(table.part(~out), table.part(out)))
        for out in _folds(table, split)
    ]
    return np.concatenate(left) if left else np.empty(0)


def _table(calibration: Calibration, name: str, chip: Chip) -> Measured:
    family, fit = FAMILIES[name], calibration.families[name]
    formed = family.form(family.shape(*fit.shapes.T), chip, fit.coefficients)
    start = {**calibration.start(family), **{n: fit.coefficients[n] for n in family.uneven}}
    seconds = formed * np.exp(fit.log_residual)
    return Measured(family, chip, start, fit.hyper, fit.shapes, seconds)


def _folds(table: Measured, split: str) -> Iterator[NDArray[np.bool_]]:
    groups = _groups(table, split)
    count = int(groups.max()) + 1
    if count < 2:
        return
    if count > MOST_FOLDS:
        groups = np.random.default_rng(0).permutation(count)[groups] % MOST_FOLDS
    for group in np.unique(groups):
        yield groups == group


def _groups(table: Measured, split: str) -> NDArray[np.intp]:
    axes = len(table.family.axes)
    if split == "shape":
        order = np.random.default_rng(0).permutation(len(table.seconds))
        return order % min(SHAPE_FOLDS, len(order))
    columns = table.shapes[:, axes:] if split == "layout" else table.shapes[:, :1]
    if columns.shape[1] == 0:
        return np.zeros(len(table.seconds), dtype=int)
    return np.unique(columns, axis=0, return_inverse=True)[1].ravel()


def judged(calibration: Calibration, chip: Chip) -> Calibration:
    """Return the calibration with the band of each family: P10, P50, P90 of held-out errors.

    Whole layouts are held out where there are at least three, else a tenth of the shapes.
    """
    families = {
        name: replace(fit, band=_band(calibration, name, chip))
        for name, fit in calibration.families.items()
    }
    return replace(calibration, families=families)


def _band(calibration: Calibration, name: str, chip: Chip) -> dict[str, float]:
    shapes = calibration.families[name].shapes
    layouts = len(np.unique(shapes[:, len(FAMILIES[name].axes) :], axis=0))
    split = "layout" if layouts >= FEWEST_LAYOUTS else "shape"
    left = held_out(calibration, name, chip, split)
    low, middle, high = np.quantile(left, (0.1, 0.5, 0.9)).tolist()
    return {"p10": low, "p50": middle, "p90": high}


def residual_table(
    calibration: Calibration, chip: Chip, families: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the errors of families (all by default), splits and methods.

    Returns
    -------
    DataFrame
        Columns family, split, method, shapes, median, p90 (of |predicted / measured - 1|), and
        bias (median of predicted / measured - 1).
    """
    rows = [
        error_row(name, split, method, held_out(calibration, name, chip, split, method))
        for name in families or calibration.families
        for split in SPLITS
        for method in (METHODS if FAMILIES[name].features else ("model", "parts"))
    ]
    table = pd.DataFrame(rows, columns=["family", "split", "method", *_ERRORS])
    return table[table["shapes"] > 0].reset_index(drop=True)


_ERRORS = ("shapes", "median", "p90", "bias")


def error_row(name: str, split: str, method: str, left: Array) -> tuple[object, ...]:
    """Return a row of `residual_table` from log(measured / predicted)."""
    if not len(left):
        return (name, split, method, 0, np.nan, np.nan, np.nan)
    error = np.expm1(-left)
    size = np.abs(error)
    middle, high = np.quantile(size, (0.5, 0.9)).tolist()
    return (name, split, method, len(left), middle, high, float(np.median(error)))
