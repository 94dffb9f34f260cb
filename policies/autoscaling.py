"""How many replicas a pool should have: observation in, desired count out, nothing else."""

from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field

from policies.base import Registry

__all__ = [
    "Autoscaling",
    "Fixed",
    "Forecast",
    "Observation",
    "QueueDriven",
    "TargetUtilisation",
    "TtftDriven",
    "autoscaling",
]


@dataclass(frozen=True, slots=True)
class Observation:
    """What an autoscaler may see at one decision.

    Parameters
    ----------
    now_s, interval_s : float
        Time, and time since the last decision [s].
    ready, starting : int
        Replicas that serve, and that are on the way [replica].
    waiting, running : int
        Requests in queues (those that no replica has taken included) and in batches [request].
    busy_share, kv_share : float
        Mean over serving replicas: time computing in the interval, KV blocks in use now [1].
    ttft_s : float
        90th percentile of times to first token in the interval, NaN without any [s].
    rates : tuple of float
        Arrivals per second in this and all earlier intervals, newest last [request/s].
    """

    now_s: float
    interval_s: float
    ready: int
    starting: int
    waiting: int = 0
    running: int = 0
    busy_share: float = 0.0
    kv_share: float = 0.0
    ttft_s: float = nan
    rates: tuple[float, ...] = ()

    @property
    def coming(self) -> int:
        """Replicas that serve or are on the way."""
        return self.ready + self.starting

    def idle_s(self) -> float:
        """Return how long nothing has arrived [s]."""
        quiet = 0
        for rate in reversed(self.rates):
            if rate > 0:
                break
            quiet += 1
        return quiet * self.interval_s


class Autoscaling(Protocol):
    """An autoscaling policy."""

    def desired(self, seen: Observation) -> int:
        """Return the number of replicas wanted; limits and cool-downs are the caller's."""


autoscaling: Registry[Autoscaling] = Registry("autoscaling")

Share = Annotated[float, Field(gt=0, le=1, description="share aimed at [1]")]
PerReplica = Annotated[float, Field(gt=0, le=1e6, description="requests of a replica [request]")]
Seconds = Annotated[float, Field(gt=0, le=1e9, description="time [s]")]
Idle = Annotated[float, Field(ge=0, le=1e9, description="without requests before zero [s]")]


def _asleep(seen: Observation, idle_s: float) -> bool:
    """Return whether nothing is there and nothing has come for so long."""
    return seen.waiting + seen.running == 0 and seen.idle_s() >= idle_s > 0


@autoscaling("fixed")
@dataclass(frozen=True)
class Fixed:
    """Always the same number. Use it as the baseline of every other policy."""

    replicas: Annotated[int, Field(ge=0, le=100_000, description="replicas [replica]")] = 1

    def desired(self, seen: Observation) -> int:
        """Return the fixed number."""
        return self.replicas


@autoscaling("target-utilisation")
@dataclass(frozen=True)
class TargetUtilisation:
    """Keep a measure at its target, as Kubernetes' HPA does. Use it for slowly moving load.

    desired = ceil(ready x measure / target), and no change within the tolerance.
    """

    measure: Annotated[
        Literal["requests", "busy", "kv"],
        Field(description="outstanding requests of a replica, time computing, or KV blocks in use"),
    ] = "requests"
    target: Annotated[float, Field(gt=0, le=1e6, description="of the measure")] = 32.0
    tolerance: Annotated[float, Field(ge=0, le=1, description="around 1, no change [1]")] = 0.1
    idle_s: Idle = 0.0

    def desired(self, seen: Observation) -> int:
        """Return the count at which the measure would be at its target."""
        if _asleep(seen, self.idle_s):
            return 0
        outstanding = seen.waiting + seen.running
        if self.measure == "requests" or seen.ready == 0:
            per_replica = self.target if self.measure == "requests" else 1.0
            wanted = outstanding / per_replica
            near = abs(wanted / max(seen.coming, 1) - 1.0) <= self.tolerance
            return seen.coming if near and seen.coming else max(ceil(wanted), 1)
        value = seen.busy_share if self.measure == "busy" else seen.kv_share
        ratio = value / self.target
        if abs(ratio - 1.0) <= self.tolerance:
            return seen.coming
        return max(ceil(seen.ready * ratio), 1)


@autoscaling("queue")
@dataclass(frozen=True)
class QueueDriven:
    """One more when queues are long, one less when they are empty. Use it for bursts."""

    up_waiting: PerReplica = 4.0
    down_running: PerReplica = 8.0
    step: Annotated[int, Field(ge=1, le=1000, description="replicas added [replica]")] = 1
    idle_s: Idle = 0.0

    def desired(self, seen: Observation) -> int:
        """Return more when the mean queue exceeds `up_waiting`, fewer when it is empty."""
        if _asleep(seen, self.idle_s):
            return 0
        if seen.waiting > self.up_waiting * seen.ready:
            return seen.coming + self.step
        spare = seen.running <= self.down_running * (seen.ready - 1)
        return seen.coming - 1 if seen.waiting == 0 and spare and not seen.starting else seen.coming


@autoscaling("ttft")
@dataclass(frozen=True)
class TtftDriven:
    """More when the time to first token misses its objective. Use it to hold an SLO."""

    objective_s: Seconds = 1.0
    relaxed: Share = 0.3
    step: Annotated[float, Field(gt=0, le=10, description="growth at a miss [1]")] = 0.25
    down_running: PerReplica = 8.0

    def desired(self, seen: Observation) -> int:
        """Return a quarter more at a miss, one less where it is far below the objective."""
        late = not isnan(seen.ttft_s) and seen.ttft_s > self.objective_s
        if late or (seen.waiting and not seen.ready):
            return seen.coming if seen.starting else ceil(max(seen.ready, 1) * (1.0 + self.step))
        low = isnan(seen.ttft_s) or seen.ttft_s < self.relaxed * self.objective_s
        spare = seen.running <= self.down_running * (seen.ready - 1)
        return seen.coming - 1 if low and spare and not seen.waiting else seen.coming


@autoscaling("forecast")
@dataclass(frozen=True)
class Forecast:
    """As many as the rate ahead needs, from the season before. Use it for daily load shapes.

    Rate ahead = rate of the last season at that time x recent level over its level then (a
    seasonal naive forecast with a drift factor); before a whole season was seen, the largest
    recent rate.
    """

    rate_per_replica: Annotated[
        float, Field(gt=0, le=1e6, description="requests per second of a replica [request/s]")
    ] = 1.0
    season_s: Seconds = 86_400.0
    ahead_s: Seconds = 300.0
    recent_s: Seconds = 900.0
    headroom: Annotated[float, Field(ge=0, le=10, description="more than the forecast [1]")] = 0.1

    def rate_ahead(self, seen: Observation) -> float:
        """Return the largest forecast rate from now to `ahead_s` [request/s]."""
        rates = np.asarray(seen.rates, dtype=np.float64)
        season = round(self.season_s / seen.interval_s)
        recent = max(round(self.recent_s / seen.interval_s), 1)
        ahead = max(ceil(self.ahead_s / seen.interval_s), 1)
        if rates.size < season + recent:
            return float(rates[-recent:].max(initial=0.0))
        then = rates[rates.size - season - recent : rates.size - season].mean()
        level = rates[-recent:].mean() / then if then > 0 else 1.0
        start = rates.size - season
        return float(rates[start : start + ahead].max(initial=0.0) * level)

    def desired(self, seen: Observation) -> int:
        """Return the replicas that the forecast rate needs; waiting requests count in."""
        rate = self.rate_ahead(seen) * (1.0 + self.headroom)
        rate += seen.waiting / self.ahead_s
        return ceil(rate / self.rate_per_replica)
