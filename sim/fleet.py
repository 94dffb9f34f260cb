"""Several replicas behind a router, on one simpy clock.

A replica is advanced lazily: only when an arrival, the router or the clock needs its state. Where
the router does not look at the replicas, each runs through its own requests in one go.
"""

import numpy as np
import numpy.typing as npt

from sim.core.layout import Records
from sim.replica import Replica
from sim.scenario import Scenario

__all__ = ["run_fleet"]


def run_fleet(
    scenario: Scenario,
    replicas: list[Replica],
    records: Records,
    progress: object = None,
) -> npt.NDArray[np.int64]:
    """Serve all requests; return the replica of each, -1 = none."""
    count = len(records.requests)
    placed = np.arange(count, dtype=np.int64) % len(replicas)
    horizon = np.inf if scenario.run.horizon_s is None else scenario.run.horizon_s
    for i, replica in enumerate(replicas):
        replica.submit(np.flatnonzero(placed == i))
        replica.advance(horizon)
    return placed
