"""The grid of a sweep: which scenario keys take which values, and how they are combined."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from scipy.stats import qmc

from formats import InputError, check
from sim.scenario import Scenario, load_scenario
from sim.streams import stream
from sim.sweeping.keys import Span, Values, change, check_scenario, dotted

__all__ = ["Grid", "check_grid", "points", "scenario_of"]

MOST_POINTS = 1_000_000


class Grid(BaseModel):
    """A grid file.

    Examples
    --------
    >>> grid = Grid(keys={"hardware.tp": [1, 2], "run.seed": [0, 1]})
    >>> points(grid).to_dict("list")
    {'hardware.tp': [1, 1, 2, 2], 'run.seed': [0, 1, 0, 1]}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    keys: Annotated[dict[str, Values], BeforeValidator(dotted)] = Field(
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


def check_grid(grid: Grid, scenario: Scenario) -> None:
    """Check every value of a grid before anything runs.

    Each value is tried in place of that of the first point, in a zipped grid each whole point;
    a combination that fails only together becomes a row with its message.

    Raises
    ------
    InputError
        A key or a value does not fit the scenario, a name is not known.
    """
    rows = points(grid)
    if grid.method == "zip":
        trials = [({str(k): v for k, v in row.items()}, "keys") for row in rows.to_dict("records")]
    else:
        first = {
            key: values.ends()[0] if isinstance(values, Span) else values[0]
            for key, values in grid.keys.items()
        }
        trials = [(first, "keys"), *_one_by_one(grid, first)]
    looked_up: set[str] = set()
    for changes, where in trials:
        place = f"{grid.name}: {where}"
        try:
            changed = change(scenario, changes)
        except InputError as e:
            raise InputError(e.what, place, e.allowed, e.repair) from None
        names = changed.model_dump_json(exclude={"workload", "run", "slo", "name"})
        if names not in looked_up:
            check_scenario(changed, place)
            looked_up.add(names)


def _one_by_one(grid: Grid, first: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, values in grid.keys.items():
        for value in values.ends() if isinstance(values, Span) else values[1:]:
            yield {**first, key: value}, f"keys.{key} = {value!r}"


def scenario_of(grid: Grid, base: Path = Path()) -> Scenario:
    """Return the scenario that a grid starts from; its file lies relative to `base`.

    Raises
    ------
    InputError
        The file is bad, or a value is wrong.
    """
    if grid.scenario is None:
        return Scenario()
    if isinstance(grid.scenario, str):
        return load_scenario(base / grid.scenario)
    return check(grid.scenario, Scenario, "scenario")
