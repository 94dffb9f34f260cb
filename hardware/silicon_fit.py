"""A smooth residual from many rows: a Gaussian process through a modest set of shapes.

The process is that of `hardware.kernels_residual`; its weights stand at a subset of the shapes
and are fitted to all rows (subset of regressors, Quinonero-Candela and Rasmussen, "A unifying
view of sparse approximate Gaussian process regression", JMLR 6, 2005, section 5).
"""

from dataclasses import replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from hardware.calibration_data import FamilyFit
from hardware.kernels_families import Family
from hardware.kernels_forms import Array, Coefficients
from hardware.kernels_residual import Hyper, Process, fit_hyper

__all__ = ["FIT_ROWS", "LARGEST", "anchored", "nodes_of", "smooth", "through"]

FIT_ROWS = 3000
"""Rows that coefficients are fitted to."""
MOST_SHAPES = {"gemm": 1000, "attention": 700, "moe": 400}
LARGEST = 0.7
"""Log residual beyond which a row counts no more: another kernel, not a trend."""
FEW_ROWS = 3000
"""Rows below which the likeliest process is sought too; it takes minutes and seldom wins."""
FAR = 16384
"""Where the residual of an axis measured at one value has faded [tokens]."""
TRIAL_ROWS = 6000
"""Rows that candidate processes are compared on."""
CHUNK = 4000
AXIS_LENGTHS, LAYOUT_LENGTHS = (1.5, 4.0), (1.5, 3.0, 8.0)
"""Lengths of the smooth candidates [doublings]."""


def smooth(family: Family, coefficients: Coefficients, shapes: Array, left: Array) -> FamilyFit:
    """Return a fit whose residual is smoothed onto some of the shapes.

    The process is the best of a few on a quarter of the layouts, left out for the choice; none, if
    none lowers their error.

    Parameters
    ----------
    family : Family
        Its features.
    coefficients : mapping
        Of the form.
    shapes : array (N, extents)
        Measured shapes.
    left : array (N,)
        Log of measured over form time there.
    """
    middle = float(np.median(left))
    target = middle + np.clip(left - middle, -LARGEST, LARGEST)
    x, axes = family.matrix(family.shape(*shapes.T))
    random = np.random.default_rng(0)
    layouts = np.unique(shapes[:, len(family.axes) :], axis=0, return_inverse=True)[1].ravel()
    tested = layouts % 4 == 0
    seen, asked = (random.permutation(np.flatnonzero(r))[:TRIAL_ROWS] for r in (~tested, tested))
    nodes = nodes_of(family, shapes, ~tested, random)
    best, lowest = None, _score(left[asked] - target[seen].mean())
    for hyper in _candidates(x, target - target.mean(), axes):
        trial = through(hyper, x[nodes], x[seen], target[seen])
        score = _score(left[asked] - trial.predict(x[asked]))
        if score < lowest:
            best, lowest = hyper, score
    if best is None:
        return FamilyFit(coefficients, np.empty((0, shapes.shape[1])), np.empty(0))
    nodes = nodes_of(family, shapes, np.ones(len(x), dtype=bool), random)
    process = through(best, x[nodes], x, target)
    smoothed = process.predict(x[nodes])
    return anchored(family, FamilyFit(coefficients, shapes[nodes], smoothed, best, process.weights))


def anchored(family: Family, fit: FamilyFit) -> FamilyFit:
    """Return the fit with a second value on each axis that was measured at one value alone.

    The added shape has no weight and the mean residual, so predictions stay as they are; it lets
    the residual fade on that axis (NVIDIA's prompts have nothing cached before them).
    """
    if fit.hyper is None or fit.weights is None:
        return fit
    shapes, residual, weights = fit.shapes, fit.log_residual, fit.weights
    for axis in range(len(family.axes)):
        if np.ptp(shapes[:, axis]) == 0:
            far = shapes[:1].copy()
            far[0, axis] = max(FAR, 2 * far[0, axis])
            shapes = np.concatenate([shapes, far])
            residual = np.append(residual, residual.mean())
            weights = np.append(weights, 0.0)
    return replace(fit, shapes=shapes, log_residual=residual, weights=weights)


def _score(errors: Array) -> float:
    """Return what is to be small: the median absolute log error and a part of its P90."""
    size = np.abs(errors)
    return float(np.median(size) + 0.15 * np.quantile(size, 0.9))


def _candidates(x: Array, y: Array, axes: int) -> list[Hyper]:
    """Return smooth processes and, of few rows, the likeliest one too."""
    spread = float(y.std())
    scales = (0.3 * spread, 0.3 * spread, 0.9 * spread, 0.25 * spread)
    layout = x.shape[1] - axes
    smooth_ones = [
        Hyper(scales, (run,) * axes + (fixed,) * layout, axes)
        for run in AXIS_LENGTHS
        for fixed in LAYOUT_LENGTHS
    ]
    return [*smooth_ones, *([fit_hyper(x, y, axes)] if len(x) < FEW_ROWS else [])]


def nodes_of(family: Family, shapes: Array, seen: Array, random: np.random.Generator) -> Array:
    """Choose shapes to carry the residual, at random among those seen; return their rows."""
    most = MOST_SHAPES[family.name.partition("_")[0]]
    chosen: Array = np.sort(random.permutation(np.flatnonzero(seen))[:most])
    return chosen


def through(hyper: Hyper, nodes: Array, x: Array, y: Array) -> Process:
    """Return the process with weights at `nodes` fitted to all rows.

    Its mean is chosen so that its predictions at the nodes average to it: that is how a stored
    residual gives its mean back.
    """
    between = hyper.covariance(nodes, nodes)
    normal = hyper.scales[3] ** 2 * between
    by_y, by_one = np.zeros(len(nodes)), np.zeros(len(nodes))
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        across = hyper.covariance(nodes, x[part])
        normal += across @ across.T
        by_y += across @ y[part]
        by_one += across.sum(axis=1)
    normal[np.diag_indices_from(normal)] += 1e-9 * np.trace(normal) / len(nodes)
    factor = cho_factor(normal, lower=True)
    of_y, of_one = (cho_solve(factor, by) for by in (by_y, by_one))
    per_one = float((between @ of_one).mean())
    mean = float((between @ of_y).mean()) / per_one if per_one > 0.5 else float(y.mean())
    return Process(hyper, nodes, of_y - mean * of_one, mean)
