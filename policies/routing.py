"""Which replica serves a request.

A policy looks at the request and at columns of numbers, one entry per replica that is up, and
returns a position in them. What it says it `needs` is filled in; the rest is zero.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from policies.base import Registry

__all__ = [
    "CacheAware",
    "Emptiest",
    "LeastOutstanding",
    "PowerOfChoices",
    "RandomChoice",
    "Replicas",
    "RoundRobin",
    "RoutedRequest",
    "Routing",
    "SessionAffinity",
    "ShortestTtft",
    "WeightedRoundRobin",
    "routing",
]

Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
COUNTS, MEMORY, QUEUE, CACHE = "counts", "memory", "queue", "cache"
NOTHING: frozenset[str] = frozenset()


@dataclass(slots=True)
class RoutedRequest:
    """What a router knows of a request: never how long its answer will be.

    Parameters
    ----------
    prompt_tokens : int
        Length of the prompt [token].
    session : int
        Number of its conversation, -1 none.
    priority : int
        Smaller is served first.
    """

    prompt_tokens: int
    session: int = -1
    priority: int = 0


@dataclass(slots=True)
class Replicas:
    """What a router knows of the replicas that are up: arrays of shape (replicas,).

    Parameters
    ----------
    index : ndarray
        Number of each replica in the fleet.
    speed : ndarray
        Tokens per second that each could compute at best, relative to the fastest [1].
    outstanding : ndarray
        Requests on it when its load was last read, and those sent since (`counts`) [request].
    free_blocks, total_blocks : ndarray
        KV blocks (`memory`) [block].
    queued_tokens : ndarray
        Prompt tokens sent to it and not yet computed (`queue`) [token].
    prompt_tokens_per_s : ndarray
        Rate at which it computes prompts [token/s].
    step_s : ndarray
        Shortest time of a step [s].
    cached_tokens : ndarray
        Leading tokens of this request in its prefix cache (`cache`) [token].
    """

    index: Places
    speed: Floats
    outstanding: Places
    free_blocks: Places
    total_blocks: Places
    queued_tokens: Places
    prompt_tokens_per_s: Floats
    step_s: Floats
    cached_tokens: Places

    @classmethod
    def of(cls, outstanding: npt.ArrayLike, **columns: npt.ArrayLike) -> "Replicas":
        """Return equal replicas with these loads, other columns as given.

        Examples
        --------
        >>> Replicas.of([2, 0, 1]).outstanding.tolist()
        [2, 0, 1]
        """
        load = np.asarray(outstanding, dtype=np.int64)
        zeros = np.zeros_like(load)
        ones = np.ones(load.size)
        made: dict[str, npt.NDArray[np.generic]] = {
            "index": np.arange(load.size),
            "speed": ones,
            "outstanding": load,
            "free_blocks": zeros,
            "total_blocks": zeros + 1,
            "queued_tokens": zeros,
            "prompt_tokens_per_s": ones,
            "step_s": 0.0 * ones,
            "cached_tokens": zeros,
        }
        return cls(**(made | {k: np.asarray(v) for k, v in columns.items()}))

    def __len__(self) -> int:
        return int(self.index.size)


class Routing(Protocol):
    """A routing policy.

    `looks` says whether it needs the state of the replicas; `needs` which of it. One that does not
    look is asked once for all requests (`assign`), unless replicas come and go.
    """

    looks: ClassVar[bool]
    needs: ClassVar[frozenset[str]]

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return the replica of each of the next requests; only where `looks` is False."""

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the position in `replicas` of the one that serves the request."""


routing: Registry[Routing] = Registry("routing")


class _Looking:
    """A router that looks at the replicas' counts of requests."""

    looks: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({COUNTS})

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Refuse: this router needs the state of the replicas."""
        raise NotImplementedError(f"{type(self).__name__} looks at the replicas")


def _first_least(values: npt.NDArray[np.generic]) -> int:
    return int(values.argmin())


@routing("round-robin")
@dataclass
class RoundRobin:
    """Each replica in turn. Use it when requests are alike and replicas are equal."""

    looks: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = NOTHING
    _next: int = field(default=0, init=False, repr=False)

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return each replica in turn."""
        places = np.arange(self._next, self._next + count) % replicas
        self._next += count
        return places

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the next replica."""
        return int(self.assign(1, len(replicas), rng)[0])


@routing("random")
@dataclass
class RandomChoice:
    """Any replica with equal chance. Use it as the baseline of every other router."""

    looks: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = NOTHING

    def assign(self, count: int, replicas: int, rng: np.random.Generator) -> Places:
        """Return random replicas."""
        return rng.integers(replicas, size=count)

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return a random replica."""
        return int(rng.integers(len(replicas)))


@routing("weighted-round-robin")
@dataclass
class WeightedRoundRobin(_Looking):
    """In turn, in proportion to speed (smooth weighted round robin). Use it for mixed hardware."""

    needs: ClassVar[frozenset[str]] = NOTHING
    _credit: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the replica with the most credit; each earns its speed, the chosen pays all."""
        index, credit = replicas.index.tolist(), self._credit
        for i, speed in zip(index, replicas.speed.tolist(), strict=True):
            credit[i] = credit.get(i, 0.0) + speed
        best = max(range(len(index)), key=lambda k: credit[index[k]])
        credit[index[best]] -= float(replicas.speed.sum())
        return best


@routing("least-outstanding")
@dataclass
class LeastOutstanding(_Looking):
    """The replica with the fewest requests on it, for its speed. Use it for uneven requests."""

    by_speed: Annotated[bool, Field(description="divide by the replica's speed")] = False

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the first of the least loaded replicas."""
        load = replicas.outstanding
        return _first_least((load + 1) / replicas.speed if self.by_speed else load)


@routing("least-kv")
@dataclass
class Emptiest(_Looking):
    """The replica with the largest share of free KV blocks. Use it for long, uneven contexts."""

    needs: ClassVar[frozenset[str]] = frozenset({COUNTS, MEMORY})

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the emptiest; ties by outstanding requests."""
        used = 1.0 - replicas.free_blocks / replicas.total_blocks
        return int(np.lexsort((replicas.outstanding, used))[0])


@routing("power-of-choices")
@dataclass
class PowerOfChoices(_Looking):
    """The less loaded of a few random replicas. Use it with many routers or stale loads.

    Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10), 2001.
    """

    choices: Annotated[int, Field(ge=1, le=1000, description="replicas compared [replica]")] = 2

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the least loaded of `choices` different replicas."""
        some = rng.choice(len(replicas), min(self.choices, len(replicas)), replace=False)
        return int(some[_first_least(replicas.outstanding[some])])


@routing("shortest-ttft")
@dataclass
class ShortestTtft(_Looking):
    """The replica with the shortest predicted time to first token. Use it for uneven prompts."""

    needs: ClassVar[frozenset[str]] = frozenset({COUNTS, QUEUE, CACHE})

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the least of steps and prompt tokens to compute first; ties by requests."""
        own = request.prompt_tokens - replicas.cached_tokens
        ttft = replicas.step_s + (replicas.queued_tokens + own) / replicas.prompt_tokens_per_s
        return int(np.lexsort((replicas.outstanding, ttft))[0])


Slack = Annotated[float, Field(ge=0, le=1e6, description="requests above the mean [request]")]
Factor = Annotated[float, Field(ge=1, le=1e6, description="times the mean load at most [1]")]


def _within(load: Places, factor: float, slack: float) -> npt.NDArray[np.bool_]:
    """Return which replicas are not a hot spot: load <= factor x mean + slack."""
    return np.asarray(load <= factor * load.mean() + slack)


@routing("session-affinity")
@dataclass
class SessionAffinity(_Looking):
    """Where the conversation was before, else the least loaded. Use it for multi-turn chats."""

    factor: Factor = 2.0
    slack: Slack = 8.0
    _homes: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the session's home unless it is gone or a hot spot; the new one is its home."""
        home = np.flatnonzero(replicas.index == self._homes.get(request.session, -1))
        load = replicas.outstanding
        if home.size and _within(load, self.factor, self.slack)[home[0]]:
            return int(home[0])
        best = _first_least(load)
        if request.session >= 0:
            self._homes[request.session] = int(replicas.index[best])
        return best


@routing("cache-aware")
@dataclass
class CacheAware(_Looking):
    """The longest cached prefix among replicas that are not overloaded. Use it for shared prompts.

    Without a match of `least_match` of the prompt, and among equal matches, the least loaded.
    """

    needs: ClassVar[frozenset[str]] = frozenset({COUNTS, CACHE})
    factor: Factor = 1.5
    slack: Slack = 4.0
    guard: Annotated[bool, Field(description="leave out overloaded replicas")] = True
    least_match: Annotated[
        float, Field(ge=0, le=1, description="share of the prompt that counts as a match [1]")
    ] = 0.0

    def choose(self, request: RoutedRequest, replicas: Replicas, rng: np.random.Generator) -> int:
        """Return the best match within the guard."""
        load, cached = replicas.outstanding, replicas.cached_tokens
        useful = np.where(cached >= self.least_match * request.prompt_tokens, cached, 0)
        if self.guard:
            useful = np.where(_within(load, self.factor, self.slack), useful, 0)
        return int(np.lexsort((load, -useful))[0])
