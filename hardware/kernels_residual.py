"""What the analytic form misses: a Gaussian process on the log of measured over form time.

The kernel is a sum of an effect of the running extents alone (m, batch, context, ...), shared by
all layouts, one of the layout alone (n, k, head counts, ...), and one of both together, so that
steps which every layout shows (alignment, tile choice) carry over to a layout never measured,
while far from the data the form alone remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize

from hardware.kernels_forms import Array

__all__ = ["FIT_POINTS", "Hyper", "Process", "condition", "fit_hyper", "interpolate"]

START_SCALE = (0.05, 0.05, 0.05, 0.02)  # axis, layout, joint effect and noise, in log time
START_LENGTH = 2.0  # in doublings of an extent
PRIOR_WIDTH = 1.5  # of the log of each hyperparameter
FIT_POINTS = 500  # points on which hyperparameters are fitted


@dataclass(frozen=True)
class Hyper:
    """Scales (axis, layout, joint, noise) in log time, and a length per feature in doublings."""

    scales: tuple[float, float, float, float]
    lengths: tuple[float, ...]
    axes: int  # the first `axes` features run, the others are the layout

    def covariance(self, a: Array, b: Array) -> Array:
        """Return the covariance of the process between feature rows a (N, F) and b (M, F)."""
        lengths = np.array(self.lengths)
        run = np.exp(-_distance(a, b, lengths, slice(0, self.axes)))
        far = np.sqrt(3) * _distance(a, b, lengths, slice(self.axes, None))
        layout = (1 + far) * np.exp(-far)
        one, two, both, _ = (s * s for s in self.scales)
        total: Array = one * run + two * layout + both * run * layout
        return total

    def factor(self, x: Array) -> tuple[Array, bool]:
        """Return the Cholesky factor of the covariance of x with noise."""
        cov = self.covariance(x, x)
        cov[np.diag_indices_from(cov)] += self.scales[3] ** 2 + 1e-8
        lower, flag = cho_factor(cov, lower=True)
        return np.asarray(lower), bool(flag)


def _distance(a: Array, b: Array, lengths: Array, part: slice) -> Array:
    left, right = a[:, part] / lengths[part], b[:, part] / lengths[part]
    squared = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    distance: Array = np.sqrt(np.maximum(squared, 0.0))
    return distance


@dataclass(frozen=True)
class Process:
    """A process conditioned on points.

    Parameters
    ----------
    hyper : Hyper
        Scales and lengths.
    x : array (N, F)
        Features of the points, log2 of extents.
    weights : array (N,)
        Weight of each point's covariance in a prediction.
    mean : float
        What is expected far from every point.
    """

    hyper: Hyper
    x: Array
    weights: Array
    mean: float

    def predict(self, x: Array) -> Array:
        """Return the expected log residual at feature rows x (M, F)."""
        expected: Array = self.mean + self.hyper.covariance(x, self.x) @ self.weights
        return expected


def condition(hyper: Hyper, x: Array, y: Array) -> Process:
    """Return the process given log residuals y (N,) at features x (N, F)."""
    mean = float(y.mean())
    return Process(hyper, x, cho_solve(hyper.factor(x), y - mean), mean)


def fit_hyper(x: Array, y: Array, axes: int, seed: int = 0, points: int = FIT_POINTS) -> Hyper:
    """Fit scales and lengths by the most likely process, with a weak prior round the start.

    Parameters
    ----------
    x : array (N, F)
        Features; the first `axes` run, the others are the layout.
    y : array (N,)
        Log residuals with their mean taken out.
    seed, points : int
        So many of the points are drawn; time goes with their cube.
    """
    chosen = np.random.default_rng(seed).permutation(len(y))[:points]
    start = np.log([*START_SCALE, *[START_LENGTH] * x.shape[1]])

    def loss(theta: Array) -> float:
        return _unlikeliness(theta, start, x[chosen], y[chosen], axes)

    bounds = [(t - 4, t + 3) for t in start]
    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    return _hyper(found.x, axes)


def _hyper(theta: Array, axes: int) -> Hyper:
    one, two, both, noise, *lengths = np.exp(theta).tolist()
    return Hyper((one, two, both, noise), tuple(lengths), axes)


def _unlikeliness(theta: Array, start: Array, x: Array, y: Array, axes: int) -> float:
    try:
        factor = _hyper(theta, axes).factor(x)
    except LinAlgError:
        return 1e9
    fit = 0.5 * float(y @ cho_solve(factor, y)) + float(np.log(np.diag(factor[0])).sum())
    return fit + 0.5 * float((((theta - start) / PRIOR_WIDTH) ** 2).sum())


def interpolate(grid: Array, nodes: Sequence[Array], at: Sequence[Array]) -> Array:
    """Return multilinear interpolation of a grid, held constant outside its nodes.

    Parameters
    ----------
    grid : array (n1, n2, ...)
        Values at the nodes.
    nodes : sequence of arrays
        Rising node positions per dimension.
    at : sequence of broadcastable arrays
        Positions per dimension.

    Examples
    --------
    >>> grid = np.array([[0.0, 1.0], [2.0, 3.0]])
    >>> x = np.array([0.0, 0.5, 9.0])
    >>> interpolate(grid, [np.array([0.0, 1.0])] * 2, [x, x]).tolist()
    [0.0, 1.5, 3.0]
    """
    cells = [_cell(positions, value) for positions, value in zip(nodes, at, strict=True)]
    total: Array = np.zeros(np.broadcast_shapes(*(value.shape for value in at)))
    for corner in product((0, 1), repeat=len(cells)):
        index = tuple(low + step for (low, _), step in zip(cells, corner, strict=True))
        shares = (t if step else 1 - t for (_, t), step in zip(cells, corner, strict=True))
        total = total + grid[index] * reduce(np.multiply, shares)
    return total


def _cell(nodes: Array, at: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the lower node's index and the share of the way to the next one."""
    low = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    share = (at - nodes[low]) / (nodes[low + 1] - nodes[low])
    return low, np.clip(share, 0.0, 1.0)
