"""Join hardware, workloads and policies into a simulated deployment.

Names are imported when they are first used, so that ``roofcast --help`` does not wait for numba.
A module of this package must not bear a name of `__all__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.comparison import compare
    from sim.planning import plan
    from sim.scenario import Scenario, load_scenario
    from sim.simulation import Result, simulate
    from sim.sweeping import sweep
    from sim.tuning import tune

__all__ = ["Result", "Scenario", "compare", "load_scenario", "plan", "simulate", "sweep", "tune"]

_HOMES = {
    "Result": "sim.simulation",
    "Scenario": "sim.scenario",
    "compare": "sim.comparison",
    "load_scenario": "sim.scenario",
    "plan": "sim.planning",
    "simulate": "sim.simulation",
    "sweep": "sim.sweeping",
    "tune": "sim.tuning",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
