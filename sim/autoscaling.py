"""Replicas that come and go: decisions at intervals, cold starts, draining.

The policy sees an observation and names a count; this module keeps it within the limits and
cool-downs, starts replicas (which serve when their weights are loaded and the engine is up) and
drains them (no new requests, off when the last has ended).
"""

from dataclasses import dataclass, field

import numpy as np

from policies.autoscaling import Autoscaling, Observation, autoscaling
from sim.deployment import Deployment
from sim.fleets.fleet import Fleet, Process
from sim.fleets.pool import Pool
from sim.fleets.sections import AutoscalingSection, ColdStart
from sim.parallelism import weight_bytes_of_rank

__all__ = ["Scaler", "cold_start_s"]

POLL_S = 1.0  # how often a draining replica is looked at


def cold_start_s(deployment: Deployment, start: ColdStart) -> float:
    """Return the time from the start of a replica until it serves [s].

    Weights stream from storage over the network into the nodes and over each accelerator's host
    link into its memory; the slowest of these counts. Then the engine starts.

    Examples
    --------
    >>> from sim.deployment import deploy
    >>> from sim.scenario import Scenario
    >>> round(cold_start_s(deploy(Scenario(), 4096), ColdStart(engine_s=60.0)), 1)
    68.0
    """
    parallel = deployment.parallel
    own = weight_bytes_of_rank(deployment.model, parallel)
    whole = own * parallel.accelerators
    host = deployment.spec.links.host.bytes_per_s.value
    nodes = -(-parallel.accelerators // start.accelerators_per_node)
    waits = [own / host]
    if not start.cached:
        slowest = min(start.storage_bytes_per_s, start.network_bytes_per_s)
        waits.append(whole / nodes / slowest)
    return max(waits) + start.engine_s


@dataclass
class Scaler:
    """The autoscaler of one pool.

    Parameters
    ----------
    fleet, pool : Fleet, Pool
        What it scales.
    section : AutoscalingSection
        Policy, interval, limits, cool-downs.
    start : ColdStart
        What a start takes.
    """

    fleet: Fleet
    pool: Pool
    section: AutoscalingSection
    start: ColdStart
    policy: Autoscaling = field(init=False)
    starting: set[int] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    _rates: list[float] = field(default_factory=list)
    _seen: int = 0  # arrivals counted so far
    _busy_s: float = 0.0
    _up_s: float = -np.inf
    _changed_s: float = -np.inf

    def __post_init__(self) -> None:
        self.policy = autoscaling.make(self.section.policy)

    def run(self) -> Process:
        """Decide at every interval until all requests have ended."""
        while not self.fleet.finished():
            yield self.fleet.env.timeout(self.section.interval_s)
            seen = self.observe()
            wanted = self.policy.desired(seen)
            wanted = min(max(wanted, self.section.least), self.section.most)
            self.move_to(wanted, seen.coming)

    def observe(self) -> Observation:
        """Return what the policy may see now."""
        fleet, interval = self.fleet, self.section.interval_s
        fleet.sync()
        loads = fleet.crew.look(np.array(self.pool.up, dtype=np.int64), fleet.now)
        blocks = int(self.pool.deployment.knobs["num_blocks"][0])
        busy = sum(float(fleet.crew.replicas[p].state["busy_s"][0]) for p in self.pool.places)
        arrived = int(np.searchsorted(self._arrivals(), fleet.now, side="right"))
        self._rates.append((arrived - self._seen) / interval)
        share = (busy - self._busy_s) / interval / max(len(self.pool.up), 1)
        self._seen, self._busy_s = arrived, busy
        return Observation(
            fleet.now,
            interval,
            len(self.pool.up),
            len(self.starting),
            int(loads[:, 0].sum()) + len(self.pool.backlog),
            int(loads[:, 1].sum()),
            min(share, 1.0),
            float(1.0 - loads[:, 2].mean() / blocks) if len(loads) else 0.0,
            self._ttft_s(),
            tuple(self._rates),
        )

    def _arrivals(self) -> list[float]:
        return self.fleet.requests.arrival_s

    def _ttft_s(self) -> float:
        """Return the 90th percentile of first tokens seen in the last interval [s]."""
        rows = self.fleet.records.requests
        recent = rows["first_token_s"] > self.fleet.now - self.section.interval_s
        recent &= rows["first_token_s"] <= self.fleet.now
        if not recent.any():
            return float("nan")
        waits = rows["first_token_s"][recent] - rows["arrival_s"][recent]
        return float(np.percentile(waits, 90))

    def move_to(self, wanted: int, coming: int) -> None:
        """Start or drain replicas towards a count, where cool-downs allow it."""
        now = self.fleet.now
        if wanted > coming and now - self._up_s >= self.section.up_cooldown_s:
            for _ in range(wanted - coming):
                self._start_one()
            self._up_s = self._changed_s = now
        if wanted < coming and now - self._changed_s >= self.section.down_cooldown_s:
            for _ in range(coming - wanted):
                self._stop_one()
            self._changed_s = now

    def _start_one(self) -> None:
        """Take back a draining replica, else start one that is off, else a new one."""
        back = [p for p in sorted(self.draining) if self.fleet.on[p]]
        if back:
            self.draining.discard(back[-1])
            self.fleet.open(back[-1])
            return
        off = [p for p in self.pool.places if not self.fleet.on[p] and p not in self.starting]
        off = [p for p in off if p not in self.fleet.broken]
        place = off[0] if off else self.fleet.grow(self.pool)
        self.starting.add(place)
        self.fleet.note(place, "start")
        self.fleet.env.process(self._come_up(place))

    def _come_up(self, place: int) -> Process:
        yield self.fleet.env.timeout(cold_start_s(self.pool.deployment, self.start))
        if place in self.starting:
            self.starting.discard(place)
            self.fleet.open(place)

    def _stop_one(self) -> None:
        """Give up a start, else drain the replica with the fewest requests."""
        if self.starting:
            place = max(self.starting)
            self.starting.discard(place)
            self.fleet.note(place, "off")
            return
        if not self.pool.up:
            return
        loads = self.fleet.crew.look(np.array(self.pool.up), self.fleet.now)[:, :2].sum(axis=1)
        place = self.pool.up[len(loads) - 1 - int(np.argmin(loads[::-1]))]
        self.fleet.close(place)
        self.fleet.note(place, "drain")
        self.draining.add(place)
        self.fleet.env.process(self._drain(place))

    def _drain(self, place: int) -> Process:
        while place in self.draining and self.fleet.on[place]:
            if self.fleet.load(place) == 0:
                self.draining.discard(place)
                self.fleet.set_on(place, on=False)
                self.fleet.note(place, "off")
                return
            yield self.fleet.env.timeout(POLL_S)
