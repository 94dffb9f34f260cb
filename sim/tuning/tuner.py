"""Tune a deployment: search, compare finalists on several seeds, judge on requests unseen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from formats import InputError
from sim.scenario import Scenario
from sim.simulation import workload_requests
from sim.tuning.goals import Constraint, Objective
from sim.tuning.space import Space
from sim.tuning.study import PENALTY, Evaluator, Figures, Progress, open_study, run_trials

__all__ = ["Finalist", "TuneResult", "tune"]

FINALISTS, SEEDS, CONFIDENCE, LEAST_REQUESTS = 3, 5, 0.95, 8


@dataclass(frozen=True)
class Finalist:
    """A setting on several seeds, against the default on the same seeds.

    Attributes
    ----------
    setting : dict
        Scenario key -> value.
    value : float
        Mean of the objective.
    gain, low, high : float
        Mean improvement over the default and its confidence interval, relative (0.1 = 10 %).
    violation : float
        Mean violation of the constraints, relative; 0 = all hold.
    figures : dict
        Means of all metrics.
    """

    setting: dict[str, Any]
    value: float
    gain: float
    low: float
    high: float
    violation: float
    figures: Figures


@dataclass(frozen=True)
class TuneResult:
    """What a tuning returns.

    Attributes
    ----------
    trials : DataFrame
        One row per trial: number, state, knobs, objectives and constrained metrics.
    default, best : Finalist
        The scenario as it is, and the setting to deploy.
    finalists : list of Finalist
        Best first.
    front : DataFrame
        Trials that no other beats in all objectives.
    importance : dict
        Share of the objective's variation that each knob explains [0..1].
    unseen : dict
        Objective of default and best on the later window of the trace that the search did not see.
    scenario : Scenario
        The tuned scenario.
    """

    trials: pd.DataFrame
    default: Finalist
    best: Finalist
    finalists: list[Finalist]
    front: pd.DataFrame
    importance: dict[str, float]
    unseen: dict[str, float | None]
    scenario: Scenario
    objectives: Sequence[Objective] = ()
    constraints: Sequence[Constraint] = ()
    traded: dict[str, tuple[float, float]] = field(default_factory=dict)


def tune(
    scenario: Scenario,
    space: Space,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint] = (),
    *,
    budget: int = 200,
    seed: int = 0,
    storage: str | Path | None = None,
    workloads: Sequence[Scenario] = (),
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
        Trials.
    seed : int
        Seed of the search.
    storage : str or Path, optional
        Journal file or Optuna storage URL; the same call resumes.
    workloads : sequence of Scenario
        Further workloads that the setting must serve; only their `[workload]` is used.
    worst : bool
        Judge by the worst workload, not by the mean.
    train_share : float
        Share of the time of arrivals that the search sees.
    """
    if not objectives:
        raise InputError("no objective is given", "--objective", repair="such as goodput")
    tables = [workload_requests(s, base) for s in (scenario, *workloads)]
    split = [_split(table, train_share) for table in tables]
    work = Evaluator(scenario, [a for a, _ in split], objectives, constraints, worst, base)
    study = open_study(_name(objectives, constraints), len(objectives), storage)
    run_trials(study, space, work, budget, seed, progress)
    settings = [space.default(scenario), *_candidates(study, space)]
    default, *others = _compare(work, settings, scenario.run.seed)
    best = _best(default, others)
    unseen_work = Evaluator(scenario, [b for _, b in split], objectives, constraints, worst, base)
    unseen = {
        "default": unseen_work.figures({}).get(objectives[0].metric),
        "best": unseen_work.figures(best.setting).get(objectives[0].metric),
    }
    return TuneResult(
        _trial_table(study, space, objectives, constraints),
        default,
        best,
        sorted(others, key=lambda f: -f.gain),
        _front(study, space, objectives),
        _importance(study),
        unseen,
        scenario.changed(best.setting),
        tuple(objectives),
        tuple(constraints),
        _traded(default, best),
    )


def _name(objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> str:
    return " ".join([*(o.metric for o in objectives), *map(str, constraints)])


def _split(table: pd.DataFrame, share: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the requests before and after a share of the time of arrivals."""
    cut = float(table["arrival_s"].max()) * share
    seen = table[table["arrival_s"] <= cut]
    later = table[table["arrival_s"] > cut]
    if min(len(seen), len(later)) < LEAST_REQUESTS:
        return table, table
    return seen.reset_index(drop=True), later.assign(
        arrival_s=later["arrival_s"] - later["arrival_s"].min()
    ).reset_index(drop=True)


def _decode(space: Space, params: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's setting: places in lists become their values."""
    return {
        key: space.knobs[key][value] if isinstance(space.knobs[key], list) else value  # type: ignore[index]
        for key, value in params.items()
    }


def _finished(study: optuna.Study) -> list[FrozenTrial]:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda t: (t.values, t.number))


def _candidates(study: optuna.Study, space: Space) -> list[dict[str, Any]]:
    """Return the best distinct settings of a study."""
    chosen: list[dict[str, Any]] = []
    for trial in _finished(study):
        setting = _decode(space, trial.params)
        if setting not in chosen and trial.values[0] < PENALTY * 10:
            chosen.append(setting)
        if len(chosen) == FINALISTS:
            break
    return chosen


def _compare(work: Evaluator, settings: list[dict[str, Any]], seed: int) -> list[Finalist]:
    """Simulate settings on the same seeds and compare each with the first (paired t interval)."""
    runs = [[work.figures(setting, 1.0, seed + i) for i in range(SEEDS)] for setting in settings]
    return [_finalist(work, s, own, runs[0]) for s, own in zip(settings, runs, strict=True)]


def _finalist(
    work: Evaluator, setting: dict[str, Any], own: list[Figures], default: list[Figures]
) -> Finalist:
    goal = work.objectives[0]
    sign = 1.0 if goal.direction == "maximize" else -1.0
    mine = np.array([run.get(goal.metric) or 0.0 for run in own])
    other = np.array([run.get(goal.metric) or 0.0 for run in default])
    scale = abs(other.mean()) or 1.0
    gains = sign * (mine - other) / scale
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(gains) - 1) * stats.sem(gains))
    mean = {key: _mean([run.get(key) for run in own]) for key in own[0]}
    violation = sum(c.violation(mean) for c in work.constraints)
    gain = float(gains.mean())
    return Finalist(setting, float(mine.mean()), gain, gain - half, gain + half, violation, mean)


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _best(default: Finalist, others: list[Finalist]) -> Finalist:
    """Return the finalist to deploy: constraints first, then the gain over the default."""
    ranked = sorted([default, *others], key=lambda f: (f.violation, -f.gain))
    return ranked[0]


def _trial_table(
    study: optuna.Study,
    space: Space,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> pd.DataFrame:
    wanted = [*(o.metric for o in objectives), *(c.metric for c in constraints)]
    rows = []
    for trial in study.get_trials(deepcopy=False):
        found = trial.user_attrs.get("figures", {})
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                **_decode(space, trial.params),
                **{name: found.get(name) for name in wanted},
                "error": trial.user_attrs.get("error"),
            }
        )
    return pd.DataFrame(rows)


def _front(study: optuna.Study, space: Space, objectives: Sequence[Objective]) -> pd.DataFrame:
    trials = [t for t in study.best_trials if t.values[0] < PENALTY]
    rows = [
        {
            **_decode(space, t.params),
            **{o.metric: t.user_attrs.get("figures", {}).get(o.metric) for o in objectives},
        }
        for t in trials
    ]
    return pd.DataFrame(rows).drop_duplicates().reset_index(drop=True)


def _importance(study: optuna.Study) -> dict[str, float]:
    """Return the importance of each knob (PED-ANOVA, no further package)."""
    import warnings

    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if len(_finished(study)) < 4:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = get_param_importances(
                study,
                evaluator=PedAnovaImportanceEvaluator(),
                target=lambda t: t.values[0],
            )
        except (ValueError, RuntimeError):
            return {}
    return {key: float(value) for key, value in found.items()}


TRADED = (
    "ttft_p99_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "output_tokens_per_s",
    "goodput_per_s",
    "energy_per_output_token_j",
    "power_mean_w",
)


def _traded(default: Finalist, best: Finalist) -> dict[str, tuple[float, float]]:
    """Return headline metrics before and after."""
    found = {}
    for name in TRADED:
        before, after = default.figures.get(name), best.figures.get(name)
        if before is not None and after is not None:
            found[name] = (before, after)
    return found
