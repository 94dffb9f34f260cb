"""The search: trials in turn, short runs first, the same trials again after an interrupt.

What a trial proposes depends on the seed and on the trials that ended before it, and on nothing
else. A process that was killed leaves a trial that never ended; the next process proposes it again.
Several processes may share a storage: a setting that one of them works on is left to it.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from sim.tuning.evaluator import CANNOT, PENALTY, CannotRunError, Evaluator, Judged
from sim.tuning.loads import LEAST_REQUESTS
from sim.tuning.sampler import ENDED, RUNGS, ModelSampler, ended
from sim.tuning.space import Setting, Space, applied, word
from sim.tuning.storage import worker, works

__all__ = ["Search"]

BEATEN_BY = 0.5  # a trial stops when more than this share of those seen at its rung is better
FEWEST_SEEN = 8  # trials at a rung before any is stopped
PROPOSALS = 20  # tries to get a setting that no other process takes at the same time
Progress = Callable[[float], None]


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
        """Return a trial whose setting nobody has tried; None where none is left.

        Another process may take the same setting at the same time: the later one proposes again.
        """
        start = self.space.default(self.work.scenario)
        for _ in range(PROPOSALS):
            sampler = ModelSampler(self.space, start, self.seed, count, self._is_taken())
            if sampler.propose(ended(self.study)) is None:
                return None
            found = self._ask(sampler)
            if found is not None:
                return found
        return None

    def _is_taken(self) -> Callable[[Mapping[str, Any]], bool]:
        taken = self._taken(1 << 62)
        return lambda params: word(self._active(self.space.setting(params))) in taken

    def _ask(self, sampler: ModelSampler) -> tuple[optuna.Trial, Setting] | None:
        """Return the trial that a sampler proposes; None where its setting is taken."""
        self.study.sampler = sampler
        trial = self.study.ask(self.space.distributions())
        setting = self._active(self.space.setting(trial.params))
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

    def _try(self, trial: optuna.Trial, setting: Setting) -> None:
        """Run a trial rung by rung; stop it where too many were better at the same rung."""
        judged = Judged([PENALTY] * len(self.work.objectives), CANNOT, {})
        try:
            for step, share in enumerate(RUNGS):
                if share < 1 and self.work.fewest(share) <= LEAST_REQUESTS:
                    continue
                judged = self.work.judge(setting, share)
                self._keep(trial, step, judged)
                if share < 1 and self._stops(trial, step, judged):
                    trial.set_constraint("violation", judged.violation)
                    self.study.tell(trial, state=TrialState.PRUNED)
                    return
        except CannotRunError as error:
            trial.set_user_attr("error", str(error))
        trial.set_user_attr("figures", {k: v for k, v in judged.figures.items() if v is not None})
        trial.set_constraint("violation", judged.violation)
        self.study.tell(trial, judged.losses)

    @staticmethod
    def _keep(trial: optuna.Trial, step: int, judged: Judged) -> None:
        """Store what a trial was worth on a rung."""
        own = [judged.losses, judged.violation, judged.margins]
        trial.set_user_attr("rungs", {**trial.user_attrs.get("rungs", {}), str(step): own})

    def _stops(self, trial: optuna.Trial, step: int, judged: Judged) -> bool:
        """Return whether too many of those that came so far were better here."""
        seen = [
            Judged(rungs[str(step)][0], rungs[str(step)][1], {})
            for other in ended(self.study)
            if str(step) in (rungs := other.user_attrs.get("rungs", {}))
        ]
        if len(self.work.objectives) == 1:
            trial.report(judged.losses[0], step)
        better = sum(other.dominates(judged) for other in seen)
        return len(seen) >= FEWEST_SEEN and better > BEATEN_BY * len(seen)
