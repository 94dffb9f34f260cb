"""One simulation of a sweep: what is simulated, under which key it is known, what comes out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path

import formats
import hardware
import policies
import workloads
from formats import RoofcastError
from sim.exploring.money import per_million, price_of
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import Result, simulate
from sim.sweeping.journal import Row

__all__ = ["COST", "STEADY_FROM", "Task", "code_digest", "rented_cost", "run_task"]

COST = "usd_per_million_output_tokens"
STEADY_FROM = 0.5  # share of the time of arrivals from which a run counts as steady
SOURCES = (".py", ".toml", ".csv")
APART = ("cli", "planning", "tuning")  # parts of this package that change no row of a sweep


@dataclass(frozen=True)
class Task:
    """One simulation of a sweep.

    Parameters
    ----------
    index : int
        Its row in the table.
    labels : dict
        Values of the swept keys, as they stand in the table.
    scenario : dict
        The whole scenario, as plain data.
    base : str
        Folder that relative paths start from.
    plugins : tuple of str
        Python files that register policies.
    fault : str, optional
        Why the scenario is none; such a point is not simulated.
    """

    index: int
    labels: Row
    scenario: Row
    base: str = "."
    plugins: tuple[str, ...] = ()
    fault: str | None = None

    @cached_property
    def key(self) -> str:
        """Digest of what is simulated and of the code that simulates it.

        A resumed sweep trusts a finished point with the same key.
        """
        stamps = [_stamp(path) for path in (*self.plugins, *_traces(self.scenario, self.base))]
        content = [self.scenario, self.base, self.fault, stamps, code_digest()]
        text = json.dumps(content, sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest()[:20]


def _traces(scenario: Row, base: str) -> Iterator[str]:
    """Yield the files that a workload reads."""
    workload = scenario.get("workload") or {}
    for part in (workload, *workload.get("mix", [])):
        arrivals = part.get("arrivals") or {}
        for name in (part.get("requests"), arrivals.get("path")):
            if name is not None:
                yield str(Path(base) / name)


@cache
def _stamp(path: str) -> tuple[str, int, int]:
    """Return what tells a file from a changed one."""
    try:
        found = Path(path).stat()
    except OSError:
        return path, 0, 0
    return path, found.st_size, found.st_mtime_ns


@cache
def code_digest() -> str:
    """Return a digest of all code and data that a simulation rests on."""
    digest = sha256()
    for package in (formats, hardware, policies, workloads, Path(__file__).parents[1]):
        folder = package if isinstance(package, Path) else Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder).parts
            if path.suffix in SOURCES and "traces" not in inner and inner[0] not in APART:
                digest.update(str(inner).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_task(task: Task) -> Row:
    """Simulate one point; one that cannot run gives a row with its message."""
    row: Row = {"point": task.index, **task.labels}
    if task.fault is not None:
        return {**row, "error": task.fault}
    try:
        for path in task.plugins:
            _load_plugin(path)
        result = simulate(Scenario.model_validate(task.scenario), base=Path(task.base))
        found = _figures(result)
    except RoofcastError as error:
        return {**row, "error": str(error)}
    except Exception as error:
        # a fault of the program in one point leaves the others alone and stays visible in its row
        return {**row, "error": f"{type(error).__name__}: {error}"}
    return {**row, "error": None, **{k: v for k, v in found.items() if k not in row}}


@cache
def _load_plugin(path: str) -> None:
    from sim.cli.overrides import load_plugin

    load_plugin(Path(path))


def _figures(result: Result) -> Row:
    """Return every metric, the money of an output token, and rates of the steady part."""
    found = {k: v for k, v in summary(result).items() if k != "classes"}
    rate, watts = found.get("output_tokens_per_s"), found.get("power_mean_w")
    return {**found, COST: rented_cost(result, rate, watts), **_steady(result)}


def rented_cost(result: Result, tokens_per_s: float | None, watts: float | None) -> float | None:
    """Return what a million output tokens cost at the rental price, None without a price [USD]."""
    chosen = result.scenario.hardware
    price = price_of(chosen.accelerator, result.deployment.spec)
    if price is None or not tokens_per_s:
        return None
    return per_million(price, chosen.accelerators, watts or 0.0, tokens_per_s)


def _steady(result: Result) -> Row:
    """Return how fast requests came and went in the later part of the time of arrivals."""
    table = result.requests
    last = float(table["arrival_s"].max())
    start = STEADY_FROM * last
    span = max(last - start, 1e-9)
    arrived = int((table["arrival_s"] > start).sum())
    done = table["status"] == "finished"
    left = int((done & table["finish_s"].between(start, last, inclusive="right")).sum())
    return {
        "offered_per_s": len(table) / max(last, 1e-9),
        "steady_offered_per_s": arrived / span,
        "steady_served_per_s": left / span,
        "slo_percentile": result.scenario.slo.percentile,
    }
