"""Other people's runs: what they measured beside what the simulator says of the same thing.

A reader per data set (`validation.published_readers`) turns its rows into `Case`s, or says why a
row cannot be one; nothing is dropped without a reason. The files are not part of the project: they
are read from the folder beside the checkout where it is there, and are named as absent elsewhere.
What was found is kept as errors by accelerator, model, engine and precision (`STORED`), made by
``python -m validation.published ../shared/groundtruth``.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from hardware.catalog import load_accelerator
from sim.engines import engines
from sim.exploring.bands import kernel_logs
from sim.exploring.engine_error import level_of
from sim.exploring.estimate import estimate
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import Result, simulate

__all__ = [
    "COLUMNS",
    "FIGURES",
    "STORED",
    "Case",
    "Found",
    "Load",
    "by_group",
    "judge",
    "main",
    "predict",
    "stored",
]

STORED = Path(__file__).parent / "data" / "published.csv"
"""Errors by group, as `by_group` returns them."""
ABSENT = Path(__file__).parent / "data" / "published_absent.csv"
"""Rows that are no case: data set, reason, rows."""
COLUMNS = (
    "dataset",
    "row",
    "accelerator",
    "model",
    "engine",
    "precision",
    "figure",
    "predicted",
    "measured",
    "error",
    "level",
    "low_log",
    "high_log",
)
GROUP = ["dataset", "accelerator", "model", "engine", "precision", "figure"]
NAMES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "SGLang": "sglang"}
"""Engine -> how the ids of its profiles begin."""
SIZES = re.compile(r"(?<![\w.-])[\d.]+(?=[ ,;)]|$)")
"""Sizes in a reason, not the figures of a name."""
FEW = 10
"""Cases below which one process is enough."""
OTHER = "vllm-0.24"
"""Profile of an engine that has none of its own."""


@dataclass(frozen=True)
class Load:
    """What was asked for: equal requests.

    Parameters
    ----------
    prompt, output : int
        Tokens of a request.
    count : int
        Requests.
    rate : float, optional
        Poisson arrivals [request/s]; without, all arrive at once.
    concurrency : int, optional
        Users that wait for their answer before they ask again.
    """

    prompt: int
    output: int
    count: int
    rate: float | None = None
    concurrency: int | None = None

    def table(self) -> pd.DataFrame:
        """Return the requests, arrivals drawn with a fixed seed."""
        gaps = np.zeros(self.count)
        if self.rate:
            gaps = np.random.default_rng(0).exponential(1 / self.rate, self.count)
        return pd.DataFrame(
            {
                "arrival_s": np.cumsum(gaps),
                "prompt_tokens": self.prompt,
                "output_tokens": max(self.output, 1),
            }
        )


@dataclass(frozen=True)
class Case:
    """One measured configuration.

    Parameters
    ----------
    dataset : str
        Whose measurement.
    row : int
        Its row there.
    accelerator, model, engine, precision : str
        Catalog ids and words that it is grouped by.
    changes : mapping
        Keys of the scenario beside these.
    load : Load
        What was asked.
    measured : mapping
        Key of `FIGURES` -> value [SI].
    """

    dataset: str
    row: int
    accelerator: str
    model: str
    engine: str
    precision: str
    load: Load
    measured: Mapping[str, float]
    changes: Mapping[str, object] = field(default_factory=dict)

    def scenario(self) -> Scenario:
        """Return the scenario that stands for it.

        Raises
        ------
        InputError
            Something in it is not in the catalogs.
        """
        keys: dict[str, object] = {
            "name": f"{self.dataset} row {self.row}",
            "hardware.accelerator": self.accelerator,
            "model.name": self.model,
            "model.weights": self.precision,
            "engine.profile": profile_of(self.engine, self.accelerator),
        }
        if self.load.concurrency:
            loop = {"kind": "closed-loop", "concurrency": self.load.concurrency}
            keys["workload.arrivals"] = loop
        return Scenario().changed(keys | dict(self.changes))


def profile_of(engine: str, accelerator: str = "h200-sxm") -> str:
    """Return the newest profile of an engine, for the accelerator's generation where told apart.

    Examples
    --------
    >>> profile_of("MindIE")
    'vllm-0.24'
    """
    start = NAMES.get(engine, "")
    named = (name for name in engines.paths if start and name.startswith(start))
    known = sorted(named, key=lambda name: name.replace("rc", "-"))  # candidates before releases
    blackwell = load_accelerator(accelerator).architecture.startswith("Blackwell")
    other = "hopper" if blackwell else "blackwell"
    fitting = [name for name in known if not name.endswith(other)]
    return fitting[-1] if fitting else OTHER


@dataclass
class Found:
    """Cases of some data sets, and rows that are none.

    Attributes
    ----------
    cases : list of Case
        What can be predicted.
    absent : dict of (str, str) to int
        (data set, reason) -> rows; reasons that differ in their sizes alone stand under the first.
    """

    cases: list[Case] = field(default_factory=list)
    absent: dict[tuple[str, str], int] = field(default_factory=dict)
    _first: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def drop(self, dataset: str, reason: str, rows: int = 1) -> None:
        """Count rows that are no case."""
        kind = SIZES.sub("", reason)
        key = (dataset, self._first.setdefault((dataset, kind), reason))
        self.absent[key] = self.absent.get(key, 0) + rows


def _latency(result: Result) -> float:
    return float(result.requests["finish_s"].max())


def _throughput(result: Result) -> float:
    return float(result.requests["output_tokens"].sum() / result.requests["finish_s"].max())


def _of_summary(key: str) -> Callable[[Result], float]:
    def figure(result: Result) -> float:
        value = summary(result)[key]
        return float("nan") if value is None else float(value)

    return figure


FIGURES: dict[str, Callable[[Result], float]] = {
    "ttft_mean_s": _of_summary("ttft_mean_s"),
    "tpot_mean_s": _of_summary("tpot_mean_s"),
    "batch_s": _latency,
    "output_tokens_per_s": _throughput,
}
"""Compared figures: means over requests, all tokens of a batch, tokens over the whole run."""


SUMMARY = {"batch_s": "e2e_mean_s"}
"""Figure -> the figure of summary.json whose band it takes, where named otherwise."""


def predict(case: Case) -> pd.DataFrame:
    """Return the figures that were measured, simulated.

    Returns
    -------
    DataFrame
        figure, predicted [SI], level of knowledge, low_log and high_log: half-widths of the log
        error from the errors of kernels.

    Raises
    ------
    InputError
        The scenario cannot be deployed.
    """
    scenario, table = case.scenario(), case.load.table()
    result = simulate(scenario, table)
    if not (result.requests["status"] == "finished").all():
        raise InputError("requests are refused: they do not fit")
    middle = estimate(scenario, result.deployment, table)
    logs = kernel_logs(scenario, result.deployment, table, middle)
    level = level_of(scenario, result.deployment, table)
    rows = [
        (name, FIGURES[name](result), level, *logs.get(SUMMARY.get(name, name), (0.0, 0.0)))
        for name in case.measured
    ]
    return pd.DataFrame(rows, columns=["figure", "predicted", "level", "low_log", "high_log"])


def judge(found: Found, progress: Callable[[float], None] | None = None) -> pd.DataFrame:
    """Predict every case; those that cannot be deployed are counted as absent.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`, one row per case and figure.
    """
    parts = []
    for i, (case, done) in enumerate(zip(found.cases, _all_tried(found.cases), strict=True)):
        if isinstance(done, str):
            found.drop(case.dataset, done)
        else:
            parts.append(done)
        if progress:
            progress((i + 1) / len(found.cases))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))


def _all_tried(cases: Sequence[Case]) -> Iterator[pd.DataFrame | str]:
    """Judge cases, many of them in several processes."""
    if len(cases) < FEW:
        yield from map(_tried, cases)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(_tried, cases, chunksize=4)


def _tried(case: Case) -> pd.DataFrame | str:
    """Return a judged case, or why it cannot be deployed."""
    try:
        return _judged(case)
    except InputError as e:
        return _reason(e)


def _judged(case: Case) -> pd.DataFrame:
    table = predict(case)
    measured = table["figure"].map(dict(case.measured))
    places = ("dataset", "row", "accelerator", "model", "engine", "precision")
    table = table.assign(**{name: getattr(case, name) for name in places}, measured=measured)
    return table.assign(error=table["predicted"] / measured - 1)[list(COLUMNS)]


def _reason(error: InputError) -> str:
    """Return what went wrong, and where, without the advice."""
    return f"{error.where}: {error.what}" if error.where else error.what


def by_group(rows: pd.DataFrame, by: Sequence[str] = GROUP) -> pd.DataFrame:
    """Return errors by group.

    Parameters
    ----------
    rows : DataFrame
        From `judge`.
    by : sequence of str
        Columns that make a group.

    Returns
    -------
    DataFrame
        Columns of `by`, rows, signed (median), median and p90 of the absolute error, and p10_log,
        p90_log of log(measured / predicted).
    """
    logs = np.log(rows["measured"] / rows["predicted"])
    groups = rows.assign(size=rows["error"].abs(), log=logs).groupby(list(by), sort=True)
    out = groups.size().rename("rows").to_frame()
    out["signed"] = groups["error"].median()
    out["median"] = groups["size"].median()
    out["p90"] = groups["size"].quantile(0.9)
    out["p10_log"], out["p90_log"] = groups["log"].quantile(0.1), groups["log"].quantile(0.9)
    return out.reset_index()


def stored() -> pd.DataFrame:
    """Return the errors by group as they were last computed."""
    return pd.read_csv(STORED, comment="#") if STORED.exists() else pd.DataFrame()


def absent() -> pd.DataFrame:
    """Return the rows that are no case: dataset, reason, rows."""
    return pd.read_csv(ABSENT, skiprows=1) if ABSENT.exists() else pd.DataFrame()


def _write(path: Path, table: pd.DataFrame) -> None:
    about = f"# Made by `python -m validation.published` on {date.today().isoformat()}.\n"
    with atomic_write(path) as temporary:
        text = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
        temporary.write_text(about + text, encoding="utf-8")


def main(arguments: Iterable[str] | None = None) -> int:
    """Predict the cases of a folder, keep errors by group, print them."""
    from validation.published_readers import read_all

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of measured tables")
    parser.add_argument("--rows", type=Path, help="also write every row to this CSV")
    parser.add_argument("--every", type=int, default=1, help="one case in so many")
    given = parser.parse_args(None if arguments is None else list(arguments))
    found = read_all(given.folder, given.every)
    rows = judge(found)
    if given.rows:
        _write(given.rows, rows)
    _write(STORED, by_group(rows))
    lost = [(*key, count) for key, count in sorted(found.absent.items())]
    _write(ABSENT, pd.DataFrame(lost, columns=["dataset", "reason", "rows"]))
    shown = by_group(rows, ["dataset", "engine", "accelerator", "figure"])
    sys.stdout.write(f"{shown.round(3).to_string(index=False)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
