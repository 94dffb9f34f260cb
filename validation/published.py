"""Other people's runs: what they measured beside what the simulator says of the same thing.

A reader per data set (`validation.published_readers`) turns its rows into `Case`s, or says why a
row cannot be one; nothing is dropped without a reason. The files are not part of the project: they
are read from the folder beside the checkout where it is there, and are named as absent elsewhere.
What was found is kept as errors by accelerator, model, engine and precision (`STORED`), made by
``python -m validation.published ../shared/groundtruth``.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from sim.engines import engines
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
)
GROUP = ["dataset", "accelerator", "model", "engine", "precision", "figure"]
NAMES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "SGLang": "sglang"}
"""Engine -> how the ids of its profiles begin."""
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
            "engine.profile": profile_of(self.engine),
        }
        if self.load.concurrency:
            loop = {"kind": "closed-loop", "concurrency": self.load.concurrency}
            keys["workload.arrivals"] = loop
        return Scenario().changed(keys | dict(self.changes))


def profile_of(engine: str) -> str:
    """Return the newest profile of an engine, vLLM's where it has none.

    Examples
    --------
    >>> profile_of("MindIE")
    'vllm-0.24'
    """
    start = NAMES.get(engine, "")
    known = sorted(name for name in engines.paths if start and name.startswith(start))
    return known[-1] if known else OTHER


@dataclass
class Found:
    """Cases of some data sets, and rows that are none.

    Attributes
    ----------
    cases : list of Case
        What can be predicted.
    absent : dict of (str, str) to int
        (data set, reason) -> rows.
    """

    cases: list[Case] = field(default_factory=list)
    absent: dict[tuple[str, str], int] = field(default_factory=dict)

    def drop(self, dataset: str, reason: str, rows: int = 1) -> None:
        """Count rows that are no case."""
        key = (dataset, reason)
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


def predict(case: Case) -> dict[str, float]:
    """Return the figures that were measured, simulated [SI].

    Raises
    ------
    InputError
        The scenario cannot be deployed.
    """
    result = simulate(case.scenario(), case.load.table())
    ended = (result.requests["status"] == "finished").all()
    if not ended:
        raise InputError("requests are refused: they do not fit")
    return {name: FIGURES[name](result) for name in case.measured}


def judge(found: Found, progress: Callable[[float], None] | None = None) -> pd.DataFrame:
    """Predict every case; those that cannot be deployed are counted as absent.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`, one row per case and figure.
    """
    rows = []
    for i, case in enumerate(found.cases):
        try:
            predicted = predict(case)
        except InputError as e:
            found.drop(case.dataset, _reason(e))
            continue
        for name, value in predicted.items():
            measured = case.measured[name]
            place = (case.dataset, case.row, case.accelerator, case.model, case.engine)
            error = value / measured - 1
            rows.append((*place, case.precision, name, value, measured, error))
        if progress:
            progress((i + 1) / len(found.cases))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _reason(error: InputError) -> str:
    """Return what went wrong without its numbers, so that rows of one kind are counted together."""
    text = str(error).split(";")[0]
    return "".join(c for c in text if not c.isdigit())[:100].strip()


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
    return pd.read_csv(ABSENT, comment="#") if ABSENT.exists() else pd.DataFrame()


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
