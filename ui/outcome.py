"""What a scenario does: the estimate at once, then the simulation, other seeds and bands."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pandas as pd

from sim.charts_explore import frontier_table
from sim.deployment import Deployment, deploy
from sim.exploring.advice import cost_of
from sim.exploring.bands import Band, model_bands, reaching_steady_state, with_seeds
from sim.exploring.estimate import Estimate, estimate
from sim.exploring.money import per_million, price_of
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import Result, simulate, workload_requests
from ui.jobs import Teller

__all__ = [
    "COST",
    "Outcome",
    "quick",
    "quick_on",
    "requests_of",
    "run",
    "scenario_key",
    "simulated",
]

SEEDS = 4  # further seeds behind the first
SEEDS_UP_TO = 3000  # requests; a longer run has little noise and is not repeated
COST = "usd_per_million"
AT_COST = ("power_mean_w", "output_tokens_per_s")


@dataclass
class Outcome:
    """Figures of a scenario, and what they rest on.

    Attributes
    ----------
    scenario : Scenario
        What was run.
    estimate : Estimate
        Steady state from step tables.
    figures : dict
        Summary of the simulation, or figures of the estimate, with the cost of tokens.
    deployment : Deployment
        One replica.
    ratios : dict
        Figure -> (low, high) over its value, from the errors of kernels.
    rough : dict
        The same while only the estimate is there: up to the steady state of a longer run.
    result : Result or None
        The simulation, None while only the estimate is there.
    others : list of dict
        Figures of other seeds.
    """

    scenario: Scenario
    estimate: Estimate
    figures: dict[str, Any]
    deployment: Deployment
    ratios: dict[str, tuple[float, float]]
    rough: dict[str, tuple[float, float]]
    result: Result | None = None
    others: list[dict[str, Any]] = field(default_factory=list)

    def band(self, name: str) -> Band | None:
        """Return a figure with its band, None where it does not exist."""
        value = self.figures.get(name)
        if not isinstance(value, int | float):
            return None
        others = [other.get(name) for other in self.others]
        return with_seeds(float(value), self._ratio(name), others)

    def frontier(self, name: str) -> pd.DataFrame:
        """Return operating points of one replica, see `frontier_table`."""
        hardware = self.scenario.hardware
        output = self.figures["output_tokens_per_s"] / max(self.figures["requests_per_s"], 1e-9)
        each = hardware.accelerators // hardware.replicas
        return frontier_table(self.estimate.curve, each, output, name)

    def _ratio(self, name: str) -> tuple[float, float] | None:
        ratios = self.rough if self.result is None else self.ratios
        if name == "goodput_per_s":
            return ratios.get("slo_attainment")
        if name == COST:
            low, high = ratios.get("output_tokens_per_s", (1.0, 1.0))
            return 1.0 / high, 1.0 / low
        return ratios.get(name)


def scenario_key(scenario: Scenario, *more: str) -> str:
    """Return what tells scenarios apart: their content, and anything more that matters."""
    return json.dumps([scenario.model_dump(mode="json"), *more], sort_keys=True)


@lru_cache(maxsize=16)
def _requests(workload: str, seed: int) -> pd.DataFrame:
    scenario = Scenario.model_validate({"workload": json.loads(workload), "run": {"seed": seed}})
    return workload_requests(scenario)


def requests_of(scenario: Scenario) -> pd.DataFrame:
    """Return the requests table of a scenario; the same one for the same workload and seed."""
    workload = json.dumps(scenario.workload.model_dump(mode="json"), sort_keys=True)
    return _requests(workload, scenario.run.seed)


@lru_cache(maxsize=32)
def _deployment(serving: str, longest: int) -> Deployment:
    return deploy(Scenario.model_validate_json(serving), longest)


def deployment_of(scenario: Scenario, requests: pd.DataFrame) -> Deployment:
    """Return one replica of a scenario; the same one while only the load changes."""
    serving = scenario.model_copy(
        update={"workload": Scenario().workload, "name": "-", "slo": Scenario().slo}
    )
    longest = int((requests["prompt_tokens"] + requests["output_tokens"]).max())
    return _deployment(serving.model_dump_json(), longest)


def quick(scenario: Scenario, way: str = "rented") -> Outcome:
    """Return the estimate of a scenario, in milliseconds once its parts are known.

    Raises
    ------
    InputError
        Something in the scenario is wrong or does not fit.
    """
    return _quick(scenario, requests_of(scenario), way)


def _quick(scenario: Scenario, requests: pd.DataFrame, way: str) -> Outcome:
    deployment = deployment_of(scenario, requests)
    middle = estimate(scenario, deployment, requests)
    figures: dict[str, Any] = dict(middle.figures)
    price = price_of(scenario.hardware.accelerator, deployment.spec, way)
    if price is not None:
        watts, tokens = (figures[name] for name in AT_COST)
        figures[COST] = per_million(price, scenario.hardware.accelerators, watts, tokens)
    ratios = model_bands(scenario, deployment, requests, middle)
    rough = reaching_steady_state(scenario, deployment, requests, middle, ratios)
    return Outcome(scenario, middle, figures, deployment, ratios, rough)


def run(scenario: Scenario, way: str, tell: Teller) -> Outcome:
    """Simulate a scenario, tell the result, then simulate other seeds for the bands.

    Raises
    ------
    InputError
        Something in the scenario is wrong or does not fit.
    """
    tell(0.0, "preparing the engine")
    outcome = quick(scenario, way)
    requests = requests_of(scenario)
    tell(0.05, f"simulating {len(requests):,} requests")
    result = simulate(scenario, requests, progress=lambda share: tell(0.05 + 0.5 * share))
    outcome.figures = _figures(scenario, result, way)
    outcome.result = result
    tell.publish(outcome)
    if len(requests) <= SEEDS_UP_TO:
        outcome.others = [_other_seed(scenario, way, i, tell) for i in range(1, SEEDS + 1)]
    return outcome


def quick_on(scenario: Scenario, requests: pd.DataFrame, way: str = "rented") -> Outcome:
    """Return the estimate of a scenario on requests of another.

    Raises
    ------
    InputError
        Something in the scenario is wrong or does not fit.
    """
    return _quick(scenario, requests, way)


def simulated(
    outcome: Outcome, result: Result, others: list[dict[str, Any]], way: str = "rented"
) -> Outcome:
    """Return an outcome with its simulation, and with figures of other seeds for the bands."""
    outcome.result = result
    outcome.figures = _figures(outcome.scenario, result, way)
    costs = [cost_of(outcome.scenario, result, one, way) for one in others]
    outcome.others = [one | {COST: cost} for one, cost in zip(others, costs, strict=True)]
    return outcome


def _figures(scenario: Scenario, result: Result, way: str) -> dict[str, Any]:
    figures = summary(result)
    cost = cost_of(scenario, result, figures, way)
    return figures if cost is None else figures | {COST: cost}


def _other_seed(scenario: Scenario, way: str, step: int, tell: Teller) -> dict[str, Any]:
    tell(0.55 + 0.45 * step / (SEEDS + 1), f"seed {step + 1} of {SEEDS + 1}, for the bands")
    other = scenario.changed({"run.seed": scenario.run.seed + step})
    return _figures(other, simulate(other), way)
