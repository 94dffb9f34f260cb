"""One-step changes of a scenario: what an engineer would try next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from formats import RoofcastError
from hardware.catalog import accelerators, load_accelerator
from hardware.specs import AcceleratorSpec
from policies.base import registries
from sim.exploring.money import price_of
from sim.scenario import Policies, Scenario
from workloads.models import load_model

__all__ = ["Change", "one_step_changes"]

NEIGHBOURS = 2  # accelerators to try on each side of the price
CAP = 0.7  # power limit to try, share of the TDP
LIMITS = ("max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True)
class Change:
    """One change of a scenario.

    Attributes
    ----------
    words : str
        What is done, as an instruction.
    keys : dict
        Dotted key of the scenario -> new value.
    """

    words: str
    keys: dict[str, Any]


def one_step_changes(scenario: Scenario) -> list[Change]:
    """Return the changes to try; whether they fit is found out by running them.

    Examples
    --------
    >>> any(change.keys == {"hardware.tp": 2} for change in one_step_changes(Scenario()))
    True
    """
    makers = (_formats, _ranks, _batch_limits, _policies, _engine, _power, _chips)
    found = [change for make in makers for change in make(scenario)]
    return [c for c in found if _differs(scenario, c)]


def _differs(scenario: Scenario, change: Change) -> bool:
    try:
        return scenario.changed(change.keys) != scenario
    except RoofcastError:
        return False


def _formats(scenario: Scenario) -> Iterator[Change]:
    try:
        model = load_model(scenario.model.name)
        peaks = load_accelerator(scenario.hardware.accelerator).peaks.given()
    except RoofcastError:
        return
    weights = scenario.model.weights or model.weights
    if "fp8" in peaks and weights != "fp8":
        yield Change("Store and multiply weights in fp8", {"model.weights": "fp8"})
    if weights not in ("w4a16", "int4"):
        yield Change("Store weights in 4 bits (w4a16)", {"model.weights": "w4a16"})
    if weights != "bf16":
        yield Change("Store weights in bf16", {"model.weights": "bf16"})
    if (scenario.model.kv or model.kv) != "fp8":
        yield Change("Keep the KV cache in fp8", {"model.kv": "fp8"})


def _ranks(scenario: Scenario) -> Iterator[Change]:
    hardware = scenario.hardware
    yield Change(f"Split each replica over {2 * hardware.tp}", {"hardware.tp": 2 * hardware.tp})
    if hardware.tp % 2 == 0:
        yield Change(
            f"Split each replica over {hardware.tp // 2}", {"hardware.tp": hardware.tp // 2}
        )
    more = hardware.replicas + 1
    yield Change(f"Run {more} replicas", {"hardware.replicas": more})
    if hardware.replicas > 1:
        fewer = hardware.replicas - 1
        yield Change(f"Run {fewer} replica{'s' if fewer > 1 else ''}", {"hardware.replicas": fewer})


def _batch_limits(scenario: Scenario) -> Iterator[Change]:
    choice = scenario.policies.batching
    given = {p.name: p.default for p in registries["batching"].parameters(choice["name"])}
    for key in (name for name in LIMITS if name in given):
        now = int(choice.get(key, given[key]))
        for value in (now * 2, now // 2):
            word = "Raise" if value > now else "Lower"
            yield Change(f"{word} {key} to {value}", {"policies.batching": choice | {key: value}})


def _policies(scenario: Scenario) -> Iterator[Change]:
    """Yield every other policy that needs no parameter, of axes that a scenario names."""
    for axis in Policies.model_fields:
        registry, now = registries.get(axis), getattr(scenario.policies, axis)
        if registry is None or not isinstance(now, dict) or "name" not in now:
            continue
        if axis == "routing" and scenario.hardware.replicas == 1:
            continue
        for name in registry:
            needs = any(p.default == "required" for p in registry.parameters(name))
            if name != now["name"] and not needs:
                yield Change(f"Use {axis} {name}", {f"policies.{axis}": {"name": name}})


def _engine(scenario: Scenario) -> Iterator[Change]:
    if not scenario.engine.cuda_graphs:
        yield Change("Capture decode steps as CUDA graphs", {"engine.cuda_graphs": True})


def _power(scenario: Scenario) -> Iterator[Change]:
    cap = scenario.hardware.power_cap_w
    if cap is not None:
        yield Change("Lift the power limit", {"hardware.power_cap_w": None})
        return
    try:
        watts = round(CAP * load_accelerator(scenario.hardware.accelerator).tdp_w)
    except RoofcastError:
        return
    yield Change(
        f"Limit power to {watts} W per accelerator", {"hardware.power_cap_w": float(watts)}
    )


def _chips(scenario: Scenario) -> Iterator[Change]:
    """Yield those of the same kind that were measured, or whose rent is next to the present one."""
    name = scenario.hardware.accelerator
    if name not in accelerators:
        return
    spec = accelerators.load(name)
    own = price_of(name, spec)
    if own is None:
        return
    priced = sorted(_rents(spec.kind))
    below = [n for rent, n in priced if rent <= own.per_hour and n != name]
    above = [n for rent, n in priced if rent > own.per_hour and n != name]
    measured = [n for _, n in priced if accelerators.load(n).calibration and n != name]
    for other in dict.fromkeys([*measured, *below[-NEIGHBOURS:], *above[:NEIGHBOURS]]):
        words = f"Use {accelerators.load(other).name}"
        yield Change(words, {"hardware.accelerator": other, "hardware.power_cap_w": None})


def _rents(kind: str) -> Iterator[tuple[float, str]]:
    for name in accelerators:
        spec: AcceleratorSpec = accelerators.load(name)
        price = price_of(name, spec) if spec.kind == kind else None
        if price is not None:
            yield price.per_hour, name
