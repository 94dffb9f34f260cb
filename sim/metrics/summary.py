"""All metrics of a result in one dictionary, rounded so that it is the same in every process."""

import math
from collections.abc import Iterable
from typing import Any, get_args

import pandas as pd

from sim.metrics.base import Group, Metric, Observed, metrics
from sim.metrics.fleet import accelerators_at_start
from sim.simulation import Result

__all__ = ["SCHEMA_VERSION", "by_group", "measure", "metric_table", "summary"]

SCHEMA_VERSION = 1
DIGITS = 9  # significant digits of a figure
OF_A_CLASS = ("ttft_", "tpot_", "e2e_", "slo_", "goodput_", "output_tokens_per_s", "deadlines_")


def measure(seen: Observed) -> dict[str, float | int | None]:
    """Return every registered metric, by group; None where it does not exist."""
    return {m.name: _rounded(m.function(seen)) for m in by_group()}


def by_group() -> list[Metric]:
    """Return all metrics in the order of their groups."""
    groups = get_args(Group)
    return sorted(metrics.values(), key=lambda m: groups.index(m.group))


def _rounded(value: float | None) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def summary(result: Result) -> dict[str, Any]:
    """Return the content of summary.json.

    Parameters
    ----------
    result : Result
        A simulation.

    Returns
    -------
    dict
        What was simulated, every metric with its unit as suffix of the key (SI), and under
        ``classes`` latencies and objectives per traffic class.

    Examples
    --------
    >>> import pandas as pd
    >>> from sim import Scenario, simulate
    >>> one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [512], "output_tokens": [32]})
    >>> summary(simulate(Scenario(), one))["finished"]
    1
    """
    seen = Observed.of(result)
    scenario, made = result.scenario, seen.deployments
    fidelities = {deployment.fidelity for deployment in made}
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "scenario": scenario.name,
        "accelerator": _names(deployment.spec.name for deployment in made),
        "accelerators": accelerators_at_start(seen),
        "model": _names(deployment.model.name for deployment in made),
        "fidelity": "datasheet" if "datasheet" in fidelities else "measured",
        "seed": scenario.run.seed,
        "warmup": scenario.run.warmup,
    }
    return head | measure(seen) | {"classes": _classes(seen)}


def _names(names: Iterable[str]) -> str:
    """Return different names in their order, such as those of a fleet of several kinds."""
    return " + ".join(dict.fromkeys(names))


def _classes(seen: Observed) -> dict[str, dict[str, float | int | None]]:
    table = seen.result.requests
    if "class" not in table:
        return {}
    names = sorted(table["class"].astype(str).unique())
    return {name: _of_class(seen.only((table["class"] == name).to_numpy())) for name in names}


def _of_class(seen: Observed) -> dict[str, float | int | None]:
    wanted = [n for n in metrics if n.startswith(OF_A_CLASS) or n in ("requests", "finished")]
    return {name: _rounded(metrics[name].function(seen)) for name in wanted}


def metric_table() -> pd.DataFrame:
    """Return name, unit, group and description of every metric."""
    rows = [(m.name, m.unit, m.group, m.description) for m in by_group()]
    return pd.DataFrame(rows, columns=["name", "unit", "group", "description"])
