"""Pools of replicas on one simpy clock.

A replica is advanced lazily: only when an arrival, a router or the clock needs its state. Where
an ended request causes something (a user's next request, a hand-off of its KV cache), replicas
advance in windows that no such effect can cross.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from policies.routing import RoutedRequest
from sim.core.layout import Records, Status
from sim.fleets.crew import Crew
from sim.fleets.outcome import Outcome
from sim.fleets.pool import Pool
from sim.replica import Replica

__all__ = ["Fleet", "Process", "Requests"]

Process = Generator[simpy.Event, Any, None]
Places = npt.NDArray[np.int64]
SHORTEST_S = 1e-4  # of a window


@dataclass(frozen=True)
class Requests:
    """Columns of the requests that routers look at, shape (requests,).

    Attributes
    ----------
    arrival_s, prompt_tokens : list
        Time of arrival [s], length of the prompt [token].
    session : list of int
        Number of the conversation, -1 none.
    priority : list of int
        Smaller is served first.
    pool : list of int
        Pools that may serve, as a number of the fleet's `choices`.
    """

    arrival_s: list[float]
    prompt_tokens: list[int]
    session: list[int]
    priority: list[int]
    pool: list[int]

    def view(self, index: int) -> RoutedRequest:
        """Return what a router sees of one request."""
        return RoutedRequest(self.prompt_tokens[index], self.session[index], self.priority[index])


@dataclass
class Fleet:
    """Replicas in pools, and which replica got which request.

    Parameters
    ----------
    pools : list of Pool
        All pools.
    choices : list of list of Pool
        Which pools serve the requests of one kind.
    requests : Requests
        Columns of all requests.
    records : Records
        The engines' rows; those beyond the requests are second stages.
    rng : Generator
        The routers' own random stream.
    make : callable
        (pool, number of the replica) -> a new replica.
    horizon_s : float
        Where the simulation stops [s].
    """

    pools: list[Pool]
    choices: list[list[Pool]]
    requests: Requests
    records: Records
    rng: np.random.Generator
    make: Callable[[Pool, int], Replica]
    horizon_s: float = np.inf
    env: simpy.Environment = field(default_factory=simpy.Environment)
    crew: Crew = field(init=False)
    outcome: Outcome = field(init=False)
    pool_of: list[Pool] = field(default_factory=list)
    on: list[bool] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    sent: int = 0  # stages handed to replicas and not known to have ended
    at_start: Callable[[int], bool] | None = None  # takes over a request before it is routed
    at_give: Callable[[int, int], bool] | None = None  # takes over (replica, stage), routed
    at_end: Callable[[int, int], bool] | None = None  # takes over (replica, stage), ended
    at_answer: Callable[[float], None] | None = None  # told when a request has ended
    at_grow: Callable[[int], None] | None = None  # told of a replica that is new
    _all: Places = field(init=False)
    _synced_s: float = field(default=-np.inf, init=False)
    _wake: simpy.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome(np.full(len(self.requests.arrival_s), -1, dtype=np.int64))
        self._all = np.zeros(0, np.int64)
        replicas: list[Replica] = []
        for pool in self.pools:
            replicas += [self._new(pool) for _ in range(pool.section.replicas)]
            pool.membership(pool.places)
        self.crew = Crew(replicas)
        for place in range(len(replicas)):
            self.note(place, "up")

    @property
    def now(self) -> float:
        """The time [s]."""
        return float(self.env.now)

    def _new(self, pool: Pool) -> Replica:
        place = len(self.pool_of)
        self.pool_of.append(pool)
        pool.places.append(place)
        self.on.append(True)
        self._all = np.flatnonzero(self.on)
        self.outcome.pools.append(pool.section.name)
        self.outcome.ranks.append(pool.ranks)
        return self.make(pool, place)

    def note(self, place: int, event: str) -> None:
        """Log something that happened to a replica now."""
        self.outcome.events.append((self.now, self.outcome.pools[place], place, event))

    # Replicas that come and go

    def grow(self, pool: Pool) -> int:
        """Add a replica to a pool that does not serve yet; return its number."""
        replica = self._new(pool)
        replica.start_at(self.now)
        place = self.crew.add(replica)
        self.set_on(place, on=False)
        if self.at_grow is not None:
            self.at_grow(place)
        return place

    def set_on(self, place: int, *, on: bool) -> None:
        """Let a replica's engine run or stand still."""
        self.on[place] = on
        self._all = np.flatnonzero(self.on)
        if on:
            self.crew.replicas[place].start_at(self.now)
            self.crew.renewed(place)
        else:
            self.crew.replicas[place].unload()

    def open(self, place: int) -> None:
        """Let a replica take requests, those first that wait for one."""
        pool = self.pool_of[place]
        self.set_on(place, on=True)
        pool.membership({*pool.up, place})
        self.note(place, "up")
        for _ in range(len(pool.backlog)):
            self.send_to(pool, pool.backlog.popleft())

    def close(self, place: int) -> None:
        """Send a replica no more requests."""
        pool = self.pool_of[place]
        pool.membership({*pool.up} - {place})

    def load(self, place: int) -> int:
        """Return the requests on a replica now."""
        self.sync()
        return int(self.crew.look(np.array([place]), self.now)[0, :2].sum())

    # Time

    def sync(self, *, exact: bool = True) -> None:
        """Bring every replica up to now; without `exact`, only their counts of requests."""
        now = self.now
        if now > self._synced_s or exact:
            self.crew.advance(self._all, now, exact)
            self._synced_s = now

    def window_s(self) -> float:
        """Return a time in which no output can cause a request that an engine sees [s]."""
        knobs = [pool.deployment.knobs[0] for pool in self.pools]
        return max(min(float(k["client_s"] + k["ingest_s"]) for k in knobs), SHORTEST_S)

    def react(self, window_s: float) -> Process:
        """Advance in windows and act on every stage that has ended."""
        while True:
            if self.sent == 0:
                self._wake = self.env.event()
                yield self._wake
                continue
            yield self.env.timeout(self._until_an_end(window_s))
            self.sync()
            self.end_stages(self._all, self.now)

    def end_stages(self, places: Places, now: float = np.inf) -> None:
        """Act on every stage that has ended on some replicas by a time [s]."""
        for place, stage in self.crew.take_done(places, now):
            self.sent -= 1
            if self.at_end is None or not self.at_end(place, stage):
                self.answered(stage)

    def _until_an_end(self, window_s: float) -> float:
        """Return how far to go: one replica to its next end, several by a window [s]."""
        if len(self.crew.replicas) > 1 or not self.on[0]:
            return window_s
        until = min(self.env.peek(), self.horizon_s)
        replica = self.crew.replicas[0]
        if replica.advance(until, stop_when_done=True):
            return max(replica.now - self.now, 0.0)
        return max(until - self.now, 0.0) if np.isfinite(until) else window_s

    # Requests

    def arrive(self, index: int) -> None:
        """Send a request that has just come, unless something takes it over."""
        if self.at_start is not None and self.at_start(index):
            return
        pools = self.choices[self.requests.pool[index]]
        self.send_to(self.pick(pools), index, self.requests.arrival_s[index])

    def pick(self, pools: list[Pool]) -> Pool:
        """Return the pool that serves, of those that may."""
        return pools[0] if len(pools) == 1 else self._least_busy(pools)

    def _least_busy(self, pools: list[Pool]) -> Pool:
        """Return the pool with the least load for its speed; one without replicas comes last."""
        self.sync(exact=False)

        def load(pool: Pool) -> float:
            if not pool.up:
                return np.inf
            return float(self.crew.look(np.array(pool.up), self.now)[:, :2].sum() + 1) / (
                pool.speed * len(pool.up)
            )

        return min(pools, key=load)

    def choose(self, pool: Pool, index: int, stage: int) -> int:
        """Return the replica of a pool that its router chooses for a request's stage."""
        if pool.router.needs and pool.stale(self.now):
            self.sync(exact=pool.exact)
            pool.read(self.crew, self.now)
        return pool.choose(self.requests.view(index), stage, self.crew, self.rng)

    def send_to(self, pool: Pool, stage: int, since: float | None = None) -> None:
        """Route a stage within a pool; it waits where no replica is up.

        Its engine does not see it before `since`, by default now [s].
        """
        if not pool.up:
            pool.backlog.append(stage)
            return
        index = stage % len(self.outcome.placed)
        place = self.choose(pool, index, stage)
        if self.at_give is None or not self.at_give(place, stage):
            self.give(place, stage, since)

    def give(self, place: int, stage: int, since: float | None = None) -> None:
        """Hand a stage to a replica."""
        self.outcome.placed[stage % len(self.outcome.placed)] = place
        self.crew.submit(place, stage, self.now if since is None else since)
        self.sent += 1
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def answered(self, stage: int) -> None:
        """Tell the user that a request has ended."""
        if self.at_answer is not None:
            self.at_answer(float(self.records.requests["finish_s"][stage]))

    def end(self, stages: Iterable[int], status: int = Status.FAILED) -> None:
        """End stages that no replica holds any more."""
        for stage in stages:
            self.records.requests["status"][stage] = status
            self.records.requests["finish_s"][stage] = self.now
            self.answered(stage)

    def finished(self) -> bool:
        """Return whether every request has ended."""
        return bool((self.records.requests["status"][: len(self.outcome.placed)] > 0).all())
