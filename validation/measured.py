"""Runs on real engines: what was asked, what every request, step and second of power did.

A folder holds `runs.toml` (runs, and what no judgement may use), the tables of its README, and one
scenario per run. Four folders of runs on H200s come with the project: those in `data/h200` train
the engine profile; of those in `data/h200-extra` (other machines, models and loads) some train the
clock and the power; those in `data/h200-fresh` were committed before any prediction of them was
made, and no fit uses them. `data/h200-repeats` runs workloads again in the same engine.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from formats import InputError, did_you_mean, read_table, read_toml
from sim.scenario import Scenario, load_scenario

__all__ = [
    "H200",
    "H200_FRESH",
    "H200_MORE",
    "H200_REPEATS",
    "Exclusion",
    "MeasuredRun",
    "MeasuredWorkload",
    "all_runs",
    "earlier_runs",
    "load_runs",
]

H200 = Path(__file__).parent / "data" / "h200"
H200_MORE = Path(__file__).parent / "data" / "h200-extra"
H200_FRESH = Path(__file__).parent / "data" / "h200-fresh"
H200_REPEATS = Path(__file__).parent / "data" / "h200-repeats"
Kind = Literal["open", "closed", "static"]
Mask = npt.NDArray[np.bool_]
Parts = dict[str, dict[tuple[str, str], pd.DataFrame]]

KEY = ("run", "workload")
REQUESTS = (
    *KEY,
    "request",
    "arrival_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
)
STEPS = (
    *KEY,
    "t_schedule",
    "t_output",
    "n_prefill",
    "prefill_tokens",
    "prefill_attn",
    "n_decode",
    "decode_context",
    "n_running",
    "n_waiting",
    "n_preempted",
    "kv_usage",
)
MORE_STEPS = (
    "t_enter",
    "decode_context_max",
    "host_ms",
    "gpu_ms",
    "gpu_gap_ms",
    "n_drafting",
    "n_drafted",
    "n_accepted",
    "sample_ms",
    "device_allocs",
    "reserved_mb",
)
POWER = (*KEY, "t", "watts", "sm_mhz", "temp_c", "gpu_util", "energy_mj")
MARKS = (*KEY, "start", "end")
SESSIONS = ("arrival_s", "prompt_tokens", "output_tokens", "session", "prefix_tokens")
WARM_UP = 4
"""Requests at once with which validation/collect/serve.py warms an engine up."""
KINDS: dict[str, Kind] = {"static": "static", "closed": "closed"}


class Exclusion(BaseModel):
    """A stretch of a workload that no judgement uses, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    workload: str
    start_s: FiniteFloat = Field(ge=0, description="from [s]")
    end_s: FiniteFloat = Field(gt=0, description="to [s]")
    reason: str = Field(min_length=10, description="what went wrong in the measurement")


class _Index(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    accelerator: str
    engine: str
    licence: str
    source: str
    date: str
    suffix: str = Field("", description="added to the names of runs, to tell folders apart")
    fresh: bool = Field(False, description="no fit and no choice of a form has used these runs")
    host_slowness: FiniteFloat = Field(
        1.0, gt=0, description="host times of this machine over those of the profile [1]"
    )
    runs: list[str] = Field(min_length=1)
    exclusions: list[Exclusion] = []


@dataclass(frozen=True)
class MeasuredWorkload:
    """One workload of a run.

    Attributes
    ----------
    run, name : str
        Where it belongs and what it is called.
    requests : DataFrame
        One row per request in order of arrival: request, arrival_s (when the client sent it),
        first_token_s, finish_s [s], prompt_tokens, output_tokens, cached_tokens [token].
    steps : DataFrame
        One row per engine step in order (see the README of the data).
    power : DataFrame
        About 20 samples per second: t [s], watts, sm_mhz, temp_c, gpu_util, energy_mj.
    sessions : DataFrame or None
        Columns session and prefix_tokens, one row per row of `requests`.
    exclusions : tuple of Exclusion
        Stretches that no judgement uses.
    """

    run: str
    name: str
    requests: pd.DataFrame
    steps: pd.DataFrame
    power: pd.DataFrame
    sessions: pd.DataFrame | None = None
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def kind(self) -> Kind:
        """How load was offered: open (arrivals), closed (fixed concurrency), static (at once)."""
        return KINDS.get(self.name.split("_")[0], "open")

    @property
    def duration_s(self) -> float:
        """Start of the workload to its last token [s]."""
        return float(self.requests["finish_s"].max())

    def table(self) -> pd.DataFrame:
        """Return the requests as the simulator takes them."""
        table = self.requests[["request", "arrival_s", "prompt_tokens", "output_tokens"]]
        return table if self.sessions is None else pd.concat([table, self.sessions], axis=1)

    def judged_requests(self) -> Mask:
        """Return which requests were nowhere in the system during an excluded stretch."""
        alive = self.requests[["arrival_s", "finish_s"]].to_numpy()
        return ~self._touched(alive[:, 0], alive[:, 1])

    def judged_steps(self) -> Mask:
        """Return which steps lie outside excluded stretches, from schedule to output."""
        return ~self._touched(
            self.steps["t_schedule"].to_numpy(), self.steps["t_output"].to_numpy()
        )

    def _touched(self, start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> Mask:
        touched = np.zeros(len(start), dtype=bool)
        for gap in self.exclusions:
            touched |= (end > gap.start_s) & (start < gap.end_s)
        return touched

    @property
    def concurrency(self) -> int:
        """Most requests in the system at once, by what clients saw [request]."""
        times = self.requests[["arrival_s", "finish_s"]].to_numpy()
        edges = np.concatenate([times[:, 0], times[:, 1]])
        change = np.repeat([1, -1], len(times))
        return int(np.cumsum(change[np.lexsort((change, edges))]).max())

    def energy_j(self, start_s: float = 0.0, end_s: float | None = None) -> float:
        """Return joules between two times, by the driver's counter.

        The counter is read about every 50 ms and interpolated; it counts from when the driver was
        loaded.

        Parameters
        ----------
        start_s, end_s : float
            From and to; without `end_s` up to the last token [s].
        """
        ends = np.array([start_s, self.duration_s if end_s is None else end_s])
        start, end = np.interp(ends, self.power["t"], self.power["energy_mj"] * 1e-3)
        return float(end - start)

    def power_mean_w(self) -> float:
        """Return mean watts from start to last token, without excluded stretches [W]."""
        lost = [(e.start_s, min(e.end_s, self.duration_s)) for e in self.exclusions]
        joules = self.energy_j() - sum(self.energy_j(*ends) for ends in lost)
        return joules / (self.duration_s - sum(end - start for start, end in lost))


@dataclass(frozen=True)
class MeasuredRun:
    """One engine on one machine, and the workloads it served.

    Attributes
    ----------
    name : str
        Name of the run.
    scenario : Scenario
        What was deployed; its workload is replaced by each measured one.
    workloads : dict of str to MeasuredWorkload
        By name, in the order they ran.
    source, licence : str
        Who measured, and under which terms the data may be used.
    fresh : bool
        Whether no fit and no choice of a form has used it.
    """

    name: str
    scenario: Scenario
    workloads: dict[str, MeasuredWorkload]
    source: str
    licence: str
    fresh: bool = False

    def warm_requests(self, name: str) -> int:
        """Return the most requests of a step before a workload began: WARM_UP, or those before."""
        before = takewhile(lambda item: item[0] != name, self.workloads.items())
        steps = [w.steps[["n_prefill", "n_decode"]].sum(axis=1).max() for _, w in before]
        return int(max([WARM_UP, *steps]))

    def __getitem__(self, name: str) -> MeasuredWorkload:
        if name not in self.workloads:
            hint = did_you_mean(name, self.workloads)
            raise InputError(f"run {self.name} has no workload named {name!r}", repair=hint)
        return self.workloads[name]


@lru_cache(maxsize=6)
def load_runs(folder: Path = H200) -> dict[str, MeasuredRun]:
    """Read a folder of measured runs.

    Parameters
    ----------
    folder : Path
        Holds runs.toml; requests, steps, power and marks (workloads in the order they ran) as
        .csv.gz; scenarios/RUN.toml; and for a workload of sessions its trace WORKLOAD.csv.

    Returns
    -------
    dict of str to MeasuredRun
        By name.

    Raises
    ------
    InputError
        A file is missing or bad, or the tables do not belong together.

    Examples
    --------
    >>> runs = load_runs()
    >>> round(runs["llama8b_bf16"]["conv_r12"].duration_s, 2)
    41.79
    """
    index = read_toml(folder / "runs.toml", _Index)
    tables = {
        "requests": read_table(folder / "requests.csv.gz", REQUESTS),
        "steps": read_table(folder / "steps.csv.gz", STEPS, MORE_STEPS),
        "power": read_table(folder / "power.csv.gz", POWER),
    }
    marks = read_table(folder / "marks.csv.gz", MARKS)
    parts = {name: _by_workload(table) for name, table in tables.items()}
    unknown = sorted({run for run, _ in parts["requests"]} - set(index.runs))
    if unknown:
        hint = did_you_mean(unknown[0], index.runs)
        raise InputError(f"run {unknown[0]!r} is not in runs.toml", str(folder), repair=hint)
    _check_exclusions(index, folder)
    runs = [_run(name, index, parts, marks, folder) for name in index.runs]
    return {run.name: run for run in runs}


def all_runs() -> dict[str, MeasuredRun]:
    """Return the runs of every folder that comes with the project."""
    return earlier_runs() | load_runs(H200_FRESH)


def earlier_runs() -> dict[str, MeasuredRun]:
    """Return the runs that a fit may use."""
    return load_runs(H200) | load_runs(H200_MORE)


def _check_exclusions(index: _Index, folder: Path) -> None:
    for gap in index.exclusions:
        if gap.end_s <= gap.start_s:
            what = f"an exclusion of {gap.workload} ends at {gap.end_s:g} s, before it starts"
            raise InputError(what, str(folder / "runs.toml"), f"after {gap.start_s:g} s")


def _by_workload(table: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    groups = table.groupby(list(KEY), sort=False)
    return {(str(key[0]), str(key[1])): part for key, part in groups}


def _run(name: str, index: _Index, parts: Parts, marks: pd.DataFrame, folder: Path) -> MeasuredRun:
    order = [str(w) for w in marks.loc[marks["run"] == name, "workload"]]
    if not order:
        raise InputError(f"run {name!r} has no rows", str(folder / "marks.csv.gz"))
    workloads = {w: _workload(name, w, index, parts, folder) for w in order}
    scenario = load_scenario(folder / "scenarios" / f"{name}.toml")
    if index.host_slowness != 1.0:
        scenario = scenario.changed({"engine.host_slowness": index.host_slowness})
    origin = index.source, index.licence, index.fresh
    return MeasuredRun(name + index.suffix, scenario, workloads, *origin)


def _workload(run: str, name: str, index: _Index, parts: Parts, folder: Path) -> MeasuredWorkload:
    found = {}
    for kind, groups in parts.items():
        if (run, name) not in groups:
            what = f"workload {name!r} of run {run!r} has no rows"
            raise InputError(what, str(folder / f"{kind}.csv.gz"), repair="measure it again")
        found[kind] = groups[run, name].drop(columns=list(KEY))
    requests = found["requests"].sort_values(["arrival_s", "request"]).reset_index(drop=True)
    _check_times(requests, f"{run}/{name}")
    gaps = tuple(e for e in index.exclusions if (e.run, e.workload) == (run, name))
    return MeasuredWorkload(
        run + index.suffix,
        name,
        requests,
        found["steps"].sort_values("t_output").reset_index(drop=True),
        found["power"].sort_values("t").reset_index(drop=True),
        _sessions(requests, folder / f"{name}.csv"),
        gaps,
    )


def _check_times(requests: pd.DataFrame, where: str) -> None:
    ordered = (requests["arrival_s"] <= requests["first_token_s"]) & (
        requests["first_token_s"] <= requests["finish_s"]
    )
    if not ordered.all():
        bad = requests.loc[~ordered, "request"].iloc[0]
        what = f"request {bad} has its first token before arrival or after its last"
        raise InputError(what, where, "arrival_s <= first_token_s <= finish_s")


def _sessions(requests: pd.DataFrame, path: Path) -> pd.DataFrame | None:
    """Return session and prefix_tokens of each request where the workload has a trace."""
    if not path.is_file():
        return None
    trace = read_table(path, SESSIONS, text=["session"])
    if len(trace) != len(requests):
        what = f"has {len(trace)} rows for {len(requests)} requests"
        raise InputError(what, str(path), repair="give one row per request")
    return trace.loc[requests["request"], ["session", "prefix_tokens"]].reset_index(drop=True)
