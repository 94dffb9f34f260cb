"""From naive to optimised: what each step saves for one output token, at full load.

Each bar is the deployment with one more optimisation, as the step tables give it (`estimate`);
no bar is typed in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from formats import RoofcastError
from hardware.catalog import load_accelerator
from policies.base import registries
from sim.deployment import Deployment, deploy
from sim.exploring.estimate import estimate
from sim.exploring.money import per_million, price_of
from sim.scenario import Scenario
from sim.simulation import workload_requests
from workloads.models import load_model

__all__ = ["ladder", "waterfall"]

OVERLOAD = 50.0  # times the workload's rate: the curve is read at its end
Step = tuple[str, dict[str, Any]]


def ladder(scenario: Scenario) -> list[Step]:
    """Return the steps from a naive deployment to the scenario and beyond, as changes.

    Examples
    --------
    >>> [words for words, _ in ladder(Scenario())][:2]
    ['one request at a time, eager', 'continuous batching']
    """
    batching = dict(scenario.policies.batching)
    keys = {p.name for p in registries["batching"].parameters(batching["name"])}
    alone = batching | ({"max_num_seqs": 1} if "max_num_seqs" in keys else {})
    naive: dict[str, Any] = {
        "engine.cuda_graphs": False,
        "policies.batching": alone,
        "model.weights": _plain(scenario),
        "model.kv": None,
        "model.activations": None,
    }
    together = {"policies.batching": batching}
    steps: list[Step] = [("one request at a time, eager", naive), ("continuous batching", together)]
    steps.append(("CUDA graphs", {"engine.cuda_graphs": True}))
    return [*steps, *_formats(scenario)]


def _plain(scenario: Scenario) -> str | None:
    """Return the format of unquantised weights, None where the model's file has none other."""
    try:
        model = load_model(scenario.model.name)
    except RoofcastError:
        return None
    return None if model.weights == model.dtype else model.dtype


def _formats(scenario: Scenario) -> Iterator[Step]:
    """Yield the number formats of the scenario, else what the chip offers."""
    try:
        peaks = load_accelerator(scenario.hardware.accelerator).peaks.given()
    except RoofcastError:
        return
    weights = scenario.model.weights or ("fp8" if "fp8" in peaks else "w4a16")
    if weights not in ("bf16", "fp16"):
        yield f"weights in {weights}", {"model.weights": weights}
    kv = scenario.model.kv or "fp8"
    if kv not in ("bf16", "fp16"):
        yield f"KV cache in {kv}", {"model.kv": kv}


def waterfall(scenario: Scenario, base: Path = Path(), way: str = "rented") -> pd.DataFrame:
    """Return what an output token takes after each step of the ladder.

    Parameters
    ----------
    scenario : Scenario
        What is deployed in the end, and its workload.
    base : Path
        Folder that relative paths start from.
    way : str
        "rented" or "owned".

    Returns
    -------
    DataFrame
        step, seconds (of one accelerator, per output token) [s], joules [J], usd [USD per
        million tokens]; steps that cannot be run are left out.
    """
    requests = workload_requests(scenario, base)
    crowded = requests.assign(arrival_s=requests["arrival_s"] / OVERLOAD)
    longest = int((requests["prompt_tokens"] + requests["output_tokens"]).max())
    rows, now = [], scenario
    for words, keys in ladder(scenario):
        try:
            now = now.changed(keys)
            deployment = deploy(now, longest)
        except RoofcastError:
            continue
        rows.append({"step": words, **_per_token(now, deployment, crowded, way)})
    return pd.DataFrame(rows, columns=["step", "seconds", "joules", "usd"])


def _per_token(
    scenario: Scenario, deployment: Deployment, requests: pd.DataFrame, way: str
) -> dict[str, float]:
    """Return accelerator seconds, joules and money of an output token at full load."""
    found = estimate(scenario, deployment, requests)
    chips = scenario.hardware.accelerators
    output = float(requests["output_tokens"].mean())
    tokens = found.curve.most_per_s * scenario.hardware.replicas * output
    watts = found.full_load_w
    price = price_of(scenario.hardware.accelerator, deployment.spec, way)
    cost = per_million(price, chips, watts, tokens) if price else float("nan")
    return {"seconds": chips / tokens, "joules": watts / tokens, "usd": cost}
