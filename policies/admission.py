"""Who is let in, who is turned away, and who gives up waiting."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from pydantic import Field

from policies.rules import AdmissionRules, admission

__all__ = ["AdmitAll", "Impatient", "Limits", "QueueLimit", "RateLimit", "ShedLoad", "Timeout"]

Limit = Annotated[int, Field(ge=0, le=1 << 40, description="requests that may wait [request]")]
Seconds = Annotated[float, Field(gt=0, le=1e9, description="longest wait for a batch [s]")]
Rate = Annotated[float, Field(gt=0, le=1e9, description="requests of one client [request/s]")]
Burst = Annotated[float, Field(ge=1, le=1e9, description="requests it may send at once [request]")]
Objective = Annotated[
    float, Field(gt=0, le=1e6, description="predicted time to first token at most [s]")
]
Patience = Annotated[
    float, Field(gt=0, le=1e9, description="mean time that clients wait for a first token [s]")
]
Variation = Annotated[
    float, Field(ge=0, le=10, description="deviation over mean of that time, 0 = all alike [1]")
]


@admission("all")
@dataclass(frozen=True)
class AdmitAll:
    """Let everybody in and wait. Use it to see the load itself."""

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules()


@admission("queue-limit")
@dataclass(frozen=True)
class QueueLimit:
    """Reject when the queue is full. Use it to bound memory and waits with one number."""

    limit: Limit = 256

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(queue_limit=self.limit)


@admission("timeout")
@dataclass(frozen=True)
class Timeout:
    """Drop what waited too long for a batch. Use it when late answers are worthless."""

    timeout_s: Seconds = 30.0

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(timeout_s=self.timeout_s)


@admission("rate-limit")
@dataclass(frozen=True)
class RateLimit:
    """A token bucket per client. Use it against single clients that flood the service."""

    rate_per_s: Rate = 1.0
    burst: Burst = 10.0

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(client_rate_per_s=self.rate_per_s, client_burst=self.burst)


@admission("shed-load")
@dataclass(frozen=True)
class ShedLoad:
    """Reject what would miss its first token anyway. Use it to keep goodput in overload."""

    ttft_s: Objective = 2.0

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(shed_ttft_s=self.ttft_s)


@admission("impatient")
@dataclass(frozen=True)
class Impatient:
    """Clients leave when no token comes. Use it for people in front of a screen."""

    patience_s: Patience = 10.0
    patience_cv: Variation = 1.0

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(patience_s=self.patience_s, patience_cv=self.patience_cv)


@admission("limits")
@dataclass(frozen=True)
class Limits:
    """Any of the limits together, each off until it is given. Use it for a whole front door."""

    queue_limit: Limit | None = None
    timeout_s: Seconds | None = None
    client_rate_per_s: Rate | None = None
    client_burst: Burst = 10.0
    shed_ttft_s: Objective | None = None
    patience_s: Patience | None = None
    patience_cv: Variation = 1.0

    def rules(self) -> AdmissionRules:
        """Return the rules of the door."""
        return AdmissionRules(
            queue_limit=self.queue_limit,
            timeout_s=self.timeout_s or inf,
            patience_s=self.patience_s or inf,
            patience_cv=self.patience_cv,
            client_rate_per_s=self.client_rate_per_s or inf,
            client_burst=self.client_burst,
            shed_ttft_s=self.shed_ttft_s or inf,
        )
