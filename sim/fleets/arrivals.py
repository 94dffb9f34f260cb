"""When requests come: at their times, or when users have read the last answer."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.fleets.fleet import Fleet, Process

__all__ = ["ClosedLoop", "Users", "open_arrivals"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Users that send their next request when the last one is answered.

    Parameters
    ----------
    users : int
        Requests in the system at once.
    think_s : ndarray
        Pause of a user before each request [s].
    """

    users: int
    think_s: npt.NDArray[np.float64]


def open_arrivals(fleet: Fleet) -> Process:
    """Send every request at its arrival time."""
    for index, arrival in enumerate(fleet.requests.arrival_s):
        if arrival > fleet.now:
            yield fleet.env.timeout(arrival - fleet.now)
        fleet.arrive(index)


class Users:
    """The users of a closed loop."""

    def __init__(
        self, fleet: Fleet, loop: ClosedLoop, arrive: Callable[[int, float], None]
    ) -> None:
        self.fleet, self.loop, self._arrive = fleet, loop, arrive
        self.pending = deque(range(len(fleet.requests.arrival_s)))

    def start(self) -> None:
        """Let every user send a first request."""
        for _ in range(min(self.loop.users, len(self.pending))):
            self._send(self.pending.popleft(), 0.0)

    def answered(self, finish_s: float) -> None:
        """Let the user of an ended request send the next one after a pause."""
        if self.pending:
            index = self.pending.popleft()
            arrival = finish_s + float(self.loop.think_s[index])
            if arrival > self.fleet.now:
                self.fleet.env.process(self._later(index, arrival))
            else:
                self._send(index, arrival)

    def _later(self, index: int, arrival: float) -> Process:
        yield self.fleet.env.timeout(arrival - self.fleet.now)
        self._send(index, arrival)

    def _send(self, index: int, arrival: float) -> None:
        self._arrive(index, arrival)
        self.fleet.requests.arrival_s[index] = arrival
        self.fleet.arrive(index)
