"""Prefill and decode replicas apart: the KV cache goes over a named link, or waits for room.

A prompt is computed on a prefill replica, which also emits the first token. A decode replica is
chosen then; it takes the cache when it has free blocks for it (until then the cache keeps its
blocks on the prefill replica), and when the ports of both are free: hand-offs that share a port
go one after another. With layer-wise sending only what is left after the prompt's computation
shows. The decode engine sees the request when the cache is there.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hardware.interconnect import send_s
from hardware.links import Link, load_link
from policies.placement import Placement
from sim.core.layout import Records, Status
from sim.fleets.fleet import Fleet, Process
from sim.fleets.pool import Pool
from sim.fleets.sections import HandOff
from workloads.counts import kv_bytes_per_token

__all__ = ["Disaggregation", "hand_off_s"]


def hand_off_s(tokens: float, kv_bytes: float, ranks: int, link: Link | str) -> float:
    """Return the time of a KV cache on a free link [s].

    Parameters
    ----------
    tokens : float
        Tokens of the prompt.
    kv_bytes : float
        Bytes of one of them in all layers and heads [byte].
    ranks : int
        Accelerators that send at the same time: the fewer of both sides.
    link : Link or str
        Link of each of them.

    Examples
    --------
    >>> round(hand_off_s(8192, 131072, 1, "infiniband-ndr") * 1e3)
    23
    """
    return float(send_s(tokens * kv_bytes, link, ports=float(ranks)))


@dataclass
class _Waiting:
    """A cache that waits on its prefill replica for room or a port."""

    stage: int
    source: int
    done_s: float
    prompt_s: float
    held: bool = False  # there was no room when its prompt was done


@dataclass
class Disaggregation:
    """Hand-offs of a fleet.

    Parameters
    ----------
    fleet : Fleet
        With pools of roles prefill and decode.
    section : HandOff
        Link, and whether layers are sent early.
    placement : Placement
        Which prompts are computed apart.
    """

    fleet: Fleet
    section: HandOff
    placement: Placement
    link: Link = field(init=False)
    _free_s: dict[tuple[str, int], float] = field(default_factory=dict)  # ports, by direction
    _queues: dict[int, deque[_Waiting]] = field(default_factory=dict)  # by decode replica
    _coming: dict[int, set[int]] = field(default_factory=dict)  # sent or there, not admitted
    _pins: dict[tuple[int, int], int] = field(default_factory=dict)  # (replica, stage) -> blocks
    _sending: dict[int, int] = field(default_factory=dict)  # stage -> its prefill replica
    _homeless: list[_Waiting] = field(default_factory=list)  # no decode replica is up
    _kv_bytes: float = field(init=False)
    cut: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.link = load_link(self.section.link)
        self._kv_bytes = kv_bytes_per_token(self.fleet.pools[0].deployment.model)
        self.cut = np.zeros(self._count, dtype=bool)
        self.fleet.at_start = self._start
        self.fleet.at_end = self._ended

    @property
    def _count(self) -> int:
        return len(self.fleet.requests.arrival_s)

    def _of_role(self, index: int, role: str) -> list[Pool]:
        pools = self.fleet.choices[self.fleet.requests.pool[index]]
        return [pool for pool in pools if pool.role == role]

    def _start(self, index: int) -> bool:
        """Send a request's prompt to a prefill pool, or all of it to one that does both."""
        pools = self._of_role(index, "prefill")
        since = self.fleet.requests.arrival_s[index]
        if pools and self.placement.apart(self.fleet.requests.view(index)):
            self._cut(index)
            self.fleet.send_to(self.fleet.pick(pools), index, since)
        else:
            whole = self._of_role(index, "both") or self._of_role(index, "decode")
            self.fleet.send_to(self.fleet.pick(whole), index, since)
        return True

    def merged(self) -> Records:
        """Return one row per request: first token of the first stage, the rest of the second."""
        rows, count = self.fleet.records.requests, self._count
        whole = rows[:count].copy()
        cut = np.flatnonzero(self.cut)
        second = rows[count + cut]
        for name in ("output_tokens", "finish_s", "status", "emitted", "last_token_s"):
            whole[name][cut] = second[name]
        for name in ("preemptions", "recomputed_tokens", "retries", "memory_wait_s"):
            whole[name][cut] += second[name]
        return Records(whole, self.fleet.records.hashes)

    def home(self, stage: int) -> Pool:
        """Return the pool that a stage belongs to."""
        index = stage % self._count
        role = "prefill" if self.cut[index] and stage < self._count else "decode"
        pools = self._of_role(index, role) or self._of_role(index, "both")
        return self.fleet.pick(pools)

    def _cut(self, index: int) -> None:
        """Make two stages of a request: its prompt with one token, and the rest."""
        rows = self.fleet.records.requests
        stage = self._count + index
        if rows["output_tokens"][index] == 1:
            return
        rows[stage] = rows[index]
        rows["prefix_owner"][stage] = -1
        rows["hash_count"][stage] = 0
        rows["scheduled"][stage] = rows["emitted"][stage] = 1
        rows["given_tokens"][stage] = rows["prompt_tokens"][index]
        rows["output_tokens"][index] = 1
        self.cut[index] = True

    def _ended(self, place: int, stage: int) -> bool:
        """Hand a prompt's cache on when its computation has ended."""
        rows = self.fleet.records.requests
        second = stage + self._count
        self._retry_all()
        if stage >= self._count or not self.cut[stage]:
            return False
        if rows["status"][stage] != Status.FINISHED:
            self.cut[stage] = False
            return False
        rows["first_token_s"][second] = rows["first_token_s"][stage]
        rows["last_token_s"][second] = rows["last_token_s"][stage]
        done = float(rows["last_token_s"][stage])
        prompt_s = done - float(rows["admitted_s"][stage])
        self._pin(place, second)
        self._aim(_Waiting(second, place, done, prompt_s))
        return True

    def _aim(self, cache: _Waiting) -> None:
        """Choose the decode replica of a cache, and hand it on when there is room."""
        index = cache.stage - self._count
        pool = self.fleet.pick(self._of_role(index, "decode"))
        if not pool.up:
            self._homeless.append(cache)
            return
        target = self.fleet.choose(pool, index, cache.stage)
        self._queues.setdefault(target, deque()).append(cache)
        self._try(target)

    def _pin(self, place: int, stage: int) -> None:
        """Take the blocks of a cache from a prefill replica's free ones."""
        blocks = self._blocks(place, stage)
        self._pins[place, stage] = blocks
        self.fleet.crew.replicas[place].state["free_blocks"] -= blocks

    def _unpin(self, place: int, stage: int) -> None:
        blocks = self._pins.pop((place, stage), 0)
        self.fleet.crew.replicas[place].state["free_blocks"] += blocks

    def lost(self, place: int) -> list[int]:
        """Return the requests whose cache waits on, or comes from, a replica that has failed.

        Caches that wait for this replica to take them are sent to others.
        """
        self._pins = {key: n for key, n in self._pins.items() if key[0] != place}
        self._coming.pop(place, None)
        gone = [c for q in self._queues.values() for c in q if c.source == place]
        for queue in self._queues.values():
            kept = [c for c in queue if c.source != place]
            queue.clear()
            queue.extend(kept)
        for cache in self._queues.pop(place, deque()):
            self._aim(cache)
        cut = [stage for stage, source in self._sending.items() if source == place]
        for stage in cut:
            del self._sending[stage]
        return [cache.stage for cache in gone] + cut

    def _blocks(self, place: int, stage: int) -> int:
        size = int(self.fleet.pool_of[place].deployment.knobs["block_size"][0])
        return -(-(int(self.fleet.records.requests["prompt_tokens"][stage]) + 1) // size)

    def _room(self, place: int) -> int:
        """Return the free blocks of a decode replica that nothing on its way needs."""
        admitted = self.fleet.records.requests["admitted_s"]
        coming = self._coming.setdefault(place, set())
        coming -= {stage for stage in coming if not np.isnan(admitted[stage])}
        free = int(self.fleet.crew.replicas[place].state["free_blocks"][0])
        return free - sum(self._blocks(place, stage) for stage in coming)

    def _retry_all(self) -> None:
        homeless, self._homeless = self._homeless, []
        for cache in homeless:
            self._aim(cache)
        for target, queue in self._queues.items():
            if queue:
                self._try(target)

    def _try(self, target: int) -> None:
        """Start the hand-offs that a decode replica has room for, in order."""
        queue = self._queues[target]
        while queue and self._room(target) >= self._blocks(target, queue[0].stage):
            self._send(queue.popleft(), target)
        for cache in queue:
            cache.held = True

    def _send(self, cache: _Waiting, target: int) -> None:
        """Book the ports of both sides and schedule the arrival of a cache."""
        fleet, tokens = self.fleet, int(self.fleet.records.requests["prompt_tokens"][cache.stage])
        ranks = min(fleet.pool_of[p].ranks for p in (cache.source, target))
        whole = hand_off_s(tokens, self._kv_bytes, ranks, self.link)
        layers = fleet.pool_of[cache.source].deployment.model.layers
        early = min(whole * (1.0 - 1.0 / layers), cache.prompt_s) if self.section.layerwise else 0.0
        ports = (("out", cache.source), ("in", target))
        room_s = fleet.now if cache.held else cache.done_s
        start = max([room_s - early, *(self._free_s.get(port, 0.0) for port in ports)])
        end = max(start + whole, cache.done_s + whole / layers)
        self._free_s |= dict.fromkeys(ports, end)
        self._coming.setdefault(target, set()).add(cache.stage)
        index = cache.stage - self._count
        size = tokens * self._kv_bytes
        fleet.outcome.hand_offs.append((index, cache.done_s, start, end, size))
        fleet.sent += 1
        self._sending[cache.stage] = cache.source
        fleet.env.process(self._arrive(cache, target, end))

    def _arrive(self, cache: _Waiting, target: int, end: float) -> Process:
        fleet = self.fleet
        yield fleet.env.timeout(max(end - fleet.now, 0.0))
        fleet.sent -= 1
        if self._sending.pop(cache.stage, None) is None:
            return  # its prefill replica has failed
        self._unpin(cache.source, cache.stage)
        if fleet.on[target]:
            fleet.give(target, cache.stage, end)
        else:
            self._aim(_Waiting(cache.stage, cache.source, fleet.now, 0.0, held=True))
