"""plan.json, plan.csv and plan.html, each written whole or not at all."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from formats import atomic_write
from sim.planning.energy import day_power
from sim.planning.result import PlanResult
from sim.planning.words import headline, sentences

__all__ = ["PLAN_FILES", "SCHEMA_VERSION", "plan_json", "write_plan"]

SCHEMA_VERSION = 1
PLAN_FILES = ("plan.json", "plan.csv", "plan.html")
DIGITS = 9  # significant digits of a figure


def plan_json(result: PlanResult) -> dict[str, Any]:
    """Return the content of plan.json: SI units and the plan's currency, None where unknown.

    Returns
    -------
    dict
        ``best``, ``options`` (rows as in plan.csv, with costs per request and user-month),
        ``faults``, ``orders``, ``tornado``, ``api``, ``power_of_day``, ``power_limits``,
        ``assumptions``.
    """
    table = result.table()
    options = [
        row | {"per_request": o.per_request, "per_user_month": o.per_user_month}
        for row, o in zip(table.to_dict("records"), result.options, strict=True)
    ]
    faults = {name: {"limit": f.limit, "what": f.what} for name, f in result.faults.items()}
    caps = {o.rating.candidate.name: _records(o.rating.caps) for o in result.options}
    content = {
        "schema_version": SCHEMA_VERSION,
        "roofcast": "plan",
        "name": result.file.name,
        "currency": result.file.money.currency,
        "price_year": result.file.money.price_year,
        "headline": headline(result),
        "facts": list(sentences(result)),
        "best": {"candidate": result.best.rating.candidate.name, "way": result.best.bill.way},
        "options": options,
        "faults": faults,
        "orders": _records(result.schedule),
        "tornado": _records(result.tornado),
        "api": _records(result.api),
        "power_of_day": _records(day_power(result.best)),
        "power_limits": caps,
        "assumptions": _records(result.assumptions),
    }
    clean: dict[str, Any] = _clean(content)
    return clean


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return plain JSON values; numbers rounded, so that the text is the same in every process."""
    if isinstance(value, dict):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def write_plan(result: PlanResult, folder: Path) -> list[Path]:
    """Write a plan's files into a folder; all texts are made before the first file is written.

    Parameters
    ----------
    result : PlanResult
        A plan.
    folder : Path
        Where to; made if it is not there. Files of an earlier plan are replaced.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    from sim.planning.page import plan_html  # charts take a second to import

    rows = result.table()
    texts = {
        "plan.json": json.dumps(plan_json(result), indent=2, ensure_ascii=False, allow_nan=False),
        "plan.csv": rows.to_csv(index=False, lineterminator="\n", float_format=f"%.{DIGITS}g"),
        "plan.html": plan_html(result),
    }
    for name in PLAN_FILES:
        with atomic_write(folder / name) as temporary:
            temporary.write_text(texts[name], encoding="utf-8", newline="\n")
    return [folder / name for name in PLAN_FILES]
