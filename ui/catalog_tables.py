"""Catalog entries as tables, and back: what is listed, and every number with its source."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pydantic import BaseModel

from formats import Quantity
from hardware.catalog import accelerators
from hardware.specs import AcceleratorSpec
from sim.exploring.money import price_of
from sim.units import readable
from workloads.counts import kv_bytes_per_token, parameters
from workloads.models import ModelSpec, models

__all__ = [
    "accelerator_rows",
    "edited",
    "model_rows",
    "numbers",
    "quantities",
    "values",
]

NUMBERS = ("value", "unit", "kind", "source", "note")


def accelerator_rows(more: dict[str, AcceleratorSpec]) -> pd.DataFrame:
    """Return one row for each accelerator, in units that people compare.

    Parameters
    ----------
    more : dict
        Entries of the visitor, by file name.
    """
    listed = {name: accelerators.load(name) for name in accelerators} | more
    return pd.DataFrame([_accelerator(name, spec) for name, spec in listed.items()])


def _accelerator(name: str, spec: AcceleratorSpec) -> dict[str, Any]:
    peaks = spec.peaks.given()
    rent = price_of(name, spec)
    fast = {p: peaks[p].value / 1e12 for p in ("fp8", "fp4") if p in peaks}
    return {
        "id": name,
        "name": spec.name,
        "vendor": spec.vendor,
        "kind": spec.kind,
        "year": spec.year,
        "kernels": "measured" if spec.calibration else "carried over",
        "memory [GB]": spec.memory_bytes / 1e9,
        "bandwidth [TB/s]": spec.memory_bytes_per_s / 1e12,
        "16-bit [TFLOP/s]": spec.half_flops_per_s / 1e12,
        "fp8 [TFLOP/s]": fast.get("fp8"),
        "fp4 [TFLOP/s]": fast.get("fp4"),
        "ridge [FLOP/byte]": spec.half_flops_per_s / spec.memory_bytes_per_s,
        "power [W]": spec.tdp_w,
        "rent [USD/h]": rent.per_hour if rent else None,
    }


def model_rows(more: dict[str, ModelSpec]) -> pd.DataFrame:
    """Return one row for each model.

    Parameters
    ----------
    more : dict
        Entries of the visitor, by file name.
    """
    listed = {name: models.load(name) for name in models} | more
    return pd.DataFrame([_model(name, spec) for name, spec in listed.items()])


def _model(name: str, spec: ModelSpec) -> dict[str, Any]:
    counted = parameters(spec)
    return {
        "id": name,
        "name": spec.name,
        "publisher": spec.publisher,
        "parameters [billion]": counted.total / 1e9,
        "active [billion]": counted.active / 1e9,
        "layers": spec.layers,
        "attention": spec.attention,
        "experts": spec.moe.experts if spec.moe else None,
        "KV cache [kB/token]": kv_bytes_per_token(spec) / 1e3,
        "context [token]": spec.max_context,
        "weights": spec.weights,
        "licence": spec.license,
    }


def quantities(entry: BaseModel, path: str = "") -> Iterator[tuple[str, Quantity, str]]:
    """Yield every number of an entry: dotted key, quantity, meaning."""
    for name, field in type(entry).model_fields.items():
        value, key = getattr(entry, name), f"{path}.{name}" if path else name
        if isinstance(value, Quantity):
            yield key, value, field.description or ""
        elif isinstance(value, BaseModel):
            yield from quantities(value, key)


def numbers(entry: BaseModel) -> pd.DataFrame:
    """Return every number of an entry with what it is, its kind and its source."""
    rows = [
        (key, readable(q.value, q.unit), q.kind, q.source, q.note, text)
        for key, q, text in quantities(entry)
    ]
    return pd.DataFrame(rows, columns=["number", "value", "kind", "source", "note", "meaning"])


def values(entry: BaseModel) -> pd.DataFrame:
    """Return every number of an entry as it stands in the file, to be edited."""
    rows = [(key, *(getattr(q, name) for name in NUMBERS)) for key, q, _ in quantities(entry)]
    return pd.DataFrame(rows, columns=["number", *NUMBERS])


def edited(entry: BaseModel, table: pd.DataFrame, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file: an entry with other numbers and words.

    Parameters
    ----------
    entry : BaseModel
        Where to start.
    table : DataFrame
        As `values` returns it, edited.
    changes : dict
        Other keys, such as the name.
    """
    data = entry.model_dump(exclude_none=True) | changes
    for row in table.to_dict("records"):
        *path, last = str(row["number"]).split(".")
        place = data
        for part in path:
            place = place[part]
        place[last] = {name: row[name] for name in NUMBERS if row[name] not in ("", None)}
    return data
