"""In which order waiting requests are served."""

from dataclasses import dataclass
from math import isnan
from typing import Annotated, ClassVar

from pydantic import Field

from policies.rules import OrderRules, RequestView, ordering

__all__ = [
    "EarliestDeadlineFirst",
    "FairShare",
    "FirstComeFirstServed",
    "OnlineFirst",
    "Priority",
    "ShortestJobFirst",
]

Error = Annotated[
    float, Field(ge=0, le=10, description="deviation of log(predicted / true output) [1]")
]
Weight = Annotated[float, Field(ge=0, le=1000, description="service of one token [1]")]
ClassName = Annotated[
    str, Field(min_length=1, max_length=200, description="traffic class that fills valleys")
]
Deadline = Annotated[
    float, Field(gt=0, le=1e9, description="deadline of requests that have none [s]")
]
Margin = Annotated[
    float, Field(ge=0, le=1e9, description="so long before it they are served as online [s]")
]
Count = Annotated[int, Field(ge=1, le=1 << 30, description="of that class, running at most")]
Chunk = Annotated[
    int, Field(ge=1, le=1 << 30, description="its prompt tokens per step at most [token]")
]
Share = Annotated[float, Field(ge=0, lt=1, description="share of KV blocks it leaves free [1]")]


@ordering("fcfs")
@dataclass(frozen=True)
class FirstComeFirstServed:
    """Serve in order of arrival. Use it when no request matters more than another."""

    by_arrival: ClassVar[bool] = True

    def key(self, request: RequestView) -> float:
        """Return the arrival time."""
        return request.arrival_s


@ordering("sjf")
@dataclass(frozen=True)
class ShortestJobFirst:
    """Shortest predicted request first. Use it for the least mean latency; long ones may starve."""

    predicts: ClassVar[bool] = True
    prediction_error: Error = 0.5

    def key(self, request: RequestView) -> float:
        """Return prompt and predicted output tokens."""
        return request.prompt_tokens + request.predicted_output(self.prediction_error)


@ordering("priority")
@dataclass(frozen=True)
class Priority:
    """Smallest priority number first. Use it when callers say what is urgent."""

    def key(self, request: RequestView) -> float:
        """Return the priority."""
        return float(request.priority)


@ordering("edf")
@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Earliest due first token first. Use it when classes have different objectives."""

    default_ttft_s: Annotated[
        float, Field(gt=0, le=1e9, description="objective of a class without one [s]")
    ] = 60.0

    def key(self, request: RequestView) -> float:
        """Return when the first token is due."""
        return request.arrival_s + min(request.ttft_objective_s, self.default_ttft_s)


@ordering("fair")
@dataclass(frozen=True)
class FairShare:
    """Least served client first (virtual token counter). Use it when clients share an engine.

    Sheng et al., "Fairness in serving large language models", OSDI 2024: a client's counter grows
    with the tokens it is served; one that comes back starts at the least counter of those waiting.
    """

    input_weight: Weight = 1.0
    output_weight: Weight = 2.0

    def key(self, request: RequestView) -> float:
        """Return the arrival time: the order among the requests of one client."""
        return request.arrival_s

    def rules(self) -> OrderRules:
        """Return what tokens count for."""
        return OrderRules(
            fair=True, input_weight=self.input_weight, output_weight=self.output_weight
        )


@ordering("online-first")
@dataclass(frozen=True)
class OnlineFirst:
    """A batch class fills the valleys and is preempted first. Use it to sell idle capacity."""

    batch_class: ClassName = "batch"
    deadline_s: Deadline = 86_400.0
    margin_s: Margin = 3600.0
    max_batch_seqs: Count = 256
    batch_tokens: Chunk = 2048
    keep_free: Share = 0.1

    def key(self, request: RequestView) -> float:
        """Return the arrival of an online request, and when a batch request gets urgent."""
        if request.traffic_class != self.batch_class:
            return request.arrival_s
        due = self.deadline_s if isnan(request.deadline_s) else request.deadline_s
        return request.arrival_s + self.rules().urgent_after_s(due)

    def rules(self) -> OrderRules:
        """Return the limits of the batch class."""
        return OrderRules(
            background_class=self.batch_class,
            background_deadline_s=self.deadline_s,
            background_margin_s=self.margin_s,
            background_seqs=self.max_batch_seqs,
            background_tokens=self.batch_tokens,
            background_free=self.keep_free,
        )
