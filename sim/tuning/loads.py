"""The requests that a tuning looks at: part seen by the search, a later part held back, repeats.

A workload that is drawn is drawn anew for every repeat. A trace is one history, so its repeats are
consecutive windows of it (batch means); neither makes requests that never were.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from sim.scenario import Scenario
from sim.simulation import workload_requests

__all__ = ["LEAST_REQUESTS", "Load", "Repeat", "split"]

LEAST_REQUESTS = 20  # fewer say nothing


@dataclass(frozen=True)
class Repeat:
    """Requests on which all finalists are compared once.

    Attributes
    ----------
    seed : int
        Seed of the simulation.
    seen : DataFrame
        From the time that the search saw.
    later : DataFrame or None
        From the time after it.
    """

    seed: int
    seen: pd.DataFrame
    later: pd.DataFrame | None


@dataclass
class Load:
    """A workload that a setting must serve.

    Parameters
    ----------
    scenario : Scenario
        Its `[workload]` and `[slo]` are used.
    base : Path
        Folder that relative paths of it start from.
    share : float
        Part of the time of arrivals that the search sees, (0, 1].
    """

    scenario: Scenario
    base: Path = Path()
    share: float = 0.7
    _tables: dict[tuple[str, int], pd.DataFrame] = field(default_factory=dict, repr=False)

    def of(self, scenario: Scenario) -> Scenario:
        """Return a deployment under this workload and its objectives."""
        own = {"workload": self.scenario.workload, "slo": self.scenario.slo}
        return scenario.model_copy(update=own)

    def requests(self, scenario: Scenario, seed: int) -> pd.DataFrame:
        """Return all requests, drawn from a seed where they are drawn."""
        key = (scenario.workload.model_dump_json(), seed)
        if key not in self._tables:
            run = scenario.run.model_copy(update={"seed": seed})
            drawn = scenario.model_copy(update={"run": run})
            self._tables[key] = workload_requests(drawn, self.base)
        return self._tables[key]

    def seen(self, scenario: Scenario) -> pd.DataFrame:
        """Return the requests that the search sees."""
        return split(self.requests(scenario, scenario.run.seed), self.share)[0]

    def drawn(self) -> bool:
        """Return whether another seed gives other requests."""
        seed = self.scenario.run.seed
        here, other = (self.requests(self.scenario, s) for s in (seed, seed + 1))
        return not here.equals(other)

    def repeats(self, scenario: Scenario, count: int) -> list[Repeat]:
        """Return up to `count` repeats: draws of other seeds, or windows of a trace."""
        seed = scenario.run.seed
        if self.drawn():
            seeds = range(seed + 1, seed + 1 + count)
            parts = [(s, *split(self.requests(scenario, s), self.share)) for s in seeds]
            return [Repeat(*part) for part in parts]
        seen, later = split(self.requests(scenario, seed), self.share)
        tables = [seen] if later is None else [seen, later]
        most = min(min(len(t) for t in tables) // LEAST_REQUESTS, count)
        cut = [_windows(t, max(most, 1)) for t in tables]
        held = cut[1] if later is not None else [None] * len(cut[0])
        pairs = zip(cut[0], held, strict=False)
        return [Repeat(seed + i, a, b) for i, (a, b) in enumerate(pairs)]


def split(table: pd.DataFrame, share: float) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the requests before and after a share of the time of arrivals.

    Requests that all come at once are split by their order. The second part is None where either
    would hold fewer than `LEAST_REQUESTS`.

    Examples
    --------
    >>> table = pd.DataFrame({"arrival_s": range(100)})
    >>> [len(part) for part in split(table, 0.7)], split(table.head(30), 0.7)[1] is None
    ([70, 30], True)
    """
    first, last = float(table["arrival_s"].min()), float(table["arrival_s"].max())
    if last > first:
        early = table["arrival_s"] <= first + (last - first) * share
        cut = int(early.sum())
    else:
        cut = round(len(table) * share)
    if min(cut, len(table) - cut) < LEAST_REQUESTS:
        return table, None
    return table.iloc[:cut].reset_index(drop=True), _from_zero(table.iloc[cut:])


def _from_zero(table: pd.DataFrame) -> pd.DataFrame:
    arrivals = table["arrival_s"] - table["arrival_s"].min()
    return table.assign(arrival_s=arrivals).reset_index(drop=True)


def _windows(table: pd.DataFrame, count: int) -> list[pd.DataFrame]:
    """Return consecutive windows of equal time that hold enough requests."""
    first, last = float(table["arrival_s"].min()), float(table["arrival_s"].max())
    if last <= first:
        size = len(table) // count
        return [table.iloc[i * size : (i + 1) * size] for i in range(count)]
    place = ((table["arrival_s"] - first) / (last - first) * count).astype(int)
    parts = [_from_zero(table[place.clip(upper=count - 1) == i]) for i in range(count)]
    return [part for part in parts if len(part) >= LEAST_REQUESTS]
