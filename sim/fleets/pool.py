"""A pool: replicas of one kind with a router, and what the router knows of them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from policies.routing import CACHE, MEMORY, QUEUE, Replicas, RoutedRequest, Routing, routing
from sim.deployment import Deployment
from sim.fleets.crew import Crew
from sim.fleets.sections import FleetSection, PoolSection, Role
from sim.scenario import Scenario

__all__ = ["Pool", "pool_scenarios"]

Places = npt.NDArray[np.int64]


def pool_scenarios(scenario: Scenario) -> list[tuple[PoolSection, Scenario]]:
    """Return each pool of a scenario with the scenario of one of its replicas.

    Without pools the whole deployment is one.
    """
    if not scenario.pools:
        whole = PoolSection(name="all", replicas=scenario.hardware.replicas)
        return [(whole, scenario)]
    return [(pool, scenario.changed({"pools": (), **pool.changes()})) for pool in scenario.pools]


@dataclass
class Pool:
    """Replicas of one kind.

    Attributes
    ----------
    section : PoolSection
        Name, role, classes of traffic.
    scenario : Scenario
        Of its replicas.
    deployment : Deployment
        What one of them is made of.
    places : list of int
        Numbers of its replicas in the fleet.
    up : list of int
        Those that take requests.
    backlog : deque of int
        Requests that wait for a replica to be up.
    """

    section: PoolSection
    scenario: Scenario
    deployment: Deployment
    fleet: FleetSection
    router: Routing = field(init=False)
    places: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    backlog: deque[int] = field(default_factory=deque)
    speed: float = 1.0
    _view: Replicas = field(default_factory=lambda: Replicas.of([]), init=False, repr=False)
    _up: Places = field(default_factory=lambda: np.zeros(0, np.int64), init=False, repr=False)
    _read_s: float = field(default=-np.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        self.router = routing.make(self.scenario.policies.routing)

    @property
    def role(self) -> Role:
        """What its replicas compute."""
        return self.section.role

    @property
    def prompt_tokens_per_s(self) -> float:
        """Rate at which a replica computes long prompts [token/s]."""
        linear_s = self.deployment.tables.linear_s
        return float((linear_s.size - 1) / linear_s[-1])

    def serves(self, traffic_class: str, model: str) -> bool:
        """Return whether requests of a class and a model may come here."""
        classes, models = self.section.classes, self.section.models
        return (not classes or traffic_class in classes) and (not models or model in models)

    def membership(self, places: Iterable[int]) -> None:
        """Set which replicas are up."""
        self.up = sorted(places)
        self._up = np.array(self.up, dtype=np.int64)
        n, tables = len(self.up), self.deployment.tables
        blocks = int(self.deployment.knobs["num_blocks"][0])
        self._view = Replicas.of(
            np.zeros(n),
            index=self._up,
            total_blocks=np.full(n, blocks),
            free_blocks=np.full(n, blocks),
            speed=np.full(n, self.speed),
            prompt_tokens_per_s=np.full(n, self.prompt_tokens_per_s),
            step_s=np.full(n, float(tables.linear_s[1])),
        )
        self._read_s = -np.inf

    def stale(self, now: float) -> bool:
        """Return whether loads must be read before the next choice."""
        return now - self._read_s >= self.fleet.load_refresh_s

    def read(self, crew: Crew, now: float) -> None:
        """Read the loads of the replicas that are up."""
        loads = crew.look(self._up, now)
        self._view.outstanding = loads[:, 0] + loads[:, 1]
        self._view.free_blocks = loads[:, 2]
        if QUEUE in self.router.needs:
            begun = crew.step_left_s(self._up, now) * self.prompt_tokens_per_s
            self._view.queued_tokens = crew.queued_tokens(self._up) + begun.astype(np.int64)
        self._read_s = now

    @property
    def ranks(self) -> int:
        """Accelerators of one of its replicas."""
        hardware = self.scenario.hardware
        return hardware.accelerators // hardware.replicas

    @property
    def exact(self) -> bool:
        """Whether the router needs more than counts of requests."""
        return bool({MEMORY, QUEUE, CACHE} & self.router.needs)

    def choose(
        self, request: RoutedRequest, index: int, crew: Crew, rng: np.random.Generator
    ) -> int:
        """Return the number of the replica that serves a request."""
        if CACHE in self.router.needs:
            self._view.cached_tokens = crew.cached_tokens(self._up, index)
        position = self.router.choose(request, self._view, rng)
        if self.fleet.count_sent and self.fleet.load_refresh_s > 0:
            self._view.outstanding[position] += 1
            self._view.queued_tokens[position] += request.prompt_tokens
        return self.up[position]
