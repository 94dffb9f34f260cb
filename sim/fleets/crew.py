"""The replicas of a fleet as one body: brought to a time and looked at together."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.replica import Replica

__all__ = ["Crew"]

Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FEW = 4  # replicas up to which one call each is cheaper than compiling a call for all
NONE = 1 << 59  # limits from here on are no limits


def ends_unseen(knobs: np.void) -> bool:
    """Return whether an engine ends requests that have not got all their tokens."""
    return bool(min(knobs["queue_limit"], knobs["output_limit"]) < NONE) or bool(
        np.isfinite(knobs["shed_ttft_s"])
    )


class Crew:
    """Replicas that advance together.

    Parameters
    ----------
    replicas : sequence of Replica
        At first; `add` takes more.
    keep_done : bool
        Ended requests are kept for `take_done`.
    """

    def __init__(self, replicas: Sequence[Replica], keep_done: bool = False) -> None:
        self.replicas: list[Replica] = []
        self.keep_done = keep_done
        self.quiet = np.zeros(0)
        self._least_s = np.zeros(0)
        self._members: object | None = None
        self._sudden: bool | None = None
        for replica in replicas:
            self._append(replica)
        if len(self.replicas) > FEW:
            self._join()

    def add(self, replica: Replica) -> int:
        """Add a replica; return its place."""
        self._append(replica)
        if self._members is not None:
            from sim.core import crew

            crew.add(self._members, replica.member)
        return len(self.replicas) - 1

    def _append(self, replica: Replica) -> None:
        self.replicas.append(replica)
        gain = float(replica.knobs["full_clock_gain"][0])
        least = float(replica.tables.linear_s[1:].min()) * (1.0 - max(gain, 0.0))
        sudden = ends_unseen(replica.knobs[0]) or self._sudden_ends(replica)
        self._least_s = np.append(self._least_s, 0.0 if sudden else least)
        self.quiet = np.append(self.quiet, -np.inf)

    def _sudden_ends(self, replica: Replica) -> bool:
        """Return whether any request may end otherwise than by its last token."""
        if self._sudden is None:
            requests = replica.records.requests
            limits = np.minimum(requests["timeout_s"], requests["patience_s"])
            self._sudden = bool(np.isfinite(limits).any() or requests["gate"].any())
        return self._sudden

    def _join(self) -> None:
        from sim.core import crew  # compiled for all replicas together: not for a few

        self._members = crew.crew_of(self.replicas[0].member)
        for replica in self.replicas[1:]:
            crew.add(self._members, replica.member)

    def renewed(self, place: int) -> None:
        """Take over arrays that a replica has made anew."""
        self.quiet[place] = -np.inf
        if self._members is not None:
            from sim.core import crew

            crew.put(self._members, place, self.replicas[place].member)

    def advance(self, places: Places, until: float, exact: bool = True) -> None:
        """Bring replicas up to a time [s].

        Without `exact`, one that cannot end a request before then is left where it is: its number
        of requests is right, what it has computed is not.
        """
        if self._members is None:
            for place in places:
                self._advance_one(int(place), until)
            return
        from sim.core import crew

        if exact:
            self.quiet[:] = -np.inf
        while True:
            place, why = crew.advance_all(
                self._members, places, until, self.keep_done, self.quiet, self._least_s
            )
            if place < 0:
                return
            self.replicas[place].attend(why)
            self.renewed(place)

    def _advance_one(self, place: int, until: float) -> None:
        replica = self.replicas[place]
        if replica.now < until:
            if not self.keep_done:
                replica.state["n_done"] = 0
            replica.advance(until)

    def submit(self, place: int, index: int, since: float) -> None:
        """Hand a request over; its engine does not see it before `since` [s]."""
        if self._members is None:
            self.replicas[place].submit(index, since)
            return
        from sim.core import crew

        if crew.submit_one(self._members, place, index, since, self.quiet) == crew.NO_ROOM:
            self.replicas[place].make_room()
            self.renewed(place)
            crew.submit_one(self._members, place, index, since, self.quiet)

    def look(self, places: Places, now: float = np.inf) -> Places:
        """Return waiting, running, free blocks of replicas at a time [s], shape (places, 3)."""
        loads = np.zeros((places.size, 3), np.int64)
        if self._members is None:
            for i, place in enumerate(places):
                loads[i] = self.replicas[place].load(now)
            return loads
        from sim.core import crew

        crew.look(self._members, places, now, loads)
        return loads

    def step_left_s(self, places: Places, now: float) -> Floats:
        """Return the time until the step in flight of replicas ends [s], shape (places,)."""
        from sim.core import crew

        left_s = np.zeros(places.size)
        crew.step_left_s(self._list(), places, now, left_s)
        return left_s

    def queued_tokens(self, places: Places) -> Places:
        """Return the prompt tokens that replicas have yet to start, shape (places,)."""
        from sim.core import crew

        tokens = np.zeros(places.size, np.int64)
        crew.queued_tokens(self._list(), places, tokens)
        return tokens

    def cached_tokens(self, places: Places, index: int) -> Places:
        """Return the leading tokens of a request that replicas have cached, shape (places,)."""
        from sim.core import crew

        tokens = np.zeros(places.size, np.int64)
        crew.cached_tokens(self._list(), places, index, tokens)
        return tokens

    def _list(self) -> object:
        if self._members is None:
            self._join()
        return self._members

    def take_done(self, places: Places, now: float = np.inf) -> list[tuple[int, int]]:
        """Return (place, request) of requests that have ended by a time [s] since the last call."""
        found = []
        for place in places:
            if self.replicas[place].state["n_done"][0]:
                found += [(int(place), int(i)) for i in self.replicas[place].take_done(now)]
        return found
