"""Objectives of each class of traffic: those of the scenario, else those of a named workload."""

from sim.scenario import ClassSlo, Scenario, Slo
from workloads.named import WorkloadPart, load_workload

__all__ = ["DEFAULT_CLASS", "given", "objectives", "objectives_of"]

DEFAULT_CLASS = "default"


def given(slo: ClassSlo) -> dict[str, float]:
    """Return the objectives that are set: ttft, tpot, e2e -> seconds.

    Examples
    --------
    >>> given(Slo(ttft_s=0.5))
    {'ttft': 0.5}
    """
    values = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    return {name: value for name, value in values.items() if value is not None}


def objectives(scenario: Scenario) -> dict[str, Slo]:
    """Return class of traffic -> objectives.

    ``[slo.classes.NAME]`` holds for its class. ``[slo]`` holds for every other where it sets any
    objective; otherwise a class has those of the named workload that it comes from, and none where
    it comes from elsewhere.

    Examples
    --------
    >>> objectives(Scenario(workload={"named": "chat"}))["default"].ttft_s
    0.45
    >>> scenario = Scenario(slo={"ttft_s": 1.0, "classes": {"batch": {"e2e_s": 60.0}}})
    >>> {name: given(slo) for name, slo in objectives(scenario).items()}
    {'default': {'ttft': 1.0}, 'batch': {'e2e': 60.0}}
    """
    parts = scenario.workload.mix or [scenario.workload]
    found = {part.traffic_class or DEFAULT_CLASS: _of_part(scenario, part) for part in parts}
    own = scenario.slo.classes
    return found | {name: Slo(**slo.model_dump()) for name, slo in own.items()}


def _of_part(scenario: Scenario, part: WorkloadPart) -> Slo:
    if given(scenario.slo) or part.named is None:
        return scenario.slo
    named = load_workload(part.named).objectives
    return Slo(
        ttft_s=named.ttft_s,
        tpot_s=named.tpot_s,
        e2e_s=named.e2e_s,
        percentile=named.percentile,
    )


def objectives_of(scenario: Scenario, traffic_class: str) -> Slo:
    """Return the objectives of one class; those of ``[slo]`` where the class is not known."""
    return objectives(scenario).get(traffic_class, scenario.slo)
