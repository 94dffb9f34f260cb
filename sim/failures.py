"""Replicas that fail, are repaired, and are restarted one after another.

Failures of a replica's accelerators and of its nodes are independent and without memory: the
replica fails at the sum of their rates. Its requests are lost or, after the failure has been
noticed, go on elsewhere: prompt and tokens so far are computed again, what the client has is kept.
"""

from dataclasses import dataclass, field

import numpy as np

from sim.autoscaling import POLL_S, cold_start_s
from sim.core.layout import Status
from sim.disaggregation import Disaggregation
from sim.fleets.fleet import Fleet, Process
from sim.fleets.sections import ColdStart, FailuresSection

__all__ = ["Breaker", "failure_rate"]


def failure_rate(ranks: int, section: FailuresSection) -> float:
    """Return failures per second of a replica on `ranks` accelerators [1/s].

    Examples
    --------
    >>> both = FailuresSection(accelerator_mtbf_s=1e6, node_mtbf_s=1e6, accelerators_per_node=8)
    >>> round(1.0 / failure_rate(8, both))
    111111
    """
    rate = ranks / section.accelerator_mtbf_s if section.accelerator_mtbf_s else 0.0
    nodes = -(-ranks // section.accelerators_per_node)
    return rate + (nodes / section.node_mtbf_s if section.node_mtbf_s else 0.0)


@dataclass
class Breaker:
    """What breaks in a fleet.

    Parameters
    ----------
    fleet : Fleet
        Whose replicas fail.
    section : FailuresSection
        How often, for how long, and what becomes of requests.
    start : ColdStart
        What a restart takes.
    rng : Generator
        Random stream of failures and repairs.
    apart : Disaggregation, optional
        Hand-offs that a failure interrupts.
    """

    fleet: Fleet
    section: FailuresSection
    start: ColdStart
    rng: np.random.Generator
    apart: Disaggregation | None = None
    _spares: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Start all processes."""
        fleet = self.fleet
        fleet.at_grow = self._watch
        for place in range(len(fleet.pool_of)):
            self._watch(place)
        for time, place in self.section.at:
            fleet.env.process(self._at(time, place))
        for _ in range(self.section.spares):
            place = fleet.grow(fleet.pools[0])
            fleet.set_on(place, on=True)
            fleet.note(place, "spare")
            self._spares.append(place)
        if self.section.restart_every_s:
            fleet.env.process(self._restart_all(self.section.restart_every_s))

    def _watch(self, place: int) -> None:
        """Let a replica fail at random from now on."""
        rate = failure_rate(self.fleet.outcome.ranks[place], self.section)
        if rate > 0:
            seed = self.rng.integers(1 << 63)
            self.fleet.env.process(self._wear(place, rate, np.random.default_rng(seed)))

    def _over(self) -> bool:
        """Return whether nothing is left that a failure could change."""
        self.fleet.sync()
        return self.fleet.finished()

    def _wear(self, place: int, rate: float, rng: np.random.Generator) -> Process:
        while True:
            yield self.fleet.env.timeout(float(rng.exponential(1.0 / rate)))
            if self._over():
                return
            if self.fleet.on[place]:
                yield from self.fail(place, float(rng.exponential(self.section.mttr_s)))

    def _at(self, time: float, place: int) -> Process:
        yield self.fleet.env.timeout(time)
        if not self._over() and place < len(self.fleet.on) and self.fleet.on[place]:
            yield from self.fail(place, self.section.mttr_s)

    def fail(self, place: int, repair_s: float) -> Process:
        """Let a replica die now, its requests go on or not, and come back when repaired."""
        fleet = self.fleet
        fleet.sync()
        fleet.end_stages(np.array([place]))  # a step that has begun is taken as done
        lost = [int(i) for i in fleet.crew.replicas[place].drop_all()]
        fleet.crew.renewed(place)
        fleet.sent -= len(lost)
        fleet.close(place)
        fleet.set_on(place, on=False)
        fleet.broken.add(place)
        if place in self._spares:
            self._spares.remove(place)
        fleet.note(place, "fail")
        lost += self.apart.lost(place) if self.apart else []
        fleet.env.process(self._rescue(place, lost))
        yield fleet.env.timeout(repair_s)
        fleet.broken.discard(place)
        fleet.note(place, "repaired")
        yield fleet.env.timeout(cold_start_s(fleet.pool_of[place].deployment, self.start))
        if self.section.spares:
            fleet.set_on(place, on=True)
            fleet.note(place, "spare")
            self._spares.append(place)
        else:
            fleet.open(place)

    def _rescue(self, place: int, lost: list[int]) -> Process:
        """When the failure is noticed, bring in a spare and send the requests on."""
        fleet, rows = self.fleet, self.fleet.records.requests
        yield fleet.env.timeout(self.section.detection_s)
        pool = fleet.pool_of[place]
        if self._spares:
            fleet.open(self._spares.pop(0))
        for stage in lost:
            if self.section.requests == "lose" or rows["retries"][stage] >= self.section.retries:
                fleet.end([stage], Status.FAILED)
                continue
            rows["retries"][stage] += 1
            rows["computed"][stage] = rows["given_tokens"][stage] = 0
            rows["scheduled"][stage] = rows["emitted"][stage]
            fleet.send_to(self.apart.home(stage) if self.apart else pool, stage)

    def _restart_all(self, every_s: float) -> Process:
        """Drain, restart and reopen one replica after another."""
        fleet = self.fleet
        turn = 0
        while not fleet.finished():
            yield fleet.env.timeout(every_s)
            if self._over():
                return
            place, turn = turn % len(fleet.pool_of), turn + 1
            pool = fleet.pool_of[place]
            if place not in pool.up or len(pool.up) == 1:
                continue
            fleet.close(place)
            fleet.note(place, "restart")
            while fleet.load(place):
                yield fleet.env.timeout(POLL_S)
            fleet.set_on(place, on=False)
            fleet.crew.replicas[place].drop_all()
            fleet.crew.renewed(place)
            yield fleet.env.timeout(cold_start_s(pool.deployment, self.start))
            fleet.open(place)
