"""A candidate after its trials: capacity, watts, time and energy per token, and what limits it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from sim.deployment import Deployment, deploy
from sim.fleets.pool import pool_scenarios
from sim.planning.batches import BatchRate, batch_rate
from sim.planning.caps import COLUMNS, cap_curve
from sim.planning.curves import MixSurface, PowerCurve
from sim.planning.load import Load
from sim.planning.planfile import PlanFile
from sim.planning.pooled import unit_bound
from sim.planning.rating import Bench, Capacity, class_work
from sim.planning.ready import Ready
from sim.planning.supply import Candidate
from sim.planning.trial import Trial
from sim.scenario import Scenario

__all__ = ["Fault", "Rating", "rate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FEWER = 0.5  # smaller demand than the plan's that the fleet is also sized for
LOADS = (
    0.015,
    0.04,
    0.08,
    0.14,
    0.22,
    0.35,
    0.55,
    0.75,
    0.9,
)  # shares of the bound, for the power curve


@dataclass(frozen=True)
class Fault:
    """Why a candidate cannot do what the plan asks.

    Attributes
    ----------
    limit : str
        What stops it: memory, design, ttft, tpot, e2e, supply, rack, power or money.
    what : str
        One sentence.
    repair : str
        What would help.
    """

    limit: str
    what: str
    repair: str


@dataclass(frozen=True)
class Rating:
    """What simulation says of a candidate under the plan's traffic.

    Attributes
    ----------
    candidate : Candidate
        Which.
    bench : Bench or None
        Its trials; None where nobody waits for answers.
    deployment : Deployment
        One replica.
    together : ndarray, shape (R,)
        Requests/s that 1, 2, ... R replicas serve together; each of a larger fleet serves the
        R-th part of the last.
    work : ndarray, shape (K,)
        Replicas that one request/s of each class takes in a large fleet [s].
    peak_rates : ndarray, shape (K,)
        Rates of the hour and quarter that ask most [request/s].
    peak_quarter : int
        That quarter, from 0.
    capacity : Capacity or None
        Of R replicas.
    trial : Trial or None
        At the plan's peak.
    power : PowerCurve
        Watts of a replica by its rate.
    surface : MixSurface or None
        Capacity when lengths change.
    caps : DataFrame
        See `cap_curve`.
    batches : tuple of BatchRate
        What one replica does of each batch class.
    kinds : tuple of Rating
        Where a unit has two kinds of machines: the rating as each kind sees it, with its own
        candidate, deployment and watts. Empty with one kind.
    """

    candidate: Candidate
    bench: Bench | None
    deployment: Deployment
    together: Floats
    work: Floats
    peak_rates: Floats
    peak_quarter: int
    capacity: Capacity | None
    trial: Trial | None
    power: PowerCurve
    surface: MixSurface | None
    caps: pd.DataFrame
    batches: tuple[BatchRate, ...]
    kinds: tuple["Rating", ...] = ()

    @property
    def machines(self) -> tuple["Rating", ...]:
        """The rating of each kind of machines; itself with one kind."""
        return self.kinds or (self,)

    @property
    def fidelity(self) -> str:
        """Whether kernels of all kinds were measured: measured, else datasheet."""
        known = {one.deployment.fidelity for one in self.machines}
        return "measured" if known == {"measured"} else "datasheet"

    def offered(self, candidate: Candidate) -> "Rating":
        """Return the rating for the same design at other prices."""
        kinds = tuple(
            replace(one, candidate=kind)
            for one, kind in zip(self.kinds, candidate.kinds, strict=False)
        )
        return replace(self, candidate=candidate, kinds=kinds)

    @property
    def per_replica(self) -> float:
        """Requests/s of one replica of a large fleet at the plan's mix."""
        return float(self.together[-1]) / self.together.size

    def serves(self, replicas: int) -> float:
        """Return requests/s that so many replicas serve within the objectives."""
        if replicas <= 0:
            return 0.0
        few = replicas <= self.together.size
        return float(self.together[replicas - 1]) if few else replicas * self.per_replica

    def without(self, replicas: int, rate: float) -> "Rating":
        """Return the rating scaled down, so that `replicas` just fail to serve a total rate."""
        factor = min(1.0, (1 - 1e-6) * rate / self.serves(replicas))
        return replace(self, together=self.together * factor, work=self.work / factor)

    def replicas_needed(self, rate: npt.ArrayLike) -> Ints:
        """Return the least replicas that serve a total rate at the plan's mix.

        Parameters
        ----------
        rate : array_like
            Requests/s.
        """
        asked = np.asarray(rate, dtype=np.float64) * (1 - 1e-12)
        few = np.searchsorted(np.maximum.accumulate(self.together), asked) + 1
        many = np.ceil(asked / self.per_replica)
        count = np.where(asked > self.together[-1], many, few)
        return np.where(asked > 0, count, 0).astype(np.int64)


def rate(candidate: Candidate, load: Load, file: PlanFile) -> Rating | Fault:
    """Find by bound and simulation what a candidate can do.

    Parameters
    ----------
    candidate : Candidate
        Which.
    load : Load
        Traffic of the plan.
    file : PlanFile
        Batch volumes, limits and sizes of trials.

    Returns
    -------
    Rating or Fault
        A fault where the model does not fit, or no rate is low enough for the objectives.
    """
    ready = Ready()
    try:
        batches = _batches(candidate, file, ready)
        if not load.classes:
            return _batch_only(candidate, batches, file)
        work = class_work(candidate, load, file.search, ready)
    except InputError as e:
        limit = "memory" if "does not fit" in str(e) else "design"
        return Fault(limit, str(e), e.repair)
    return _rate_traffic(candidate, load, file, work, batches, ready)


def _batches(candidate: Candidate, file: PlanFile, ready: Ready) -> tuple[BatchRate, ...]:
    search = file.search
    scenario = Scenario().changed(candidate.changes() | {"run.seed": search.seed})
    return tuple(batch_rate(scenario, b, search.requests, search.seed, ready) for b in file.batch)


def _batch_only(candidate: Candidate, batches: tuple[BatchRate, ...], file: PlanFile) -> Rating:
    scenario = Scenario().changed(candidate.changes() | {"run.seed": file.search.seed})
    made = {s.name: deploy(own, 1) for s, own in pool_scenarios(scenario)}
    none = np.zeros(0)
    caps = pd.DataFrame(columns=COLUMNS)
    whole = Rating(
        candidate=candidate,
        bench=None,
        deployment=next(iter(made.values())),
        together=np.ones(1),
        work=none,
        peak_rates=none,
        peak_quarter=file.horizon.quarters - 1,
        capacity=None,
        trial=None,
        power=_idle(_idle_watts(made, candidate)),
        surface=None,
        caps=caps,
        batches=batches,
    )
    return _with_kinds(whole, made, ())


def _rate_traffic(
    candidate: Candidate,
    load: Load,
    file: PlanFile,
    work: Floats,
    batches: tuple[BatchRate, ...],
    ready: Ready,
) -> Rating | Fault:
    rates, quarter = load.peak(work)
    shares = rates / rates.sum()
    bench = Bench(candidate, load, file.search, shares, ready)
    capacity = bench.capacity(bench.most)
    if capacity.rate_per_s == 0:
        return _latency_fault(bench)
    busiest = np.tensordot(work, load.busy_rates(), axes=1).max(axis=1)
    least = FEWER * float(busiest.min()) / float(work @ shares)
    together = _together(bench, capacity, file.service.load_limit, least)
    rating = Rating(
        candidate=candidate,
        bench=bench,
        deployment=bench.deployment,
        together=together,
        work=work / float(work @ shares) * together.size / float(together[-1]),
        peak_rates=rates,
        peak_quarter=quarter,
        capacity=capacity,
        trial=None,
        power=PowerCurve.of(_power_trials(bench), _idle_watts(bench.deployments, candidate)),
        surface=MixSurface.of(lambda mix: unit_bound(candidate, bench.deployments, mix), bench.mix),
        caps=pd.DataFrame(columns=COLUMNS),
        batches=batches,
    )
    confirmed = _confirmed(rating, bench)
    return _with_kinds(confirmed, bench.deployments, _power_trials(bench))


def _latency_fault(bench: Bench) -> Fault:
    """Say which objective no load is low enough for."""
    for name, slo in bench.slos.items():
        if slo.tpot_s is not None and slo.tpot_s < bench.bound.floor_s:
            least = f"{1e3 * bench.bound.floor_s:.3g} ms"
            return Fault(
                "tpot",
                f"TPOT of {1e3 * slo.tpot_s:.3g} ms for {name} is shorter than one decode step of "
                f"{bench.candidate.name}, {least} at the least",
                f"ask for more than {least}, or use more ranks, narrower weights, faster memory",
            )
    worst = bench.trial(float(bench.grid[0])).tightest
    if worst is None:
        return Fault("e2e", "no rate is served in time", "lengthen the objectives")
    return Fault(
        worst.objective.removesuffix("_s"),
        f"even at {bench.grid[0]:.3g} requests/s per replica: {worst.says()}",
        f"ask for {1.1 * worst.found_s:.3g} s or more, or use more ranks or a faster accelerator",
    )


def _together(bench: Bench, capacity: Capacity, limit: float, least: float) -> Floats:
    """Return what 1 .. R replicas serve together; fewer than R are tried only if ever needed.

    Between one and R replicas, the capacity of each follows 1 - 1 / sqrt(count), as the square-root
    staffing rule has it.
    """
    most = bench.most
    count = np.arange(1.0, most + 1)
    each = np.full(most, capacity.rate_per_s)
    if most > 1 and least < most * capacity.rate_per_s * limit:
        alone = min(bench.capacity(1).rate_per_s, capacity.rate_per_s)
        way = (1 - 1 / np.sqrt(count)) / (1 - 1 / np.sqrt(most))
        each = alone + (capacity.rate_per_s - alone) * way
    return np.asarray(each * count * limit)


def _idle_watts(made: Mapping[str, Deployment], candidate: Candidate) -> float:
    """Return watts of a replica, or of a unit's machines of one candidate, that never works."""
    if not candidate.parts:
        (one,) = made.values()
        return float(one.knobs["idle_w"][0]) * candidate.accelerators
    return sum(
        float(made[part.name].knobs["idle_w"][0]) * part.design.accelerators * part.count
        for part in candidate.parts
    )


def _idle(watts: float) -> PowerCurve:
    """Return the power curve of a replica that never works."""
    return PowerCurve(np.zeros(1), np.full(1, watts))


def _power_trials(bench: Bench) -> list[Trial]:
    """Return trials at loads that do not depend on the objectives."""
    return [bench.trial(share * bench.bound.most, 1) for share in LOADS]


def _with_kinds(rating: Rating, made: Mapping[str, Deployment], trials: Sequence[Trial]) -> Rating:
    """Return a rating with that of each kind of machines beside it, where there are two."""
    candidate = rating.candidate
    if len(candidate.kinds) == 1:
        return rating
    kinds = []
    for kind in candidate.kinds:
        names, idle = [part.name for part in kind.parts], _idle_watts(made, kind)
        power = PowerCurve.of(trials, idle, names) if trials else _idle(idle)
        kinds.append(replace(rating, candidate=kind, deployment=made[names[0]], power=power))
    return replace(rating, kinds=tuple(kinds))


def _confirmed(rating: Rating, bench: Bench) -> Rating:
    """Simulate the fleet at its peak, add replicas until objectives hold, and try power limits."""
    total, most = float(rating.peak_rates.sum()), bench.most
    first = count = int(rating.replicas_needed(total))
    trial = bench.trial(total / count, min(count, most))
    while not trial.met and count < 2 * first + 2:
        rating = rating.without(count, total)
        count += 1
        trial = bench.trial(total / count, min(count, most))
    caps = cap_curve(bench, total / count, min(count, most))
    return replace(rating, trial=trial, caps=caps)
