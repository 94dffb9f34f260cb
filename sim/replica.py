"""One replica: an engine on its accelerators, advanced lazily to any time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.rules import AdaptiveBatching
from sim.core.blocks import make_pool
from sim.core.clock import ROWS
from sim.core.draft_tables import NO_DRAFTS, DraftTables
from sim.core.layout import (
    ITL_BINS,
    REQUEST,
    STATE,
    STEP,
    BlockPool,
    Lanes,
    Records,
    StepTables,
    Tiers,
)
from sim.core.loop import NEED_RULES, ROWS_FULL, advance
from sim.core.pointers import lanes_at, pool_at, tiers_at
from sim.rules import ask, check_sizes, check_tables

__all__ = ["Replica", "make_records"]

FIRST_ROWS = 4096
# state that a dying engine loses
LOST = (
    "n_running",
    "n_waiting",
    "waiting_tokens",
    "n_inbox",
    "next_inbox",
    "in_flight",
    "n_flight",
    "n_padding",
    "padding_context",
    "idle_squares",
    "fill_left",
    "n_background",
    "held_blocks",
    "kv_tokens",
    "swapped_blocks",
    "n_evicted",
    "copy_s",
    "fetch_s",
    "extra_s",
    "extra_flops",
    "extra_bytes",
    "verified",
    "next_front",
    "front_s",
    "front_lag_s",
    "resume",
    "blocked",
)
Member = tuple[Any, ...]


def make_records(
    count: int, hashes: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.void], Records]:
    """Return an empty request table of `count` rows, and the records that hold it."""
    requests = np.zeros(count, REQUEST)
    for name in ("first_token_s", "finish_s", "admitted_s", "last_token_s"):
        requests[name] = np.nan
    for name in ("urgent_s", "timeout_s", "patience_s"):
        requests[name] = np.inf
    requests["slot"] = requests["prefix_owner"] = -1
    return requests, Records(requests, np.zeros(1, np.int64) if hashes is None else hashes)


def _make_lanes(knobs: np.void, count: int, most: int, longest: int, clients: int) -> Lanes:
    """Return empty lists for `count` queued requests of `most` in all."""
    seqs = min(int(knobs["max_num_seqs"]), most)
    slots = seqs + 1
    per_request = longest // int(knobs["block_size"]) + 2 if knobs["caching"] else 1
    entries = seqs + 2

    def integers(*shape: int) -> npt.NDArray[np.int64]:
        return np.zeros(shape, np.int64)

    extent_size = integers(slots + 2)
    extent_size[0] = knobs["num_blocks"]

    return Lanes(
        running=integers(entries),
        waiting=integers(count + 1),
        waiting_key=np.zeros(count + 1),
        waiting_level=integers(count + 1),
        inbox=integers(count + 1),
        flight=integers(entries),
        emitting=integers(entries),
        batch=integers(entries),
        batch_tokens=integers(entries),
        batch_drafts=integers(entries),
        flight_tokens=np.ones(entries, np.int64),
        emitting_tokens=np.ones(entries, np.int64),
        slots=np.arange(slots, dtype=np.int64),
        blocks=integers(slots, per_request),
        held=integers(slots),
        done=integers(count + 1),
        phase=integers(int(knobs["block_size"])),
        gaps=np.zeros(ITL_BINS),
        served=np.zeros(clients),
        **NO_DRAFTS._asdict(),
        extent_start=integers(slots + 2),
        extent_size=extent_size,
    )


def _make_pools(knobs: np.void) -> tuple[BlockPool, Tiers]:
    """Return the KV pool and the tiers below it, each with one block where it is not used."""
    blocks = int(knobs["num_blocks"]) if knobs["caching"] else 1
    tiers = Tiers(make_pool(int(knobs["dram_blocks"])), make_pool(int(knobs["ssd_blocks"])))
    lower = int(knobs["dram_blocks"]) + int(knobs["ssd_blocks"])
    ranked = bool(knobs["eviction"]) or bool(np.isfinite(knobs["ttl_s"]))
    return make_pool(blocks, ranked, 2 * blocks + 16 if lower else 0), tiers


@dataclass
class Replica:
    """An engine with its own queue, KV pool, clock and power state.

    Parameters
    ----------
    tables : StepTables
        GPU times, FLOPs and bytes of a step.
    knobs : ndarray of KNOBS, shape (1,)
        Engine, host and power parameters.
    records : Records
        Requests, shared by all replicas of a fleet.
    seed : int
        Seed of the host's random level (a stream of its own).
    capacity : int
        Requests that its queues hold at first.
    longest : int
        Most tokens (prompt + output) of any request.
    policy : AdaptiveBatching, optional
        Asked for the rules of the next steps where the knob `interactive` is set.
    drafts : DraftTables
        Of speculation, where the knob `draft_tokens` is set.
    """

    tables: StepTables
    knobs: npt.NDArray[np.void]
    records: Records
    seed: int = 0
    capacity: int = 0
    longest: int = 0
    policy: AdaptiveBatching | None = None
    drafts: DraftTables = NO_DRAFTS
    state: npt.NDArray[np.void] = field(init=False)
    pool: BlockPool = field(init=False)
    tiers: Tiers = field(init=False)
    lanes: Lanes = field(init=False)
    rows: npt.NDArray[np.void] = field(init=False)
    _at: tuple[npt.NDArray[np.void], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.knobs = self.knobs.copy()  # a policy may change them
        knobs, requests = self.knobs[0], self.records.requests
        clients = int(requests["client"].max()) + 1 if len(requests) else 1
        check_tables(self.tables, knobs)
        check_sizes(self.longest, requests, knobs)
        sizes = (self.capacity, len(requests), self.longest, clients)
        self.lanes = _make_lanes(knobs, *sizes)._replace(**self.drafts._asdict())
        self.pool, self.tiers = _make_pools(knobs)
        self._point()
        self.rows = np.zeros(FIRST_ROWS, STEP)
        self.state = np.zeros(1, STATE)
        start = {
            "level": 1.0,
            "temperature_c": knobs["ambient_c"] + knobs["kelvin_per_w"] * knobs["idle_w"],
            "window_w": knobs["idle_w"],
            "seed": self.seed,
            "loaded": (1 << min(-(-int(knobs["warm_rows"]) // ROWS), 62)) - 1,
        }
        for name, value in start.items():
            self.state[name] = value
        self._set_free()

    @property
    def now(self) -> float:
        """When the engine may form its next batch [s]."""
        return float(self.state["now"][0])

    def _point(self) -> None:
        """Tell the loop where the lists are: whenever one has been made anew."""
        self._at = (pool_at(self.pool), tiers_at(self.tiers), lanes_at(self.lanes))

    @property
    def member(self) -> Member:
        """The arrays of this replica, as `advance` takes them."""
        pool, tiers, lanes = self._at
        return (
            self.tables,
            self.state,
            self.knobs,
            pool,
            tiers,
            self.records,
            lanes,
            self.rows,
        )

    def make_room(self, new: int = 1) -> None:
        """Lengthen the queues so that `new` more requests fit, with as much again to spare."""
        state, lanes = self.state[0], self.lanes
        first, last = int(state["next_inbox"]), int(state["n_inbox"])
        here = last - first + int(state["n_waiting"]) + int(state["n_running"])
        size = 2 * (here + int(state["n_done"]) + new + 128)
        inbox = np.zeros(size, np.int64)
        inbox[: last - first] = lanes.inbox[first:last]
        state["next_inbox"], state["n_inbox"] = 0, last - first
        state["next_front"] = max(int(state["next_front"]) - first, 0)
        self.lanes = lanes._replace(
            inbox=inbox,
            waiting=_longer(lanes.waiting, size),
            waiting_key=_longer(lanes.waiting_key, size),
            waiting_level=_longer(lanes.waiting_level, size),
            done=_longer(lanes.done, size),
        )
        self._point()

    def more_rows(self) -> None:
        """Double the step log."""
        self.rows = _longer(self.rows, 2 * self.rows.size)

    def drop_all(self) -> npt.NDArray[np.int64]:
        """Lose every request and all KV blocks, as when the engine dies; return the requests."""
        state, lanes = self.state[0], self.lanes
        inbox = lanes.inbox[int(state["next_inbox"]) : int(state["n_inbox"])]
        waiting = lanes.waiting[: int(state["n_waiting"])]
        running = lanes.running[: int(state["n_running"])]
        lost = np.concatenate([running, waiting, inbox]).astype(np.int64)
        self.count_waits()
        for name in LOST:
            state[name] = 0
        self.lanes.slots[:] = np.arange(lanes.slots.size)
        self.lanes.held[:] = 0
        self.lanes.extent_start[0], self.lanes.extent_size[0] = 0, self.knobs["num_blocks"][0]
        self.pool, self.tiers = _make_pools(self.knobs[0])
        self._point()
        self._set_free()
        self.records.requests["slot"][lost] = -1
        self.records.requests["stored"][lost] = 0
        return lost

    def count_waits(self) -> None:
        """Book the waits for memory of requests that still wait; called once, at the end."""
        waiting = self.lanes.waiting[: int(self.state["n_waiting"][0])]
        self.records.requests["memory_wait_s"][waiting] += self.state["memory_blocked_s"][0]

    def _set_free(self) -> None:
        """Count all memory as free and nobody as waiting."""
        start = {
            "free_blocks": self.knobs["num_blocks"][0],
            "largest_free": self.knobs["num_blocks"][0],
            "n_extents": 1,
            "free_slots": self.lanes.slots.size,
            "next_leave_s": np.inf,
            "next_urgent_s": np.inf,
            "changed": 1,
        }
        for name, value in start.items():
            self.state[name] = value

    def unload(self) -> None:
        """Forget which kernels are loaded: the engine has ended."""
        self.state["loaded"] = 0

    def start_at(self, now: float) -> None:
        """Let the engine begin at a time [s], without energy for what was before."""
        state = self.state[0]
        state["now"] = max(float(state["now"]), now)
        state["gpu_end"] = max(float(state["gpu_end"]), now)

    def submit(self, indices: npt.ArrayLike, since: float = 0.0) -> None:
        """Hand over requests (rows of the records) in order of arrival, not before `since` [s]."""
        new = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if self._full(new.size):
            self.make_room(new.size)
        requests, knobs = self.records.requests, self.knobs[0]
        wait = knobs["ingest_s"] + knobs["ingest_per_token_s"] * requests["prompt_tokens"][new]
        requests["ready_s"][new] = np.maximum(requests["arrival_s"][new], since) + wait
        requests["target"][new] = requests["prompt_tokens"][new] + requests["scheduled"][new]
        state = self.state[0]
        first, count = int(state["n_inbox"]), new.size
        start = max(int(state["next_inbox"]), int(state["next_front"]))
        pending = self.lanes.inbox[start:first]
        merged = np.concatenate([pending, new])
        merged = merged[np.argsort(requests["ready_s"][merged], kind="stable")]
        self.lanes.inbox[first - pending.size : first + count] = merged
        state["n_inbox"] = first + count

    def advance(self, until: float = np.inf, stop_when_done: bool = False) -> bool:
        """Run up to `until` [s]; return True when ended requests wait in `take_done`."""
        while True:
            status = advance(*(*self.member, until, stop_when_done))
            if status not in (ROWS_FULL, NEED_RULES):
                return bool(self.state["n_done"][0] > 0)
            self.attend(status)

    def attend(self, status: int) -> None:
        """Give the loop what it stopped for: room for its log, or rules of the policy."""
        if status == ROWS_FULL:
            self.more_rows()
        elif self.policy is not None:
            requests = self.records.requests
            ask(self.policy, self.state, self.knobs, requests, self.lanes, self.tables)

    def _full(self, new: int) -> bool:
        state = self.state[0]
        here = int(state["n_waiting"]) + int(state["n_running"]) + int(state["n_inbox"]) + new
        here -= int(state["next_inbox"])
        room = min(self.lanes.waiting.size, self.lanes.done.size - int(state["n_done"]))
        return here >= room or int(state["n_inbox"]) + new > self.lanes.inbox.size

    def take_done(self, now: float = np.inf) -> npt.NDArray[np.int64]:
        """Return the requests that have ended by a time [s] since the last call."""
        done = self.lanes.done[: int(self.state["n_done"][0])]
        left = self._ahead(now)
        found = done[: done.size - left].copy()
        done[:left] = done[done.size - left :].copy()
        self.state["n_done"] = left
        return found

    def _ahead(self, now: float) -> int:
        """Return how many of the newest ended requests get their last token after a time."""
        done = self.lanes.done[: int(self.state["n_done"][0])]
        later = self.records.requests["last_token_s"][done] > now
        return int(np.argmin(later[::-1])) if not later.all() else later.size

    def steps(self) -> npt.NDArray[np.void]:
        """Return the step log so far, one row per macro-step."""
        return self.rows[: int(self.state["n_rows"][0]) * int(self.knobs["log_steps"][0])]

    def load(self, now: float = np.inf) -> tuple[int, int, int]:
        """Return (waiting, running, free KV blocks) at a time not before the last `advance` [s].

        The output of the newest step is taken although it may come later: what ends with it runs
        until then.
        """
        state, ahead = self.state[0], self._ahead(now)
        waiting = int(state["n_waiting"]) + int(state["n_inbox"]) - int(state["next_inbox"])
        done = self.lanes.done[int(state["n_done"]) - ahead : int(state["n_done"])]
        size = int(self.knobs["block_size"][0])
        held = int((self.records.requests["computed"][done] // size + 1).sum())
        return waiting, int(state["n_running"]) + ahead, int(state["free_blocks"]) - held


def _longer(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a copy with at least `size` entries, zeros at the end."""
    return np.concatenate([values, np.zeros(max(size - values.size, 0), values.dtype)])


def total_gaps(replicas: Iterable[Replica]) -> npt.NDArray[np.float64]:
    """Return the inter-token-latency histogram of several replicas, shape (ITL_BINS,)."""
    return np.asarray(np.sum([replica.lanes.gaps for replica in replicas], axis=0))
