"""At the door: token buckets of clients, and how long people wait."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from policies.rules import AdmissionRules

__all__ = ["Buckets", "draw_patience"]

Floats = npt.NDArray[np.float64]
LEAST_CV = 1e-6  # below it, waits differ by less than any clock tells


@dataclass
class Buckets:
    """A token bucket per client: it holds `burst` tokens at most and gains `rate_per_s`.

    Parameters
    ----------
    rate_per_s, burst : float
        The bucket [request/s, request].

    Examples
    --------
    >>> bucket = Buckets(1.0, 2.0)
    >>> [bucket.take(0, t) for t in (0.0, 0.1, 0.2, 1.5)]
    [True, True, False, True]
    """

    rate_per_s: float
    burst: float
    _level: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _last_s: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def take(self, client: int, now_s: float) -> bool:
        """Take a token at a time, not before the last one; False when there is none [s]."""
        gained = (now_s - self._last_s.get(client, now_s)) * self.rate_per_s
        level = min(self.burst, self._level.get(client, self.burst) + gained)
        self._last_s[client] = now_s
        self._level[client] = level - 1.0 if level >= 1.0 else level
        return level >= 1.0


def draw_patience(count: int, rules: AdmissionRules, rng: np.random.Generator) -> Floats:
    """Return how long each client waits for its first token [s], shape (count,).

    Gamma with the given mean and variation; all alike at a variation of 0; infinite without a
    mean.
    """
    if np.isinf(rules.patience_s) or rules.patience_cv < LEAST_CV:
        return np.full(count, rules.patience_s)
    shape = rules.patience_cv**-2
    return np.asarray(rng.gamma(shape, rules.patience_s / shape, count))
