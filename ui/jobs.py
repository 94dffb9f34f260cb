"""Long work beside the page: threads that belong to one session, tell progress and can be stopped.

A job lives in the session's state, under a slot of its own; starting another in the same slot
stops the first. Work stops at its next word of progress.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from formats import RoofcastError

__all__ = ["Cancelled", "Job", "Teller"]

LOG = logging.getLogger(__name__)


class Cancelled(Exception):  # noqa: N818 - it is not an error
    """The work is not wanted any more."""


@dataclass
class Teller:
    """What work tells about itself; each call raises `Cancelled` once it should stop.

    Attributes
    ----------
    job : Job
        Whose work it is.
    """

    job: "Job"

    def __call__(self, share: float, text: str = "") -> None:
        """Tell the share done [0..1] and, perhaps, what is being done."""
        self._check()
        self.job.share = min(max(share, 0.0), 1.0)
        self.job.text = text or self.job.text

    def publish(self, value: Any) -> None:  # noqa: ANN401 - whatever the work makes
        """Show a first result before all is done."""
        self._check()
        self.job.value = value

    def _check(self) -> None:
        if self.job.stopped.is_set() or not self.job.wanted():
            raise Cancelled


@dataclass
class Job:
    """One piece of work in a thread.

    Parameters
    ----------
    key : str
        What it is about: the same key means the same work.
    work : callable
        `Teller` -> result.
    wanted : callable
        Whether somebody still looks; work ends when nobody does.

    Attributes
    ----------
    value : object
        The result, or the newest published part of it.
    error : str
        Why it failed: the message that the command line would print.
    share, text : float, str
        How far it is [0..1], and with what.
    """

    key: str
    work: Callable[[Teller], Any]
    wanted: Callable[[], bool] = lambda: True
    value: Any = None
    error: str = ""
    share: float = 0.0
    text: str = "starting"
    began_s: float = field(default_factory=monotonic)
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> "Job":
        """Begin the work."""
        threading.Thread(target=self._run, name=f"job {self.key[:40]}", daemon=True).start()
        return self

    def _run(self) -> None:
        try:
            value = self.work(Teller(self))
            if not self.stopped.is_set():
                self.value = value
        except Cancelled:
            pass
        except RoofcastError as e:
            self.error = str(e)
        except Exception as e:
            LOG.exception("job failed")
            self.error = f"{type(e).__name__}: {e}"
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Ask the work to end; what it still does is thrown away."""
        self.stopped.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; return whether it has ended."""
        return self.ended.wait(seconds)

    @property
    def running(self) -> bool:
        """Whether it is still at work and wanted."""
        return not self.ended.is_set() and not self.stopped.is_set()

    @property
    def seconds(self) -> float:
        """Time since its start [s]."""
        return monotonic() - self.began_s
