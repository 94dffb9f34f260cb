"""Renewal processes in operational time, and the clock that turns it into seconds.

Operational time is the expected number of arrivals so far. Gaps have mean 1 there; a `Clock` holds
the cumulated rate, and its inverse maps operational time to seconds. The first gap is that of a
process which has run for long, so that the expected number of arrivals by time t is exactly the
cumulated rate, whatever the variation of the gaps.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from formats import InputError

__all__ = ["MAX_REQUESTS", "Clock", "Family", "GapTable", "renewal", "unit_gaps"]

Floats = npt.NDArray[np.float64]
Family = Literal["gamma", "weibull"]
MAX_REQUESTS = 50_000_000
REGULAR_CV = 1e-3  # gaps that vary less are taken as equal


@dataclass(frozen=True)
class GapTable:
    """Gaps by a table of quantiles, linear between its points, scaled to mean 1.

    Parameters
    ----------
    probabilities, gaps : arrays, shape (k,)
        Quantiles of the gaps, in any unit of time.
    """

    probabilities: Floats
    gaps: Floats

    @property
    def mean(self) -> float:
        """Mean of the table, in its own unit."""
        between = (self.gaps[1:] + self.gaps[:-1]) / 2
        return float(np.diff(self.probabilities) @ between)

    @property
    def cv(self) -> float:
        """Standard deviation over mean.

        Examples
        --------
        >>> round(GapTable(np.array([0.0, 1.0]), np.array([0.0, 2.0])).cv, 4)  # 1 / sqrt(3)
        0.5774
        """
        a, b = self.gaps[:-1], self.gaps[1:]
        square = float(np.diff(self.probabilities) @ (a * a + a * b + b * b)) / 3
        return float(np.sqrt(max(square / self.mean**2 - 1, 0.0)))

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Return `n` independent gaps of mean 1."""
        return np.interp(rng.random(n), self.probabilities, self.gaps) / self.mean

    def first(self, rng: np.random.Generator) -> float:
        """Return the wait for the first arrival: a uniform share of a length-biased gap."""
        u = (np.arange(5000) + 0.5) / 5000
        gaps = np.interp(u, self.probabilities, self.gaps)
        cumulated = np.cumsum(gaps)
        k = int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))
        return float(rng.random() * gaps[min(k, gaps.size - 1)] / self.mean)


def unit_gaps(n: int, cv: float, family: Family, rng: np.random.Generator) -> Floats:
    """Return `n` independent gaps of mean 1.

    Parameters
    ----------
    n : int
        How many.
    cv : float
        Standard deviation over mean, 0 to 1000; below 0.001 gaps are constant, at 1 exponential.
    family : {"gamma", "weibull"}
        The distribution; both are exponential at cv 1.
    rng : numpy.random.Generator
        The stream.

    Returns
    -------
    array of float64, shape (n,)

    Examples
    --------
    >>> unit_gaps(3, 0, "gamma", np.random.default_rng(0)).tolist()
    [1.0, 1.0, 1.0]
    """
    if cv < REGULAR_CV:
        return np.ones(n)
    if cv == 1:
        return rng.standard_exponential(n)
    if family == "gamma":
        return rng.standard_gamma(cv**-2.0, n) * cv**2
    shape = weibull_shape(cv)
    return rng.weibull(shape, n) / float(special.gamma(1 + 1 / shape))


def _first_gap(cv: float, family: Family, rng: np.random.Generator) -> float:
    """Return the wait for the first arrival: a uniform share of a length-biased gap."""
    share = rng.random()
    if cv < REGULAR_CV:
        return float(share)
    if family == "gamma" or cv == 1:
        return float(share * rng.standard_gamma(cv**-2.0 + 1) * cv**2)
    shape = weibull_shape(cv)
    biased = rng.standard_gamma(1 + 1 / shape) ** (1 / shape)
    return float(share * biased / special.gamma(1 + 1 / shape))


@cache
def weibull_shape(cv: float) -> float:
    """Return the Weibull shape k with ``cv^2 = gamma(1 + 2/k) / gamma(1 + 1/k)^2 - 1``.

    Examples
    --------
    >>> round(weibull_shape(2.0), 4)
    0.5427
    """

    def excess(log_k: float) -> float:
        x = np.exp(-log_k)
        return float(special.gammaln(1 + 2 * x) - 2 * special.gammaln(1 + x) - np.log1p(cv**2))

    return float(np.exp(optimize.brentq(excess, np.log(0.02), np.log(1e4), xtol=1e-12)))


def renewal(
    end: float,
    gaps: "tuple[float, Family] | GapTable",
    rng: np.random.Generator,
    count: int | None = None,
) -> Floats:
    """Return the operational times of arrivals in [0, end), at most `count` of them.

    Parameters
    ----------
    end : float
        Expected number of arrivals; infinite where only `count` limits.
    gaps : (cv, family) or GapTable
        The distribution of the gaps.
    rng : numpy.random.Generator
        The stream of arrivals.
    count : int, optional
        At most so many.

    Raises
    ------
    InputError
        More than 50 million arrivals would be made.
    """
    if isinstance(gaps, GapTable):
        first, cv = gaps.first(rng), gaps.cv
    else:
        first, cv = _first_gap(*gaps, rng), gaps[0]
    if count is not None and not np.isfinite(end):
        return np.cumsum(np.append(first, _draw(count - 1, gaps, rng)))
    parts = [np.array([first])]
    chunk = int(end + 4 * max(cv, 0.1) * np.sqrt(end)) + 16
    while parts[-1][-1] < end:
        parts.append(parts[-1][-1] + np.cumsum(_draw(chunk, gaps, rng)))
        if len(parts) * chunk > 4 * MAX_REQUESTS:
            raise InputError(f"more than {MAX_REQUESTS} arrivals", "arrivals", repair="lower cv")
    times = np.concatenate(parts)
    return times[times < end][:count]


def _draw(n: int, gaps: "tuple[float, Family] | GapTable", rng: np.random.Generator) -> Floats:
    return gaps.draw(n, rng) if isinstance(gaps, GapTable) else unit_gaps(n, *gaps, rng)


@dataclass(frozen=True)
class Clock:
    """A rate over time: cumulated arrivals at the ends of its steps.

    Parameters
    ----------
    times : array of float64, shape (k,)
        Starts of the steps and, last, the end, in seconds.
    cumulated : array of float64, shape (k,)
        Expected arrivals by then, from 0.
    after : float
        Rate after the end, in request/s, where it does not repeat.
    repeat : bool
        The steps start again at the end.
    """

    times: Floats
    cumulated: Floats
    after: float = 0.0
    repeat: bool = False

    @classmethod
    def of_steps(
        cls, starts: npt.ArrayLike, rates: npt.ArrayLike, until: float = 0.0, repeat: bool = False
    ) -> "Clock":
        """Return the clock of rates in steps; without `until` the last rate goes on for ever."""
        times, rate = np.asarray(starts, dtype=np.float64), np.asarray(rates, dtype=np.float64)
        if not until:
            return cls(times, np.append(0.0, np.cumsum(rate[:-1] * np.diff(times))), rate[-1])
        times = np.append(times, until)
        return cls(times, np.append(0.0, np.cumsum(rate * np.diff(times))), 0.0, repeat)

    def expected(self, time_s: float) -> float:
        """Return the expected number of arrivals in [0, time_s)."""
        end, total = float(self.times[-1]), float(self.cumulated[-1])
        if self.repeat:
            laps, rest = divmod(time_s, end)
            return laps * total + float(np.interp(rest, self.times, self.cumulated))
        beyond = max(time_s - end, 0.0)
        inside = float(np.interp(min(time_s, end), self.times, self.cumulated))
        return inside + (self.after * beyond if self.after else 0.0)

    def seconds(self, operational: Floats) -> Floats:
        """Return when the expected number of arrivals reaches each value; infinite if never."""
        end, total = float(self.times[-1]), float(self.cumulated[-1])
        if self.repeat:
            laps, rest = np.divmod(operational, total)
            return laps * end + np.interp(rest, self.cumulated, self.times)
        inside = np.interp(operational, self.cumulated, self.times)
        over = operational > total if self.after else operational >= total
        late = end + (operational - total) / self.after if self.after else np.inf
        return np.where(over, late, inside)
