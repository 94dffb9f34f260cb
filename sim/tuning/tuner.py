"""Tune a deployment: search, compare finalists, judge on requests that the search did not see."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from formats import InputError
from sim.scenario import Scenario
from sim.sweeping.keys import check_scenario, effective
from sim.tuning.evaluator import CANNOT, Evaluator, Judged
from sim.tuning.finalists import Finalist, compare
from sim.tuning.goals import Constraint, Objective
from sim.tuning.importance import importance
from sim.tuning.loads import Load
from sim.tuning.sampler import ended
from sim.tuning.space import Setting, Space, applied, check_space, word
from sim.tuning.storage import open_study, study_name
from sim.tuning.study import Progress, Search

__all__ = ["TuneResult", "moved", "tune"]

FINALISTS, REPEATS = 4, 5


@dataclass(frozen=True)
class TuneResult:
    """What a tuning returns.

    Attributes
    ----------
    trials : DataFrame
        One row per trial that ended: state, knobs, figures, violation, error, on_front.
    default, best : Finalist
        The scenario as it is, and the setting to deploy (may be the same).
    finalists : list of Finalist
        All compared settings but the default, best first.
    importance : dict
        Objective -> share of the variation of its ranks that each knob alone explains [0..1].
    start, scenario : Scenario
        As it was, and tuned.
    objectives, constraints
        What counted.
    repeats : int
        Runs per finalist and workload.
    drawn : bool
        Repeats are new draws of the requests; otherwise windows of the trace.
    workloads : list of str
        Names of the scenarios whose workloads counted.
    simulations : int
        How many this process ran.
    study : str
        Name of the study in its storage.
    """

    trials: pd.DataFrame
    default: Finalist
    best: Finalist
    finalists: list[Finalist]
    importance: dict[str, dict[str, float]]
    start: Scenario
    scenario: Scenario
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    repeats: int
    drawn: bool
    workloads: list[str]
    worst: bool
    simulations: int
    study: str

    @property
    def knobs(self) -> list[str]:
        """Keys of the space."""
        names = list(self.trials.columns)
        return names[2 : names.index("violation")]

    @property
    def front(self) -> pd.DataFrame:
        """Trials that no other trial beats."""
        return self.trials[self.trials["on_front"]]


def tune(
    scenario: Scenario,
    space: Space,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint] = (),
    *,
    budget: int = 200,
    seed: int = 0,
    storage: str | Path | None = None,
    workloads: Sequence[tuple[Scenario, Path]] = (),
    worst: bool = False,
    train_share: float = 0.7,
    base: Path = Path(),
    progress: Progress | None = None,
) -> TuneResult:
    """Find the best setting of a deployment.

    Parameters
    ----------
    scenario : Scenario
        What is tuned; its requests are split in time: the search sees the first part.
    space : Space
        Knobs and their values.
    objectives, constraints
        What counts.
    budget : int
        Different settings to try.
    seed : int
        Seed of the search; that of the requests is the scenario's.
    storage : str or Path, optional
        Journal file or Optuna storage URL; the same call resumes.
    workloads : sequence of (Scenario, Path)
        Further workloads that the setting must serve, with the folder of their traces; only their
        `[workload]` and `[slo]` are used.
    worst : bool
        Judge by the worst workload, not by the mean.
    train_share : float
        Share of the time of arrivals that the search sees, (0, 1].
    base : Path
        Folder that relative paths of the scenario start from.
    progress : callable, optional
        Called with the share of settings tried [0..1].

    Raises
    ------
    InputError
        Scenario, space, objectives or storage are wrong, or the scenario itself cannot run.

    Examples
    --------
    >>> quick = Scenario().changed({"workload.duration_s": 10.0})
    >>> space = Space(knobs={"policies.batching.max_num_seqs": [1, 64]})
    >>> found = tune(quick, space, [Objective("e2e_mean_s", "minimize")], budget=2)
    >>> found.trials.sort_values("e2e_mean_s")["policies.batching.max_num_seqs"].tolist()
    [64, 1]
    """
    if not objectives:
        raise InputError("no objective is given", "--objective", repair="such as goodput")
    if not 0 < train_share <= 1:
        raise InputError(f"share {train_share:g} of the time", "--train-share", "above 0, up to 1")
    check_scenario(scenario, "scenario")
    check_space(space, scenario)
    pairs = [(scenario, base), *workloads]
    loads = [Load(own, folder, train_share) for own, folder in pairs]
    work = Evaluator(scenario, loads, objectives, constraints, worst)
    work.scales()
    name = study_name(space, work, seed)
    study = open_study(name, len(objectives), storage)
    Search(study, space, work, seed).run(budget, progress)
    return _result(study, space, work)


def _result(study: optuna.Study, space: Space, work: Evaluator) -> TuneResult:
    rows = [load.repeats(load.of(work.scenario), REPEATS) for load in work.loads]
    repeats = list(zip(*rows, strict=False))
    default, *others = compare(work, [{}, *_candidates(study, space, work)], repeats)
    best = _best(default, others, work.objectives)
    return TuneResult(
        _trial_table(study, space, work),
        default,
        best,
        sorted(others, key=lambda f: f.rank(work.objectives)),
        {o.metric: importance(study, space, i) for i, o in enumerate(work.objectives)},
        work.scenario,
        applied(work.scenario, best.setting)[0],
        tuple(work.objectives),
        tuple(work.constraints),
        len(repeats),
        all(load.drawn() for load in work.loads),
        [load.scenario.name for load in work.loads],
        work.worst,
        work.simulations,
        study.study_name,
    )


def _judged(trial: FrozenTrial) -> Judged:
    violation = float(trial.constraints.get("violation", 0.0))
    return Judged(list(trial.values or []), violation, trial.user_attrs.get("figures", {}))


def _complete(study: optuna.Study) -> list[tuple[FrozenTrial, Judged]]:
    """Return trials that ran to the end, with what they are worth."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [(t, judged) for t in trials if (judged := _judged(t)).violation < CANNOT]


def _front(study: optuna.Study) -> list[tuple[FrozenTrial, Judged]]:
    """Return the trials that no other beats: one, or several where objectives disagree."""
    found = _complete(study)
    return [(t, own) for t, own in found if not any(o.dominates(own) for _, o in found)]


def _candidates(study: optuna.Study, space: Space, work: Evaluator) -> list[Setting]:
    """Return the settings to compare.

    With one objective the best; with several, the front's best in each and the best in their sum.
    """
    found = _complete(study)
    count = len(work.objectives)
    if count > 1:
        front = sorted(_front(study), key=lambda p: sum(p[1].losses))
        losses = [judged.losses for _, judged in front]
        ends = [
            min(range(len(front)), key=[row[i] for row in losses].__getitem__)
            for i in range(count if front else 0)
        ]
        chosen = [front[i] for i in dict.fromkeys([*ends, *range(len(front))])]
    else:
        chosen = sorted(found, key=lambda p: (p[1].violation, p[1].losses[0]))
    settings: dict[str, Setting] = {}
    for trial, judged in chosen:
        setting = applied(work.scenario, space.setting(trial.params))[1]
        worth = word([judged.violation, judged.losses])
        # of settings that are worth the same, that which changes least
        if len(moved(setting, work.scenario)) < len(settings.get(worth, found)):
            settings[worth] = setting
    different = [s for s in settings.values() if moved(s, work.scenario)]
    return different[: max(FINALISTS, count + 1)]


def moved(setting: Setting, scenario: Scenario) -> Setting:
    """Return the part of a setting that differs from a scenario as it is."""
    return {key: value for key, value in setting.items() if effective(scenario, key) != value}


def _best(
    default: Finalist, others: Sequence[Finalist], objectives: Sequence[Objective]
) -> Finalist:
    """Return the setting to deploy; the default, unless another is better beyond chance."""
    if not others:
        return default
    first = min(others, key=lambda f: f.rank(objectives))
    if first.seen.violation != default.seen.violation:
        return first if first.seen.violation < default.seen.violation else default
    gain = first.seen.gain
    alone = gain is not None and gain.low is None and gain.mean > 0
    return first if gain is not None and (gain.sure or alone) else default


def _trial_table(study: optuna.Study, space: Space, work: Evaluator) -> pd.DataFrame:
    front = {trial.number for trial, _ in _front(study)}
    rows = []
    for place, trial in enumerate(ended(study)):
        judged = _judged(trial)
        setting = applied(work.scenario, space.setting(trial.params))[1]
        cannot = judged.violation >= CANNOT
        row: dict[str, Any] = {"trial": place, "state": _state(trial, judged)}
        row |= {key: setting.get(key) for key in space.knobs}
        row |= {"violation": None if cannot else judged.violation}
        row |= {"error": trial.user_attrs.get("error"), "on_front": trial.number in front}
        rows.append({**row, **judged.figures})
    return pd.DataFrame(rows)


def _state(trial: FrozenTrial, judged: Judged) -> str:
    if trial.state == TrialState.PRUNED:
        return "stopped early"
    if judged.violation >= CANNOT:
        return "cannot run"
    return "misses constraints" if judged.violation > 0 else "complete"
