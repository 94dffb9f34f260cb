"""How much each knob matters: the share of the variation of ranks that it alone explains."""

from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import FrozenTrial
from scipy.stats import rankdata

from sim.tuning.evaluator import CANNOT, PENALTY
from sim.tuning.sampler import ended
from sim.tuning.space import Space

__all__ = ["explained", "importance"]

FEWEST = 8  # trials below which nothing can be said
BINS = 5  # of a range
Floats = npt.NDArray[np.float64]


def importance(study: optuna.Study, space: Space, objective: int = 0) -> dict[str, float]:
    """Return knob -> share of the variation of ranks that it explains, most first [0..1].

    Trials count by their first run, which all of them had, stopped early or not.
    Empty where too few trials ended.
    """
    trials = ended(study)
    if len(trials) < FEWEST:
        return {}
    order = sorted({_key(t, objective) for t in trials})
    ranks = rankdata([order.index(_key(t, objective)) for t in trials])
    found = {key: explained(_groups(trials, key), ranks) for key in space.knobs}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _key(trial: FrozenTrial, objective: int) -> tuple[float, float]:
    rungs = trial.user_attrs.get("rungs")
    if not rungs:
        return CANNOT, PENALTY
    losses, violation, _ = rungs[min(rungs, key=int)]
    return violation, losses[objective]


def _groups(trials: list[FrozenTrial], key: str) -> npt.NDArray[Any]:
    """Return the value of a knob in each trial, ranges in a few bins of equal counts."""
    values = np.array([float(t.params[key]) for t in trials])
    if len(set(values)) > 2 * BINS:
        edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
        return np.asarray(np.digitize(values, edges))
    return values


def explained(groups: npt.NDArray[Any], values: Floats) -> float:
    """Return the share of the variance of values that groups explain, corrected for their number.

    Epsilon squared of a one-way analysis of variance (Kelley 1935), 0 where it is negative.

    Examples
    --------
    >>> explained(np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 5.0, 5.0]))
    1.0
    """
    names = np.unique(groups)
    total = float(((values - values.mean()) ** 2).sum())
    if len(names) < 2 or len(values) <= len(names) or total == 0:
        return 0.0
    parts = [values[groups == name] for name in names]
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    share = 1 - within / total * (len(values) - 1) / (len(values) - len(names))
    return max(0.0, share)
