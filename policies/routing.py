"""Which replica serves a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from policies.base import Registry
from policies.rules import RequestView

__all__ = ["LeastOutstanding", "RandomChoice", "ReplicaView", "RoundRobin", "Routing", "routing"]


Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a router may know of a replica."""

    index: int
    waiting: int
    running: int
    free_blocks: int


class Routing(Protocol):
    """A routing policy; `looks` says whether it needs the state of the replicas."""

    looks: ClassVar[bool]

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return the replica of each of the next requests; only where `looks` is False."""

    def choose(
        self, request: RequestView, replicas: Sequence[ReplicaView], rng: np.random.Generator
    ) -> int:
        """Return the position in `replicas` of the one that serves the request."""


routing: Registry[Routing] = Registry("routing")


@routing("round-robin")
@dataclass
class RoundRobin:
    """Each replica in turn. Use it when requests are alike and replicas are equal."""

    looks: ClassVar[bool] = False
    _next: int = field(default=0, init=False, repr=False)

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return each replica in turn."""
        places = np.arange(self._next, self._next + count) % replicas
        self._next += count
        return places

    def choose(
        self, request: RequestView, replicas: Sequence[ReplicaView], rng: np.random.Generator
    ) -> int:
        """Return the next replica."""
        return int(self.assign(1, len(replicas), rng)[0])


@routing("random")
@dataclass
class RandomChoice:
    """Any replica with equal chance. Use it as the baseline of every other router."""

    looks: ClassVar[bool] = False

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return random replicas."""
        return rng.integers(replicas, size=count)

    def choose(
        self, request: RequestView, replicas: Sequence[ReplicaView], rng: np.random.Generator
    ) -> int:
        """Return a random replica."""
        return int(rng.integers(len(replicas)))


@routing("least-outstanding")
@dataclass
class LeastOutstanding:
    """The replica with the fewest requests on it. Use it for uneven requests."""

    looks: ClassVar[bool] = True

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Refuse: this router needs the state of the replicas."""
        raise NotImplementedError

    def choose(
        self, request: RequestView, replicas: Sequence[ReplicaView], rng: np.random.Generator
    ) -> int:
        """Return the first of the least loaded replicas."""
        loads = [r.waiting + r.running for r in replicas]
        return loads.index(min(loads))
