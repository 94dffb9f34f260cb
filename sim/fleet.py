"""Several replicas behind a router, on one simpy clock.

A replica is advanced lazily: only when an arrival, the router or the clock needs its state. Where
the router does not look at the replicas, each runs through its own requests in one go.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from policies.routing import ReplicaView, Routing, routing
from policies.rules import RequestView
from sim.core.layout import Records
from sim.replica import Replica
from sim.scenario import Scenario
from sim.streams import stream

__all__ = ["ClosedLoop", "Fleet", "run_fleet"]

Process = Generator[simpy.Event, Any, None]
Progress = Callable[[float], None]
SLICE_S = 60.0  # progress is reported this often, in simulated time


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Users that send their next request when the last one is answered.

    Parameters
    ----------
    users : int
        Requests in the system at once.
    think_s : ndarray
        Pause of a user before each request [s].
    """

    users: int
    think_s: npt.NDArray[np.float64]


@dataclass
class Fleet:
    """Replicas, their router, and which replica got which request.

    Parameters
    ----------
    replicas : list of Replica
        The engines.
    records : Records
        All requests; arrival times of a closed loop are set as users send them.
    router : Routing
        Chooses a replica.
    rng : Generator
        The router's own random stream.
    horizon_s : float
        Where the simulation stops [s].
    """

    replicas: list[Replica]
    records: Records
    router: Routing
    rng: np.random.Generator
    horizon_s: float = np.inf
    env: simpy.Environment = field(default_factory=simpy.Environment)
    placed: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.placed = np.full(len(self.records.requests), -1, dtype=np.int64)

    @property
    def lookahead_s(self) -> float:
        """Least time from an output to a request that it can cause at an engine [s]."""
        knobs = [r.knobs[0] for r in self.replicas]
        return max(min(float(k["client_s"] + k["ingest_s"]) for k in knobs), 1e-4)

    def views(self) -> list[ReplicaView]:
        """Return what the router may see now."""
        return [ReplicaView(i, *r.load()) for i, r in enumerate(self.replicas)]

    def place(self, index: int) -> int:
        """Choose the replica of one request."""
        row = self.records.requests[index]
        view = RequestView(
            float(row["arrival_s"]),
            int(row["prompt_tokens"]),
            int(row["output_tokens"]),
            int(row["priority"]),
            np.inf,
            "",
        )
        self.placed[index] = self.router.choose(view, self.views(), self.rng)
        return int(self.placed[index])

    def advance(self, until: float) -> None:
        """Bring every replica up to a time."""
        for replica in self.replicas:
            replica.advance(until)

    def send(self, index: int) -> None:
        """Route one request at its arrival and hand it over."""
        if self.router.looks:
            self.advance(float(self.env.now))
        self.replicas[self.place(index)].submit(index)

    def open_arrivals(self) -> Process:
        """Send every request at its arrival time."""
        for index, arrival in enumerate(self.records.requests["arrival_s"]):
            if arrival > self.env.now:
                yield self.env.timeout(arrival - self.env.now)
            self.send(index)

    def closed_arrivals(self, loop: ClosedLoop) -> Process:
        """Let each user send the next request when an answer is there.

        Replicas advance in windows that no answer can cross: a request caused by an output
        reaches an engine at the earliest one `lookahead_s` later.
        """
        pending = deque(range(len(self.records.requests)))
        for _ in range(min(loop.users, len(pending))):
            self._release(pending.popleft(), 0.0)
        while pending:
            yield self.env.timeout(self._until_an_answer())
            self.advance(float(self.env.now))
            for replica in self.replicas:
                for done in replica.take_done():
                    if pending:
                        answered = float(self.records.requests["finish_s"][done])
                        self._release(pending[0], answered + loop.think_s[pending.popleft()])

    def _until_an_answer(self) -> float:
        """Return a time in which no answer can cause a request that an engine sees [s].

        One replica runs to its next answer; several run in windows of the look-ahead.
        """
        if len(self.replicas) > 1:
            return self.lookahead_s
        self.replicas[0].advance(self.horizon_s, stop_when_done=True)
        return max(self.replicas[0].now - float(self.env.now), 0.0)

    def _release(self, index: int, arrival: float) -> None:
        self.records.requests["arrival_s"][index] = arrival
        self.records.requests["order_key"][index] = arrival
        self.replicas[self.place(index)].submit(index)


def run_fleet(
    scenario: Scenario,
    replicas: list[Replica],
    records: Records,
    loop: ClosedLoop | None = None,
    progress: Progress | None = None,
) -> npt.NDArray[np.int64]:
    """Serve all requests.

    Returns
    -------
    ndarray, shape (requests,)
        The replica of each request, -1 where it was not sent before the horizon.
    """
    router = routing.make(scenario.policies.routing)
    horizon = np.inf if scenario.run.horizon_s is None else scenario.run.horizon_s
    fleet = Fleet(replicas, records, router, stream(scenario.run.seed, "routing"), horizon)
    if loop is not None:
        fleet.env.process(fleet.closed_arrivals(loop))
    elif router.looks:
        fleet.env.process(fleet.open_arrivals())
    else:
        _place_all(fleet)
    fleet.env.run(None if np.isinf(horizon) else horizon)
    _finish(fleet, horizon, progress)
    return fleet.placed


def _place_all(fleet: Fleet) -> None:
    """Route every request at once: the router does not look at the replicas."""
    count = len(fleet.records.requests)
    fleet.placed[:] = fleet.router.assign(count, len(fleet.replicas), fleet.rng)
    for i, replica in enumerate(fleet.replicas):
        replica.submit(np.flatnonzero(fleet.placed == i))


def _finish(fleet: Fleet, horizon: float, progress: Progress | None) -> None:
    """Run every replica to the end, telling how far it is."""
    requests = fleet.records.requests
    last = float(requests["arrival_s"].max())
    until = float(fleet.env.now)
    while progress is not None and until < min(last, horizon):
        until += SLICE_S
        fleet.advance(min(until, horizon))
        progress(float((requests["status"] > 0).mean()))
    fleet.advance(horizon)
