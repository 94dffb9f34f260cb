"""What is left of an error beyond kernels and sampling: engine, host, scheduling, transfer.

One half-width per kind of figure and level of knowledge, in logarithms: `validation.fit_bands`
chooses it so that bands hold 80 % of the runs that it is fitted to, and judges it on others.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from formats import Quantity, read_toml
from sim.deployment import Deployment
from sim.scenario import Scenario
from workloads.named import closed_loop

__all__ = [
    "ENGINE_ERRORS",
    "GROUPS",
    "OWN",
    "Level",
    "StepSpread",
    "engine_error",
    "group_of",
    "kernel_share",
    "level_of",
    "step_spread",
]

ENGINE_ERRORS = Path(__file__).parent / "data" / "engine_error.toml"
GROUPS = ("ttft", "tail", "tpot", "e2e", "rate", "power")
"""Kinds of figures that share a half-width."""
UNMEASURED = 2.0
"""Factor on the half-width of a kind of accelerator of which none was measured."""
AT_ONCE_S = 0.1
"""Requests that arrive within this time are a burst [s]."""
Level = Literal["own", "own_burst", "other", "datasheet"]
OWN = ("own", "own_burst")
"""Levels whose steps were measured."""


@dataclass(frozen=True)
class StepSpread:
    """Half-widths of log(measured / predicted) of step times, from P50 to P10 or P90 [1].

    Parameters
    ----------
    few : float
        Steps that only decode.
    prompts : float
        Half seconds with prompts.
    """

    few: float
    prompts: float


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Level(_Strict):
    """Half-widths of log(measured / predicted) from P50 to P10 or P90."""

    ttft: Quantity
    tail: Quantity
    tpot: Quantity
    e2e: Quantity
    rate: Quantity
    power: Quantity


class _Steps(_Strict):
    """Half-widths of step times over machines and models."""

    few: Quantity
    prompts: Quantity


class EngineErrors(_Strict):
    """Half-widths by level."""

    schema_version: Literal[1]
    profiles: tuple[str, ...] = Field(description="engine profiles fitted to runs of our own")
    accelerators: tuple[str, ...] = Field(description="accelerators of these runs")
    kernel_share: Quantity = Field(
        description="part of a kernel's residual that all kernels of a step have in common [1]"
    )
    steps: _Steps = Field(description="step times of these runs, over machines and models")
    own: _Level = Field(description="such a profile on such an accelerator")
    own_burst: _Level = Field(description="the same, all requests at once")
    other: _Level = Field(description="kernels measured, engine or machine another one")
    datasheet: _Level = Field(description="kernels carried over from other accelerators")


@lru_cache(maxsize=1)
def _errors() -> EngineErrors:
    return read_toml(ENGINE_ERRORS, EngineErrors)


def group_of(figure: str) -> str:
    """Return the kind of a figure of summary.json.

    Examples
    --------
    >>> [group_of(f) for f in ("ttft_mean_s", "tpot_p99_s", "itl_p50_s", "energy_j", "mfu")]
    ['ttft', 'tail', 'tpot', 'power', 'rate']
    """
    if figure.endswith(("_p95_s", "_p99_s")):
        return "tail"
    starts = {"ttft": "ttft", "queue": "ttft", "tpot": "tpot", "itl": "tpot", "e2e": "e2e"}
    starts |= {"power": "power", "energy": "power"}
    return starts.get(figure.split("_")[0], "rate")


def kernel_share() -> float:
    """Return the part of a kernel's residual that all kernels of a step have in common [1]."""
    return _errors().kernel_share.value


def step_spread() -> StepSpread:
    """Return the half-widths of step times where steps were measured."""
    steps = _errors().steps
    return StepSpread(steps.few.value, steps.prompts.value)


def level_of(scenario: Scenario, deployment: Deployment, requests: pd.DataFrame) -> Level:
    """Return how much is known of a deployment: runs of its own, its kernels, its datasheet."""
    if deployment.fidelity != "measured":
        return "datasheet"
    errors = _errors()
    own = scenario.engine.profile in errors.profiles
    if not own or scenario.hardware.accelerator not in errors.accelerators:
        return "other"
    at_once = closed_loop(scenario.workload) is None and np.ptp(requests["arrival_s"]) < AT_ONCE_S
    return "own_burst" if at_once else "own"


def engine_error(level: Level, kind: str, figure: str) -> float:
    """Return the half-width of a figure's log error, from P50 to P10 or P90 [1].

    Kinds of accelerators of which none was measured (all but GPUs) have twice that of datasheets.

    Parameters
    ----------
    level : str
        From `level_of`.
    kind : str
        Kind of the accelerator: gpu, tpu, ...
    figure : str
        Name in summary.json.

    Examples
    --------
    >>> gpu, tpu = (engine_error("datasheet", kind, "tpot_mean_s") for kind in ("gpu", "tpu"))
    >>> tpu / gpu
    2.0
    """
    width: Quantity = getattr(getattr(_errors(), level), group_of(figure))
    measured = level != "datasheet" or kind == "gpu"
    return width.value * (1.0 if measured else UNMEASURED)
