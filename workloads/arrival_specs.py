"""Specifications of arrival processes, as they stand in a scenario under ``arrivals``."""

from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, model_validator

from workloads.distributions import Strict
from workloads.renewal import MAX_REQUESTS, Family, GapTable, unit_gaps

__all__ = [
    "HOUR_S",
    "Arrivals",
    "Burst",
    "Client",
    "Clients",
    "ClosedLoop",
    "ConstantRate",
    "GammaGaps",
    "Gaps",
    "Piecewise",
    "Poisson",
    "ServeGenClients",
    "Shaped",
    "TraceArrivals",
]

Floats = npt.NDArray[np.float64]
HOUR_S = 3600.0
Rate = Annotated[FiniteFloat, Field(gt=0, le=1e6)]
RateOrZero = Annotated[FiniteFloat, Field(ge=0, le=1e6)]
Variation = Annotated[FiniteFloat, Field(ge=0, le=1000)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]

_RATE = "mean arrivals per second [request/s]"
_CV = "standard deviation over mean of the gaps; 0 regular, 1 Poisson [1]"


class Poisson(Strict):
    """Independent arrivals at a constant mean rate."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate = Field(description=_RATE)


class GammaGaps(Strict):
    """Gaps drawn from a gamma distribution: burstier than Poisson for cv above 1."""

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate = Field(description=_RATE)
    cv: Variation = Field(description=_CV)


class ConstantRate(Strict):
    """Equal gaps: request k arrives at k / rate."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate = Field(description=_RATE)


class Burst(Strict):
    """All requests at once."""

    kind: Literal["burst"] = "burst"
    at_s: Seconds = Field(default=0.0, description="moment of arrival [s]")
    count: int = Field(default=1, ge=1, le=MAX_REQUESTS, description="how many [request]")


class ClosedLoop(Strict):
    """A fixed number of users, each sending the next request after the answer and a pause.

    The requests table cannot hold the arrivals, since completions produce them: every arrival_s is
    0, and the simulator releases the first `concurrency` rows at 0 and the next row each time one
    completes, after a pause.
    """

    kind: Literal["closed-loop"] = "closed-loop"
    concurrency: int = Field(ge=1, le=1_000_000, description="users, or requests in flight [1]")
    think_s: Seconds = Field(default=0.0, description="mean pause after an answer [s]")
    think_cv: Variation = Field(
        default=1.0, description="standard deviation over mean of the pause; 0 is constant [1]"
    )

    def think_times(self, n: int, rng: np.random.Generator) -> Floats:
        """Return the pause before each of the first `n` requests, in seconds.

        Examples
        --------
        >>> loop = ClosedLoop(concurrency=2, think_s=3, think_cv=0)
        >>> loop.think_times(3, np.random.default_rng(0)).tolist()
        [3.0, 3.0, 3.0]
        """
        return self.think_s * unit_gaps(n, self.think_cv, "gamma", rng)


class Piecewise(Strict):
    """A rate that changes in steps and, where `repeat`, starts again after `until_s`."""

    kind: Literal["piecewise"] = "piecewise"
    starts_s: list[Seconds] = Field(
        min_length=1, max_length=100_000, description="start of each step, the first 0 [s]"
    )
    rates_per_s: list[RateOrZero] = Field(
        min_length=1, max_length=100_000, description="rate of each step [request/s]"
    )
    until_s: Seconds = Field(default=0.0, description="end of the last step; 0 is never [s]")
    repeat: bool = Field(default=False, description="start again after until_s")
    cv: Variation = Field(default=1.0, description=_CV)

    @model_validator(mode="after")
    def _steps(self) -> Self:
        if len(self.starts_s) != len(self.rates_per_s):
            raise ValueError(f"{len(self.rates_per_s)} rates for {len(self.starts_s)} starts")
        if self.starts_s[0] != 0 or (np.diff(self.starts_s) <= 0).any():
            raise ValueError("starts_s must rise from 0")
        if not any(self.rates_per_s):
            raise ValueError("at least one rate must be above 0")
        if self.until_s and self.until_s <= self.starts_s[-1]:
            raise ValueError("until_s must lie after the last start")
        if self.repeat and not self.until_s:
            raise ValueError("repeat needs until_s")
        return self


class Shaped(Strict):
    """A mean rate times a daily and a weekly shape; time 0 is midnight, the week's first day."""

    kind: Literal["shaped"] = "shaped"
    rate_per_s: Rate = Field(description="mean rate over the whole week [request/s]")
    hourly: list[RateOrZero] = Field(
        min_length=24, max_length=24, description="weight of each hour of the day [1]"
    )
    daily: list[RateOrZero] = Field(
        default_factory=lambda: [1.0] * 7,
        min_length=7,
        max_length=7,
        description="weight of each day [1]",
    )
    start_hour: int = Field(default=0, ge=0, lt=168, description="hour of the week at time 0 [h]")
    cv: Variation = Field(default=1.0, description=_CV)

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if not any(self.hourly) or not any(self.daily):
            raise ValueError("hourly and daily each need a weight above 0")
        return self

    def rates(self) -> Floats:
        """Return the rate in each of the 168 hours of the week, in request/s."""
        week = np.outer(self.daily, self.hourly).ravel()
        return np.asarray(self.rate_per_s * week / week.mean())


class Client(Strict):
    """One client of a decomposed load."""

    name: str = Field(default="", max_length=200, description="what the client is called")
    rate_per_s: Rate = Field(description=_RATE)
    cv: Variation = Field(default=1.0, description=_CV)
    family: Family = Field(default="gamma", description="distribution of the gaps")


class Gaps(Strict):
    """Gaps drawn from a table of quantiles, such as those observed in a trace."""

    kind: Literal["gaps"] = "gaps"
    rate_per_s: Rate = Field(description=_RATE)
    probabilities: list[Annotated[FiniteFloat, Field(ge=0, le=1)]] = Field(
        min_length=2, max_length=4096, description="rising from 0 to 1 [1]"
    )
    gaps: list[Seconds] = Field(
        min_length=2, max_length=4096, description="gap at each probability, scaled to the rate [s]"
    )

    @model_validator(mode="after")
    def _table(self) -> Self:
        p = np.array(self.probabilities)
        if len(p) != len(self.gaps):
            raise ValueError(f"{len(p)} probabilities for {len(self.gaps)} gaps")
        if p[0] != 0 or p[-1] != 1 or (np.diff(p) <= 0).any():
            raise ValueError("probabilities must rise from 0 to 1")
        if (np.diff(self.gaps) < 0).any() or self.gaps[-1] <= 0:
            raise ValueError("gaps must not fall, and the last must be above 0")
        return self

    def table(self) -> GapTable:
        """Return the table as arrays."""
        return GapTable(np.array(self.probabilities), np.array(self.gaps))


class TraceArrivals(Strict):
    """The arrival times of a trace file, with lengths from elsewhere."""

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1, description="a trace of any format that can be read")
    format: str = Field(default="auto", description="its format; auto finds it by content")
    start_s: Seconds = Field(default=0.0, description="start of the part to use [s]")
    rate_scale: Rate = Field(default=1.0, description="arrivals come so many times faster [1]")


class ServeGenClients(Strict):
    """Clients of a ServeGen client-rate table, each with its own rate in every window."""

    kind: Literal["servegen"] = "servegen"
    path: str = Field(min_length=1, description="CSV of client_id, window_start_s, rates and cv")
    start_s: Seconds = Field(default=0.0, description="start of the part to use [s]")
    rate_scale: Rate = Field(default=1.0, description="every rate is multiplied by this [1]")


class Clients(Strict):
    """A sum of clients, each with its own rate and burstiness (as ServeGen describes loads)."""

    kind: Literal["clients"] = "clients"
    clients: list[Client] = Field(min_length=1, max_length=100_000, description="the clients")


Arrivals = Annotated[
    Poisson
    | GammaGaps
    | ConstantRate
    | Gaps
    | Burst
    | ClosedLoop
    | Piecewise
    | Shaped
    | Clients
    | ServeGenClients
    | TraceArrivals,
    Field(discriminator="kind"),
]
