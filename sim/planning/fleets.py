"""The fleet that a candidate needs in every quarter, in one world or in many sampled ones.

A world is a set of factors on the central assumptions. Arrays have the shape (S, Q) or (S, Q, 168):
worlds, quarters, hours of the week.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hardware.economics import HOURS_PER_YEAR
from sim.planning.batches import replicas_for_batches
from sim.planning.demand import QUARTERS_PER_YEAR
from sim.planning.load import WEEK_H, Load, growth_factors
from sim.planning.planfile import PlanFile
from sim.planning.rated import Rating
from sim.planning.supply import Candidate

__all__ = ["HOURS_PER_QUARTER", "Fleet", "Worlds", "fleet", "node_power"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Powered = Sequence[Ints | Floats]
HOURS_PER_QUARTER = HOURS_PER_YEAR / QUARTERS_PER_YEAR
WEEKS_PER_QUARTER = HOURS_PER_QUARTER / WEEK_H


@dataclass(frozen=True)
class Worlds:
    """Factors on the central assumptions, each of shape (S,).

    Attributes
    ----------
    demand, growth : ndarray
        On the rates at the start, and on the growth factor of a year.
    prompt, output : ndarray
        On the tokens of a request.
    model : ndarray
        On the capacity of a replica.
    electricity, price, rent : ndarray
        On the tariff, on purchase prices and on rents.
    kinds : tuple of Worlds
        The same as each kind of machines of a candidate sees it; empty with one kind.
    """

    demand: Floats
    growth: Floats
    prompt: Floats
    output: Floats
    model: Floats
    electricity: Floats
    price: Floats
    rent: Floats
    kinds: tuple["Worlds", ...] = ()

    @classmethod
    def central(cls, count: int = 1) -> "Worlds":
        """Return worlds in which everything is as assumed."""
        names = [f.name for f in fields(cls) if f.name != "kinds"]
        return cls.of({name: np.ones(count) for name in names})

    @classmethod
    def of(cls, factors: Mapping[str, Floats], kinds: tuple["Worlds", ...] = ()) -> "Worlds":
        """Return worlds with these factors, by name."""
        given: dict[str, Any] = dict(factors)
        return cls(**given, kinds=kinds)

    def part(self, rows: slice) -> "Worlds":
        """Return some of the worlds."""
        names = [f.name for f in fields(self) if f.name != "kinds"]
        own = {name: getattr(self, name)[rows] for name in names}
        return Worlds.of(own, tuple(kind.part(rows) for kind in self.kinds))

    def of_kind(self, place: int) -> "Worlds":
        """Return the worlds as one kind of machines sees them."""
        return self.kinds[place] if self.kinds else self

    @property
    def count(self) -> int:
        """S, the number of worlds."""
        return int(self.demand.size)


@dataclass(frozen=True)
class Fleet:
    """What serves the plan's demand.

    Attributes
    ----------
    rating : Rating
        Of which candidate.
    serving : ndarray, shape (S, Q, 168)
        Replicas that traffic keeps busy in each hour of a mean week, as a real number.
    busiest : ndarray, shape (S, Q, 168)
        The same in a busy week at the end of the quarter.
    batch_hours : ndarray, shape (S, Q)
        Replica-hours of batch work in a week.
    batch_watts : ndarray, shape (S, Q)
        Mean power beyond idle that batch work adds [W].
    replicas : ndarray of int, shape (S, Q)
        Needed without spares.
    nodes : ndarray of int, shape (S, Q)
        Nodes for them, with spare nodes.
    kinds : tuple of Fleet
        The same by kind of machines, where there are two; empty with one kind.
    """

    rating: Rating
    serving: Floats
    busiest: Floats
    batch_hours: Floats
    batch_watts: Floats
    replicas: Ints
    nodes: Ints
    kinds: tuple["Fleet", ...] = ()

    @property
    def machines(self) -> tuple["Fleet", ...]:
        """The fleet by kind of machines; itself with one kind."""
        return self.kinds or (self,)

    @property
    def candidate(self) -> Candidate:
        """Which candidate it is made of."""
        return self.rating.candidate

    def watts(self, powered: Powered | None = None) -> Floats:
        """Return IT power in each hour of a mean week, shape (S, Q, 168) [W].

        Parameters
        ----------
        powered : sequence of ndarray, optional
            Nodes of each kind of machines, parts of nodes too; by default all nodes.
        """
        return self._power("serving", powered) + self.batch_watts[:, :, None]

    def busy_watts(self, powered: Powered | None = None) -> Floats:
        """Return IT power of traffic in a busy week, shape (S, Q, 168) [W]."""
        return self._power("busiest", powered)

    def _power(self, week: str, powered: Powered | None) -> Floats:
        nodes = [f.nodes for f in self.machines] if powered is None else powered
        kinds = zip(self.machines, nodes, strict=True)
        parts = [node_power(f.rating, n, getattr(f, week)) for f, n in kinds]
        return np.asarray(np.sum(parts, axis=0))

    def accelerators(self) -> Ints:
        """Return the accelerators of all nodes, shape (S, Q)."""
        parts = [f.nodes * f.candidate.node_accelerators for f in self.machines]
        return np.asarray(np.sum(parts, axis=0))

    def peak_watts(self, powered: Powered | None = None) -> Floats:
        """Return IT power in the busiest hour of a busy week, shape (S, Q) [W]."""
        busy = self.busy_watts(powered).max(axis=2)
        return np.asarray(np.maximum(busy, self.watts(powered).max(axis=2)))

    def joules_of(self, nodes: Ints | Floats, carried: Floats) -> Floats:
        """Return IT energy of some of the nodes in each quarter, shape (S, Q) [J].

        Parameters
        ----------
        nodes : ndarray, shape (S, Q)
            Powered, parts of nodes too.
        carried : ndarray, shape (S, Q)
            Replicas of traffic that they serve at most.
        """
        serving = np.minimum(self.serving, carried[:, :, None])
        watts = node_power(self.rating, nodes, serving).mean(axis=2)
        watts = watts + np.where(nodes > 0, self.batch_watts, 0.0)
        return np.asarray(watts * HOURS_PER_QUARTER * 3600.0)

    def hours_beyond(self, carried: Floats, spares: Ints) -> Floats:
        """Return replica-hours of each quarter that machines by the hour add, shape (S, Q).

        They follow the traffic of a mean week hour by hour; batch work first uses what is carried
        and not needed.

        Parameters
        ----------
        carried : ndarray, shape (S, Q)
            Replicas that are there anyway.
        spares : ndarray of int, shape (S, Q)
            Replicas to have beside those needed.
        """
        needed = self.rating.replicas_needed(self.serving * self.rating.per_replica)
        asked = needed + spares[:, :, None]
        beyond = np.maximum(asked - carried[:, :, None], 0.0).sum(axis=2)
        free = np.maximum(carried[:, :, None] - asked, 0.0).sum(axis=2)
        weekly = beyond + np.maximum(self.batch_hours - free, 0.0)
        return np.asarray(weekly * WEEKS_PER_QUARTER)


def fleet(rating: Rating, load: Load, file: PlanFile, worlds: Worlds) -> Fleet:
    """Return the fleet of a candidate in each world and quarter."""
    slower = _slower(rating, worlds)
    mean = _replicas(rating, load.mean_rates(), 0.5, worlds) * slower[:, None, None]
    busiest = _replicas(rating, load.busy_rates(), 1.0, worlds) * slower[:, None, None]
    online = rating.replicas_needed(busiest.max(axis=2) * rating.per_replica)
    replicas, batch_hours = _with_batches(rating, file, worlds, slower, busiest, online)
    found = [
        Fleet(
            one,
            mean,
            busiest,
            batch_hours,
            _batch_watts(one, file, worlds, slower),
            replicas,
            _nodes(one.candidate, replicas, file.service.spares),
        )
        for one in rating.machines
    ]
    if len(found) == 1:
        return found[0]
    nodes = np.sum([f.nodes for f in found], axis=0)
    watts = np.sum([f.batch_watts for f in found], axis=0)
    return Fleet(rating, mean, busiest, batch_hours, watts, replicas, nodes, tuple(found))


def _slower(rating: Rating, worlds: Worlds) -> Floats:
    """Return how much more of a replica each request takes than assumed, shape (S,)."""
    ones = np.ones(worlds.count)
    longer = ones if rating.surface is None else rating.surface(worlds.prompt, worlds.output)
    return np.asarray(1.0 / (longer * worlds.model))


def _growth(quarters: int, worlds: Worlds, place: float) -> Floats:
    """Return demand over the central one in each world and quarter, shape (S, Q)."""
    years = (np.arange(quarters) + place) / QUARTERS_PER_YEAR
    return np.asarray(worlds.demand[:, None] * worlds.growth[:, None] ** years)


def _replicas(rating: Rating, rates: Floats, place: float, worlds: Worlds) -> Floats:
    """Return replicas that rates (K, Q, 168) take in each world, shape (S, Q, 168)."""
    need = np.tensordot(rating.work, rates, axes=1)
    return np.asarray(_growth(need.shape[0], worlds, place)[:, :, None] * need)


def _with_batches(
    rating: Rating,
    file: PlanFile,
    worlds: Worlds,
    slower: Floats,
    busiest: Floats,
    online: Ints,
) -> tuple[Ints, Floats]:
    """Return replicas with batch work, and its replica-hours in a week, each (S, Q)."""
    quarters = file.horizon.quarters
    factor = _growth(quarters, worlds, 1.0) * slower[:, None]
    growths = [
        factor * growth_factors(r.batch.growth_per_year, quarters, 1.0) for r in rating.batches
    ]
    hours = np.zeros(online.shape)
    for one, growth in zip(rating.batches, growths, strict=True):
        hours = hours + one.hours(growth).sum(axis=-1)
    return replicas_for_batches(busiest, online, rating.batches, growths), hours


def _nodes(candidate: Candidate, replicas: Ints, spares: int) -> Ints:
    """Return nodes for replicas, with spare ones."""
    return np.ceil(replicas / candidate.replicas_per_node - 1e-9).astype(np.int64) + spares


def node_power(rating: Rating, nodes: Ints | Floats, serving: Floats) -> Floats:
    """Return IT watts of nodes when replicas are busy on them, spread over all that they carry.

    Accelerators of a node that no replica fills idle; what surrounds the accelerators of a node
    goes from its idle to its full watts as they do.

    Parameters
    ----------
    rating : Rating
        Of which candidate.
    nodes : ndarray, shape (S, Q)
        Powered; a part of a node is that part of its accelerators and of what surrounds them.
    serving : ndarray, shape (S, Q, 168)
        Replicas that are busy, as a real number.

    Returns
    -------
    ndarray, shape (S, Q, 168)
        Watts of all nodes [W].
    """
    candidate, node = rating.candidate, rating.candidate.node_spec()
    count = np.floor(nodes * candidate.replicas_per_node + 1e-9)[:, :, None]
    each = rating.power(serving * rating.per_replica / np.maximum(count, 1.0))
    chips = nodes[:, :, None] * candidate.node_accelerators - count * candidate.accelerators
    watts = each * count + np.maximum(chips, 0.0) * candidate.spec().idle_w
    if node is None:
        return np.asarray(watts)
    full = node.overhead_w.value
    idle = node.overhead_idle_w.value if node.overhead_idle_w else full
    least, most = float(rating.power.watts[0]), candidate.accelerators * candidate.spec().tdp_w
    active = np.clip((each - least) / max(most - least, 1e-9), 0.0, 1.0)
    return np.asarray(watts + nodes[:, :, None] * (idle + (full - idle) * active))


def _batch_watts(rating: Rating, file: PlanFile, worlds: Worlds, slower: Floats) -> Floats:
    """Return mean IT watts beyond idle that batch work adds on these machines, shape (S, Q)."""
    names = {part.name for part in rating.candidate.parts} or {"all"}
    quarters = file.horizon.quarters
    factor = _growth(quarters, worlds, 0.5) * slower[:, None]
    watts = np.zeros((worlds.count, quarters))
    for one in rating.batches:
        daily = one.batch.requests_per_day * growth_factors(
            one.batch.growth_per_year, quarters, 0.5
        )
        joules = sum(value for name, value in one.pool_joules.items() if name in names)
        watts = watts + factor * daily / 86_400.0 * joules
    return watts
