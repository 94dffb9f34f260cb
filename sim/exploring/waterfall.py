"""From naive to optimised: what each step saves of an output token, in time, energy and money.

Each bar is a simulation of the deployment with one more optimisation: a crowd of requests is
served by one replica that takes so many at a time. No bar is typed in.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from formats import RoofcastError
from hardware.catalog import load_accelerator
from policies.base import registries
from sim.exploring.money import per_million, price_of
from sim.scenario import Scenario
from sim.simulation import Result, simulate, workload_requests
from workloads.models import load_model

__all__ = ["COLUMNS", "figures_of_crowd", "ladder", "waterfall"]

COLUMNS = ("step", "seconds", "joules", "usd", "saved_s", "saved_j", "saved_usd", "quality")
ROUNDS = 8  # requests that are served, over those served at a time
ALONE: dict[str, Any] = {
    "hardware.replicas": 1,
    "pools": (),
    "autoscaling": None,
    "failures": None,
    "shared_cache": None,
    "run.horizon_s": None,
}
Step = tuple[str, dict[str, Any]]
Progress = Callable[[float], None]


def ladder(scenario: Scenario, batch: int = 32) -> list[Step]:
    """Return the steps from a naive deployment to the scenario and beyond, as changes.

    Parameters
    ----------
    scenario : Scenario
        What is deployed in the end; techniques that it does not name are those that fit its chip.
    batch : int
        Requests served at a time.

    Examples
    --------
    >>> [words for words, _ in ladder(Scenario())][:2]
    ['fp32, unfused, eager, static batches', 'bf16 weights and cache']
    """
    return [
        ("fp32, unfused, eager, static batches", _naive(batch)),
        *_formats(scenario),
        ("fused attention", {"kernels.attention": "fused"}),
        ("fused element-wise kernels", {"kernels.fusion": scenario.kernels.fusion}),
        ("CUDA graphs", {"engine.cuda_graphs": True}),
        ("continuous batching", {"policies.batching": _batching(scenario, batch)}),
        _speculation(scenario),
    ]


def _naive(batch: int) -> dict[str, Any]:
    return {
        "model.weights": "fp32",
        "model.activations": None,
        "model.experts": None,
        "model.kv": "fp32",
        "kernels.fusion": "none",
        "kernels.attention": "unfused",
        "engine.cuda_graphs": False,
        "policies.batching": {"name": "static", "max_num_seqs": batch},
        "decoding": {"name": "none"},
    }


def _formats(scenario: Scenario) -> Iterator[Step]:
    """Yield 16 bits, then the narrow formats of the scenario, else what the chip multiplies in."""
    wide = load_model(scenario.model.name).dtype
    yield f"{wide} weights and cache", {"model.weights": wide, "model.kv": wide}
    peaks = load_accelerator(scenario.hardware.accelerator).peaks.given()
    usual = next((name for name in ("fp8", "int8") if name in peaks), "w4a16")
    own = scenario.model
    weights = own.weights if own.weights not in (None, wide, "fp32") else usual
    formats = {"model.activations": own.activations, "model.experts": own.experts}
    yield f"{weights} weights", {"model.weights": weights, **formats}
    kv = own.kv if own.kv not in (None, wide, "fp32") else "fp8"
    yield f"{kv} cache", {"model.kv": kv}


def _batching(scenario: Scenario, batch: int) -> dict[str, Any]:
    """Return the scenario's batching, as many requests at a time as before."""
    choice = dict(scenario.policies.batching)
    if choice["name"] in ("static", "dynamic"):
        choice = {"name": "chunked-prefill"}
    known = {p.name for p in registries["batching"].parameters(choice["name"])}
    return choice | ({"max_num_seqs": batch} if "max_num_seqs" in known else {})


def _speculation(scenario: Scenario) -> Step:
    """Return the scenario's drafts, else trained layers with the best length for the batch."""
    choice = dict(scenario.decoding)
    if choice["name"] == "none":
        choice = {"name": "eagle", "length": "best"}
    return f"speculation ({choice['name']})", {"decoding": choice}


def waterfall(
    scenario: Scenario,
    base: Path = Path(),
    way: str = "rented",
    batch: int = 32,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return what an output token takes after each step of the ladder.

    Parameters
    ----------
    scenario : Scenario
        What is deployed in the end, and the lengths of its requests.
    base : Path
        Folder that relative paths start from.
    way : str
        "rented" or "owned".
    batch : int
        Requests served at a time.
    progress : callable, optional
        Told the share that is done [0..1].

    Returns
    -------
    DataFrame
        step, seconds (of one accelerator, per output token) [s], joules [J], usd [USD per
        million tokens], what the step saves of each (saved_s, saved_j, saved_usd; NaN for the
        first), and what is known about answers. Steps that cannot be run are left out.
    """
    requests = _crowd(workload_requests(scenario, base), batch)
    now = scenario.changed(ALONE)
    rows: list[dict[str, Any]] = []
    steps = ladder(scenario, batch)
    for place, (words, keys) in enumerate(steps):
        now = now.changed(keys)
        try:
            result = simulate(now, requests, base)
        except RoofcastError:
            continue
        quality = "; ".join(result.deployment.quality)
        rows.append({"step": words, **_per_token(result, way), "quality": quality})
        if progress is not None:
            progress((place + 1) / len(steps))
    table = pd.DataFrame(rows, columns=["step", "seconds", "joules", "usd", "quality"])
    saved = {"saved_s": "seconds", "saved_j": "joules", "saved_usd": "usd"}
    for name, column in saved.items():
        table[name] = -table[column].diff()
    return table[list(COLUMNS)]


def figures_of_crowd(
    scenario: Scenario, batch: int = 32, base: Path = Path(), way: str = "rented"
) -> dict[str, float]:
    """Return what an output token takes while a queue is full, so many requests at a time.

    Returns
    -------
    dict
        seconds of one accelerator [s], joules [J], usd per million tokens [USD].

    Raises
    ------
    InputError
        The scenario cannot be deployed.
    """
    crowd = _crowd(workload_requests(scenario, base), batch)
    one = scenario.changed(ALONE | {"policies.batching": _batching(scenario, batch)})
    return _per_token(simulate(one, crowd, base), way)


def _crowd(requests: pd.DataFrame, batch: int) -> pd.DataFrame:
    """Return rounds of requests of the workload's lengths that are all there at the start."""
    rows = np.arange(ROUNDS * batch) % len(requests)
    lengths = requests[["prompt_tokens", "output_tokens"]].iloc[rows].reset_index(drop=True)
    return lengths.assign(arrival_s=0.0)[["arrival_s", "prompt_tokens", "output_tokens"]]


def _per_token(result: Result, way: str) -> dict[str, float]:
    """Return accelerator seconds, joules and money of an output token while the queue is full."""
    hardware = result.scenario.hardware
    chips, end = hardware.accelerators, float(result.requests["admitted_s"].max())
    tokens = _tokens_until(result.requests, end)
    watts = _joules_until(result, end) / end * chips
    price = price_of(hardware.accelerator, result.deployment.spec, way)
    cost = per_million(price, chips, watts, tokens / end) if price else float("nan")
    return {"seconds": chips * end / tokens, "joules": watts * end / tokens, "usd": cost}


def _tokens_until(requests: pd.DataFrame, end: float) -> float:
    """Return the output tokens of all requests up to a time."""
    first, last = requests["first_token_s"], requests["finish_s"]
    more = (requests["output_tokens"] - 1.0) * ((end - first) / (last - first).clip(lower=1e-9))
    given = (1.0 + more.clip(lower=0.0)).clip(upper=requests["output_tokens"])
    return float(given[first <= end].sum())


def _joules_until(result: Result, end: float) -> float:
    """Return the joules of one accelerator up to a time, idle ones included [J]."""
    steps = result.steps
    at = np.concatenate([[0.0], steps["output_s"].to_numpy(np.float64)])
    busy = np.interp(end, at, np.concatenate([[0.0], np.cumsum(steps["gpu_s"])]))
    joules = np.interp(end, at, np.concatenate([[0.0], np.cumsum(steps["energy_j"])]))
    idle_w = float(result.deployment.knobs["idle_w"][0])
    return float(joules + idle_w * max(end - busy, 0.0))
