"""Who asks for what, how fast it must be, and how that grows: the demand side of a plan file."""

from typing import Annotated, Any, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from sim.planning.sections import Positive, Section
from sim.scenario import Slo

__all__ = ["Batch", "Horizon", "Served", "Service", "Shape", "Traffic", "quarter_names"]

Weight = Annotated[FiniteFloat, Field(ge=0, le=1e6)]
Growth = Annotated[FiniteFloat, Field(le=1000)]
DAY_S = 86_400.0
QUARTERS_PER_YEAR = 4


def check_growth(value: float) -> float:
    """Refuse a growth at which less than nothing would be left.

    Raises
    ------
    ValueError
        The growth is -100 % a year or below.
    """
    if value <= -1:
        raise ValueError(
            f"growth of {100 * value:g} % a year leaves nothing or less; give a share above -1, "
            "such as 0.4 for 40 % more or -0.2 for 20 % less each year"
        )
    return value


class Served(Section):
    """Which model is served, unless a candidate says otherwise."""

    name: str = Field("llama-3.1-8b", min_length=1, description="model id, .toml or config.json")


class Shape(Section):
    """How a rate swings over the hours of a day and the days of a week."""

    hourly: list[Weight] = Field(
        default_factory=lambda: [1.0] * 24,
        min_length=24,
        max_length=24,
        description="weight of each hour of the day, from midnight [1]",
    )
    daily: list[Weight] = Field(
        default_factory=lambda: [1.0] * 7,
        min_length=7,
        max_length=7,
        description="weight of each day of the week [1]",
    )

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not any(self.hourly) or not any(self.daily):
            raise ValueError("hourly and daily each need a weight above 0")
        return self


class Traffic(Section):
    """One class of requests that somebody waits for.

    The volume is one of `users` (times sessions and requests), `requests_per_s`,
    `requests_per_day` or a `trace`.

    Examples
    --------
    >>> chat = Traffic(name="chat", users=8640, sessions_per_user_day=2, requests_per_session=5)
    >>> chat.mean_rate_per_s
    1.0
    """

    name: str = Field("requests", min_length=1, max_length=60, description="name of the class")
    users: Positive | None = Field(None, description="people who use it [user]")
    sessions_per_user_day: Positive = Field(1.0, description="sessions per user and day [1/day]")
    requests_per_session: Positive = Field(1.0, description="requests in a session [1]")
    requests_per_s: Positive | None = Field(None, description="mean over the week [request/s]")
    requests_per_day: Positive | None = Field(None, description="mean over the week [1/day]")
    trace: str | None = Field(None, min_length=1, description="request trace to scale up")
    trace_scale: Positive = Field(1.0, description="times the rate of the trace [1]")
    growth_per_year: Growth = Field(0.0, description="0.4 is 40 % more each year [1/year]")
    workload: str | None = Field(
        None, description="named workload: its lengths, shared prefixes, bursts and objectives"
    )
    lengths: str | dict[str, Any] | None = Field(
        None, description="length distribution, none = the workload's or azure-conv"
    )
    sharing: dict[str, Any] | None = Field(
        None, description="prefixes that prompts share, none = the workload's"
    )
    shape: str | Shape | None = Field(
        None,
        description="flat, a named workload with a week's shape, or {hourly, daily}; none = the "
        "trace's where it lasts a day, else chat-week",
    )
    peak_factor: Annotated[FiniteFloat, Field(ge=1, le=100)] = Field(
        1.25, description="busiest hour of a busy week over that of an ordinary week [1]"
    )
    cv: Annotated[FiniteFloat, Field(gt=0, le=1000)] | None = Field(
        None, description="variation of the gaps, none = the workload's, 1 is Poisson [1]"
    )
    priority: int | None = Field(None, description="smaller is served first")
    slo: Slo | None = Field(None, description="objectives, none = the workload's")

    _growth = field_validator("growth_per_year")(check_growth)

    @model_validator(mode="after")
    def _one_volume(self) -> Self:
        sources = ("users", "requests_per_s", "requests_per_day", "trace")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"say how much is asked by one of {', '.join(sources)}; {found}")
        if self.trace is not None and (self.lengths is not None or self.sharing is not None):
            raise ValueError("a trace has its own lengths and prefixes; drop lengths and sharing")
        return self

    @property
    def mean_rate_per_s(self) -> float | None:
        """Mean over the week at the start [request/s]; None where a trace says it."""
        if self.users is not None:
            daily = self.users * self.sessions_per_user_day * self.requests_per_session
            return daily / DAY_S
        if self.requests_per_day is not None:
            return self.requests_per_day / DAY_S
        return self.requests_per_s


class Batch(Section):
    """A volume of requests that may wait up to a deadline (a batch interface)."""

    name: str = Field("batch", min_length=1, max_length=60, description="name of the class")
    requests_per_day: Positive = Field(description="volume at the start [1/day]")
    deadline_h: Annotated[FiniteFloat, Field(ge=1, le=168)] = Field(
        24.0, description="a request is answered so long after it came at the latest [h]"
    )
    submit_hour: Annotated[int, Field(ge=0, le=23)] | None = Field(
        None, description="all come at this hour of the day, none = spread over it [h]"
    )
    growth_per_year: Growth = Field(0.0, description="0.4 is 40 % more each year [1/year]")
    lengths: str | dict[str, Any] = Field(
        "batch-labelling", description="length distribution, by name or in place"
    )
    own_machines: bool = Field(
        False, description="never on machines that serve traffic, even when those are idle"
    )

    _growth = field_validator("growth_per_year")(check_growth)


class Horizon(Section):
    """How far the plan looks ahead."""

    quarters: int = Field(8, ge=1, le=40, description="length of the plan [quarter]")
    start: str = Field("2027Q1", pattern=r"^\d{4}Q[1-4]$", description="first quarter, as 2027Q1")


def quarter_names(horizon: Horizon) -> list[str]:
    """Return the names of the quarters of a plan.

    Examples
    --------
    >>> quarter_names(Horizon(quarters=3, start="2027Q3"))
    ['2027Q3', '2027Q4', '2028Q1']
    """
    first = int(horizon.start[:4]) * QUARTERS_PER_YEAR + int(horizon.start[-1]) - 1
    return [f"{q // 4}Q{q % 4 + 1}" for q in range(first, first + horizon.quarters)]


class Service(Section):
    """What must hold beside the objectives of each class."""

    spares: int = Field(
        1, ge=0, le=1000, description="units that may fail at once: owned nodes, rented replicas"
    )
    load_limit: Annotated[FiniteFloat, Field(gt=0, le=1)] = Field(
        1.0, description="part of a replica's capacity that the plan may use at the peak [1]"
    )
