"""Run the points of a sweep: bounded memory, a journal of finished points, the same table always.

The table is sorted by point, so it does not depend on the number of workers or on the order in
which they finish. A worker that dies costs the points it was at; they run again one at a time, and
a point that ends its worker even alone becomes a row that says so.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from formats import InputError, atomic_write, check, read_toml
from sim.scenario import Scenario
from sim.sweeping.grid import Grid, check_grid, points, scenario_of
from sim.sweeping.journal import Journal, Row
from sim.sweeping.keys import change
from sim.sweeping.pool import Pool, open_pool
from sim.sweeping.task import Task, run_task

__all__ = ["JOURNAL", "TABLE", "Runner", "sweep", "tasks_of"]

JOURNAL, TABLE = "sweep.jsonl", "sweep.csv"
BRIEF_S = 10.0  # an estimate below which starting processes does not pay [s]
REFRESH_S, REFRESH_ROWS = 10.0, 20_000
Progress = Callable[[float], None]


def tasks_of(
    grid: Grid, scenario: Scenario, base: Path = Path(), plugins: Iterable[Path] = ()
) -> Iterator[Task]:
    """Yield the simulations of a grid in the order of the table.

    Replications differ in the seed only, so that all points see the same arrivals.
    """
    folder, files = str(base.resolve()), tuple(str(p.resolve()) for p in plugins)
    index = 0
    for row in points(grid).to_dict("records"):
        swept = {str(key): value for key, value in row.items()}
        first = int(swept.get("run.seed", scenario.run.seed))
        for seed in range(first, first + grid.replications):
            data, fault = _changed(scenario, {**swept, "run.seed": seed, "run.step_log": False})
            yield Task(index, {**swept, "seed": seed}, data, folder, files, fault)
            index += 1


def _changed(scenario: Scenario, changes: dict[str, Any]) -> tuple[Row, str | None]:
    """Return the data of a changed scenario, or why the values do not go together."""
    try:
        return change(scenario, changes).model_dump(mode="json"), None
    except InputError as error:
        return {"changes": changes}, str(error)


def sweep(
    grid: Grid | Path | str | Mapping[str, Any],
    scenario: Scenario | None = None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    out: Path | str | None = None,
    base: Path | None = None,
    plugins: Iterable[Path] = (),
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Simulate every point of a grid.

    Parameters
    ----------
    grid : Grid, Path or mapping
        A grid, its file, or the swept keys with their values.
    scenario : Scenario, optional
        What is changed; by default what the grid names.
    workers : int
        Processes on this machine; 1 = this process, 0 = one per core where that pays. A script
        that asks for more than one needs ``if __name__ == "__main__":``.
    cluster : str, optional
        Dask scheduler address, or ``local:N``.
    out : Path, optional
        Folder of the journal and the table; a sweep found there is resumed.
    base : Path, optional
        Folder that relative paths of the scenario start from; by default that of the grid file.
    plugins : iterable of Path
        Python files that register policies.
    progress : callable, optional
        Called with the share of points done [0..1].

    Returns
    -------
    DataFrame
        One row per point and replication: point, swept keys, seed, error, and every metric.

    Raises
    ------
    InputError
        The grid is bad, or no point of it can run.

    Examples
    --------
    >>> quick = {"workload.duration_s": 2.0, "hardware.tp": [1, 2]}
    >>> table = sweep(quick)
    >>> table["hardware.tp"].tolist(), bool(table["tpot_mean_s"].is_monotonic_decreasing)
    ([1, 2], True)
    """
    chosen, start, folder = _resolved(grid, scenario, base)
    check_grid(chosen, start)
    count = len(points(chosen)) * chosen.replications
    runner = Runner(workers, cluster, None if out is None else Path(out))
    with runner:
        table = runner.table(tasks_of(chosen, start, folder, plugins), count, progress)
    if table["error"].notna().all():
        raise InputError(f"none of {count} points can run: {table['error'].iloc[0]}", chosen.name)
    return table


def _resolved(
    grid: Grid | Path | str | Mapping[str, Any], scenario: Scenario | None, base: Path | None
) -> tuple[Grid, Scenario, Path]:
    """Return the grid, the scenario that it changes and the folder of relative paths."""
    folder = base or Path()
    if isinstance(grid, str | Path):
        found, folder = read_toml(Path(grid), Grid), base or Path(grid).parent
    else:
        found = grid if isinstance(grid, Grid) else check({"keys": dict(grid)}, Grid, "grid")
    if scenario is not None:
        return found, scenario, folder
    own = scenario_of(found, folder)
    if isinstance(found.scenario, str) and base is None:
        folder = (folder / found.scenario).parent
    return found, own, folder


@dataclass
class Runner:
    """Runs tasks that no journal holds yet; keeps its workers and journal until it is left.

    Parameters
    ----------
    workers, cluster, out
        See `sweep`.
    """

    workers: int = 1
    cluster: str | None = None
    out: Path | None = None
    _journal: Journal = field(init=False, repr=False)
    _refreshed: float = field(default_factory=time.monotonic, init=False, repr=False)

    def __enter__(self) -> "Runner":
        self._journal = Journal(None if self.out is None else self.out / JOURNAL)
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__(None, None, None)

    def table(
        self, tasks: Iterable[Task], count: int, progress: Progress | None = None
    ) -> pd.DataFrame:
        """Return the table of tasks after those that are left have run.

        Parameters
        ----------
        tasks : iterable of Task
            Taken one at a time, as workers become free.
        count : int
            How many there are.
        progress : callable, optional
            Called with the share done [0..1].
        """
        work = _Work(iter(tasks), count, self._journal, progress, self._refresh)
        work.run(self.workers, self.cluster)
        table = self._labelled(work)
        _write_table(self.out, table)
        return table

    def _labelled(self, work: "_Work") -> pd.DataFrame:
        """Return the table with swept values as they were given, before all metrics."""
        table = self._journal.table([key for key, _ in work.order])
        labels = [{"point": i, **own} for i, (_, own) in enumerate(work.order)]
        swept = pd.DataFrame(labels, dtype=object).infer_objects()
        rest = [c for c in table.columns if c not in swept.columns and c not in ("error", "died")]
        return pd.concat([swept, table[["error", *rest]]], axis=1)

    def _refresh(self, work: "_Work") -> None:
        """Write the table of what is done now and then."""
        if self.out is None or time.monotonic() - self._refreshed < REFRESH_S:
            return
        done = [key for key, _ in work.order if key in self._journal]
        if len(done) <= REFRESH_ROWS:
            _write_table(self.out, self._journal.table(done))
        self._refreshed = time.monotonic()


@dataclass
class _Work:
    """The tasks of one table on their way."""

    tasks: Iterator[Task]
    count: int
    journal: Journal
    progress: Progress | None
    refresh: "Callable[[_Work], None]"
    order: list[tuple[str, Row]] = field(default_factory=list)
    again: deque[Task] = field(default_factory=deque)
    running: dict[Future[Row], Task] = field(default_factory=dict)
    done: int = 0

    def run(self, workers: int, cluster: str | None) -> None:
        """Run all tasks, also past workers that die."""
        count = self._worthwhile() if workers == 0 and cluster is None else workers
        while (task := self._next()) is not None:
            self.again.appendleft(task)
            with open_pool(count, cluster) as pool:
                whole = self._feed(pool, self._next)
            if not whole:
                self._one_by_one(cluster)

    def _worthwhile(self) -> int:
        """Return how many processes pay: two points run here, and the second is timed."""
        begin = end = 0.0
        for _ in range(2):
            task = self._next()
            if task is not None:
                begin = time.perf_counter()
                self._finish(task, run_task(task))
                end = time.perf_counter()
        left = (self.count - self.done) * (end - begin)
        return 1 if left < BRIEF_S else (os.cpu_count() or 1)

    def _next(self) -> Task | None:
        """Return the next task that the journal lacks."""
        if self.again:
            return self.again.popleft()
        for task in self.tasks:
            key = task.key
            self.order.append((key, task.labels))
            if key not in self.journal or self.journal.row(key).get("died"):
                return task
            self._move()
        return None

    def _feed(self, pool: Pool, source: Callable[[], Task | None]) -> bool:
        """Keep workers busy until the source is dry; False when workers died underway."""
        try:
            while self._fill(pool, source):
                ready, _ = wait(self.running, return_when=FIRST_COMPLETED)
                lost = [task for future in ready if (task := self._take(future, pool)) is not None]
                if lost:
                    self.again.extend(lost)
                    return False
        finally:
            self._salvage()
        return True

    def _fill(self, pool: Pool, source: Callable[[], Task | None]) -> bool:
        """Give out tasks; False when nothing runs any more."""
        slots = pool.slots()
        while len(self.running) < slots and (task := source()) is not None:
            try:
                self.running[pool.submit(run_task, task)] = task
            except pool.lost:
                self.again.append(task)
                break
        return bool(self.running)

    def _take(self, future: Future[Row], pool: Pool) -> Task | None:
        """Keep the row of a finished future; return its task when the worker died."""
        task = self.running.pop(future)
        try:
            self._finish(task, future.result())
        except pool.lost:
            return task
        except pool.gone:
            what = f"the cluster is gone with {self.count - self.done} points left"
            repair = "start it again; finished points are kept"
            raise InputError(what, "--cluster", repair=repair) from None
        return None

    def _salvage(self) -> None:
        """Keep what is finished, and hold back what is not, when workers are left early."""
        for future, task in self.running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._finish(task, future.result())
            else:
                self.again.append(task)
        self.running.clear()

    def _one_by_one(self, cluster: str | None) -> None:
        """Run points that were underway when a worker died, each alone."""
        left = deque(sorted(self.again, key=lambda task: task.index))
        self.again.clear()
        while left:
            # two processes, of which one starts: with one the point would run in this process
            with open_pool(2, cluster) as pool:
                alone = Pool(pool.submit, lambda: 1, pool.lost, pool.gone)
                self._feed(alone, lambda: left.popleft() if left else None)
            for task in self.again:
                self._finish(task, {"point": task.index, **task.labels, **DIED})
            self.again.clear()

    def _finish(self, task: Task, row: Row) -> None:
        self.journal.append(task.key, row)
        self._move()
        self.refresh(self)

    def _move(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(min(1.0, self.done / self.count))


DIED: Row = {
    "error": "the process that simulated it ended without an answer (out of memory?)",
    "died": True,
}


def _write_table(out: Path | None, table: pd.DataFrame) -> None:
    if out is not None:
        with atomic_write(out / TABLE) as path:
            table.to_csv(path, index=False)
