"""A Gaussian process over the settings of a space: what settings that nobody tried may be worth.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006): posterior (2.25, 2.26),
evidence and its gradient (5.8, 5.9), Matern kernel of order 5/2 (4.17) with a length per column.
Optuna's own needs torch, which is larger than everything else that roofcast needs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

__all__ = ["Belief", "fit"]

Floats = npt.NDArray[np.float64]
ROOT5 = np.sqrt(5.0)
LENGTH, LENGTH_SPREAD = np.log(0.5), 1.0  # prior of the log of a length; columns span [0, 1]
NOISE, NOISE_SPREAD = np.log(1e-3), 1.5  # prior of the log of the noise; targets of variance 1
LENGTHS, NOISES = (-4.0, 4.0), (-12.0, 0.0)  # bounds of the logs
MOST_STEPS = 40  # of the optimiser
JITTER = 1e-9
IMPOSSIBLE = 1e10  # loss where the covariance cannot be factored


@dataclass(frozen=True)
class Belief:
    """A fitted process.

    Attributes
    ----------
    points : array (point, column)
        Where something is known.
    lengths : array (column,)
        Over which distance targets change.
    factor : array (point, point)
        Lower Cholesky factor of the covariance of the targets.
    weights : array (point,)
        Inverse covariance times targets.
    mean, size : float
        Centre and spread of the targets.
    """

    points: Floats
    lengths: Floats
    factor: Floats
    weights: Floats
    mean: float
    size: float

    def at(self, places: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at places (place, column)."""
        near = _matern(_distance(places, self.points, self.lengths))
        shrunk = solve_triangular(self.factor, near.T, lower=True)
        spread = np.sqrt(np.maximum(1.0 - (shrunk**2).sum(axis=0), 1e-12))
        return self.mean + self.size * (near @ self.weights), self.size * spread


def _distance(a: Floats, b: Floats, lengths: Floats) -> Floats:
    gaps = (a[:, None, :] - b[None, :, :]) / lengths
    return np.asarray(np.sqrt((gaps**2).sum(axis=2)))


def _matern(distance: Floats) -> Floats:
    scaled = ROOT5 * distance
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))


def fit(points: Floats, targets: Floats) -> Belief:
    """Return the most probable process for targets at points.

    Parameters
    ----------
    points : array (point, column)
        Columns span about [0, 1].
    targets : array (point,)
        Any scale.

    Examples
    --------
    >>> x = np.linspace(0, 1, 8)[:, None]
    >>> mean, spread = fit(x, (3 * x[:, 0] - 1) ** 2).at(np.array([[0.5]]))
    >>> round(float(mean[0]), 2), bool(spread[0] < 0.1)
    (0.25, True)
    """
    mean, size = float(targets.mean()), float(targets.std()) or 1.0
    scaled = (targets - mean) / size
    columns = points.shape[1]
    found = minimize(
        _loss,
        np.array([LENGTH] * columns + [NOISE]),
        ((points[:, None, :] - points[None, :, :]) ** 2, scaled),
        jac=True,
        method="L-BFGS-B",
        bounds=[LENGTHS] * columns + [NOISES],
        options={"maxiter": MOST_STEPS},
    )
    lengths, noise = np.exp(found.x[:-1]), np.exp(found.x[-1])
    cov = _matern(_distance(points, points, lengths))
    factor = cholesky(cov + (noise + JITTER) * np.eye(len(points)), lower=True)
    return Belief(points, lengths, factor, cho_solve((factor, True), scaled), mean, size)


def _loss(theta: Floats, gaps: Floats, targets: Floats) -> tuple[float, Floats]:
    """Return the negative logarithm of the posterior of lengths and noise, and its gradient.

    Parameters
    ----------
    theta : array (column + 1,)
        Logarithms of lengths, then of the noise.
    gaps : array (point, point, column)
        Squared differences of the points.
    targets : array (point,)
        Of mean 0 and variance 1.
    """
    inverse, noise = np.exp(-2.0 * theta[:-1]), np.exp(theta[-1])
    distance = np.sqrt(gaps @ inverse)
    own = np.eye(len(targets))
    try:
        factor = cholesky(_matern(distance) + (noise + JITTER) * own, lower=True)
    except LinAlgError:
        return IMPOSSIBLE, np.zeros_like(theta)
    weights = cho_solve((factor, True), targets)
    off = theta - np.array([LENGTH] * len(inverse) + [NOISE])
    off /= (spread := np.array([LENGTH_SPREAD] * len(inverse) + [NOISE_SPREAD]))
    evidence = 0.5 * targets @ weights + np.log(np.diag(factor)).sum()
    inner = cho_solve((factor, True), own) - np.outer(weights, weights)
    # the kernel's slope in the logarithm of a length is this times gap over squared length
    slope = 5.0 / 3.0 * (1.0 + ROOT5 * distance) * np.exp(-ROOT5 * distance)
    by_length = 0.5 * np.einsum("ij,ijk->k", inner * slope, gaps) * inverse
    by_noise = 0.5 * noise * np.trace(inner)
    return float(evidence + 0.5 * off @ off), np.append(by_length, by_noise) + off / spread
