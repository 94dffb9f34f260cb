"""Fit the host of an engine profile on measured runs: ``python -m validation.fit_engine``.

Trains on all static workloads and on every second open-loop one; of a run with a single open-loop
workload, on its first half. Prints the serving errors of the workloads that were not used, then
writes the profile. Nothing is fitted on a latency: every number is read off the step log (see
`validation.host`), so the errors of whole workloads judge the engine model as well.
"""

import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares, nnls
from scipy.stats import theilslopes

from formats import atomic_write, read_text
from sim.deployment import scenario_model
from sim.engines import engines
from validation.host import bookkeeping, client_delays, dispatches, gathered, idle_arrivals
from validation.measured import Exclusion, MeasuredRun, MeasuredWorkload, load_runs
from validation.serving import METRICS, compare, medians, replay

__all__ = ["Fitted", "first_half", "fit", "main", "training", "write_profile"]

PROFILE = "vllm-0.24"
GRAPH_TOKENS = 512
QUANTILES = np.linspace(0.05, 0.95, 19)
DENSE, DENSE_8BIT, MOE = "dense", "dense_8bit", "moe"
LONGEST_LAG_S = 4.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """One fitted number of the profile: its place, value and what it was fitted on."""

    section: str
    key: str
    value: float
    basis: str


def training(runs: dict[str, MeasuredRun]) -> list[MeasuredWorkload]:
    """Return the workloads, or halves of them, that the fit may use.

    Examples
    --------
    >>> [w.name for w in training(load_runs()) if w.kind == "open"]
    ['conv_r12', 'code_r8', 'conv_r16', 'conv_r24', 'conv_r10']
    """
    chosen = []
    for run in runs.values():
        loads = [w for w in run.workloads.values() if w.kind == "open"]
        chosen += [w for w in run.workloads.values() if w.kind == "static"]
        chosen += [first_half(loads[0])] if len(loads) == 1 else _alternate(loads)
    return chosen


def _alternate(loads: list[MeasuredWorkload]) -> list[MeasuredWorkload]:
    first = 1 if loads[0].sessions is not None else 0  # conversations stay unseen
    return loads[first::2]


def first_half(workload: MeasuredWorkload) -> MeasuredWorkload:
    """Return a workload whose second half is left out."""
    end = workload.duration_s
    late = Exclusion(
        run=workload.run,
        workload=workload.name,
        start_s=end / 2,
        end_s=end + 1.0,
        reason="the half that judges the fit",
    )
    gaps = (*workload.exclusions, late)
    return MeasuredWorkload(
        workload.run,
        workload.name,
        workload.requests,
        workload.steps,
        workload.power,
        workload.sessions,
        gaps,
    )


def fit(workloads: list[MeasuredWorkload]) -> list[Fitted]:
    """Return every number of the host that the log shows.

    Parameters
    ----------
    workloads : list of MeasuredWorkload
        Training data.
    """
    table = _dispatch_table(workloads)
    eager = table[(table["kind"] == DENSE) & (table["tokens"] > GRAPH_TOKENS)]
    base, high, jitter, stay = _levels(eager)
    level = f"{len(eager)} eager dispatches of dense models: quantiles and autocorrelation"
    return [
        *_linear(workloads),
        Fitted("host", "level_high", high, level),
        Fitted("host", "level_jitter", jitter, level),
        Fitted("host", "level_mean", stay, level),
        *_per_layer(table, 0.5 * (1.0 + high)),
        *_graphs(table[table["kind"] == DENSE], base),
    ]


def _dispatch_table(workloads: Iterable[MeasuredWorkload]) -> pd.DataFrame:
    runs, parts = load_runs(), []
    for w in workloads:
        model = scenario_model(runs[w.run].scenario)
        kind = MOE if model.moe else DENSE if model.weights == "bf16" else DENSE_8BIT
        source = f"{w.run}/{w.name}"
        parts.append(dispatches(w).assign(kind=kind, layers=model.layers, source=source))
    return pd.concat([p for p in parts if len(p)], ignore_index=True)


def _levels(eager: pd.DataFrame) -> tuple[float, float, float, float]:
    """Return (fastest dispatch [s], slowest level, half-width of the noise, mean stay [s])."""
    lags, products = _pairs(eager)
    bins = np.geomspace(0.05, LONGEST_LAG_S, 16)
    place = np.digitize(lags, bins)
    centre, curve = [], []
    for i in range(1, len(bins)):
        if (place == i).sum() >= 20:
            centre.append(lags[place == i].mean())
            curve.append(products[place == i].mean())
    x, y = np.array(centre), np.array(curve)

    def off(p: Floats) -> Floats:
        return np.asarray(p[0] * np.exp(-x / p[1]) - y)

    slow, stay = least_squares(off, [0.7, 2.0], bounds=([0.1, 0.1], [1.0, 20.0])).x
    spread = float(np.log(eager["dispatch_s"]).std())
    jitter = float(np.sqrt(3.0 * (1.0 - slow)) * spread)  # uniform: half-width = sqrt(3) deviation
    measured = eager["dispatch_s"].quantile(QUANTILES).to_numpy()

    def misfit(p: Floats) -> Floats:
        return np.asarray(np.log(_uniform_quantiles(p[0], p[1], jitter) / measured))

    start = [measured[0], 2.0]
    base, high = least_squares(misfit, start, bounds=([1e-4, 1.05], [1.0, 6.0])).x
    return float(base), float(high), jitter, float(stay)


def _uniform_quantiles(base: float, high: float, jitter: float) -> Floats:
    """Return quantiles of base x level x noise, level uniform on [1, high], noise uniform."""
    grid = (np.arange(200) + 0.5) / 200
    values = base * np.outer(1.0 + (high - 1.0) * grid, 1.0 + jitter * (2.0 * grid - 1.0))
    return np.asarray(np.quantile(values, QUANTILES))


def _pairs(eager: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return lags [s] and normalised products of log dispatch of all pairs within a workload."""
    lags, products = [], []
    whole = np.log(eager["dispatch_s"])
    for _, rows in eager.groupby("source"):
        deviation = (np.log(rows["dispatch_s"]) - whole.mean()).to_numpy()
        i, j = np.triu_indices(len(rows), 1)
        start = rows["start_s"].to_numpy()
        lags.append(start[j] - start[i])
        products.append(deviation[i] * deviation[j] / whole.var())
    return np.concatenate(lags), np.concatenate(products)


def _per_layer(table: pd.DataFrame, mean_level: float) -> list[Fitted]:
    """Return dispatch per layer at the fastest level, so that medians agree."""
    out = []
    for kind, rows in table.groupby("kind", sort=False):
        eager = rows["tokens"] > GRAPH_TOKENS
        for key, part in (("piecewise", rows[~eager]), ("eager", rows[eager])):
            value = (part["dispatch_s"] / part["layers"]).median() / mean_level
            basis = f"{len(part)} dispatches, their median at the mean level"
            out.append(Fitted(f"host.dispatch_per_layer.{kind}", key, float(value), basis))
    return out


def _graphs(dense: pd.DataFrame, eager_s: float) -> list[Fitted]:
    """Return dispatch and lead of graph steps against the level of the dispatch before them."""
    seen = dense[dense["graph_s"].notna() & (dense["tokens"] > GRAPH_TOKENS)]
    level = seen["dispatch_s"] / eager_s
    slope, at_zero, *_ = theilslopes(seen["graph_s"], level)
    fastest = at_zero + slope
    basis = f"{len(seen)} decode steps behind an eager dispatch"
    return [
        Fitted("host", "graph_dispatch", float(fastest), basis),
        Fitted("host", "graph_level_share", float(max(slope, 0.0) / fastest), basis),
        Fitted("host", "graph_lead", float(seen["lead_s"].median()), basis),
    ]


def _linear(workloads: list[MeasuredWorkload]) -> list[Fitted]:
    """Return the times around a step that grow with prompt tokens or running requests."""
    alone = pd.concat([idle_arrivals(w) for w in workloads])
    books = pd.concat([bookkeeping(w) for w in workloads])
    client = pd.concat([client_delays(w) for w in workloads])
    out = []
    for name, grows, rows, column in (
        ("ingest", "ingest_per_token", alone, "prompt_tokens"),
        ("bookkeeping", "bookkeeping_per_request", books, "running"),
        ("client", "client_per_request", client, "running"),
    ):
        first, slope = _line(rows[column].to_numpy(np.float64), rows["seconds"].to_numpy())
        basis = f"{len(rows)} waits, line through medians"
        out += [Fitted("host", name, first, basis), Fitted("host", grows, slope, basis)]
    joined = pd.concat([gathered(w) for w in workloads])["seconds"]
    basis = f"{len(joined)} bursts that found an idle engine, median"
    return [*out, Fitted("host", "gather", float(joined.median()), basis)]


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return (intercept, slope), both at least 0, through medians of equal parts of the data."""
    order = np.argsort(x, kind="stable")
    parts = np.array_split(order, min(20, max(2, len(order) // 3)))
    mid = np.array([np.median(x[p]) for p in parts])
    value = np.array([np.median(y[p]) for p in parts])
    (first, slope), _ = nnls(np.column_stack([np.ones_like(mid), mid]), value)
    return float(first), float(slope)


def write_profile(
    source: Path,
    target: Path,
    fitted: list[Fitted],
    words: str,
    script: str = "validation.fit_engine",
) -> None:
    """Write a profile with the fitted numbers in the place of the old ones.

    Parameters
    ----------
    source, target : Path
        Profile to start from, and to write.
    fitted : list of Fitted
        New numbers; keys that the profile does not have are left out.
    words : str
        What they were fitted on, for the source of each.
    script : str
        What fitted them.
    """
    new = {(f.section, f.key): f for f in fitted}
    section, lines = "", []
    for line in read_text(source).splitlines():
        section = line.strip("[] ") if line.startswith("[") else section
        key = line.split("=")[0].strip()
        found = new.get((section, key))
        lines.append(_line_of(line, found, f"{script} on {words}") if found else line)
    with atomic_write(target) as path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line_of(line: str, found: Fitted, words: str) -> str:
    unit = re.search(r'unit = "([^"]+)"', line)
    note = re.search(r', note = "[^"]*"', line)
    value = f'value = {found.value:.4g}, unit = "{unit[1] if unit else "1"}", kind = "fitted"'
    source = f'source = "{words}: {found.basis}"{note[0] if note else ""}'
    return f"{found.key} = {{ {value}, {source} }}"


def judge(runs: dict[str, MeasuredRun], used: set[str], profile: Path) -> pd.DataFrame:
    """Return serving errors of open-loop workloads with a profile; column `seen` says how far.

    Parameters
    ----------
    runs : dict of str to MeasuredRun
        All runs.
    used : set of str
        RUN/WORKLOAD that were trained on.
    profile : Path
        The profile's file.
    """
    parts = []
    for run in runs.values():
        scenario = run.scenario.changed({"engine.profile": str(profile)})
        tried = MeasuredRun(run.name, scenario, run.workloads, run.source, run.licence)
        for w in (w for w in run.workloads.values() if w.kind == "open"):
            rows = compare(w, replay(tried, w), run.scenario.model.weights or "bf16")
            parts.append(rows.assign(seen=f"{w.run}/{w.name}" in used))
    return pd.concat(parts, ignore_index=True)


def main() -> int:
    """Fit, print the errors of unseen workloads, and write the profile."""
    runs = load_runs()
    chosen = training(runs)
    fitted = fit(chosen)
    names = sorted({f"{w.run}/{w.name}" for w in chosen if w.kind == "open"})
    words = f"static workloads and {', '.join(names)} of the H200 runs"
    source = engines.paths[PROFILE]
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.toml"
        write_profile(source, trial, fitted, words)
        rows = judge(runs, set(names), trial)
    print_errors(fitted, rows)
    write_profile(source, source, fitted, words)
    return 0


def print_errors(fitted: list[Fitted], rows: pd.DataFrame) -> None:
    """Print the numbers, the error of every open-loop workload, and medians of the unseen."""
    lines = [f"{f.section}.{f.key} = {f.value:.4g}  ({f.basis})" for f in fitted]
    wide = rows.pivot(index=["run", "workload", "seen"], columns="metric", values="error")
    order = [name for name in METRICS if name in wide]
    lines.append((wide[order] * 100).round(1).to_string())
    for label, part in (("unseen", rows[~rows["seen"]]), ("all", rows)):
        table = medians(part).set_index("metric")[["signed", "median", "worst", "limit"]]
        lines.append(f"{label} workloads, errors in %:\n{(table * 100).round(1).to_string()}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
