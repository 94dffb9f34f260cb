"""Tuning: find the settings to deploy, say how sure that is, and write them as engine flags."""

from sim.tuning.flags import deployable
from sim.tuning.goals import Constraint, Objective, parse_constraint, parse_objective
from sim.tuning.space import Space, load_space
from sim.tuning.tuner import TuneResult, tune

__all__ = [
    "Constraint",
    "Objective",
    "Space",
    "TuneResult",
    "deployable",
    "load_space",
    "parse_constraint",
    "parse_objective",
    "tune",
]
