"""One study: trials in turn, short runs first, the same trials again after an interrupt.

The sampler of each trial is seeded from (seed, trial number) and sees only finished trials, so a
study that is resumed from its storage goes on exactly as if it had never stopped.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import optuna
import pandas as pd
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from formats import InputError, RoofcastError
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.tuning.goals import Constraint, Objective, figures
from sim.tuning.space import Space

__all__ = ["Evaluator", "open_study", "run_trials"]

RUNGS = (0.25, 1.0)  # shares of the trace that a trial is tried on
PRUNE_ABOVE = 0.5  # quantile of the first rung above which a trial stops
FEWEST_FOR_PRUNING = 8
MOST_ASKS = 6  # proposals per trial of the budget, repeated settings included
PENALTY = 1e9  # an infeasible setting is worse than any feasible one, by its violation
Figures = dict[str, float | None]
Progress = Callable[[float], None]


@dataclass
class Evaluator:
    """Simulates settings on the same requests, one table per workload.

    Parameters
    ----------
    scenario : Scenario
        What is changed.
    tables : list of DataFrame
        Requests of each workload.
    objectives, constraints
        What counts.
    worst : bool
        Judge a setting by its worst workload, not by the mean.
    """

    scenario: Scenario
    tables: list[pd.DataFrame]
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint] = ()
    worst: bool = False
    base: Path = Path()
    simulations: int = field(default=0, init=False)

    def figures(
        self, setting: dict[str, Any], share: float = 1.0, seed: int | None = None
    ) -> Figures:
        """Return the metrics of a setting, combined over the workloads."""
        changes = {**setting, "run.step_log": False}
        if seed is not None:
            changes["run.seed"] = seed
        changed = self.scenario.changed(changes)
        runs = [self._one(changed, table, share) for table in self.tables]
        return {key: self._combine(key, [run.get(key) for run in runs]) for key in runs[0]}

    def _one(self, scenario: Scenario, table: pd.DataFrame, share: float) -> Figures:
        part = table.head(max(1, round(len(table) * share)))
        self.simulations += 1
        return figures(simulate(scenario, part, self.base))

    def _combine(self, key: str, values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        if len(known) < len(values):
            return None
        if not self.worst:
            return sum(known) / len(known)
        up = any(o.metric == key and o.direction == "maximize" for o in self.objectives)
        up = up or any(c.metric == key and c.sign == ">=" for c in self.constraints)
        return min(known) if up else max(known)

    def scores(self, found: Figures) -> list[float]:
        """Return the values that the study minimises, one per objective."""
        violation = sum(c.violation(found) for c in self.constraints)
        scores = []
        for objective in self.objectives:
            value = found.get(objective.metric)
            if value is None or violation > 0:
                scores.append(PENALTY * (1 + violation + (value is None)))
            else:
                scores.append(-value if objective.direction == "maximize" else value)
        return scores


def open_study(name: str, objectives: int, storage: str | Path | None) -> optuna.Study:
    """Return a new or stored study.

    Parameters
    ----------
    name : str
        Name inside the storage.
    objectives : int
        How many values a trial has.
    storage : str or Path, optional
        A file for Optuna's journal, or any Optuna storage URL; None keeps it in memory.

    Raises
    ------
    InputError
        The storage holds a study of that name with other objectives, or cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place: Any = str(storage) if storage is not None else None
    if place is not None and "://" not in place:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        place = JournalStorage(JournalFileBackend(place))
    try:
        study = optuna.create_study(
            study_name=name,
            storage=place,
            directions=["minimize"] * objectives,
            load_if_exists=True,
        )
    except Exception as error:
        repair = "name another file or URL"
        raise InputError(f"cannot be opened: {error}", str(storage), repair=repair) from None
    if len(study.directions) != objectives:
        what = f"study {name!r} has {len(study.directions)} objectives, not {objectives}"
        raise InputError(what, str(storage), repair="use another --storage")
    return study


def run_trials(
    study: optuna.Study,
    space: Space,
    evaluator: Evaluator,
    budget: int,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Run trials until the study has `budget` of them that ended.

    A trial is first tried on the leading quarter of the requests; when its score there is in the
    worse half of all trials so far it stops (successive halving over trace length).
    """
    for stale in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(stale.number, state=TrialState.FAIL)
    most = budget if space.size() is None else min(budget, space.size() or 0)
    while (number := len(study.get_trials(deepcopy=False))) < MOST_ASKS * budget:
        if _ended(study) >= most:
            break
        study.sampler = _sampler(seed, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = study.ask()
            _run_trial(study, trial, space, evaluator)
        if progress:
            progress(_ended(study) / most)


def _ended(study: optuna.Study) -> int:
    """Return how many different settings have been tried."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = study.get_trials(deepcopy=False, states=states)
    return len({repr(sorted(t.params.items())) for t in trials})


def _sampler(seed: int, number: int) -> TPESampler:
    own = crc32(f"{seed}/{number}".encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TPESampler(seed=own, multivariate=True, n_startup_trials=8)


def _run_trial(
    study: optuna.Study, trial: optuna.Trial, space: Space, evaluator: Evaluator
) -> None:
    setting = space.suggest(trial)
    if _repeats(study, trial):
        return
    try:
        first = evaluator.scores(evaluator.figures(setting, RUNGS[0]))
        trial.set_user_attr("first", first)
        if _stops(study, first):
            study.tell(trial, state=TrialState.PRUNED)
            return
        found = evaluator.figures(setting, RUNGS[-1])
    except RoofcastError as error:
        trial.set_user_attr("error", str(error))
        study.tell(trial, [PENALTY * 10] * len(study.directions))
        return
    trial.set_user_attr("figures", {k: v for k, v in found.items() if v is not None})
    study.tell(trial, evaluator.scores(found))


def _repeats(study: optuna.Study, trial: optuna.Trial) -> bool:
    """Return whether a setting was tried before; then tell its outcome again."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    for other in study.get_trials(deepcopy=False, states=states):
        if other.params != trial.params or other.number == trial.number:
            continue
        for key, value in other.user_attrs.items():
            trial.set_user_attr(key, value)
        if other.state == TrialState.PRUNED:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, list(other.values))
        return True
    return False


def _stops(study: optuna.Study, first: list[float]) -> bool:
    """Return whether a trial's first rung is in the worse half of what has been seen."""
    if len(first) > 1:
        return False
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    seen = [
        t.user_attrs["first"][0]
        for t in study.get_trials(deepcopy=False, states=states)
        if "first" in t.user_attrs
    ]
    if len(seen) < FEWEST_FOR_PRUNING:
        return False
    limit: float = sorted(seen)[int(PRUNE_ABOVE * len(seen))]
    return first[0] > limit
