"""Synthetic loads fitted to a trace: its rate, the variation of its gaps, and its lengths."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from workloads.arrivals import Arrivals, Burst, Gaps, Piecewise, arrival_times, scale_rate
from workloads.fit_lengths import fit_lengths
from workloads.lengths import Lengths, sample_columns

__all__ = ["fit_arrivals", "gap_variation", "synthesise"]

Floats = npt.NDArray[np.float64]
GAP_PROBABILITIES: Floats = np.unique(
    np.round(np.append(np.arange(101) / 100, [0.995, 0.9975, 0.999, 0.9995, 0.9998]), 4)
)


def gap_variation(arrival_s: npt.ArrayLike) -> float:
    """Return the standard deviation over the mean of the gaps between arrivals.

    Examples
    --------
    >>> gap_variation([0.0, 1.0, 2.0, 3.0])
    0.0
    """
    gaps = np.diff(np.asarray(arrival_s, dtype=np.float64))
    return float(gaps.std() / gaps.mean()) if gaps.size and gaps.mean() > 0 else 0.0


def fit_arrivals(arrival_s: npt.ArrayLike, step_s: float | None = None) -> Arrivals:
    """Return an arrival process fitted to arrival times.

    Parameters
    ----------
    arrival_s : array_like, shape (n,)
        Times in seconds, in rising order.
    step_s : float, optional
        Follow the trace's rate in steps of this length, repeated after its end, with the variation
        that is left inside them; otherwise a level rate with the observed gaps.

    Returns
    -------
    Arrivals
        A `Gaps` or `Piecewise` process; a `Burst` where all arrive at once.

    Raises
    ------
    InputError
        The step is not positive, or longer than the trace.
    """
    times = np.asarray(arrival_s, dtype=np.float64)
    span = float(times[-1] - times[0])
    if span == 0:
        return Burst(count=times.size)
    if step_s is not None:
        return _fit_steps(times - times[0], span, step_s)
    gaps = [float(f"{g:.6g}") for g in np.quantile(np.diff(times), GAP_PROBABILITIES)]
    rate = min((times.size - 1) / span, 1e6)
    return Gaps(rate_per_s=rate, probabilities=GAP_PROBABILITIES.tolist(), gaps=gaps)


def _fit_steps(times: Floats, span: float, step_s: float) -> Piecewise:
    if not 0 < step_s <= span or span / step_s > 100_000:
        what = f"step_s is {step_s:g} for a trace of {span:g} s"
        raise InputError(what, "synthesise", "at most the trace, in at most 100000 steps")
    starts = np.arange(int(np.ceil(span / step_s))) * step_s
    edges = np.append(starts, span)
    rates = np.histogram(times[:-1], edges)[0] / np.diff(edges)
    piecewise = Piecewise(
        starts_s=starts.tolist(), rates_per_s=rates.tolist(), until_s=span, repeat=True
    )
    cumulated = np.append(0, np.cumsum(rates * np.diff(edges)))
    left = gap_variation(np.interp(times, edges, cumulated))
    return piecewise.model_copy(update={"cv": min(round(left, 4), 1000.0)})


def synthesise(
    trace: pd.DataFrame,
    duration_s: float,
    rng: np.random.Generator,
    *,
    rate_scale: float = 1.0,
    step_s: float | None = None,
    lengths: Lengths | None = None,
) -> pd.DataFrame:
    """Return a synthetic load that resembles a trace, of any duration and rate.

    Rate, variation of gaps, quantiles of lengths and their dependence are those of the trace;
    which requests share prefixes is not kept.

    Parameters
    ----------
    trace : pandas.DataFrame
        A requests table.
    duration_s : float
        Length of the new load in seconds.
    rng : numpy.random.Generator
        Split into one stream for arrivals and one for lengths.
    rate_scale : float
        Times the rate of the trace.
    step_s : float, optional
        As in `fit_arrivals`.
    lengths : Lengths, optional
        Lengths to use instead of fitted ones.

    Returns
    -------
    pandas.DataFrame
        A requests table.

    Raises
    ------
    InputError
        Nothing arrives in that duration, or a parameter is out of range.
    """
    when, what = rng.spawn(2)
    spec = scale_rate(fit_arrivals(trace["arrival_s"], step_s), rate_scale)
    times = arrival_times(spec, duration_s, when)
    if not times.size:
        raise InputError(f"no request arrives in {duration_s:g} s", "synthesise", repair="longer")
    dist = lengths or fit_table(trace)
    return pd.DataFrame({"arrival_s": times, **sample_columns(dist, times.size, what)})


def fit_table(trace: pd.DataFrame) -> Lengths:
    """Return the length distribution fitted to a requests table."""
    ranks = int(np.clip(np.sqrt(len(trace)) / 4, 1, 16))
    image = trace.get("image_tokens")
    return fit_lengths(trace["prompt_tokens"], trace["output_tokens"], image, ranks)
