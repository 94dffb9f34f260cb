"""How the load of a replica builds up over a run of finite length, from its operating curve.

Requests come at a rate l and leave at the rate r(b) of the curve, so the decoding sequences b obey
``db/dt = l - r(b)`` (fluid limit). The equation is separable: the time at which b is reached is
the integral of ``db / (l - r(b))``. Past the last batch of the curve a queue grows at
``l - r_max``; after the last arrival it drains, then the batch falls as steps that only decode
finish requests. Near
saturation the steady state takes longer to reach than most runs last, which is why means of a run
are taken along this path.

A step that computes prompts takes all that have arrived by the time it is formed, one step ahead,
and ends for all of them together. `prompt_ends` runs that recursion over the arrivals.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.exploring.curve import Curve

__all__ = ["BuildUp", "build_up", "prompt_ends", "steady"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BuildUp:
    """The decoding sequences of a replica over a run.

    Attributes
    ----------
    time_s, batch : ndarray, rising times
        Sequences b at times; linear between them, constant outside [s].
    full_s : float
        When the curve's last batch is reached and a queue begins; infinite where it never is [s].
    growth : float
        Requests by which the queue grows for every second past `full_s` [request/s].
    most_per_s : float
        Rate at which the queue is served [request/s].
    over_s : float
        When the queue is empty again after the last arrival [s].
    """

    time_s: Floats
    batch: Floats
    full_s: float
    growth: float
    most_per_s: float
    over_s: float = np.inf

    def at(self, time_s: Floats) -> Floats:
        """Return the batch at times [s]."""
        return np.asarray(np.interp(time_s, self.time_s, self.batch))

    def wait_s(self, arrival_s: Floats) -> Floats:
        """Return the wait in the queue of requests that arrive at times [s]."""
        behind = np.maximum(arrival_s - self.full_s, 0.0) * self.growth
        return np.asarray(behind / self.most_per_s)

    def mean(self, end_s: float) -> float:
        """Return the mean batch from 0 to a time [s]."""
        return float(self.at(np.linspace(0.0, max(end_s, 1e-9), 400)).mean())


def steady(curve: Curve, batch: float) -> BuildUp:
    """Return a replica that decodes so many sequences all the time."""
    return BuildUp(np.zeros(1), np.array([batch]), np.inf, 0.0, curve.most_per_s)


def build_up(curve: Curve, rate: float, span_s: float) -> BuildUp:
    """Return how the batch grows from nothing and falls again.

    Parameters
    ----------
    curve : Curve
        Operating points of a replica.
    rate : float
        Requests that arrive [request/s].
    span_s : float
        From the start to the last arrival [s].
    """
    served = np.maximum.accumulate(curve.rate_per_s)
    most, stays = curve.most_per_s, served < rate
    if not stays.any():
        return steady(curve, float(curve.batch[0]))
    batch = curve.batch[stays]
    rise = _elapsed(batch, rate - served[stays])
    full = float(rise[-1]) if rate > most else np.inf
    kept = rise <= span_s
    times, path = rise[kept], batch[kept]
    last = float(np.interp(span_s, rise, batch))
    growth = max(rate - most, 0.0)
    drained = span_s + max(span_s - full, 0.0) * growth / most
    falling = curve.batch < last
    down = np.concatenate([curve.batch[falling], [last]])
    alone = curve.rate_per_s * curve.tpot_s / curve.step_s  # no prompts between the steps
    fall = _elapsed(down, np.interp(down, curve.batch, alone))
    times = np.concatenate([[0.0], times, [span_s, drained], drained + fall[-1] - fall[::-1]])
    path = np.concatenate([[0.0], path, [last, last], down[::-1]])
    return BuildUp(times, path, full, growth, most, drained)


def _elapsed(batch: Floats, speed: Floats) -> Floats:
    """Return the time until each batch is reached at speeds given at the batches [s]."""
    if not batch.size:
        return np.zeros(0)
    slow = 1.0 / np.maximum(speed, 1e-9)
    pieces = np.diff(batch) * (slow[1:] + slow[:-1]) / 2.0
    return np.concatenate([[batch[0] * slow[0]], batch[0] * slow[0] + np.cumsum(pieces)])


def prompt_ends(
    ready_s: Floats, own_s: Floats, step_s: Floats, prompt: Floats, budget: float
) -> Floats:
    """Return when the prompt of each request has been computed [s].

    Parameters
    ----------
    ready_s : ndarray, rising
        When a request could be taken into a step [s].
    own_s : ndarray
        What its prompt adds to steps [s].
    step_s : ndarray
        A step without prompts at that time [s].
    prompt : ndarray
        Tokens of its prompt.
    budget : float
        Tokens that a step may compute.

    Examples
    --------
    >>> at, own, step = np.array([0.0, 0.001]), np.array([0.02, 0.02]), np.array([0.01, 0.01])
    >>> prompt_ends(at, own, step, np.array([500.0, 500.0]), 8192.0).tolist()
    [0.03, 0.06]
    """
    ends = np.empty(ready_s.size)
    ready, own, step, size = (a.tolist() for a in (ready_s, own_s, step_s, prompt))
    i, now = 0, 0.0
    while i < len(ready):
        start = max(now, ready[i])
        j, tokens, took = i, 0.0, step[i]
        while j < len(ready) and ready[j] <= start and (j == i or tokens + size[j] <= budget):
            tokens, took, j = tokens + size[j], took + own[j], j + 1
        now = start + took
        ends[i:j] = now
        i = j
    return ends
