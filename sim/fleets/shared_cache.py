"""A pool of KV blocks in the nodes' memory that every replica reads and writes.

As in Mooncake (Qin et al., FAST 2025): a prompt's blocks are written when it has been computed, and
a replica that lacks them fetches what another has computed, over its own link, one fetch after
another. Least recently used blocks leave first.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from hardware.interconnect import send_s
from sim.core.blocks import request_key
from sim.core.layout import Record
from sim.fleets.fleet import Fleet, Process
from sim.fleets.sections import SharedCacheSection
from workloads.counts import kv_bytes_per_token

__all__ = ["SharedCache"]


@dataclass
class SharedCache:
    """What is in the pool, and who fetches from it.

    Parameters
    ----------
    fleet : Fleet
        Whose replicas share it; all serve one model with blocks of one size.
    section : SharedCacheSection
        Capacity, link, and when to fetch.
    """

    fleet: Fleet
    section: SharedCacheSection
    _blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _written: deque[int] = field(default_factory=deque)  # requests whose blocks will be there
    _free_s: dict[int, float] = field(default_factory=dict)  # link of each replica
    _size: int = field(init=False)
    _kv_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        deployment = self.fleet.pools[0].deployment
        self._size = int(deployment.knobs["block_size"][0])
        self._kv_bytes = kv_bytes_per_token(deployment.model)
        self.fleet.at_give = self._give

    @property
    def capacity(self) -> int:
        """Blocks that the pool holds."""
        return int(self.section.bytes / (self._kv_bytes * self._size))

    def book(self) -> None:
        """Count tokens that were fetched as cached, when all is done."""
        rows = self.fleet.records.requests
        rows["cached_tokens"] = np.maximum(rows["cached_tokens"], rows["given_tokens"])

    def _keys(self, index: int) -> list[int]:
        requests, hashes = self.fleet.records
        count = (int(requests["prompt_tokens"][index]) - 1) // self._size
        return [int(request_key(requests, hashes, index, i, self._size)) for i in range(count)]

    def _write(self) -> None:
        """Take in the blocks of prompts that have been computed by now."""
        first: Record = self.fleet.records.requests["first_token_s"]
        waiting: deque[int] = deque()
        while self._written:
            index = self._written.popleft()
            if not first[index] <= self.fleet.now:
                waiting.append(index)
                continue
            for key in self._keys(index):
                self._blocks[key] = None
                self._blocks.move_to_end(key)
            while len(self._blocks) > self.capacity:
                self._blocks.popitem(last=False)
        self._written = waiting

    def _hits(self, keys: list[int]) -> int:
        """Return how many leading keys are in the pool, and renew them."""
        for i, key in enumerate(keys):
            if key not in self._blocks:
                return i
            self._blocks.move_to_end(key)
        return len(keys)

    def _give(self, place: int, stage: int) -> bool:
        """Fetch a prompt's blocks before its replica starts, where that is worth it."""
        requests = self.fleet.records.requests
        if requests["given_tokens"][stage] > 0:
            return False
        self.fleet.sync()
        self._write()
        self._written.append(stage)
        shared = self._hits(self._keys(stage)) * self._size
        own = int(self.fleet.crew.cached_tokens(np.array([place]), stage)[0])
        wait, took = self._wait_s(place, shared)
        rate = self.fleet.pool_of[place].prompt_tokens_per_s
        if shared < own + self.section.least_tokens or wait > (shared - own) / rate:
            return False
        requests["given_tokens"][stage] = shared
        self._free_s[place] = self.fleet.now + wait
        self.fleet.outcome.fetches.append((stage, shared, took))
        self.fleet.sent += 1
        self.fleet.env.process(self._fetched(place, stage, wait))
        return True

    def _wait_s(self, place: int, tokens: int) -> tuple[float, float]:
        """Return (until a fetch is there, how long it takes on a free link) [s]."""
        took = float(send_s(tokens * self._kv_bytes, self.section.link, self.section.ports))
        queue = max(self._free_s.get(place, 0.0) - self.fleet.now, 0.0)
        return queue + took, took

    def _fetched(self, place: int, stage: int, wait: float) -> Process:
        yield self.fleet.env.timeout(wait)
        self.fleet.sent -= 1
        if self.fleet.on[place]:
            self.fleet.give(place, stage)
        else:
            self.fleet.records.requests["given_tokens"][stage] = 0
            self.fleet.send_to(self.fleet.pool_of[place], stage)
