"""A distilled student beside its teacher, or any models beside each other: size, time, cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from formats import InputError, RoofcastError
from sim.explain import Explanation, Load, explain
from sim.exploring.waterfall import Progress, figures_of_crowd
from sim.scenario import Scenario
from workloads.counts import parameters
from workloads.models import load_model

__all__ = ["FIGURES", "beside", "teacher_of"]

FIGURES = (
    "model",
    "parameters",
    "weight_bytes",
    "kv_bytes_per_token",
    "decode_s",
    "prompt_s",
    "seconds",
    "joules",
    "usd",
    "quality",
)


def teacher_of(scenario: Scenario) -> str:
    """Return the model that a scenario's was distilled from.

    Raises
    ------
    InputError
        Its file names none.

    Examples
    --------
    >>> teacher_of(Scenario(model={"name": "llama-3.2-1b"}))
    'llama-3.1-70b'
    """
    if "distil" in scenario.model.techniques:
        return scenario.model.name
    found = load_model(scenario.model.name).distilled_from
    if not found:
        raise InputError(
            f"{scenario.model.name} names no teacher (distilled_from)",
            "--against teacher",
            repair="name a model in place of teacher",
        )
    return found


def beside(
    scenario: Scenario,
    others: Sequence[str],
    load: Load | None = None,
    base: Path = Path(),
    way: str = "rented",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return a scenario's model and others in its place.

    Parameters
    ----------
    scenario : Scenario
        Hardware, formats, workload; its model stands first.
    others : sequence of str
        Models by name or file; "teacher" is the one that the scenario's was distilled from. They
        are served without the scenario's techniques.
    load : Load, optional
        Sizes of the steps; its batch is served at a time where throughput is taken.
    base : Path
        Folder that relative paths start from.
    way : str
        "rented" or "owned".
    progress : callable, optional
        Told the share that is done [0..1].

    Returns
    -------
    DataFrame
        model, parameters, weight_bytes and kv_bytes_per_token of one accelerator [byte], decode_s
        and prompt_s of a step [s]; seconds of one accelerator, joules, and USD per million of an
        output token under a full queue (NaN where the model does not fit); what is known about
        answers.

    Raises
    ------
    InputError
        A model is unknown, or the scenario's names no teacher.
    """
    chosen, wanted = [scenario], load or Load()
    for name in others:
        other = teacher_of(scenario) if name == "teacher" else name
        chosen.append(scenario.changed({"model.name": other, "model.techniques": {}}))
    rows = []
    for place, one in enumerate(chosen):
        rows.append(_row(one, wanted, base, way))
        if progress is not None:
            progress((place + 1) / len(chosen))
    return pd.DataFrame(rows, columns=list(FIGURES))


def _row(scenario: Scenario, load: Load, base: Path, way: str) -> dict[str, Any]:
    found = explain(scenario, load)
    phases = found.phases.set_index("phase")["seconds"]
    try:
        figures = figures_of_crowd(scenario, load.batch, base, way)
    except RoofcastError:
        figures = {}
    return {
        "model": found.model.name,
        "parameters": float(parameters(found.model).total),
        "weight_bytes": found.plan.weights,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "decode_s": phases.get("decode"),
        "prompt_s": phases.get("prefill"),
        **figures,
        "quality": "; ".join(found.quality) or _known(found),
    }


def _known(found: Explanation) -> str:
    """Return what a model's file says about its answers."""
    origin = found.model.distilled_from
    return f"distilled from {origin}; quality: measure it" if origin else "as published"
