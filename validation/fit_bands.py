"""Widths of bands, and whether they hold.

    python -m validation.fit_bands --own                        # our own runs, as kept
    python -m validation.fit_bands --published ROWS             # other people's runs
    python -m validation.fit_bands --tables ../shared/silicon   # kernels

What steps (of our own runs) or kernels (of others) and chance do not explain of a measured run is
the engine's, its host's and its scheduler's. Each level of knowledge and kind of figure has one
half-width, judged by turns: runs of a fifth of the groups (an engine on a model) with widths from
the other groups, none of which anything else was fitted to. The widths are quantiles of what they
are made from, the least at which 80 % of the runs left out are held; of the residuals of kernels,
the one of `KERNEL_SHARES` with the narrowest bands is kept. Steps: `validation.step_spread`,
without the run judged. Kernel bands: `validation.kernel_bands`.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import atomic_write, read_text
from sim.deployment import deploy
from sim.exploring.bands import step_logs
from sim.exploring.engine_error import (
    ENGINE_ERRORS,
    GROUPS,
    OWN,
    StepSpread,
    group_of,
    kernel_share,
    level_of,
)
from sim.exploring.estimate import estimate
from validation import SEEDS
from validation.cases import LONGEST, Selection, fitted_on, select
from validation.kept import band_coverage
from validation.kernel_bands import by_family, kernel_coverage
from validation.measured import (
    H200_REPEATS,
    MeasuredRun,
    MeasuredWorkload,
    all_runs,
    load_runs,
)
from validation.readme import kept
from validation.serving import workload_scenario
from validation.step_spread import spread_of, step_errors

__all__ = ["COVERAGE", "half_width", "judged", "main", "serving_rows"]

COVERAGE = Path(__file__).parent / "data" / "coverage.csv"
"""Whether bands hold: one row per family and kind of figure."""
COLUMNS = ("family", "figure", "cases", "coverage", "half_width", "median_error")
WANTED = 0.8
RANGES = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970}
"""Draws -> mean range of a normal distribution, in standard deviations (Tippett 1925)."""
OF_RANGE = 1.2816 / RANGES[SEEDS]
"""P10 to P50 over the range of the seeds that a figure was kept from."""
FIGURES = (
    "ttft_p50_s",
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "output_tokens_per_s",
    "power_mean_w",
)
FOLDS = 5
KERNEL_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95)
FEWEST = 8
"""Runs from which a half-width is fitted; below that the level's widest is taken."""
Floats = npt.NDArray[np.float64]


def serving_rows() -> pd.DataFrame:
    """Return the kept figures (`validation.readme`) of workloads that nothing was fitted to.

    Returns
    -------
    DataFrame
        case, fresh, figure, level, predicted, measured, low_log and high_log (from step times of
        other runs), chance (from seeds of the host).
    """
    table, used, errors = kept(), fitted_on(), own_steps()
    parts = [
        _with_steps(run, workload, table, spread_of(errors, run.name))
        for run, workload in select(Selection())
        if (run.name, workload.name) not in used
    ]
    numbers = ["predicted", "measured", "low_log", "high_log", "chance"]
    return pd.concat(parts, ignore_index=True).astype(dict.fromkeys(numbers, float))


@lru_cache(maxsize=1)
def own_steps() -> pd.DataFrame:
    """Return `validation.step_spread.step_errors` of our own runs, all machines."""
    return step_errors([*all_runs().values(), *load_runs(H200_REPEATS).values()])


def _with_steps(
    run: MeasuredRun, workload: MeasuredWorkload, table: pd.DataFrame, spread: StepSpread
) -> pd.DataFrame:
    table = table[(table["run"] == run.name) & (table["workload"] == workload.name)]
    table = table[table["metric"].isin(FIGURES) & (table["measured"] > 0)]
    scenario, asked = workload_scenario(run, workload, 0), workload.table()
    deployment = deploy(scenario, LONGEST)
    middle = estimate(scenario, deployment, asked)
    logs = step_logs(scenario, deployment, asked, middle, spread)
    ends = [logs.get(name, (0.0, 0.0)) for name in table["metric"]]
    return pd.DataFrame(
        {
            "case": f"{run.name}/{workload.name}",
            "group": run.name,
            "fresh": run.fresh,
            "figure": table["metric"],
            "level": level_of(scenario, deployment, asked),
            "predicted": table["predicted"],
            "measured": table["measured"],
            "low_log": [low for low, _ in ends],
            "high_log": [high for _, high in ends],
            "chance": OF_RANGE * np.log(table["high"] / table["low"]),
        }
    )


def published_rows(path: Path) -> pd.DataFrame:
    """Return the rows that ``python -m validation.published --rows`` wrote, in the same form."""
    rows = pd.read_csv(path, comment="#")
    names = {"batch_s": "e2e_mean_s"}
    case = rows["dataset"] + " " + rows["row"].astype(str)
    level = rows["level"].where(rows["level"] == "datasheet", "other")  # not machines of our own
    figure = rows["figure"].replace(names)
    group = rows["dataset"] + rows["accelerator"] + rows["model"]
    return rows.assign(case=case, group=group, fresh=False, figure=figure, level=level, chance=0.0)


def half_width(rows: pd.DataFrame, share: float, wanted: float = WANTED) -> float:
    """Return the half-width beyond kernels and chance at which bands hold a share of the rows.

    Examples
    --------
    >>> errors = np.exp(np.linspace(-0.5, 0.5, 101))
    >>> rows = pd.DataFrame({"measured": errors, "predicted": 1.0, "chance": 0.0})
    >>> round(half_width(rows.assign(low_log=0.0, high_log=0.0), 1.0), 2)
    0.4
    """
    excess = np.square(_logs(rows)) - np.square(_known(rows, share))
    return float(np.sqrt(max(np.quantile(excess, wanted), 0.0)))


def _logs(rows: pd.DataFrame) -> Floats:
    measured, predicted = (rows[n].to_numpy(np.float64) for n in ("measured", "predicted"))
    return np.asarray(np.log(measured / predicted))


def _known(rows: pd.DataFrame, share: float) -> Floats:
    """Return the half-width from kernels and chance, on the side where the measured value lies."""
    kernels = np.where(_logs(rows) < 0, rows["low_log"], rows["high_log"])
    return np.asarray(np.hypot(kernels * share, rows["chance"].to_numpy(np.float64)))


def judged(rows: pd.DataFrame, share: float, quantile: float = WANTED) -> pd.DataFrame:
    """Judge the bands of a level by turns.

    Parameters
    ----------
    rows : DataFrame
        As `serving_rows` returns them.
    share : float
        Part of a kernel's residual that all kernels of a step have in common; 1 for steps.
    quantile : float
        Share of the runs fitted to that their bands hold.

    Returns
    -------
    DataFrame
        figure (kind), cases, coverage, half_width (mean, over the prediction), median_error.
    """
    order = {group: i % FOLDS for i, group in enumerate(rows["group"].unique())}
    fold, kinds = rows["group"].map(order), rows["figure"].map(group_of)
    out = []
    for name in GROUPS:
        part = rows[kinds == name]
        if len(part) >= FEWEST:
            out.append({"figure": name, **_by_turns(part, fold[kinds == name], share, quantile)})
    return pd.DataFrame(out)


def _by_turns(
    rows: pd.DataFrame, fold: "pd.Series[int]", share: float, quantile: float
) -> dict[str, float]:
    held, halves = [], []
    for turn in sorted(fold.unique()):
        asked = rows[fold == turn]
        width = half_width(rows[fold != turn], share, quantile)
        each = np.hypot(_known(asked, share), width)
        held.append(np.abs(_logs(asked)) <= each + 1e-12)
        halves.append(np.sinh(each))
    return {
        "cases": len(rows),
        "coverage": float(np.concatenate(held).mean()),
        "half_width": float(np.concatenate(halves).mean()),
        "median_error": float(np.median(np.abs(np.expm1(-_logs(rows))))),
    }


def widths_of(rows: pd.DataFrame, share: float, quantile: float = WANTED) -> dict[str, float]:
    """Return the half-width of every kind of figure; the widest where too few were measured."""
    kinds = rows["figure"].map(group_of)
    measured = [n for n in GROUPS if (kinds == n).sum() >= FEWEST]
    found = {n: half_width(rows[kinds == n], share, quantile) for n in measured}
    return {name: found.get(name, max(found.values())) for name in GROUPS}


def held(table: pd.DataFrame) -> float:
    """Return the share of all cases of a coverage table that lie in their bands [1]."""
    return float((table["coverage"] * table["cases"]).sum() / table["cases"].sum())


def best_quantile(rows: pd.DataFrame, share: float) -> float:
    """Return the least quantile of runs fitted to whose bands hold 80 % of the runs left out.

    Runs of one engine on one model err alike, so bands that hold 80 % of the runs they are made
    from hold fewer of another model's.
    """
    fitting = (q for q in QUANTILES if held(judged(rows, share, q)) >= WANTED)
    return next(fitting, QUANTILES[-1])


def best_share(levels: Iterable[pd.DataFrame]) -> float:
    """Return the share of the residuals of kernels whose bands are narrowest."""
    tables, widths = list(levels), {}
    for share in KERNEL_SHARES:
        found = pd.concat([judged(rows, share, best_quantile(rows, share)) for rows in tables])
        widths[share] = float((found["half_width"] * found["cases"]).sum())
    return min(widths, key=lambda share: widths[share])


def _quantity(value: float, source: str) -> str:
    return f'{{ value = {value:.4g}, unit = "1", kind = "fitted", source = "{source}" }}'


def _write(
    widths: dict[str, dict[str, float]],
    basis: dict[str, str],
    share: float | None,
    steps: StepSpread | None,
) -> None:
    """Write the half-widths of some levels, and what they rest on, over those of the file."""
    text = read_text(ENGINE_ERRORS)
    if share is not None:
        source = "validation.fit_bands: " + basis.get("other", basis.get("datasheet", ""))
        line = f"kernel_share = {_quantity(share, source)}"
        text = re.sub(r"(?m)^kernel_share = .*$", lambda _: line, text)
    if steps is not None:
        basis["steps"] = f"step logs of {len(own_steps())} H200 runs"
        widths = {"steps": {"few": steps.few, "prompts": steps.prompts}, **widths}
    for level, found in widths.items():
        source = f"validation.fit_bands: {basis[level]}"
        lines = [f"{name} = {_quantity(width, source)}" for name, width in found.items()]
        block = "\n".join([f"[{level}]", *lines, ""]).replace("\\", r"\\")
        text = re.sub(rf"(?m)^\[{level}\]\n(?:\w+ = .*\n)+", block, text)
    with atomic_write(ENGINE_ERRORS) as path:
        path.write_text(text, encoding="utf-8")


WORDS = {
    "own": "H200 workloads that nothing was fitted to",
    "own_burst": "H200 workloads that nothing was fitted to, all requests at once",
    "other": "published runs on accelerators with measured kernels",
    "datasheet": "published runs on accelerators without",
}
"""Level -> what it is fitted to."""


def fresh_coverage(rows: pd.DataFrame, widths: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Judge the bands of our own deployments on runs that were measured afterwards."""
    kinds, out = rows["figure"].map(group_of), []
    each = np.hypot(
        _known(rows, 1.0),
        [widths[level][kind] for level, kind in zip(rows["level"], kinds, strict=True)],
    )
    held, errors = np.abs(_logs(rows)) <= each + 1e-12, np.abs(np.expm1(-_logs(rows)))
    for name in GROUPS:
        part = (kinds == name).to_numpy()
        found = {"cases": int(part.sum()), "coverage": float(held[part].mean())}
        found |= {"half_width": float(np.sinh(each[part]).mean())}
        median = float(np.median(errors[part]))
        out.append({"family": "fresh", "figure": name, **found, "median_error": median})
    return pd.DataFrame(out)


def _with_levels(rows: pd.DataFrame) -> pd.DataFrame:
    """Fit, write and judge the levels that the rows hold; the others stay as they are."""
    fresh = rows["fresh"].astype(bool)
    levels = {str(name): part for name, part in rows[~fresh].groupby("level", sort=False)}
    others = [part for name, part in levels.items() if name not in OWN]
    best = best_share(others) if others else None
    share = {n: 1.0 if n in OWN else best or kernel_share() for n in levels}
    at = {level: best_quantile(part, share[level]) for level, part in levels.items()}
    widths = {level: widths_of(part, share[level], at[level]) for level, part in levels.items()}
    if "datasheet" in widths and "other" in widths:
        for name in GROUPS:  # what is known of fewer things is never surer
            widths["datasheet"][name] = max(widths["datasheet"][name], widths["other"][name])
    basis = {n: f"{part['case'].nunique()} {WORDS[n]}" for n, part in levels.items()}
    own = set(OWN) <= set(levels)
    _write(widths, basis, best, spread_of(own_steps()) if own else None)
    parts = [judged(p, share[n], at[n]).assign(family=n) for n, p in levels.items()]
    if own:
        parts.append(fresh_coverage(rows[fresh], widths))
    return pd.concat(parts)


def main(arguments: Iterable[str] | None = None) -> int:
    """Fit the widths, judge them, keep both; print the coverage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--own", action="store_true", help="levels own and own_burst")
    parser.add_argument("--published", type=Path, help="rows of python -m validation.published")
    parser.add_argument("--tables", type=Path, help="folder of NVIDIA's Parquet tables")
    given = parser.parse_args(None if arguments is None else list(arguments))
    rows, made = [], [band_coverage()]
    if given.own:
        rows.append(serving_rows())
    if given.published:
        rows.append(published_rows(given.published))
    if rows:
        made.append(_with_levels(pd.concat(rows, ignore_index=True)))
    if given.tables:
        made.append(by_family(kernel_coverage(given.tables)))
    table = pd.concat([part for part in made if len(part)], ignore_index=True)
    table = table.drop_duplicates(["family", "figure"], keep="last")[list(COLUMNS)]
    with atomic_write(COVERAGE) as path:
        text = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
        about = f"# Made by `python -m validation.fit_bands` on {date.today().isoformat()}.\n"
        path.write_text(about + text, encoding="utf-8")
    sys.stdout.write(f"{table.round(3).to_string(index=False)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
