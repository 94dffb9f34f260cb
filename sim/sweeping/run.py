"""Run the points of a sweep: bounded memory, a journal of finished points, the same table always.

Every finished point is one line of a journal, written at once; a sweep that is started again skips
the points that the journal holds. The table is sorted by point, so it does not depend on the
number of workers or on the order in which they finish.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from formats import InputError, RoofcastError, atomic_write
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.sweeping.grid import Grid, points
from sim.sweeping.pool import executor

__all__ = ["Task", "run_task", "sweep", "sweep_grid", "tasks_of"]

JOURNAL, TABLE = "sweep.jsonl", "sweep.csv"
IN_FLIGHT_PER_WORKER, MOST_TRIES = 4, 3
Progress = Callable[[float], None]
Row = dict[str, Any]


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
    """

    index: int
    labels: Row
    scenario: Row
    base: str = "."

    @property
    def key(self) -> str:
        """Digest of what is simulated; a resumed sweep trusts a finished point with this key."""
        text = json.dumps([self.scenario, self.base], sort_keys=True, default=str)
        return sha256(text.encode()).hexdigest()[:20]


def tasks_of(grid: Grid, scenario: Scenario, base: Path = Path()) -> Iterator[Task]:
    """Yield the simulations of a grid in the order of the table.

    Replications differ in the seed only, so that all points see the same arrivals.

    Raises
    ------
    InputError
        A key or a value does not fit the scenario.
    """
    steady = scenario.changed({"run.step_log": False})
    index = 0
    for row in points(grid).to_dict("records"):
        labels = {str(key): value for key, value in row.items()}
        changed = steady.changed(labels)
        for replication in range(grid.replications):
            seed = changed.run.seed + replication
            data = changed.changed({"run.seed": seed}).model_dump(mode="json")
            yield Task(index, {**labels, "seed": seed}, data, str(base))
            index += 1


def run_task(task: Task) -> Row:
    """Simulate one point; a scenario that cannot run gives a row with its message."""
    row: Row = {"point": task.index, "key": task.key, **task.labels}
    try:
        result = simulate(Scenario.model_validate(task.scenario), base=Path(task.base))
    except RoofcastError as error:
        return {**row, "error": str(error)}
    found = {k: v for k, v in summary(result).items() if k != "classes"}
    found["last_arrival_s"] = float(result.requests["arrival_s"].max())
    found["slo_percentile"] = result.scenario.slo.percentile
    return {**row, "error": None, **{k: v for k, v in found.items() if k not in row}}


def sweep_grid(
    grid: Grid,
    scenario: Scenario,
    *,
    workers: int = 1,
    cluster: str | None = None,
    out: Path | None = None,
    base: Path = Path(),
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Simulate every point of a grid.

    Parameters
    ----------
    grid : Grid
        Keys and values.
    scenario : Scenario
        What is changed.
    workers : int
        Processes on this machine.
    cluster : str, optional
        Dask scheduler address, or ``local:N``.
    out : Path, optional
        Folder of the journal and the table; a sweep found there is resumed.
    base : Path
        Folder that relative paths of the scenario start from.
    progress : callable, optional
        Called with the share of points done [0..1].

    Returns
    -------
    DataFrame
        One row per point and replication: swept keys, seed, error, and every metric.
    """
    return sweep(
        list(tasks_of(grid, scenario, base)),
        workers=workers,
        cluster=cluster,
        out=out,
        progress=progress,
    )


def sweep(
    tasks: list[Task],
    *,
    workers: int = 1,
    cluster: str | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Run tasks that have not been done yet; see `sweep_grid`.

    A worker that dies costs the points it was at, which run again; after three deaths at the same
    points the sweep stops, and what is finished stays in the journal.
    """
    done = _read_journal(out, tasks)
    for attempt in range(MOST_TRIES):
        left = [task for task in tasks if task.index not in done]
        if not left:
            break
        try:
            with executor(workers, cluster) as pool:
                for row in _finished(pool, left, max(workers, 1) * IN_FLIGHT_PER_WORKER):
                    done[row["point"]] = row
                    _append(out, row)
                    if progress:
                        progress(len(done) / len(tasks))
        except BrokenProcessPool:
            if attempt == MOST_TRIES - 1:
                raise InputError(
                    f"a worker died {MOST_TRIES} times with {len(left)} points left",
                    "sweep",
                    repair="use fewer workers or smaller scenarios; finished points are kept",
                ) from None
    table = pd.DataFrame([done[task.index] for task in tasks]).drop(columns="key")
    _write_table(out, table)
    return table


def _finished(pool: Executor, tasks: list[Task], in_flight: int) -> Iterator[Row]:
    """Yield rows as they finish, with few tasks in flight so that memory stays bounded."""
    waiting = iter(tasks)
    running: set[Future[Row]] = set()
    while True:
        while len(running) < in_flight and (task := next(waiting, None)) is not None:
            running.add(pool.submit(run_task, task))
        if not running:
            return
        ready, running = wait(running, return_when=FIRST_COMPLETED)
        for future in ready:
            yield future.result()


def _append(out: Path | None, row: Row) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / JOURNAL).open("a") as file:
        file.write(json.dumps(row, default=str) + "\n")


def _read_journal(out: Path | None, tasks: list[Task]) -> dict[int, Row]:
    """Return finished points by index, leaving out a torn last line and points of other sweeps."""
    if out is None or not (out / JOURNAL).exists():
        return {}
    wanted = {task.key: task for task in tasks}
    done: dict[int, Row] = {}
    for line in (out / JOURNAL).read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        task = wanted.get(row.get("key", ""))
        if task is not None:
            done[task.index] = {**row, "point": task.index, **task.labels}
    return done


def _write_table(out: Path | None, table: pd.DataFrame) -> None:
    if out is not None:
        with atomic_write(out / TABLE) as path:
            table.to_csv(path, index=False)
