"""The search: trials in turn, short runs first, the same trials again after an interrupt.

What a trial proposes depends on the seed and on the trials that ended before it, and on nothing
else. A process that was killed leaves a trial that never ended; the next process proposes it again.
Several processes may share a storage: a setting that one of them works on is left to it.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import optuna
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from sim.tuning.evaluator import CANNOT, PENALTY, CannotRunError, Evaluator, Judged
from sim.tuning.loads import LEAST_REQUESTS
from sim.tuning.space import Setting, Space, applied, word
from sim.tuning.storage import worker, works

__all__ = ["ENDED", "RUNGS", "Search", "ended"]

RUNGS = (0.25, 0.5, 1.0)  # leading shares of the requests that a trial is tried on
BEATEN_BY = 0.5  # a trial stops when more than this share of those seen at its rung is better
FEWEST_SEEN = 8  # trials at a rung before any is stopped
STARTUP = 6  # random trials before the model of the sampler starts
PROPOSALS = 20  # repeated ones per trial before any untried setting is taken
MOST_LISTED = 100_000  # settings of a space that are listed to find an untried one
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
Progress = Callable[[float], None]


def ended(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ended, by number."""
    return study.get_trials(deepcopy=False, states=ENDED)


@dataclass
class Search:
    """A search over a space.

    Parameters
    ----------
    study : optuna.Study
        Where trials are kept.
    space : Space
        What may move.
    work : Evaluator
        What judges.
    seed : int
        Seed of all proposals.
    """

    study: optuna.Study
    space: Space
    work: Evaluator
    seed: int = 0

    def run(self, budget: int, progress: Progress | None = None) -> None:
        """Run trials until `budget` different settings have ended, or none is left.

        Parameters
        ----------
        budget : int
            Settings in all, earlier ones of the study included.
        progress : callable, optional
            Called with the share of them that ended [0..1].
        """
        with warnings.catch_warnings():
            # parameters of samplers that Optuna calls experimental
            warnings.simplefilter("ignore")
            while (count := len(ended(self.study))) < budget:
                found = self._propose(count)
                if found is None:
                    return
                self._try(*found)
                if progress is not None:
                    progress(min(1.0, (count + 1) / budget))

    def _propose(self, count: int) -> tuple[optuna.Trial, Setting] | None:
        """Return a trial whose setting nobody has tried; None where none is left."""
        nearby = self._neighbour(count) if count >= STARTUP and count % 2 else None
        if nearby is not None:
            near = self._ask(PartialFixedSampler(nearby, _sampler(self.seed, count, 0)))
            if near is not None:
                return near
        for attempt in range(PROPOSALS):
            sampler: BaseSampler = _sampler(self.seed, count, attempt)
            start = self.space.default(self.work.scenario)
            if count == 0 and attempt == 0 and start:
                sampler = PartialFixedSampler(start, sampler)
            found = self._ask(sampler)
            if found is not None:
                return found
        untried = self._untried(count)
        return None if untried is None else self._ask(PartialFixedSampler(untried, sampler))

    def _neighbour(self, count: int) -> dict[str, Any] | None:
        """Return an untried setting one step from the best so far; None where all are tried.

        Every second proposal is one: the sampler's model looks far, this looks near.
        """
        trials = [t for t in ended(self.study) if t.state == TrialState.COMPLETE]
        best = min(trials, key=_worth, default=None)
        taken = self._taken(1 << 62)
        found = [] if best is None else list(self.space.neighbours(best.params))
        left = [p for p in found if word(self._active(self.space.setting(p))) not in taken]
        return left[_draw(self.seed, count, len(left))] if left else None

    def _ask(self, sampler: BaseSampler) -> tuple[optuna.Trial, Setting] | None:
        """Return the trial that a sampler proposes; None where its setting is taken."""
        self.study.sampler = sampler
        trial = self.study.ask()
        setting = self._active(self.space.suggest(trial))
        trial.set_user_attr("worker", worker())
        trial.set_user_attr("setting", word(setting))
        if word(setting) not in self._taken(trial.number):
            return trial, setting
        self.study.tell(trial, state=TrialState.FAIL)
        return None

    def _active(self, setting: Setting) -> Setting:
        return applied(self.work.scenario, setting)[1]

    def _taken(self, before: int) -> set[str]:
        """Return settings that were tried, or that an earlier trial is at now."""
        trials = self.study.get_trials(deepcopy=False, states=(*ENDED, TrialState.RUNNING))
        return {
            trial.user_attrs["setting"]
            for trial in trials
            if "setting" in trial.user_attrs
            and (trial.state in ENDED or (trial.number < before and works(trial)))
        }

    def _untried(self, count: int) -> dict[str, Any] | None:
        """Return the parameters of a random setting that nobody has tried."""
        size = self.space.size()
        if size is None:
            return None
        taken = self._taken(1 << 62)
        left = [
            params
            for params in islice(self.space.places(), MOST_LISTED)
            if word(self._active(self.space.setting(params))) not in taken
        ]
        return left[_draw(self.seed, count, len(left))] if left else None

    def _try(self, trial: optuna.Trial, setting: Setting) -> None:
        """Run a trial rung by rung; stop it where too many were better at the same rung."""
        judged = Judged([PENALTY] * len(self.work.objectives), CANNOT, {})
        try:
            for step, share in enumerate(RUNGS):
                if share < 1 and self.work.fewest(share) <= LEAST_REQUESTS:
                    continue
                judged = self.work.judge(setting, share)
                if share < 1 and self._stops(trial, step, judged):
                    trial.set_constraint("violation", judged.violation)
                    self.study.tell(trial, state=TrialState.PRUNED)
                    return
        except CannotRunError as error:
            trial.set_user_attr("error", str(error))
        trial.set_user_attr("figures", {k: v for k, v in judged.figures.items() if v is not None})
        trial.set_constraint("violation", judged.violation)
        self.study.tell(trial, judged.losses)

    def _stops(self, trial: optuna.Trial, step: int, judged: Judged) -> bool:
        """Return whether too many of those that came so far were better here."""
        seen = [
            Judged(rungs[str(step)][0], rungs[str(step)][1], {})
            for other in ended(self.study)
            if str(step) in (rungs := other.user_attrs.get("rungs", {}))
        ]
        own = {**trial.user_attrs.get("rungs", {}), str(step): [judged.losses, judged.violation]}
        trial.set_user_attr("rungs", own)
        if len(self.work.objectives) == 1:
            trial.report(judged.losses[0], step)
        better = sum(other.dominates(judged) for other in seen)
        return len(seen) >= FEWEST_SEEN and better > BEATEN_BY * len(seen)


def _worth(trial: FrozenTrial) -> tuple[float, float, int]:
    return float(trial.constraints.get("violation", 0.0)), sum(trial.values), trial.number


def _draw(seed: int, count: int, size: int) -> int:
    return int(np.random.default_rng([seed, count]).integers(size))


def _sampler(seed: int, count: int, attempt: int) -> TPESampler:
    """Return the sampler of one proposal; trials that still run do not count."""
    own = crc32(f"{seed}/{count}/{attempt}".encode())
    return TPESampler(seed=own, multivariate=True, n_startup_trials=STARTUP, constant_liar=False)
