"""Errors on shapes held out, of the kernel model and of simpler ways to predict a time.

Shapes are held out in three ways: ``shape`` (a random tenth), ``layout`` (every shape of one
layout: one (n, k), one set of heads, one set of experts) and ``extent`` (every shape with one
value of the first running extent, such as one m). Everything fitted is fitted again without them;
only the length scales of the residual process are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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

__all__ = [
    "METHODS",
    "SPLITS",
    "Measured",
    "all_held_out",
    "error_row",
    "held_out",
    "judged",
    "residual_table",
]

SPLITS = ("shape", "layout", "extent")
SHAPE_FOLDS = 10
MOST_FOLDS = 40
MANY, FEWER_FOLDS = 1000, 10  # shapes of a family beyond which groups are held out ten at a time
COEFFICIENT_ROWS = 600  # shapes that coefficients are fitted to again
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

    @cached_property
    def fitted(self) -> Coefficients:
        """The coefficients of the form, fitted to these rows or to `COEFFICIENT_ROWS` of them."""
        count = len(self.seconds)
        most = COEFFICIENT_ROWS if count > MANY else count
        some = np.sort(np.random.default_rng(0).permutation(count)[:most])
        shapes, seconds = self.shapes[some], self.seconds[some]
        return fit_coefficients(self.family, shapes, seconds, self.chip, self.start)


def _by_model(known: Measured, asked: Measured) -> Array:
    """Form and residual process, as `KernelModel` predicts."""
    family, chip, coefficients = known.family, known.chip, known.fitted
    formed = family.form(asked.shape(), chip, coefficients)
    if known.hyper is None:
        return formed
    left = np.log(known.seconds / family.form(known.shape(), chip, coefficients))
    process = condition(known.hyper, family.matrix(known.shape())[0], left)
    return formed * np.exp(process.predict(family.matrix(asked.shape())[0]))


def _by_form(known: Measured, asked: Measured) -> Array:
    """Form alone, its coefficients fitted."""
    return known.family.form(asked.shape(), known.chip, known.fitted)


def _by_roofline(known: Measured, asked: Measured) -> Array:
    """Launch + max(FLOPs, bytes over their peaks), three shares fitted."""
    form = _roofline(known.family)
    roofline = replace(known.family, form=form, start=_ROOFLINE_START, uneven=())
    fitted = replace(known, family=roofline, start=_ROOFLINE_START).fitted
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
    return _held_out(_table(calibration, name, chip), split, [method])[method]


def _held_out(table: Measured, split: str, methods: Iterable[str]) -> dict[str, Array]:
    """Return `held_out` by method; a group's coefficients are fitted once for all of them."""
    known_methods = {**METHODS, "parts": _by_parts}
    left: dict[str, list[Array]] = {method: [] for method in methods}
    for out in _folds(table, split):
        known, asked = table.part(~out), table.part(out)
        for method, found in left.items():
            found.append(np.log(asked.seconds / known_methods[method](known, asked)))
    return {m: np.concatenate(found) if found else np.empty(0) for m, found in left.items()}


Left = Mapping[tuple[str, str, str], Array]
"""Family, split, method -> `held_out`."""


def all_held_out(
    calibration: Calibration,
    chip: Chip,
    families: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> Left:
    """Return `held_out` of families (all by default), every split and method.

    Parameters
    ----------
    calibration, chip, families
        As for `residual_table`.
    progress : callable, optional
        Called with the share that is done [0..1].
    """
    found: dict[tuple[str, str, str], Array] = {}
    parts = [(name, split) for name in families or calibration.families for split in SPLITS]
    for i, (name, split) in enumerate(parts):
        methods = METHODS if FAMILIES[name].features else ("model", "parts")
        for method, left in _held_out(_table(calibration, name, chip), split, methods).items():
            found[name, split, method] = left
        if progress:
            progress((i + 1) / len(parts))
    return found


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
    most = FEWER_FOLDS if len(table.seconds) > MANY else MOST_FOLDS
    if count > most:
        groups = np.random.default_rng(0).permutation(count)[groups] % most
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


def judged(calibration: Calibration, chip: Chip, left: Left | None = None) -> Calibration:
    """Return the calibration with the band of each family: P10, P50, P90 of held-out errors.

    Whole layouts are held out where there are at least three, else a tenth of the shapes.

    Parameters
    ----------
    calibration, chip
        As for `residual_table`.
    left : mapping, optional
        From `all_held_out`, where it is known already.
    """
    known = left or {}
    families = {
        name: replace(fit, band=_band(calibration, name, chip, known))
        for name, fit in calibration.families.items()
    }
    return replace(calibration, families=families)


def _band(calibration: Calibration, name: str, chip: Chip, known: Left) -> dict[str, float]:
    shapes = calibration.families[name].shapes
    layouts = len(np.unique(shapes[:, len(FAMILIES[name].axes) :], axis=0))
    split = "layout" if layouts >= FEWEST_LAYOUTS else "shape"
    left = known.get((name, split, "model"))
    if left is None:
        left = held_out(calibration, name, chip, split)
    low, middle, high = np.quantile(left, (0.1, 0.5, 0.9)).tolist()
    return {"p10": low, "p50": middle, "p90": high}


def residual_table(
    calibration: Calibration, chip: Chip, families: Sequence[str] = (), left: Left | None = None
) -> pd.DataFrame:
    """Return the errors of families (all by default), splits and methods.

    Returns
    -------
    DataFrame
        Columns family, split, method, shapes, median, p90 (of |predicted / measured - 1|), and
        bias (median of predicted / measured - 1).
    """
    known = all_held_out(calibration, chip, families) if left is None else left
    rows = [error_row(*key, found) for key, found in known.items()]
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
