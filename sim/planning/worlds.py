"""Sampled worlds: how far demand, prices, lengths and the model may lie from what was assumed.

A Latin hypercube over independent factors, each split log-normal with median 1: below 1 it has the
spread that its P10 says, above 1 that of its P90.

References
----------
M. D. McKay, R. J. Beckman, W. J. Conover, "A comparison of three methods for selecting values of
input variables in the analysis of output from a computer code", Technometrics 21(2), 1979.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import qmc

from sim.planning.fleets import Worlds
from sim.planning.planfile import Uncertainty
from sim.planning.sections import Range

__all__ = ["COMMON", "PER_ACCELERATOR", "Sample", "draw", "split_lognormal"]

Floats = npt.NDArray[np.float64]
COMMON = ("demand", "growth", "prompt", "output", "electricity")
PER_ACCELERATOR = ("model", "price", "rent")
Z90 = float(ndtri(0.9))


def split_lognormal(u: npt.ArrayLike, limits: Range) -> Floats:
    """Return the factor at cumulative probabilities: P10 and P90 as given, median 1.

    Examples
    --------
    >>> split_lognormal([0.1, 0.5, 0.9], (0.8, 1.5)).round(6).tolist()
    [0.8, 1.0, 1.5]
    """
    z = ndtri(np.asarray(u, dtype=np.float64)) / Z90
    low, high = np.log(limits[0]), np.log(limits[1])
    return np.asarray(np.exp(np.where(z < 0, -z * low, z * high)))


class Sample:
    """Points of a Latin hypercube, with one dimension per factor and accelerator.

    Parameters
    ----------
    spread : Uncertainty
        P10 and P90 of each factor.
    model : dict of str to (float, float)
        Accelerator -> P10 and P90 of the capacity's factor.
    seed : int
        Of the hypercube.
    """

    def __init__(self, spread: Uncertainty, model: dict[str, Range], seed: int) -> None:
        names = [*COMMON, *(f"{k} {a}" for a in model for k in PER_ACCELERATOR)]
        points = qmc.LatinHypercube(len(names), rng=np.random.default_rng(seed))
        cube = points.random(spread.samples)
        self.spread, self.model = spread, model
        self._at = {name: cube[:, i] for i, name in enumerate(names)}

    def limits(self, factor: str, accelerator: str) -> Range:
        """Return P10 and P90 of a factor."""
        found: Range = self.model[accelerator]
        return found if factor == "model" else getattr(self.spread, factor)

    def worlds(self, accelerators: Sequence[str]) -> Worlds:
        """Return the worlds as a candidate with those accelerators sees them.

        Where it has two, capacity is off by the worse of both factors, and prices go by kind.
        """
        kinds = tuple(Worlds.of(self._factors(chip)) for chip in accelerators)
        if len(kinds) == 1:
            return kinds[0]
        model = np.min([kind.model for kind in kinds], axis=0)
        return replace(kinds[0], model=model, kinds=kinds)

    def _factors(self, accelerator: str) -> dict[str, Floats]:
        return {
            name: split_lognormal(self._of(name, accelerator), self.limits(name, accelerator))
            for name in (*COMMON, *PER_ACCELERATOR)
        }

    def _of(self, name: str, accelerator: str) -> Floats:
        return self._at[name if name in COMMON else f"{name} {accelerator}"]

    def range_of(self, factor: str, accelerators: Sequence[str]) -> Range:
        """Return P10 and P90 of a factor, as `one_at_a_time` names it."""
        name, _, chip = factor.partition(" ")
        limits = [self.limits(name, one) for one in ((chip,) if chip else accelerators)]
        return min(low for low, _ in limits), max(high for _, high in limits)


def one_at_a_time(sample: Sample, accelerators: Sequence[str]) -> tuple[Worlds, list[str]]:
    """Return worlds with one factor at its P10, then at its P90, and the others at 1.

    Prices of two kinds of machines are apart, as "price l40s".

    Returns
    -------
    Worlds
        Two worlds for each factor, in the order of the names.
    list of str
        Names of the factors.
    """
    apart = ["price", "rent"]
    if len(accelerators) > 1:
        apart = [f"{name} {chip}" for name in apart for chip in dict.fromkeys(accelerators)]
    names = [*COMMON, "model", *apart]

    def of(chip: str) -> Worlds:
        factors = {name: np.ones(2 * len(names)) for name in (*COMMON, *PER_ACCELERATOR)}
        for i, name in enumerate(names):
            word, _, other = name.partition(" ")
            if other in ("", chip):
                factors[word][2 * i : 2 * i + 2] = sample.range_of(name, accelerators)
        return Worlds.of(factors)

    kinds = tuple(of(chip) for chip in accelerators)
    return (kinds[0] if len(kinds) == 1 else replace(kinds[0], kinds=kinds)), names


def draw(values: Sequence[float] | Floats) -> dict[str, float]:
    """Return P10, P50 and P90 of values.

    Examples
    --------
    >>> draw(list(range(101)))
    {'p10': 10.0, 'p50': 50.0, 'p90': 90.0}
    """
    found = np.percentile(np.asarray(values, dtype=np.float64), [10, 50, 90])
    return {name: float(value) for name, value in zip(("p10", "p50", "p90"), found, strict=True)}
