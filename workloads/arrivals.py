"""Arrival times: when requests come, from a specification and a stream of random numbers.

Open processes (all but the closed loop) are renewal processes run through a rate: unit-mean gaps
add up to an operational time, and the inverse of the cumulated rate turns that into seconds. For
Poisson gaps this is the exact process of a varying rate; for other gaps it keeps their variation.
"""

from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, FiniteFloat, model_validator

from formats import InputError
from workloads.distributions import Strict
from workloads.renewal import MAX_REQUESTS, Clock, Family, renewal, unit_gaps

__all__ = [
    "Arrivals",
    "Burst",
    "Client",
    "Clients",
    "ClosedLoop",
    "ConstantRate",
    "GammaGaps",
    "Piecewise",
    "Poisson",
    "Shaped",
    "arrival_table",
    "arrival_times",
    "mean_rate",
    "scale_rate",
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


class Clients(Strict):
    """A sum of clients, each with its own rate and burstiness (as ServeGen describes loads)."""

    kind: Literal["clients"] = "clients"
    clients: list[Client] = Field(min_length=1, max_length=100_000, description="the clients")


Arrivals = Annotated[
    Poisson | GammaGaps | ConstantRate | Burst | ClosedLoop | Piecewise | Shaped | Clients,
    Field(discriminator="kind"),
]


def arrival_times(
    spec: Arrivals, duration_s: float | None, rng: np.random.Generator, count: int | None = None
) -> Floats:
    """Return arrival times in rising order.

    Parameters
    ----------
    spec : Arrivals
        The process. Renewal processes start in equilibrium, as if they had run for long.
    duration_s : float or None
        Times lie in [0, duration_s); None for no limit.
    rng : numpy.random.Generator
        The stream of arrivals.
    count : int or None
        At most so many; needed where duration_s is None.

    Returns
    -------
    array of float64, shape (n,)
        Seconds. All 0 for a closed loop, whose arrivals the simulator makes.

    Raises
    ------
    InputError
        Neither limit is given, or more than 50 million arrivals would be made.

    Examples
    --------
    >>> arrival_times(ConstantRate(rate_per_s=2), 2.0, np.random.default_rng(0)).tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    return arrival_table(spec, duration_s, rng, count)["arrival_s"].to_numpy()


def arrival_table(
    spec: Arrivals, duration_s: float | None, rng: np.random.Generator, count: int | None = None
) -> pd.DataFrame:
    """Return arrivals as the column arrival_s, with the column client where the spec has clients.

    Parameters and errors are those of `arrival_times`.
    """
    _check_limits(spec, duration_s, count)
    if isinstance(spec, Clients):
        return _client_arrivals(spec, duration_s, rng, count)
    if isinstance(spec, ClosedLoop):
        times = np.zeros(count or 0)
    elif isinstance(spec, Burst):
        times = np.full(min(spec.count if count is None else count, MAX_REQUESTS), spec.at_s)
    elif isinstance(spec, ConstantRate):
        times = _regular(spec, duration_s, count)
    else:
        times = _renewal_times(spec, duration_s, rng, count)
    return pd.DataFrame({"arrival_s": times if duration_s is None else times[times < duration_s]})


def mean_rate(spec: Arrivals, duration_s: float | None = None) -> float:
    """Return the mean rate in request/s: over a duration for steps that do not repeat.

    A burst or a closed loop has none: infinite.

    Examples
    --------
    >>> mean_rate(Piecewise(starts_s=[0, 10], rates_per_s=[1, 3], until_s=20, repeat=True))
    2.0
    """
    if isinstance(spec, Burst | ClosedLoop):
        return float(np.inf)
    if isinstance(spec, Clients):
        return sum(c.rate_per_s for c in spec.clients)
    if isinstance(spec, Piecewise | Shaped) and (duration_s or spec.kind == "piecewise"):
        clock = _clock(spec)
        end = duration_s or float(clock.times[-1])
        return clock.expected(end) / end if end else clock.after
    return spec.rate_per_s


def scale_rate(spec: Arrivals, factor: float) -> Arrivals:
    """Return the same process with every rate (or the burst, or the users) times a factor.

    Raises
    ------
    InputError
        The factor is not positive and finite.

    Examples
    --------
    >>> scale_rate(Poisson(rate_per_s=2), 1.5).rate_per_s
    3.0
    """
    if not 0 < factor < np.inf:
        raise InputError(f"rate factor is {factor:g}", "rate_scale", "above 0")
    if isinstance(spec, Burst):
        return spec.model_copy(update={"count": max(1, round(spec.count * factor))})
    if isinstance(spec, ClosedLoop):
        return spec.model_copy(update={"concurrency": max(1, round(spec.concurrency * factor))})
    if isinstance(spec, Clients):
        scaled = [c.model_copy(update={"rate_per_s": c.rate_per_s * factor}) for c in spec.clients]
        return spec.model_copy(update={"clients": scaled})
    if isinstance(spec, Piecewise):
        return spec.model_copy(update={"rates_per_s": [r * factor for r in spec.rates_per_s]})
    return spec.model_copy(update={"rate_per_s": spec.rate_per_s * factor})


def _check_limits(spec: Arrivals, duration_s: float | None, count: int | None) -> None:
    where = f"arrivals of kind {spec.kind!r}"
    if duration_s is not None and not 0 < duration_s <= 1e9:
        raise InputError(f"duration_s is {duration_s:g}", where, "above 0, at most 1e9 s")
    if count is not None and not 1 <= count <= MAX_REQUESTS:
        raise InputError(f"count is {count}", where, f"1 to {MAX_REQUESTS} requests")
    if count is None and isinstance(spec, ClosedLoop):
        raise InputError("a closed loop has no end of its own", where, repair="give count")
    if count is None and not isinstance(spec, Burst):
        _check_total(spec, duration_s, where)


def _check_total(spec: Arrivals, duration_s: float | None, where: str) -> None:
    if duration_s is None:
        raise InputError("arrivals have no end", where, repair="give duration_s or count")
    expected = mean_rate(spec, duration_s) * duration_s
    if expected > MAX_REQUESTS:
        what = f"{expected:.3g} requests in {duration_s:g} s are too many"
        raise InputError(what, where, f"at most {MAX_REQUESTS}", "lower the rate or duration_s")


def _clock(spec: Poisson | GammaGaps | Piecewise | Shaped | Client) -> Clock:
    if isinstance(spec, Piecewise):
        return Clock.of_steps(spec.starts_s, spec.rates_per_s, spec.until_s, spec.repeat)
    if isinstance(spec, Shaped):
        turned = np.roll(spec.rates(), -int(spec.start_hour))
        return Clock.of_steps(HOUR_S * np.arange(168), turned, 168 * HOUR_S, repeat=True)
    return Clock.of_steps([0.0], [spec.rate_per_s])


def _renewal_times(
    spec: Poisson | GammaGaps | Piecewise | Shaped | Client,
    duration_s: float | None,
    rng: np.random.Generator,
    count: int | None,
) -> Floats:
    clock = _clock(spec)
    end = np.inf if duration_s is None else clock.expected(duration_s)
    cv = 1.0 if isinstance(spec, Poisson) else spec.cv
    family: Family = spec.family if isinstance(spec, Client) else "gamma"
    times = clock.seconds(renewal(end, cv, family, rng, count))
    return times[np.isfinite(times)]


def _regular(spec: ConstantRate, duration_s: float | None, count: int | None) -> Floats:
    n = MAX_REQUESTS if duration_s is None else int(np.ceil(duration_s * spec.rate_per_s)) + 1
    return np.arange(n if count is None else min(n, count)) / spec.rate_per_s


def _client_arrivals(
    spec: Clients, duration_s: float | None, rng: np.random.Generator, count: int | None
) -> pd.DataFrame:
    if duration_s is None:
        return _first_clients(spec, rng, count or 1)
    streams = rng.spawn(len(spec.clients))
    clients = zip(spec.clients, streams, strict=True)
    times = [_renewal_times(c, duration_s, s, None) for c, s in clients]
    names = np.array([c.name or f"client-{i}" for i, c in enumerate(spec.clients)], dtype=object)
    client = pd.Series(np.repeat(names, [t.size for t in times]), dtype="str")
    table = pd.DataFrame({"arrival_s": np.concatenate(times), "client": client})
    return table.sort_values("arrival_s", kind="stable", ignore_index=True)[:count]


def _first_clients(spec: Clients, rng: np.random.Generator, count: int) -> pd.DataFrame:
    """Return the first `count` arrivals, from durations that double until they hold enough."""
    duration_s = 1.2 * count / mean_rate(spec) + 1e-9
    state = rng.bit_generator.state
    while True:
        rng.bit_generator.state = state
        table = _client_arrivals(
            spec, duration_s, np.random.default_rng(rng.integers(2**63)), count
        )
        if len(table) >= count or duration_s > 1e9:
            return table
        duration_s *= 2
