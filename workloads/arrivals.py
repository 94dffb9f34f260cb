"""Arrival times: when requests come, from a specification and a stream of random numbers.

Open processes (all but the closed loop) are renewal processes run through a rate: unit-mean gaps
add up to an operational time, and the inverse of the cumulated rate turns that into seconds. For
Poisson gaps this is the exact process of a varying rate; for other gaps it keeps their variation.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from workloads.arrival_specs import (
    HOUR_S,
    Arrivals,
    Burst,
    Client,
    Clients,
    ClosedLoop,
    ConstantRate,
    GammaGaps,
    Gaps,
    Piecewise,
    Poisson,
    ServeGenClients,
    Shaped,
    TraceArrivals,
)
from workloads.renewal import MAX_REQUESTS, Clock, Family, GapTable, renewal
from workloads.servegen import WINDOW_S, read_client_rates
from workloads.traces import read_trace, time_window

__all__ = [
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
    "arrival_table",
    "arrival_times",
    "mean_rate",
    "scale_rate",
]

Floats = npt.NDArray[np.float64]
Renewal = Poisson | GammaGaps | Gaps | Piecewise | Shaped | Client


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
    if isinstance(spec, ServeGenClients):
        return _servegen_arrivals(spec, duration_s, rng)[:count]
    times = _times(spec, duration_s, rng, count)
    return pd.DataFrame({"arrival_s": times if duration_s is None else times[times < duration_s]})


def _times(
    spec: "Renewal | ClosedLoop | Burst | ConstantRate | TraceArrivals",
    duration_s: float | None,
    rng: np.random.Generator,
    count: int | None,
) -> Floats:
    if isinstance(spec, ClosedLoop):
        return np.zeros(count or 0)
    if isinstance(spec, Burst):
        return np.full(spec.count if count is None else count, spec.at_s)
    if isinstance(spec, ConstantRate):
        return _regular(spec, duration_s, count)
    if isinstance(spec, TraceArrivals):
        return _trace_times(spec)[:count]
    return _renewal_times(spec, duration_s, rng, count)


def mean_rate(spec: Arrivals, duration_s: float | None = None) -> float:
    """Return the mean rate in request/s: over a duration for steps that do not repeat.

    A burst or a closed loop has none: infinite. For a trace it needs the duration.

    Examples
    --------
    >>> steps = Piecewise(starts_s=[0, 10], rates_per_s=[1, 3], until_s=20, repeat=True)
    >>> mean_rate(steps)
    2.0
    """
    if isinstance(spec, Burst | ClosedLoop):
        return float(np.inf)
    if isinstance(spec, Clients):
        return sum(c.rate_per_s for c in spec.clients)
    if isinstance(spec, TraceArrivals | ServeGenClients):
        return _file_rate(spec, duration_s)
    if isinstance(spec, Piecewise | Shaped) and (duration_s or isinstance(spec, Piecewise)):
        clock = _clock(spec)
        end = duration_s or float(clock.times[-1])
        return clock.expected(end) / end if end else clock.after
    return spec.rate_per_s


def _file_rate(spec: TraceArrivals | ServeGenClients, duration_s: float | None) -> float:
    if isinstance(spec, TraceArrivals):
        times = _trace_times(spec)
        end = duration_s or float(times[-1])
        return float((times < end).sum() / end) if end > 0 else float(np.inf)
    windows = _windows(spec, duration_s)
    end = duration_s or float(windows["start_s"].max() + WINDOW_S)
    return float((windows["rate_per_s"] * windows["length_s"]).sum() / end)


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
    if isinstance(spec, TraceArrivals | ServeGenClients):
        return spec.model_copy(update={"rate_scale": spec.rate_scale * factor})
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
    if isinstance(spec, ServeGenClients) or (
        count is None and not isinstance(spec, Burst | ClosedLoop | TraceArrivals)
    ):
        _check_total(spec, duration_s, where)


def _check_total(spec: Arrivals, duration_s: float | None, where: str) -> None:
    if duration_s is None:
        raise InputError("arrivals have no end", where, repair="give duration_s")
    expected = mean_rate(spec, duration_s) * duration_s
    if expected > MAX_REQUESTS:
        what = f"{expected:.3g} requests in {duration_s:g} s are too many"
        raise InputError(what, where, f"at most {MAX_REQUESTS}", "lower the rate or duration_s")


def _clock(spec: Renewal) -> Clock:
    if isinstance(spec, Piecewise):
        return Clock.of_steps(spec.starts_s, spec.rates_per_s, spec.until_s, spec.repeat)
    if isinstance(spec, Shaped):
        turned = np.roll(spec.rates(), -spec.start_hour)
        return Clock.of_steps(HOUR_S * np.arange(168), turned, 168 * HOUR_S, repeat=True)
    return Clock.of_steps([0.0], [spec.rate_per_s])


def _gaps(spec: Renewal) -> tuple[float, Family] | GapTable:
    if isinstance(spec, Poisson):
        return 1.0, "gamma"
    if isinstance(spec, Gaps):
        return spec.table()
    return spec.cv, spec.family if isinstance(spec, Client) else "gamma"


def _renewal_times(
    spec: Renewal, duration_s: float | None, rng: np.random.Generator, count: int | None
) -> Floats:
    clock = _clock(spec)
    end = np.inf if duration_s is None else clock.expected(duration_s)
    times = clock.seconds(renewal(end, _gaps(spec), rng, count))
    return times[np.isfinite(times)]


def _trace_times(spec: TraceArrivals) -> Floats:
    table = time_window(read_trace(Path(spec.path), spec.format), spec.start_s)
    return table["arrival_s"].to_numpy() / spec.rate_scale


def _windows(spec: ServeGenClients, duration_s: float | None) -> pd.DataFrame:
    """Return the parts of the clients' windows that lie in the run, from its time 0."""
    rows = read_client_rates(Path(spec.path))
    start = rows["start_s"].to_numpy() - spec.start_s
    stop = np.minimum(start + WINDOW_S, np.inf if duration_s is None else duration_s)
    start = np.maximum(start, 0.0)
    kept = (stop > start) & (rows["rate_per_s"].to_numpy() > 0)
    rows = rows.assign(
        start_s=start, length_s=stop - start, rate_per_s=rows["rate_per_s"] * spec.rate_scale
    )
    return rows[kept].reset_index(drop=True)


def _servegen_arrivals(
    spec: ServeGenClients, duration_s: float | None, rng: np.random.Generator
) -> pd.DataFrame:
    windows = _windows(spec, duration_s)
    times = [np.empty(0)]
    for start, length, rate, cv, family in windows[
        ["start_s", "length_s", "rate_per_s", "cv", "family"]
    ].itertuples(index=False):
        times.append(start + renewal(rate * length, (cv, family), rng) / rate)
    client = np.repeat(windows["client"].to_numpy(), [t.size for t in times[1:]])
    table = pd.DataFrame({"arrival_s": np.concatenate(times), "client": client})
    return table.sort_values("arrival_s", kind="stable", ignore_index=True)


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
