"""How far the capacity of a replica may lie from the simulated one, by how its times are known."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from formats import Quantity, read_toml
from sim.planning.sections import Range

__all__ = ["CapacityError", "ErrorBand", "ErrorBands", "capacity_error"]

BANDS = Path(__file__).parent / "data" / "model_error.toml"


class ErrorBand(BaseModel):
    """P10 and P90 of measured over simulated speed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    p10: Quantity
    p90: Quantity


class ErrorBands(BaseModel):
    """The bands of both fidelities."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    measured: ErrorBand
    datasheet: ErrorBand


@dataclass(frozen=True, slots=True)
class CapacityError:
    """P10 and P90 of the factor on capacity, with kind and source."""

    limits: Range
    kind: str
    source: str


@lru_cache(maxsize=1)
def _bands() -> ErrorBands:
    return read_toml(BANDS, ErrorBands)


def capacity_error(fidelity: str, kind: str = "gpu") -> CapacityError:
    """Return the error of a capacity that rests on measured kernels, or on a datasheet.

    The factor is centred on 1: P10 is at most 1 and P90 at least 1. Kinds of which no part was ever
    measured (all but GPUs) have twice the band of datasheet GPUs, in logarithms.

    Parameters
    ----------
    fidelity : str
        "measured" or "datasheet".
    kind : str
        Kind of the accelerator: gpu, tpu, npu, asic, cpu or edge.

    Examples
    --------
    >>> low, high = capacity_error("datasheet").limits
    >>> low < capacity_error("measured").limits[0] <= 1 <= high
    True
    >>> capacity_error("datasheet", "tpu").limits == (low**2, high**2)
    True
    """
    band = _bands().measured if fidelity == "measured" else _bands().datasheet
    low, high = min(band.p10.value, 1.0), max(band.p90.value, 1.0)
    if fidelity != "measured" and kind != "gpu":
        words = f"twice the band of GPUs, as no {kind} was measured: {band.p10.source}"
        return CapacityError((low**2, high**2), "assumption", words)
    return CapacityError((low, high), band.p10.kind, band.p10.source)
