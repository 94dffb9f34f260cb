"""Every validation case in one place: what is predicted, against what, how far it is off.

`validate` runs them and returns a `Validation`; command line, page and tests read that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from formats import InputError, did_you_mean, read_table
from hardware.kernels import BASE
from sim.deployment import deploy
from sim.simulation import Result
from validation import SEEDS
from validation.fit_engine import training
from validation.kept import band_coverage, published_rows, transfer_errors, transfer_rows
from validation.kept_fleets import (
    fleet_errors,
    fleet_rows,
    left_out_errors,
    left_out_rows,
    splits,
)
from validation.measured import MeasuredRun, MeasuredWorkload, all_runs, load_runs
from validation.published import absent, stored
from validation.regions import by_region, load_of
from validation.serving import compare, limits, medians, replay
from validation.speculation import speculation_errors, speculation_rows
from validation.steps import judge_workload, summarise
from validation.theory import check_theory

__all__ = ["COLUMNS", "Selection", "Validation", "kernel_limit", "select", "validate"]

CALIBRATIONS = Path(__file__).parents[1] / "hardware" / "data" / "calibrations"
ERRORS = ("family", "split", "method", "shapes", "median", "p90", "bias")
COLUMNS = (
    "family",
    "case",
    "figure",
    "unit",
    "predicted",
    "measured",
    "error",
    "low",
    "high",
    "limit",
    "fitted",
    "source",
    "licence",
)
LONGEST = 1 << 15  # tokens of a request that step tables reach
SERVING, STEPS, KERNELS, THEORY = "serving", "steps", "kernels", "theory"
Progress = Callable[[float], None]
Pair = tuple[MeasuredRun, MeasuredWorkload]


@dataclass(frozen=True)
class Selection:
    """Which cases to run.

    Attributes
    ----------
    run, workload : str or None
        One run, and one workload of it; None = all of them, and kernels and theory as well.
    seeds : int
        Simulations per workload.
    """

    run: str | None = None
    workload: str | None = None
    seeds: int = SEEDS

    @property
    def everything(self) -> bool:
        """Whether no single run is asked for."""
        return self.run is None and self.workload is None


@dataclass
class Validation:
    """Predicted beside measured.

    Attributes
    ----------
    selection : Selection
        What was asked for.
    pairs : list of (MeasuredRun, MeasuredWorkload)
        What was replayed.
    serving : DataFrame
        `validation.serving.compare` of every workload.
    steps : DataFrame
        `validation.steps.judge_workload` of every workload: one row per step and window.
    results : dict
        (run, workload) -> its simulations.
    speculation : DataFrame
        `validation.speculation.speculation_errors`; empty for a single run.
    kernels, theory, regions : DataFrame
        Errors of kernel times on held-out shapes, queues, loads; empty for a single run.
    transfer, published, absent, coverage : DataFrame
        Accelerators predicted without their traces; other people's runs by group, as last
        computed, their rows that cannot be represented, how often bands held; empty for a single
        run.
    left_out : DataFrame
        TPOT of Llama on accelerators whose kernels came from the others, as last computed.
    fleets, splits : DataFrame
        Serving on several GPUs by system, engine and ranks, and the best split of prefill and
        decode workers by load, as last computed; empty for a single run.
    skipped : list of str
        What could not be judged, and why.
    """

    selection: Selection
    pairs: list[Pair]
    serving: pd.DataFrame
    steps: pd.DataFrame
    results: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    theory: pd.DataFrame = field(default_factory=pd.DataFrame)
    speculation: pd.DataFrame = field(default_factory=pd.DataFrame)
    regions: pd.DataFrame = field(default_factory=pd.DataFrame)
    transfer: pd.DataFrame = field(default_factory=pd.DataFrame)
    published: pd.DataFrame = field(default_factory=pd.DataFrame)
    absent: pd.DataFrame = field(default_factory=pd.DataFrame)
    left_out: pd.DataFrame = field(default_factory=pd.DataFrame)
    fleets: pd.DataFrame = field(default_factory=pd.DataFrame)
    splits: pd.DataFrame = field(default_factory=pd.DataFrame)
    coverage: pd.DataFrame = field(default_factory=pd.DataFrame)
    skipped: list[str] = field(default_factory=list)

    @property
    def step_summary(self) -> pd.DataFrame:
        """Signed median, median and p90 error of steps and windows per run."""
        return summarise(self.steps, ("run", "kind"))

    @property
    def medians(self) -> pd.DataFrame:
        """Median error of every serving figure over open-loop workloads, fresh ones apart."""
        return medians(self.serving[~self._fresh]) if not self._fresh.all() else self.fresh_medians

    @property
    def fresh_medians(self) -> pd.DataFrame:
        """The same of fresh runs: committed before they were predicted, used by no fit."""
        return medians(self.serving[self._fresh])

    @property
    def _fresh(self) -> "pd.Series[bool]":
        return self.serving["run"].isin([run.name for run, _ in self.pairs if run.fresh])

    def table(self) -> pd.DataFrame:
        """Return all cases in one form, columns `COLUMNS`."""
        parts = [_serving_rows(self), _step_rows(self), _kernel_rows(self), _theory_rows(self)]
        parts.append(speculation_rows(self.speculation))
        parts += [transfer_rows(self.transfer), published_rows(self.published)]
        parts += [left_out_rows(self.left_out), fleet_rows(self.fleets)]
        return pd.concat([p for p in parts if len(p)], ignore_index=True)[list(COLUMNS)]


def select(selection: Selection) -> list[Pair]:
    """Return the workloads of a selection.

    Raises
    ------
    InputError
        There is no such run or workload.
    """
    runs = all_runs()
    if selection.run is not None and selection.run not in runs:
        hint = did_you_mean(selection.run, runs)
        raise InputError(f"no measured run named {selection.run!r}", "--run", repair=hint)
    chosen = [runs[selection.run]] if selection.run else list(runs.values())
    if selection.workload is None:
        return [(run, w) for run in chosen for w in run.workloads.values()]
    name = selection.workload
    if selection.run:
        return [(chosen[0], chosen[0][name])]
    found = [(run, run.workloads[name]) for run in chosen if name in run.workloads]
    if not found:
        known = {w for run in chosen for w in run.workloads}
        raise InputError(
            f"no workload named {name!r}", "--workload", repair=did_you_mean(name, known)
        )
    return found


def validate(selection: Selection, progress: Progress | None = None) -> Validation:
    """Run the cases of a selection.

    Parameters
    ----------
    selection : Selection
        Which cases.
    progress : callable, optional
        Called with the share that is done [0..1].

    Raises
    ------
    InputError
        There is no such run or workload, or its data are bad.
    """
    pairs = select(selection)
    out = Validation(selection, pairs, pd.DataFrame(), pd.DataFrame())
    serving, steps = [], []
    for i, (run, workload) in enumerate(pairs):
        simulated = replay(run, workload, range(selection.seeds))
        out.results[run.name, workload.name] = simulated
        serving.append(compare(workload, simulated, run.scenario.model.weights or "bf16"))
        steps.append(_steps(run, workload, out.skipped))
        if progress:
            progress((i + 1) / len(pairs) * (0.7 if selection.everything else 1.0))
    out.serving, out.steps = _joined(serving), _joined(steps)
    if selection.everything:
        loads = {(run.name, w.name): load_of(run, w) for run, w in _open(pairs)}
        out.regions = by_region(out.serving, loads)
        out.kernels = kernel_errors()
        out.theory = check_theory()
        out.speculation = speculation_errors(selection.seeds)
        out.transfer, out.published, out.absent = transfer_errors(), stored(), absent()
        out.fleets, out.splits, out.left_out = fleet_errors(), splits(), left_out_errors()
        out.coverage = band_coverage()
    return out


def _steps(run: MeasuredRun, workload: MeasuredWorkload, skipped: list[str]) -> pd.DataFrame:
    """Judge the steps of a workload, or note why that cannot be done."""
    try:
        return judge_workload(deploy(run.scenario, LONGEST), workload)
    except InputError as e:
        skipped.append(f"steps of {e}")
        return pd.DataFrame()


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return all rows; parts without rows give their columns only where there is nothing else."""
    return pd.concat([p for p in parts if len(p)] or parts[:1], ignore_index=True)


def _open(pairs: list[Pair]) -> Iterator[Pair]:
    return (pair for pair in pairs if pair[1].kind == "open")


def kernel_errors() -> pd.DataFrame:
    """Return errors of kernel times on held-out shapes of every calibrated accelerator.

    Returns
    -------
    DataFrame
        accelerator, family, split (shape, layout, extent), method (model and simpler ways),
        shapes, median, p90, bias; as `roofcast calibrate` kept them.
    """
    parts = [
        read_table(path, ERRORS).assign(accelerator=path.name.split(".")[0])
        for path in sorted(CALIBRATIONS.glob("*.errors.csv.gz"))
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def kernel_limit(accelerator: str, family: str, split: str) -> float:
    """Return what the median error of a kernel family is held to, NaN for nothing [1].

    Limits are those of the accelerator that was measured for this project.

    Examples
    --------
    >>> kernel_limit("h200-sxm", "gemm_w4a16", "layout")
    0.05
    """
    known = limits().kernels.get(family, {}) if accelerator == BASE else {}
    return known.get(split, float("nan"))


def fitted_on() -> dict[tuple[str, str], str]:
    """Return how much of a workload the engine profile was fitted on: yes, or half."""
    found = {}
    for w in training(load_runs()):
        half = any(gap.reason.startswith("the half") for gap in w.exclusions)
        found[w.run, w.name] = "half" if half else "yes"
    return found


def _serving_rows(found: Validation) -> pd.DataFrame:
    if found.serving.empty:
        return pd.DataFrame()
    rows = found.serving.rename(columns={"metric": "figure"})
    used = fitted_on()
    keys = list(zip(rows["run"], rows["workload"], strict=True))
    source = {run.name: (run.source, run.licence) for run, _ in found.pairs}
    return rows.assign(
        family=SERVING,
        case=[f"{run}/{workload}" for run, workload in keys],
        fitted=[used.get(key, "no") for key in keys],
        source=[source[run][0] for run, _ in keys],
        licence=[source[run][1] for run, _ in keys],
    )


def _step_rows(found: Validation) -> pd.DataFrame:
    if found.steps.empty:
        return pd.DataFrame()
    summary = summarise(found.steps)
    middle = found.steps.groupby(["run", "workload", "kind"], sort=False)
    used = fitted_on()
    keys = list(zip(summary["run"], summary["workload"], strict=True))
    source = {run.name: (run.source, run.licence) for run, _ in found.pairs}
    return pd.DataFrame(
        {
            "family": STEPS,
            "case": [f"{run}/{workload}" for run, workload in keys],
            "figure": "median time of a " + summary["kind"].replace("decode", "decode step"),
            "unit": "s",
            "predicted": middle["gpu_s"].median().to_numpy(),
            "measured": middle["measured_s"].median().to_numpy(),
            "error": summary["signed"],
            "low": pd.NA,
            "high": pd.NA,
            "limit": pd.NA,
            "fitted": [used.get(key, "no") for key in keys],
            "source": [source[run][0] for run, _ in keys],
            "licence": [source[run][1] for run, _ in keys],
        }
    )


def _kernel_rows(found: Validation) -> pd.DataFrame:
    if found.kernels.empty:
        return pd.DataFrame()
    rows = found.kernels[found.kernels["method"] == "model"]
    keys = zip(rows["accelerator"], rows["family"], rows["split"], strict=True)
    return pd.DataFrame(
        {
            "family": KERNELS,
            "case": rows["accelerator"] + " " + rows["family"],
            "figure": "median |error|, held-out " + rows["split"],
            "unit": "1",
            "predicted": pd.NA,
            "measured": pd.NA,
            "error": rows["median"],
            "low": pd.NA,
            "high": rows["p90"],
            "limit": [kernel_limit(*map(str, key)) for key in keys],
            "fitted": "no",
            "source": "kernel traces of the accelerator",
            "licence": "see the calibration",
        }
    )


def _theory_rows(found: Validation) -> pd.DataFrame:
    rows = found.theory
    if rows.empty:
        return pd.DataFrame()
    return pd.DataFrame(
        {
            "family": THEORY,
            "case": rows["case"],
            "figure": ["mean response, bound" if b else "mean response" for b in rows["bound"]],
            "unit": "s",
            "predicted": rows["simulated_s"],
            "measured": rows["expected_s"],
            "error": rows["error"],
            "low": rows["simulated_s"] - 2 * rows["error_s"],
            "high": rows["simulated_s"] + 2 * rows["error_s"],
            "limit": 3 * rows["error_s"] / rows["expected_s"],
            "fitted": "no",
            "source": "validation/queueing.py",
            "licence": "-",
        }
    )
