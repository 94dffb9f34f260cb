"""Which setting to try next: an Optuna sampler with a model of the space.

Some settings spread evenly come first. Then a Gaussian process of the objective and one per
constraint, over all settings that ended, name the setting with the largest expected improvement
times the chance that constraints hold (Gardner et al., ICML 2014). Settings that were stopped early
count by their short run: its length is a column of the model. Every third proposal stays within two
steps of the best so far and leaves constraints aside, because limits of engines are cliffs, beside
which a smooth model is too sure of itself. With several objectives each proposal draws weights of
them (Knowles, IEEE TEC 10, 2006).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm, qmc, rankdata

from sim.tuning.evaluator import CANNOT, PENALTY
from sim.tuning.space import Space
from sim.tuning.surrogate import Floats, fit

__all__ = ["RUNGS", "ModelSampler", "ended"]

RUNGS = (0.25, 1.0)  # leading shares of the requests that a trial is tried on
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
MORE_THAN_KNOBS = 3  # settings spread evenly at the start, beyond the number of knobs
NEAR_EVERY = 3  # of the proposals one is near the best
LEAST_GAIN = 0.05  # of the spread of the objective: smaller improvements count as none
MOST_PLACES = 4096  # settings of a space that are all looked at
MOST_POINTS = 200  # trials in the model
ROUGH = 0.05  # weight of the mean beside the worst objective (Knowles 2006)
TINY = 1e-300
Params = dict[str, Any]


def ended(study: Study) -> list[FrozenTrial]:
    """Return the trials that ended, by number."""
    return study.get_trials(deepcopy=False, states=ENDED)


@dataclass(frozen=True)
class _Known:
    """What trials that ended showed: one row per trial.

    Attributes
    ----------
    params : list of dict
        Settings.
    short : array (trial,)
        0 after the whole of the requests .. 1 after the shortest run.
    losses : array (trial, objective)
        `PENALTY` where there is no value.
    margins : array (trial, constraint)
        By how much each is missed; below 0 it holds.
    """

    params: list[Params]
    short: Floats
    losses: Floats
    margins: Floats

    @property
    def valued(self) -> npt.NDArray[np.bool_]:
        """Trials with a value in all objectives."""
        return np.asarray((self.losses < PENALTY).all(axis=1))

    @property
    def good(self) -> npt.NDArray[np.bool_]:
        """Trials over all requests that keep all constraints."""
        return np.asarray(self.valued & (self.short == 0) & (self.margins <= 0).all(axis=1))


def _known(trials: Sequence[FrozenTrial]) -> _Known:
    last = len(RUNGS) - 1
    seen = [rung for t in trials for rung in t.user_attrs.get("rungs", {}).values()]
    limits = len(seen[0][2]) if seen else 0
    rows = []
    for trial in trials:
        rungs = trial.user_attrs.get("rungs")
        if rungs and float(trial.constraints.get("violation", 0.0)) < CANNOT:
            step = max(rungs, key=int)
            rows.append((trial.params, (last - int(step)) / last, rungs[step][0], rungs[step][2]))
        else:
            count = len(trial.values or [0.0])
            rows.append((trial.params, 0.0, [PENALTY] * count, [1.0] * limits))
    params, short, losses, margins = zip(*rows, strict=True)
    shaped = np.array(margins, dtype=float).reshape(len(rows), limits)
    return _Known(list(params), np.array(short), np.array(losses, dtype=float), shaped)


class ModelSampler(BaseSampler):
    """Proposes one setting; what it proposes depends on its arguments and on trials that ended.

    Parameters
    ----------
    space : Space
        What may move.
    start : dict
        Parameters of the scenario as it is, where the space holds them.
    seed : int
        Seed of the search.
    count : int
        How many trials ended.
    taken : callable
        Parameters -> whether somebody tried their setting.
    """

    def __init__(
        self,
        space: Space,
        start: Mapping[str, Any],
        seed: int,
        count: int,
        taken: Callable[[Params], bool],
    ) -> None:
        self.space, self.start, self.count, self.taken = space, start, count, taken
        self.seed = seed
        self.rng = np.random.default_rng([seed, count])
        self.found: Params | None = None

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all knobs: they are proposed together."""
        return self.space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        """Return the setting to try."""
        return self.found or self.propose(ended(study)) or {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: object
    ) -> Any:  # noqa: ANN401 - as Optuna has it
        """Return a value of a knob that was not proposed."""
        raise NotImplementedError(param_name)

    def propose(self, trials: Sequence[FrozenTrial]) -> Params | None:
        """Return the setting to try, None where none is left."""
        self.found = next((p for p in self._ordered(trials) if not self.taken(p)), None)
        return self.found

    def _ordered(self, trials: Sequence[FrozenTrial]) -> Iterator[Params]:
        """Yield settings, the most promising first."""
        tried = {self._key(t.params) for t in trials}
        places = [p for p in self._places() if self._key(p) not in tried]
        if not places:
            return
        if self.count < len(self.space.knobs) + MORE_THAN_KNOBS or not trials:
            even = list(_by(places, self._evenness(places)))
            if self.count == 0 and self.start:
                yield {**even[0], **self.start}
            yield from even
            return
        known = _known(_kept(trials))
        losses = self._weighed(known)
        best = _best(known, losses)
        if best is not None and self.count % NEAR_EVERY == 0:
            near = [p for p in self._around(best) if self._key(p) not in tried]
            if near:
                yield from _by(near, self._gain(known, losses, near))
        gains = self._gain(known, losses, places) if best is not None else 0.0
        yield from _by(places, gains + self._chance(known, places))

    def _places(self) -> list[Params]:
        """Return all settings, or many of them where there are more."""
        size = self.space.size()
        if size is not None and size <= MOST_PLACES:
            return list(self.space.places())
        shares = qmc.Sobol(len(self.space.knobs), rng=self.rng).random(MOST_PLACES // 2)
        return [self.space.at(row) for row in shares]

    def _around(self, params: Params) -> list[Params]:
        """Return the settings within two steps of one."""
        first = list(self.space.neighbours(params))
        second = [q for p in first for q in self.space.neighbours(p)]
        return list({self._key(p): p for p in (*first, *second)}.values())

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[key] for key in self.space.knobs)

    def _evenness(self, places: list[Params]) -> Floats:
        """Return how near settings are to the next point of an even sequence, negative."""
        points = qmc.Sobol(len(self.space.knobs), rng=np.random.default_rng(self.seed))
        point = points.fast_forward(self.count).random(1) if self.count else points.random(1)
        shares = np.array([self.space.shares(p) for p in places])
        return np.asarray(-((shares - point) ** 2).sum(axis=1))

    def _weighed(self, known: _Known) -> Floats:
        """Return one loss per trial: the objective, or a random mixture of several."""
        if known.losses.shape[1] == 1 or not known.valued.any():
            return known.losses[:, 0]
        part = known.losses[known.valued]
        low, high = part.min(axis=0), part.max(axis=0)
        scaled = (known.losses - low) / np.where(high > low, high - low, 1.0)
        weighed = scaled * self.rng.dirichlet(np.ones(len(low)))
        mixed = 1.0 + weighed.max(axis=1) + ROUGH * weighed.sum(axis=1)
        return np.where(known.valued, mixed, PENALTY)

    def _gain(self, known: _Known, losses: Floats, places: list[Params]) -> Floats:
        """Return the logarithm of the expected improvement of settings over the best."""
        points, there = self._columns(known, places)
        valued, good = known.valued, known.good[known.valued]
        total = np.zeros(len(places))
        for view in (_ranks, _cut):
            targets = view(losses[valued])
            size = float(targets.std()) or 1.0
            mean, spread = fit(points[valued], targets).at(there)
            z = (targets[good].min() - LEAST_GAIN * size - mean) / spread
            total += spread * (z * ndtr(z) + norm.pdf(z)) / size
        return np.asarray(np.log(np.maximum(total, TINY)))

    def _chance(self, known: _Known, places: list[Params]) -> Floats:
        """Return the logarithm of the chance that settings keep all constraints."""
        points, there = self._columns(known, places)
        limits = [np.sign(m) * np.log1p(np.abs(m)) for m in known.margins.T]
        if not known.valued.all():
            limits.append(np.where(known.valued, -1.0, 1.0))
        total = np.zeros(len(places))
        for missed in limits:
            if missed.std() > 0:
                mean, spread = fit(points, missed).at(there)
                total += log_ndtr(-mean / spread)
        return total

    def _columns(self, known: _Known, places: list[Params]) -> tuple[Floats, Floats]:
        """Return settings known and asked about as columns of a model."""
        own, there = self.space.columns(known.params), self.space.columns(places)
        return np.c_[own, known.short], np.c_[there, np.zeros(len(places))]


def _by(places: list[Params], scores: Floats) -> Iterator[Params]:
    for i in np.argsort(-scores, kind="stable"):
        yield places[i]


def _kept(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that a model is made of: of many the best."""
    if len(trials) <= MOST_POINTS:
        return list(trials)
    first = sorted(trials, key=_worth)[:MOST_POINTS]
    return sorted(first, key=lambda t: t.number)


def _worth(trial: FrozenTrial) -> tuple[bool, float, float, int]:
    stopped = trial.state == TrialState.PRUNED
    missed = float(trial.constraints.get("violation", 0.0))
    return stopped, missed, sum(trial.values or []), trial.number


def _best(known: _Known, losses: Floats) -> Params | None:
    """Return the best setting so far that keeps all constraints."""
    if not known.good.any():
        return None
    return known.params[int(np.where(known.good, losses, np.inf).argmin())]


def _ranks(losses: Floats) -> Floats:
    """Return the order only, as normal scores: cliffs are no larger than steps."""
    return np.asarray(norm.ppf((rankdata(losses) - 0.5) / len(losses)))


def _cut(losses: Floats) -> Floats:
    """Return logarithms, where all are above 0, with the bad end cut off.

    Of what is worse than the median all counts as much as the best is better than the median.
    """
    values = np.log(losses) if (losses > 0).all() else losses
    middle, low = float(np.median(values)), float(values.min())
    return np.minimum(values, 2.0 * middle - low) if middle > low else values
