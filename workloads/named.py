"""Named workloads, and the requests table of any workload: named, drawn or read from a trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self
from zlib import crc32

import numpy as np
import pandas as pd
from pydantic import Field, FiniteFloat, model_validator

from formats import Catalog, InputError, Kind
from workloads.arrivals import (
    Arrivals,
    Burst,
    ClosedLoop,
    Piecewise,
    ServeGenClients,
    TraceArrivals,
    arrival_table,
    arrival_times,
    scale_rate,
)
from workloads.distributions import Strict
from workloads.lengths import Lengths, load_lengths, sample_columns, user_folders
from workloads.requests import check_requests, merge_requests
from workloads.sessions import (
    MultiTurn,
    Sharing,
    draw_turns,
    mean_turns,
    share_prefixes,
    take_turns,
)
from workloads.synthesis import synthesise
from workloads.traces import read_trace, scale_trace_rate, time_window

__all__ = [
    "NamedWorkload",
    "Objectives",
    "Streams",
    "WorkloadPart",
    "WorkloadSpec",
    "closed_loop",
    "load_workload",
    "make_requests",
    "workloads",
]

Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
Duration = Annotated[FiniteFloat, Field(gt=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=50_000_000)]


class Objectives(Strict):
    """What a request of this workload must meet, and how many of them must."""

    ttft_s: Seconds | None = Field(default=None, description="time to first token [s]")
    tpot_s: Seconds | None = Field(default=None, description="time per output token [s]")
    e2e_s: Seconds | None = Field(default=None, description="arrival to last token [s]")
    percentile: Annotated[FiniteFloat, Field(gt=0, le=100)] = Field(
        default=99.0, description="share of requests that must meet them [%]"
    )
    kind: Kind = Field(default="assumption", description="where the numbers come from, in a word")
    source: str = Field(min_length=3, description="where the numbers come from")


class NamedWorkload(Strict):
    """A file of ``data/workloads``: who asks what, how often, and how fast it must be."""

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, description="what it is called")
    description: str = Field(min_length=1, description="who sends such requests")
    kind: Kind = Field(description="kind of its arrivals and sharing: fitted or assumption")
    source: str = Field(min_length=3, description="where its arrivals and sharing come from")
    arrivals: Arrivals = Field(description="arrival process")
    lengths: str | Lengths = Field(description="a named length distribution, or one in place")
    sharing: Sharing | None = Field(default=None, description="prefixes that prompts share")
    objectives: Objectives = Field(description="what a request must meet")
    duration_s: Duration = Field(default=300.0, description="length of a run [s]")
    count: Count | None = Field(default=None, description="requests at most [request]")


workloads: Catalog[NamedWorkload] = Catalog(
    "workload",
    NamedWorkload,
    [Path(__file__).parent / "data" / "workloads", *user_folders("workloads")],
)


def load_workload(name: str) -> NamedWorkload:
    """Return a named workload, or the one in a file whose name ends in .toml.

    Raises
    ------
    InputError
        No such workload, or its file is bad.

    Examples
    --------
    >>> load_workload("chat").objectives.ttft_s
    0.45
    """
    return workloads.load(name)


class WorkloadPart(Strict):
    """One class of traffic: a trace, a named workload, or arrivals and lengths."""

    requests: str | None = Field(default=None, min_length=1, description="request trace file")
    format: str = Field(default="auto", description="format of the trace; auto finds it")
    synthesise: bool = Field(
        default=False, description="draw new requests that resemble the trace, for duration_s"
    )
    window_s: tuple[Seconds, Seconds] | None = Field(
        default=None, description="part of the trace: start, end [s, s]"
    )
    named: str | None = Field(default=None, min_length=1, description="named workload")
    arrivals: Arrivals | None = Field(default=None, description="arrival process")
    lengths: str | Lengths | None = Field(default=None, description="length distribution")
    sharing: Sharing | None = Field(default=None, description="prefixes that prompts share")
    rate_scale: Annotated[FiniteFloat, Field(gt=0, le=1e6)] = Field(
        default=1.0, description="times the rate of the trace or the arrivals [1]"
    )
    duration_s: Duration | None = Field(default=None, description="arrivals stop then [s]")
    count: Count | None = Field(default=None, description="requests at most [request]")
    traffic_class: str | None = Field(default=None, max_length=200, description="traffic class")
    priority: int | None = Field(
        default=None, ge=-(10**9), le=10**9, description="smaller is served first"
    )
    deadline_s: Seconds | None = Field(
        default=None, description="last token due so long after arrival [s]"
    )
    model: str | None = Field(default=None, max_length=200, description="model asked for")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in ("requests", "named", "arrivals") if getattr(self, k) is not None]
        if "requests" in given and len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; keep one of them")
        if self.requests is None and (self.synthesise or self.window_s):
            raise ValueError("synthesise and window_s need requests")
        if self.requests is not None and self.sharing is not None:
            raise ValueError("sharing is for drawn requests; a trace has its own")
        if self.requests is not None and self.lengths is not None and not self.synthesise:
            raise ValueError("lengths are for drawn requests; a trace has its own")
        if self.arrivals is not None and self.lengths is None and self.named is None:
            raise ValueError("arrivals need lengths, such as lengths = 'azure-conv'")
        return self


class WorkloadSpec(WorkloadPart):
    """All that is asked: one class of traffic, or several in `mix`.

    Examples
    --------
    >>> spec = WorkloadSpec(arrivals={"kind": "poisson", "rate_per_s": 2},
    ...                     lengths="azure-conv", duration_s=60)
    >>> table = make_requests(spec, Streams.of_seed(1))
    >>> list(table.columns)
    ['arrival_s', 'prompt_tokens', 'output_tokens']
    """

    mix: list[WorkloadPart] = Field(
        default_factory=list, max_length=100, description="classes of traffic, each as above"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        own = self.requests or self.named or self.arrivals
        if self.mix and own:
            raise ValueError("mix replaces requests, named and arrivals; move them into a part")
        if not self.mix and not own:
            raise ValueError("give requests, named or arrivals")
        if any(not (p.requests or p.named or p.arrivals) for p in self.mix):
            raise ValueError("each part of mix needs requests, named or arrivals")
        return self


class Streams(NamedTuple):
    """One random stream for each purpose, so that a change in one leaves the others alone."""

    arrivals: np.random.Generator
    lengths: np.random.Generator
    sharing: np.random.Generator

    @classmethod
    def of_seed(cls, seed: int) -> "Streams":
        """Return the streams of a seed, each with its name as the key."""
        return cls(*(_stream(seed, name) for name in cls._fields))

    def spawn(self, n: int) -> "list[Streams]":
        """Return `n` independent sets of streams."""
        return [Streams(*group) for group in zip(*(s.spawn(n) for s in self), strict=True)]


def _stream(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(crc32(name.encode()),)))


def closed_loop(spec: WorkloadPart) -> ClosedLoop | None:
    """Return the closed loop that the simulator has to drive, if the workload is one."""
    arrivals = _filled(spec).arrivals
    return arrivals if isinstance(arrivals, ClosedLoop) else None


def make_requests(spec: WorkloadPart, streams: Streams, base: Path = Path()) -> pd.DataFrame:
    """Return the requests table of a workload.

    Parameters
    ----------
    spec : WorkloadSpec or WorkloadPart
        What is asked.
    streams : Streams
        Random streams for arrivals, lengths and sharing.
    base : Path
        Folder that relative paths of traces start from.

    Returns
    -------
    pandas.DataFrame
        A checked requests table.

    Raises
    ------
    InputError
        A name is not known, a trace is bad, or no request arrives.
    """
    if isinstance(spec, WorkloadSpec) and spec.mix:
        return _mixed(spec, streams, base)
    full = _filled(spec)
    make: Callable[[WorkloadPart, Streams, Path], pd.DataFrame] = _drawn
    if full.requests is not None:
        make = _synthetic if full.synthesise else _from_trace
    return check_requests(_labelled(make(full, streams, base), full), "[workload]")


def _mixed(spec: WorkloadSpec, streams: Streams, base: Path) -> pd.DataFrame:
    tables = []
    for part, own in zip(spec.mix, streams.spawn(len(spec.mix)), strict=True):
        limits = {
            "duration_s": part.duration_s or spec.duration_s,
            "count": part.count or spec.count,
            "rate_scale": part.rate_scale * spec.rate_scale,
        }
        tables.append(make_requests(part.model_copy(update=limits), own, base))
    return merge_requests(tables)


def _filled(spec: WorkloadPart) -> WorkloadPart:
    """Return the part with what its named workload says, where it says nothing itself."""
    if spec.named is None:
        return spec
    named = load_workload(spec.named)
    update: dict[str, object] = {
        key: getattr(named, key)
        for key in ("arrivals", "lengths", "sharing")
        if getattr(spec, key) is None
    }
    if spec.duration_s is None and spec.count is None:
        update |= {"duration_s": named.duration_s, "count": named.count}
    return spec.model_copy(update=update)


def _from_trace(spec: WorkloadPart, _streams: Streams, base: Path) -> pd.DataFrame:
    table = read_trace(base / str(spec.requests), spec.format)
    if spec.window_s:
        table = time_window(table, *spec.window_s)
    if spec.rate_scale != 1:
        table = scale_trace_rate(table, spec.rate_scale)
    if spec.duration_s is not None:
        table = table[table["arrival_s"] < spec.duration_s]
    return table if spec.count is None else table.head(spec.count)


def _synthetic(spec: WorkloadPart, streams: Streams, base: Path) -> pd.DataFrame:
    if spec.duration_s is None:
        what = "synthesise has no end"
        raise InputError(what, "[workload]", repair="give duration_s")
    trace = _from_trace(
        spec.model_copy(update={"duration_s": None, "count": None, "rate_scale": 1.0}),
        streams,
        base,
    )
    lengths = None if spec.lengths is None else load_lengths(spec.lengths)
    table = synthesise(
        trace, spec.duration_s, streams.arrivals, rate_scale=spec.rate_scale, lengths=lengths
    )
    return table if spec.count is None else table.head(spec.count)


def _drawn(spec: WorkloadPart, streams: Streams, base: Path) -> pd.DataFrame:
    if spec.arrivals is None or spec.lengths is None:
        what = "arrivals and lengths are missing"
        raise InputError(what, "[workload]", repair="give requests, named or arrivals")
    arrivals = scale_rate(_located(spec.arrivals, base), spec.rate_scale)
    lengths = load_lengths(spec.lengths)
    if isinstance(spec.sharing, MultiTurn):
        return _sessions(spec, arrivals, lengths, streams)
    table = arrival_table(arrivals, spec.duration_s, streams.arrivals, spec.count)
    if table.empty:
        what = f"no request arrives in {spec.duration_s:g} s"
        raise InputError(what, "[workload]", repair="raise duration_s or the rate")
    table = table.assign(**sample_columns(lengths, len(table), streams.lengths))
    return table if spec.sharing is None else share_prefixes(table, spec.sharing, streams.sharing)


def _located(arrivals: Arrivals, base: Path) -> Arrivals:
    if isinstance(arrivals, TraceArrivals | ServeGenClients):
        return arrivals.model_copy(update={"path": str(base / arrivals.path)})
    return arrivals


def _sessions(
    spec: WorkloadPart, arrivals: Arrivals, lengths: Lengths, streams: Streams
) -> pd.DataFrame:
    sharing = spec.sharing
    if not isinstance(sharing, MultiTurn) or isinstance(arrivals, ClosedLoop):
        what = "a closed loop cannot be made of sessions"
        raise InputError(what, "[workload]", repair="use poisson arrivals, or drop sharing")
    slower = scale_rate(arrivals, 1 / mean_turns(sharing, lengths))
    starts = arrival_times(slower, spec.duration_s, streams.arrivals, spec.count)
    turns = draw_turns(sharing, starts.size, streams.sharing)
    drawn = sample_columns(lengths, int(turns.sum()), streams.lengths)
    level = not isinstance(arrivals, Burst | Piecewise | TraceArrivals)
    wrapped = spec.duration_s if level else None
    table = take_turns(starts, drawn, turns, sharing, streams.sharing, wrapped)
    if spec.duration_s is not None:
        table = table[table["arrival_s"] < spec.duration_s]
    return table if spec.count is None else table.head(spec.count)


def _labelled(table: pd.DataFrame, spec: WorkloadPart) -> pd.DataFrame:
    columns = {
        "class": spec.traffic_class,
        "priority": spec.priority,
        "deadline_s": spec.deadline_s,
        "model": spec.model,
    }
    return table.assign(**{k: v for k, v in columns.items() if v is not None})
