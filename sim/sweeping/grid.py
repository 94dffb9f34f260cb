"""The grid of a sweep: which scenario keys take which values, and how they are combined."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from scipy.stats import qmc

from formats import InputError, read_toml
from sim.scenario import Scenario, load_scenario
from sim.streams import stream

__all__ = ["Grid", "Span", "load_grid", "points"]

MOST_POINTS = 1_000_000
Value = bool | int | float | str | None | list[Any] | dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Span(_Strict):
    """A range that a sampled grid draws from.

    Examples
    --------
    >>> Span(low=1, high=100, log=True).at(np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 10.0, 100.0]
    """

    low: FiniteFloat = Field(description="smallest value")
    high: FiniteFloat = Field(description="largest value")
    log: bool = Field(False, description="evenly spread in the logarithm")
    whole: bool = Field(False, description="round to whole numbers")

    @model_validator(mode="after")
    def _order(self) -> "Span":
        if self.high <= self.low:
            raise ValueError(f"high = {self.high:g} must be above low = {self.low:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low above 0, got {self.low:g}")
        return self

    def at(self, share: np.ndarray) -> np.ndarray:
        """Return the values at shares of the range, each in [0, 1]."""
        if self.log:
            values = self.low * (self.high / self.low) ** share
        else:
            values = self.low + (self.high - self.low) * share
        return np.asarray(np.round(values) if self.whole else values)


class Grid(_Strict):
    """A grid file.

    Examples
    --------
    >>> grid = Grid(keys={"hardware.tp": [1, 2], "run.seed": [0, 1]})
    >>> points(grid).to_dict("list")
    {'hardware.tp': [1, 1, 2, 2], 'run.seed': [0, 1, 0, 1]}
    """

    schema_version: Literal[1] = 1
    name: str = Field("sweep", min_length=1, max_length=200, description="title of the table")
    scenario: str | dict[str, Any] | None = Field(
        None, description="scenario file, or its content; none = the defaults"
    )
    method: Literal["cartesian", "zip", "sobol"] = Field(
        "cartesian", description="all combinations, values side by side, or sampled"
    )
    samples: Annotated[int, Field(ge=1, le=MOST_POINTS)] = Field(
        64, description="points of a sampled grid [point]"
    )
    seed: int = Field(0, ge=0, description="seed of a sampled grid")
    replications: int = Field(1, ge=1, le=1000, description="seeds per point [run]")
    keys: dict[str, list[Value] | Span] = Field(
        min_length=1, description="dotted scenario key -> values, or a range {low, high}"
    )

    @model_validator(mode="after")
    def _combines(self) -> "Grid":
        spans = [key for key, values in self.keys.items() if isinstance(values, Span)]
        lists = {key: v for key, v in self.keys.items() if not isinstance(v, Span)}
        if any(len(values) == 0 for values in lists.values()):
            raise ValueError("a key has no values")
        if spans and self.method != "sobol":
            raise ValueError(f"{spans[0]} is a range; ranges need method = 'sobol'")
        if self.method == "zip" and len({len(v) for v in lists.values()}) > 1:
            sizes = ", ".join(f"{k}: {len(v)}" for k, v in lists.items())
            raise ValueError(f"zip needs as many values for every key, got {sizes}")
        return self


def points(grid: Grid) -> pd.DataFrame:
    """Return the points of a grid: one row each, one column per key, in a fixed order.

    Raises
    ------
    InputError
        More than a million points.
    """
    if grid.method == "sobol":
        return _sampled(grid)
    lists = {key: v for key, v in grid.keys.items() if not isinstance(v, Span)}
    count = int(np.prod([len(v) for v in lists.values()]))
    if grid.method == "cartesian" and count > MOST_POINTS:
        what = f"the grid has {count:,} points"
        raise InputError(what, grid.name, f"up to {MOST_POINTS:,}", "use method = 'sobol'")
    combine = product if grid.method == "cartesian" else partial(zip, strict=True)
    return pd.DataFrame(list(combine(*lists.values())), columns=list(lists), dtype=object)


def _sampled(grid: Grid) -> pd.DataFrame:
    """Draw scrambled Sobol points (scipy.stats.qmc); a list is a range over its places."""
    sampler = qmc.Sobol(len(grid.keys), scramble=True, rng=stream(grid.seed, "sobol"))
    drawn = sampler.random_base2(int(np.ceil(np.log2(max(grid.samples, 2)))))[: grid.samples]
    columns: dict[str, list[Any]] = {}
    for share, (key, values) in zip(drawn.T, grid.keys.items(), strict=True):
        if isinstance(values, Span):
            found = values.at(share)
            columns[key] = [int(x) if values.whole else float(x) for x in found]
        else:
            columns[key] = [values[int(x)] for x in share * len(values)]
    return pd.DataFrame(columns, dtype=object)


def load_grid(path: Path) -> tuple[Grid, Scenario]:
    """Return a grid file and the scenario that it starts from.

    Raises
    ------
    InputError
        A file is bad, or a value is wrong.
    """
    grid = read_toml(path, Grid)
    if grid.scenario is None:
        return grid, Scenario()
    if isinstance(grid.scenario, str):
        return grid, load_scenario(path.parent / grid.scenario)
    return grid, Scenario().changed(_flat(grid.scenario))


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return sections as dotted keys, two levels deep."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and not prefix:
            found |= _flat(value, f"{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
