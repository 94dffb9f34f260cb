"""What a fleet did besides serving: when replicas were up, moved data, failed."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["EVENTS", "Outcome"]

EVENTS = ("start", "spare", "up", "drain", "restart", "off", "fail", "repaired")


@dataclass
class Outcome:
    """Log of a fleet.

    Attributes
    ----------
    placed : ndarray, shape (requests,)
        Replica that ended each request, -1 where it was not sent.
    pools : list of str
        Pool of each replica, by number.
    ranks : list of int
        Accelerators of each replica.
    events : list of (float, str, int, str)
        Time [s], pool, replica, one of `EVENTS`.
    hand_offs : list of (int, float, float, float, float)
        Request, prompt done, started, arrived [s], bytes [byte].
    fetches : list of (int, int, float)
        Request, tokens taken from the shared cache, seconds it took.
    """

    placed: npt.NDArray[np.int64]
    pools: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    events: list[tuple[float, str, int, str]] = field(default_factory=list)
    hand_offs: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    fetches: list[tuple[int, int, float]] = field(default_factory=list)

    def event_table(self) -> pd.DataFrame:
        """Return the events, in order of time."""
        columns = ["time_s", "pool", "replica", "event"]
        table = pd.DataFrame(self.events, columns=columns)
        return table.sort_values("time_s", kind="stable", ignore_index=True)

    def hand_off_table(self) -> pd.DataFrame:
        """Return the hand-offs of KV caches, in order of the prompts' ends."""
        columns = ["request", "prompt_done_s", "started_s", "arrived_s", "bytes"]
        return pd.DataFrame(self.hand_offs, columns=columns)

    def capacity_table(self) -> pd.DataFrame:
        """Return the replicas that take requests, and that should, from each event on.

        An autoscaler's start and drain change what is wanted; a failure, a restart for
        maintenance and a spare that steps in do not.

        Returns
        -------
        DataFrame
            time_s [s], up, wanted [replica].
        """
        last: dict[int, str] = {}
        rows, up, wanted = [], 0, 0
        for time, _, replica, event in sorted(self.events, key=lambda e: e[0]):
            before = last.get(replica, "")
            if event == "up":
                up += 1
                wanted += before in ("", "start", "drain")
            elif before == "up" and event in ("drain", "restart", "fail"):
                up -= 1
                wanted -= event == "drain"
            last[replica] = event
            rows.append((time, up, wanted))
        return pd.DataFrame(rows, columns=["time_s", "up", "wanted"])

    def on_s(self, end_s: float) -> npt.NDArray[np.float64]:
        """Return the seconds up to `end_s` that each replica's accelerators were held [s].

        From its start to its end; those of a failed one are not, until it is repaired.
        """
        return self._between(("start", "spare", "up", "repaired"), ("off", "fail"), end_s)

    def up_s(self, end_s: float) -> npt.NDArray[np.float64]:
        """Return the seconds up to `end_s` in which each replica took requests [s]."""
        return self._between(("up",), ("drain", "restart", "off", "fail"), end_s)

    def _between(
        self, begins: tuple[str, ...], ends: tuple[str, ...], end_s: float
    ) -> npt.NDArray[np.float64]:
        """Return the seconds up to `end_s` from events that begin to events that end [s]."""
        total, since = np.zeros(len(self.pools)), np.full(len(self.pools), np.nan)
        for time, _, replica, event in sorted(self.events, key=lambda e: e[0]):
            if event in begins and np.isnan(since[replica]):
                since[replica] = time
            if event in ends and not np.isnan(since[replica]):
                total[replica] += max(min(time, end_s) - since[replica], 0.0)
                since[replica] = np.nan
        open_ = ~np.isnan(since)
        total[open_] += np.maximum(end_s - since[open_], 0.0)
        return total
