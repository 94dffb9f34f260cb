"""What is asked in every hour of a week and in every quarter, and requests that sample it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from formats import InputError
from sim.planning.demand import DAY_S, QUARTERS_PER_YEAR, Batch, Shape, Traffic
from sim.planning.planfile import PlanFile
from sim.scenario import Slo
from workloads.arrival_specs import Arrivals, Client, Shaped
from workloads.arrivals import scale_rate
from workloads.lengths import Lengths, load_lengths
from workloads.named import NamedWorkload, Streams, WorkloadPart, WorkloadSpec, load_workload
from workloads.named import make_requests as draw
from workloads.traces import read_trace

__all__ = ["WEEK_H", "Load", "TrafficClass", "batch_part", "batch_week", "growth_factors"]

Floats = npt.NDArray[np.float64]
WEEK_H = 168
HOUR_S = 3600.0
RENEWAL = ("poisson", "gamma", "gaps", "clients")
DEFAULT_LENGTHS, DEFAULT_SHAPE = "azure-conv", "chat-week"


def growth_factors(growth_per_year: float, quarters: int, place: float) -> Floats:
    """Return demand over that at the start, at one place inside each quarter.

    Parameters
    ----------
    growth_per_year : float
        Share added each year, above -1.
    quarters : int
        How many.
    place : float
        0 start, 0.5 middle, 1 end of the quarter.

    Returns
    -------
    ndarray, shape (quarters,)

    Examples
    --------
    >>> growth_factors(0.44, 4, 1.0).round(3).tolist()
    [1.095, 1.2, 1.315, 1.44]
    """
    years = (np.arange(quarters) + place) / QUARTERS_PER_YEAR
    return np.asarray((1.0 + growth_per_year) ** years)


@dataclass(frozen=True)
class TrafficClass:
    """One class with everything it names looked up.

    Attributes
    ----------
    spec : Traffic
        As it stands in the plan file.
    week : ndarray, shape (168,)
        Mean rate of each hour of the week at the start [request/s].
    slo : Slo
        Objectives.
    part : WorkloadPart
        Requests of this class; its arrivals have a rate of 1/s, or a trace its own.
    rate_per_s : float
        Rate of `part` as it stands [request/s].
    """

    spec: Traffic
    week: Floats
    slo: Slo
    part: WorkloadPart
    rate_per_s: float

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.spec.name

    def at_rate(self, rate_per_s: float, duration_s: float) -> WorkloadPart:
        """Return requests of this class at another rate, for some time."""
        update: dict[str, Any] = {"duration_s": duration_s, "count": None}
        update["rate_scale"] = rate_per_s / self.rate_per_s
        return self.part.model_copy(update=update)

    @classmethod
    def of(cls, spec: Traffic, base: Path = Path()) -> "TrafficClass":
        """Look up what a class names: workload, lengths, shape, trace.

        Raises
        ------
        InputError
            A name is unknown, a trace is bad, or nothing says the objectives.
        """
        named = None if spec.workload is None else load_workload(spec.workload)
        slo = spec.slo or (Slo() if named is None else _objectives(named))
        if spec.trace is not None:
            return cls(spec, *_traced(spec, slo, base))
        mean = float(spec.mean_rate_per_s or 0.0)
        week = mean * _weights(spec.shape or DEFAULT_SHAPE)
        part = WorkloadPart(
            arrivals=_unit_arrivals(spec, named),
            lengths=_lengths(spec, named),
            sharing=spec.sharing if spec.sharing is not None else named and named.sharing,
            traffic_class=spec.name,
            priority=spec.priority,
        )
        return cls(spec, week, slo, part, 1.0)


def _objectives(named: NamedWorkload) -> Slo:
    said = named.objectives
    return Slo(ttft_s=said.ttft_s, tpot_s=said.tpot_s, e2e_s=said.e2e_s, percentile=said.percentile)


def _lengths(spec: Traffic, named: NamedWorkload | None) -> str | Lengths:
    if spec.lengths is not None:
        return _one_lengths(spec.lengths, f"[[traffic]] {spec.name} lengths")
    return DEFAULT_LENGTHS if named is None else named.lengths


def _one_lengths(given: str | dict[str, Any], where: str) -> Lengths:
    try:
        chosen = given if isinstance(given, str) else Lengths.model_validate(given)
    except ValidationError as e:
        faults = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise InputError(faults, where, repair="see `roofcast list lengths`") from None
    return load_lengths(chosen)


def _unit_arrivals(spec: Traffic, named: NamedWorkload | None) -> Arrivals:
    """Return arrivals at 1/s: Poisson, of a stated variation, or as the workload's vary."""
    adapter: TypeAdapter[Arrivals] = TypeAdapter(Arrivals)
    said = None if named is None else named.arrivals
    if spec.cv is None and said is not None and said.kind in RENEWAL:
        rate = _rate(said)
        return scale_rate(said, 1.0 / rate)
    cv = spec.cv or getattr(said, "cv", None) or 1.0
    choice = {"kind": "poisson"} if cv == 1.0 else {"kind": "gamma", "cv": cv}
    return adapter.validate_python(choice | {"rate_per_s": 1.0})


def _rate(arrivals: Arrivals) -> float:
    clients: list[Client] = getattr(arrivals, "clients", [])
    own: float = getattr(arrivals, "rate_per_s", 1.0)
    return sum(c.rate_per_s for c in clients) if clients else own


def _weights(shape: str | Shape) -> Floats:
    """Return the weight of each hour of the week, mean 1."""
    if isinstance(shape, Shape):
        week = np.outer(shape.daily, shape.hourly).ravel()
        return np.asarray(week / week.mean())
    if shape == "flat":
        return np.ones(WEEK_H)
    arrivals = load_workload(shape).arrivals
    if not isinstance(arrivals, Shaped):
        what = f"workload {shape!r} has no daily shape"
        raise InputError(what, "[[traffic]] shape", "flat, chat-week, {hourly, daily}")
    rates = arrivals.rates()
    return np.asarray(rates / rates.mean())


def _traced(spec: Traffic, slo: Slo, base: Path) -> tuple[Floats, Slo, WorkloadPart, float]:
    """Return week, objectives, requests and rate of a class that a trace describes."""
    path = str(base / str(spec.trace))
    arrivals = read_trace(Path(path))["arrival_s"].to_numpy(np.float64)
    span = float(arrivals.max() - arrivals.min()) if arrivals.size else 0.0
    if span <= 0:
        what = "a trace that spans no time has no rate"
        raise InputError(what, path, repair="give requests_per_s and lengths instead")
    rate = arrivals.size / span
    weights = _weights(spec.shape) if spec.shape is not None else _trace_week(arrivals, span)
    part = WorkloadPart(
        requests=path, synthesise=True, traffic_class=spec.name, priority=spec.priority
    )
    return rate * spec.trace_scale * weights, slo, part, rate


def _trace_week(arrivals: Floats, span: float) -> Floats:
    """Return the daily shape of a trace of a day or longer, else a flat one."""
    if span < DAY_S - HOUR_S:
        return np.ones(WEEK_H)
    hours = ((arrivals - arrivals.min()) // HOUR_S).astype(np.int64)
    seen = np.bincount(hours % 24, minlength=24) / np.maximum(
        np.bincount(np.arange(hours.max() + 1) % 24, minlength=24), 1
    )
    return np.asarray(np.tile(seen / seen.mean(), 7))


@dataclass(frozen=True)
class Load:
    """All classes of traffic together.

    Attributes
    ----------
    classes : tuple of TrafficClass
        K of them.
    quarters : int
        Q, length of the plan.
    seed : int
        Seed of every sample.
    base : Path
        Folder of relative paths.
    """

    classes: tuple[TrafficClass, ...]
    quarters: int
    seed: int
    base: Path

    @classmethod
    def of(cls, file: PlanFile, base: Path = Path()) -> "Load":
        """Look up the traffic of a plan file."""
        classes = tuple(TrafficClass.of(spec, base) for spec in file.traffic)
        return cls(classes, file.horizon.quarters, file.search.seed, base)

    @cached_property
    def week(self) -> Floats:
        """Mean rates at the start, shape (K, 168) [request/s]."""
        rows = [c.week for c in self.classes]
        return np.array(rows).reshape(len(rows), WEEK_H)

    @cached_property
    def peak_factors(self) -> Floats:
        """Busiest hour over the ordinary one, shape (K,)."""
        return np.array([c.spec.peak_factor for c in self.classes])

    def growth(self, place: float) -> Floats:
        """Return demand over that at the start, shape (K, Q); see `growth_factors`."""
        rows = [growth_factors(c.spec.growth_per_year, self.quarters, place) for c in self.classes]
        return np.array(rows).reshape(len(rows), self.quarters)

    def peak(self, work: Floats) -> tuple[Floats, int]:
        """Return the rates of the hour and quarter that ask most of the machines.

        Parameters
        ----------
        work : ndarray, shape (K,)
            Time of a replica that a request of each class takes [s].

        Returns
        -------
        rates : ndarray, shape (K,)
            Rates at that peak, peak factors applied [request/s].
        quarter : int
            The quarter of the peak, from 0.
        """
        rates = self.busy_rates()
        asked = np.tensordot(work, rates, axes=1)
        quarter, hour = np.unravel_index(int(asked.argmax()), asked.shape)
        return np.asarray(rates[:, quarter, hour]), int(quarter)

    def mean_rates(self) -> Floats:
        """Rates of a mean week in the middle of each quarter, shape (K, Q, 168) [request/s]."""
        return np.asarray(self.week[:, None, :] * self.growth(0.5)[:, :, None])

    def busy_rates(self) -> Floats:
        """Rates of a busy week at the end of each quarter, shape (K, Q, 168) [request/s]."""
        rates = self.week[:, None, :] * self.growth(1.0)[:, :, None]
        return np.asarray(rates * self.peak_factors[:, None, None])

    def sample(self, rates: Sequence[float] | Floats, duration_s: float) -> pd.DataFrame:
        """Return requests of all classes at given rates for some time.

        The streams of random numbers are the same at every call, so that two rates see the same
        lengths and the same gaps, only closer.

        Parameters
        ----------
        rates : array_like, shape (K,)
            Rate of each class; a class at 0 is left out [request/s].
        duration_s : float
            Time of arrivals [s].
        """
        parts = [
            one.at_rate(float(rate), duration_s)
            for one, rate in zip(self.classes, rates, strict=True)
            if rate > 0
        ]
        return draw(WorkloadSpec(mix=parts), Streams.of_seed(self.seed), self.base)


def batch_part(batch: Batch, count: int) -> WorkloadPart:
    """Return requests of a batch class, all at once."""
    return WorkloadPart(
        arrivals={"kind": "burst", "count": count},
        lengths=_one_lengths(batch.lengths, f"[[batch]] {batch.name} lengths"),
        traffic_class=batch.name,
    )


def batch_week(batch: Batch) -> Floats:
    """Return how many requests of a batch class come in each hour of the week, shape (168,)."""
    if batch.submit_hour is None:
        return np.full(WEEK_H, batch.requests_per_day / 24)
    hours = np.zeros(24)
    hours[batch.submit_hour] = batch.requests_per_day
    return np.tile(hours, 7)
