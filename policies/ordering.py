"""In which order waiting requests are served."""

from dataclasses import dataclass
from typing import ClassVar

from policies.rules import RequestView, ordering

__all__ = ["FirstComeFirstServed"]


@ordering("fcfs")
@dataclass(frozen=True)
class FirstComeFirstServed:
    """Serve in order of arrival. Use it when no request matters more than another."""

    by_arrival: ClassVar[bool] = True

    def key(self, request: RequestView) -> float:
        """Return the arrival time."""
        return request.arrival_s
