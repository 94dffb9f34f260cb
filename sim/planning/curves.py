"""Curves of a replica: watts by load, and capacity by the lengths of its requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.interpolate import RegularGridInterpolator

from sim.deployment import Deployment
from sim.planning.bound import Bound, Mix
from sim.planning.trial import Trial

__all__ = ["MixSurface", "PowerCurve"]

Floats = npt.NDArray[np.float64]
FACTORS = np.array([0.5, 1.0, 2.0])


@dataclass(frozen=True)
class PowerCurve:
    """Watts of one replica's accelerators by its load.

    Attributes
    ----------
    load : ndarray, rising from 0
        Rate over capacity [1].
    watts : ndarray
        Mean power there [W].
    """

    load: Floats
    watts: Floats

    def __call__(self, load: float | Sequence[float] | Floats) -> Floats:
        """Return watts at loads, linear between the points and constant beyond the last [W].

        Examples
        --------
        >>> curve = PowerCurve(np.array([0.0, 0.5, 1.0]), np.array([100.0, 400.0, 600.0]))
        >>> curve([0.25, 2.0]).tolist()
        [250.0, 600.0]
        """
        return np.asarray(np.interp(np.asarray(load), self.load, self.watts))

    @classmethod
    def of(cls, trials: Sequence[Trial], per_replica: float, idle_w: float) -> "PowerCurve":
        """Return the curve through trials, idle at no load and never falling.

        Parameters
        ----------
        trials : sequence of Trial
            At any loads.
        per_replica : float
            Rate that counts as a load of 1 [request/s].
        idle_w : float
            Watts without work.
        """
        points = sorted({(t.rate_per_s / per_replica, t.watts) for t in trials})
        load = np.array([0.0, *(p[0] for p in points)])
        watts = np.array([idle_w, *(p[1] for p in points)])
        return cls(load, np.maximum.accumulate(watts))


@dataclass(frozen=True)
class MixSurface:
    """How the bound's capacity changes when prompts and outputs get longer.

    Attributes
    ----------
    logs : ndarray, shape (3, 3)
        Natural logarithm of capacity over that of the plan's mix, by factor on prompts (rows) and
        outputs (columns), at half, once and twice the tokens.
    """

    logs: Floats

    def __call__(self, prompt: npt.ArrayLike, output: npt.ArrayLike) -> Floats:
        """Return capacity over that of the plan's mix, log-linear between the points."""
        grid = RegularGridInterpolator(
            (np.log(FACTORS), np.log(FACTORS)), self.logs, bounds_error=False, fill_value=None
        )
        at = np.stack(np.broadcast_arrays(np.log(prompt), np.log(output)), axis=-1)
        return np.asarray(np.exp(grid(at)))

    @classmethod
    def of(cls, deployment: Deployment, mix: Mix) -> "MixSurface":
        """Return the surface of a replica."""
        most = [[Bound.of(deployment, mix.scaled(p, o)).most for o in FACTORS] for p in FACTORS]
        logs = np.log(np.array(most))
        return cls(logs - logs[1, 1])
