"""Simulate a scenario: make its requests, run its replicas, return tables."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.deployment import Deployment
from sim.fleets.arrivals import ClosedLoop
from sim.fleets.outcome import Outcome
from sim.fleets.run import serve
from sim.intake import asked
from sim.records import request_table, step_table
from sim.replica import total_gaps
from sim.scenario import Scenario
from sim.streams import stream
from workloads.named import Streams, closed_loop, make_requests
from workloads.requests import check_requests

__all__ = ["Result", "simulate"]

Progress = Callable[[float], None]


@dataclass
class Result:
    """What a simulation returns.

    Attributes
    ----------
    scenario : Scenario
        What was simulated.
    deployment : Deployment
        Specs, memory plan, step tables and knobs of a replica.
    requests : DataFrame
        One row per request (requests.csv).
    steps : DataFrame
        One row per macro-step (steps.csv).
    gaps : ndarray, shape (ITL_BINS,)
        Histogram of inter-token latencies, see `sim.core.layout.itl_bin_edges`.
    totals : DataFrame
        One row per replica: seconds, joules, FLOPs, bytes and counts of its state.
    wall_s : float
        CPU seconds that the simulation took [s]; not part of the tables.
    fleet : Outcome or None
        Pools, events of replicas, hand-offs.
    deployments : list of Deployment
        Of every replica, by number; `deployment` is that of the first pool.
    asked : DataFrame or None
        The requests as they came, where prompts share something.
    """

    scenario: Scenario
    deployment: Deployment
    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: npt.NDArray[np.float64]
    totals: pd.DataFrame
    wall_s: float = field(default=0.0, compare=False)
    fleet: Outcome | None = None
    deployments: list[Deployment] = field(default_factory=list)
    asked: pd.DataFrame | None = field(default=None, compare=False, repr=False)


def simulate(
    scenario: Scenario,
    requests: pd.DataFrame | None = None,
    base: Path = Path(),
    progress: Progress | None = None,
    deployments: Mapping[str, Deployment] | None = None,
) -> Result:
    """Simulate a scenario.

    Parameters
    ----------
    scenario : Scenario
        What is deployed, how it serves, what it is asked.
    requests : DataFrame, optional
        A requests table (see `workloads.requests`) in place of the scenario's workload.
    base : Path
        Folder that relative paths of the scenario start from.
    progress : callable, optional
        Called now and then with the share of requests that have ended [0..1].
    deployments : mapping of str to Deployment, optional
        Ready-made deployments by name of pool ("all" without pools), in place of the scenario's.

    Returns
    -------
    Result
        Tables of requests and steps, and totals per replica.

    Raises
    ------
    InputError
        Something in the scenario is wrong or does not fit.

    Examples
    --------
    >>> import pandas as pd
    >>> one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [512], "output_tokens": [32]})
    >>> result = simulate(Scenario(), one)
    >>> result.requests.status.tolist()
    ['finished']
    """
    start = time.process_time()
    table = workload_requests(scenario, base) if requests is None else check_requests(requests)
    table = asked(scenario, table)
    if len(table) == 0:
        raise InputError("the workload has no requests", "[workload]", repair="raise its duration")
    served = serve(scenario, table, _users(scenario, len(table)), progress, deployments)
    made = {pool.section.name: pool.deployment for pool in served.pools}
    return Result(
        scenario,
        served.pools[0].deployment,
        request_table(table, served.records, served.outcome.placed),
        step_table([r.steps() for r in served.replicas]),
        total_gaps(served.replicas),
        pd.DataFrame(np.concatenate([r.state for r in served.replicas])),
        time.process_time() - start,
        served.outcome,
        [made[name] for name in served.outcome.pools],
        table if "hash_ids" in table or "prefix_tokens" in table else None,
    )


def workload_requests(scenario: Scenario, base: Path = Path()) -> pd.DataFrame:
    """Return the requests table of a scenario; relative trace paths start from `base`."""
    return make_requests(scenario.workload, Streams.of_seed(scenario.run.seed), base)


def _users(scenario: Scenario, count: int) -> ClosedLoop | None:
    """Return the closed loop of a scenario's arrivals, None where arrivals are open."""
    loop = closed_loop(scenario.workload)
    if loop is None:
        return None
    think = loop.think_times(count, stream(scenario.run.seed, "think"))
    return ClosedLoop(loop.concurrency, think)
