"""Which part of a run counts: warm-up and cool-down left out by a stated rule."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.scenario import Scenario

__all__ = ["MSER_BATCH", "Window", "in_system", "mser", "observation_window", "run_end"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MSER_BATCH = 5


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts.

    Attributes
    ----------
    start_s, end_s : float
        From and to [s]; requests count by their arrival.
    whole : bool
        Nothing is left out.
    """

    start_s: float
    end_s: float
    whole: bool = True

    @property
    def span_s(self) -> float:
        """Length [s], at least a nanosecond."""
        return max(self.end_s - self.start_s, 1e-9)


def mser(series: npt.ArrayLike, batch: int = MSER_BATCH) -> int:
    """Return how many leading observations are warm-up, by the MSER-5 rule.

    The series is averaged in batches; the cut d minimises the squared standard error of the mean
    of what is left, sum((y - mean)^2) / (n - d)^2, over the first half.

    Parameters
    ----------
    series : array_like, shape (n,)
        Observations in order of time.
    batch : int
        Observations per batch.

    Returns
    -------
    int
        A multiple of `batch`; 0 where there are fewer than four batches.

    References
    ----------
    K. P. White, M. J. Cobb, S. C. Spratt, "A comparison of five steady-state truncation
    heuristics for simulation", Winter Simulation Conference 2000.

    Examples
    --------
    >>> mser([9.0] * 10 + [1.0, 2.0] * 45)
    10
    """
    values = np.asarray(series, dtype=np.float64)
    count = values.size // batch
    if count < 4:
        return 0
    means = values[: count * batch].reshape(count, batch).mean(axis=1)
    left = np.arange(count, 0, -1)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    error = np.maximum(squares - total**2 / left, 0.0) / left**2
    return int(np.argmin(error[: count // 2 + 1])) * batch


def in_system(requests: pd.DataFrame) -> Ints:
    """Return how many requests each arrival finds in the system, shape (requests,).

    Requests that have not ended stay in the system.
    """
    arrivals = np.sort(requests["arrival_s"].to_numpy(np.float64))
    ends = np.sort(requests["finish_s"].dropna().to_numpy(np.float64))
    return np.arange(arrivals.size) - np.searchsorted(ends, arrivals, side="right")


def run_end(scenario: Scenario, requests: pd.DataFrame, steps: pd.DataFrame) -> float:
    """Return when a run ends [s]: at its last event, or at the horizon when work is left."""
    last = [float(t.max()) for t in (requests["finish_s"], steps["output_s"]) if t.notna().any()]
    horizon = scenario.run.horizon_s
    if horizon is not None and (requests["status"] == "unfinished").any():
        return max([horizon, *last])
    return max([0.0, *last])


def observation_window(scenario: Scenario, requests: pd.DataFrame, steps: pd.DataFrame) -> Window:
    """Return the window that a scenario's ``run.warmup`` leaves.

    ``"none"``: the whole run, from time 0 to its last event. A number: from that second to the
    last arrival, so that the drain is left out too. ``"mser"``: the same, the start found by
    MSER-5 on the number of requests that each arrival finds in the system.

    Raises
    ------
    InputError
        Nothing arrives after the warm-up.
    """
    end, rule = run_end(scenario, requests, steps), scenario.run.warmup
    if rule == "none":
        return Window(0.0, end)
    last = min(float(requests["arrival_s"].max()), end)
    start = _mser_start(requests) if rule == "mser" else float(rule)
    if start >= last:
        raise InputError(
            f"the warm-up of {start:g} s leaves nothing: the last request arrives at {last:g} s",
            "[run] warmup",
            f"below {last:g} s",
            "shorten it or simulate longer",
        )
    return Window(start, last, whole=False)


def _mser_start(requests: pd.DataFrame) -> float:
    arrivals = np.sort(requests["arrival_s"].to_numpy(np.float64))
    cut = mser(in_system(requests))
    return 0.0 if cut == 0 else float(arrivals[cut])
