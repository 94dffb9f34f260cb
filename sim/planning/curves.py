"""Curves of a replica: watts by load, and capacity by the lengths of its requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.interpolate import PchipInterpolator, RegularGridInterpolator

from sim.planning.bound import Bound, Mix
from sim.planning.trial import Trial

__all__ = ["MixSurface", "PowerCurve"]

Floats = npt.NDArray[np.float64]
FACTORS = np.array([0.5, 1.0, 2.0])


@dataclass(frozen=True)
class PowerCurve:
    """Watts of one replica's accelerators by what it serves.

    Attributes
    ----------
    rates : ndarray, rising from 0
        Rates at the plan's mix [request/s].
    watts : ndarray
        Mean power there [W].
    """

    rates: Floats
    watts: Floats

    def __call__(self, rate: float | Sequence[float] | Floats) -> Floats:
        """Return watts at rates, monotone between the points and constant beyond the last [W].

        Examples
        --------
        >>> curve = PowerCurve(np.array([0.0, 0.5, 1.0]), np.array([100.0, 400.0, 600.0]))
        >>> curve([0.25, 2.0]).round(1).tolist()
        [263.8, 600.0]
        """
        if self.rates.size == 1:
            return np.full(np.shape(rate), self.watts[0])
        within = np.minimum(np.asarray(rate, dtype=np.float64), self.rates[-1])
        return np.asarray(PchipInterpolator(self.rates, self.watts)(within))

    @classmethod
    def of(
        cls, trials: Sequence[Trial], idle_w: float, pools: Sequence[str] | None = None
    ) -> "PowerCurve":
        """Return the curve through trials, idle at no load and never falling.

        Parameters
        ----------
        trials : sequence of Trial
            At any rates.
        idle_w : float
            Watts without work.
        pools : sequence of str, optional
            Names of the pools that count, none = all.
        """
        points = sorted(
            {
                (
                    t.rate_per_s,
                    sum(w for n, w in t.pool_watts.items() if pools is None or n in pools),
                )
                for t in trials
            }
        )
        rates = np.array([0.0, *(p[0] for p in points)])
        watts = np.array([idle_w, *(p[1] for p in points)])
        return cls(rates, np.maximum.accumulate(watts))


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
    def of(cls, bound: Callable[[Mix], Bound], mix: Mix) -> "MixSurface":
        """Return the surface of a replica, from its bound at a mix of lengths."""
        most = [[bound(mix.scaled(p, o)).most for o in FACTORS] for p in FACTORS]
        logs = np.log(np.array(most))
        return cls(logs - logs[1, 1])
