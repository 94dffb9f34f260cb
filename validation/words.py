"""Tables of a validation as text: for the terminal, the page and the markdown summary."""

from collections.abc import Callable

import pandas as pd

from sim.units import readable
from validation.cases import Validation, kernel_limit
from validation.kept_fleets import fleet_table, left_out_table, split_table
from validation.serving import METRICS, limits, medians
from validation.text import KERNELS, LIMIT, TextTable, percent
from validation.words_kept import absent_table, coverage_table, published_table, transfer_table

__all__ = [
    "TextTable",
    "markdown",
    "markdown_table",
    "medians_table",
    "one_workload",
    "percent",
    "tables",
]

WORDS_OF_DRAFTS = {
    "tpot_mean_s": "TPOT mean",
    "e2e_mean_s": "E2E mean",
    "step_s": "decode step to the next",
}
SHOWN = (
    "ttft_p50_s",
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "itl_p99_s",
    "e2e_mean_s",
    "output_tokens_per_s",
    "energy_j",
)

FRESH = "Runs committed before they were predicted; no fit and no choice of a form used them."


def one_workload(serving: pd.DataFrame) -> TextTable:
    """Return predicted, measured and error of every figure of one workload."""
    rows = []
    for row in serving.to_dict("records"):
        unit = row["unit"]
        spread = f"{readable(row['low'], unit)} .. {readable(row['high'], unit)}"
        values = [readable(row[name], unit) for name in ("predicted", "measured")]
        limit = percent(row["limit"], sign=False)
        label = METRICS[row["metric"]].label
        rows.append([label, *values, percent(row["error"]), spread, limit])
    columns = ["figure", "predicted", "measured", "error", "over seeds", "limit"]
    first = serving.iloc[0]
    title = f"{first['run']} {first['workload']}"
    about = "Median over seeds of the host's random level; limit of a single workload."
    return TextTable(title, about, columns, rows)


def tables(found: Validation) -> list[TextTable]:
    """Return every table of a validation, the most telling first."""
    out = [one_workload(found.serving)] if len(found.pairs) == 1 and len(found.serving) else []
    if len(found.pairs) > 1:
        out += [_medians(found.medians, "Serving, medians", "Open-loop workloads.")]
        if len(found.fresh_medians) and not all(run.fresh for run, _ in found.pairs):
            out.append(_medians(found.fresh_medians, "Serving, medians of fresh runs", FRESH))
        out.append(_workloads(found))
    made: list[tuple[pd.DataFrame, Callable[[], TextTable]]] = [
        (found.steps, lambda: _steps(found)),
        (found.regions, lambda: _regions(found)),
        (found.kernels, lambda: _kernels(found)),
        (found.transfer, lambda: transfer_table(found.transfer)),
        (found.left_out, lambda: left_out_table(found.left_out)),
        (found.coverage, lambda: coverage_table(found.coverage)),
        (found.published, lambda: published_table(found.published)),
        (found.fleets, lambda: fleet_table(found.fleets)),
        (found.splits, lambda: split_table(found.splits)),
        (found.absent, lambda: absent_table(found.absent)),
        (found.theory, lambda: _theory(found)),
        (found.speculation, lambda: _speculation(found)),
    ]
    return out + [make() for table, make in made if len(table)]


def _medians(table: pd.DataFrame, title: str, about: str) -> TextTable:
    rows = [
        [
            METRICS[str(row["metric"])].label,
            str(row["workloads"]),
            percent(row["signed"]),
            percent(row["median"], sign=False),
            percent(row["worst"], sign=False),
            percent(row["limit"], sign=False),
            percent(row["rival"], sign=False),
        ]
        for row in table.to_dict("records")
    ]
    columns = ["figure", "workloads", "signed", "median |error|", "worst", "limit", "AISimulate"]
    return TextTable(title, f"{about} Last column: {limits().rival}.", columns, rows)


def _workloads(found: Validation) -> TextTable:
    wide = found.serving.pivot(index=["run", "workload"], columns="metric", values="error")
    shown = [name for name in SHOWN if name in wide]
    order = [(run.name, w.name) for run, w in found.pairs if (run.name, w.name) in wide.index]
    errors = wide.reindex(pd.MultiIndex.from_tuples(order))[shown].to_dict("records")
    rows = [
        [*key, *(percent(row[name]) for name in shown)]
        for key, row in zip(order, errors, strict=True)
    ]
    columns = ["run", "workload", *(METRICS[name].label for name in shown)]
    about = "Predicted / measured - 1 of every workload; energy from 10 s on."
    return TextTable("Serving, every workload", about, columns, rows)


def _steps(found: Validation) -> TextTable:
    rows = [
        [
            str(row["run"]),
            "decode steps" if row["kind"] == "decode" else "0.5 s windows with prompts",
            f"{row['count']:,}",
            percent(row["signed"]),
            percent(row["median"], sign=False),
            percent(row["p90"], sign=False),
        ]
        for row in found.step_summary.to_dict("records")
    ]
    columns = ["run", "what", "count", "signed", "median |error|", "p90"]
    about = "Sum of the kernels of a step against the step log."
    return TextTable("Step times", about, columns, rows)


def _regions(found: Validation) -> TextTable:
    wide = found.regions[found.regions["metric"].isin(SHOWN)]
    table = wide.pivot(index="region", columns="metric", values="median")
    count = wide.groupby("region")["workloads"].max()
    shown = [name for name in SHOWN if name in table]
    rows = [
        [
            str(name),
            str(count[name]),
            *(percent(float(v), sign=False) for v in table.loc[name, shown]),
        ]
        for name in wide["region"].unique()
    ]
    columns = ["load", "workloads", *(METRICS[name].label for name in shown)]
    about = (
        "Median |error| by arrival rate over simulated capacity; other regions: nothing measured."
    )
    return TextTable("Serving by load", about, columns, rows)


def _kernels(found: Validation) -> TextTable:
    wide = found.kernels.pivot_table(
        index=["accelerator", "family", "split"], columns="method", values=["median", "p90"]
    )
    methods = [m for m in wide["median"].columns if m != "model"]
    keys = [(str(name), str(family), str(split)) for name, family, split in wide.index]
    rows = [
        [
            *key,
            percent(float(row["median", "model"]), sign=False),
            percent(float(row["p90", "model"]), sign=False),
            percent(kernel_limit(*key), sign=False),
            *(percent(float(row["median", m]), sign=False) for m in methods),
        ]
        for key, row in zip(keys, wide.to_dict("records"), strict=True)
    ]
    columns = ["accelerator", "family", "held out", "median |error|", "p90", LIMIT]
    about = "Kernel times of shapes that the fit did not see; last columns: simpler ways."
    return TextTable(KERNELS, about, [*columns, *map(str, methods)], rows)


def _speculation(found: Validation) -> TextTable:
    rows = [
        [
            str(row["run"]),
            str(row["workload"]),
            WORDS_OF_DRAFTS[str(row["figure"])],
            readable(row["predicted"], "s"),
            readable(row["measured"], "s"),
            percent(row["error"]),
        ]
        for row in found.speculation.to_dict("records")
    ]
    about = (
        "Prompt lookup on an H200: acceptance as measured, times as predicted; nothing fitted. "
        "Requests that find no draft make a step uneven, which then plays no full graph: not "
        "modelled, so conv_r8 is predicted too fast."
    )
    columns = ["run", "workload", "figure", "predicted", "measured", "error"]
    return TextTable("Speculation", about, columns, rows)


def _theory(found: Validation) -> TextTable:
    rows = [
        [
            str(row["case"]),
            readable(row["simulated_s"], "s"),
            ("at most " if row["bound"] else "") + readable(row["expected_s"], "s"),
            percent(row["error"]),
            f"{row['sigmas']:+.1f}",
        ]
        for row in found.theory.to_dict("records")
    ]
    columns = ["queue", "simulated response", "theory", "error", "standard errors"]
    return TextTable("Theory", "Mean response against closed forms.", columns, rows)


FRESH_END = "_fresh"
"""End of the names of fresh runs."""


def medians_table(serving: pd.DataFrame) -> TextTable:
    """Return median errors over open-loop workloads, with those of fresh runs beside.

    Parameters
    ----------
    serving : DataFrame
        Rows of `validation.serving.compare`.
    """
    new = medians(serving[serving["run"].str.endswith(FRESH_END)])
    fresh = {str(row["metric"]): row for row in new.to_dict("records")}
    rows = []
    for row in medians(serving[~serving["run"].str.endswith(FRESH_END)]).to_dict("records"):
        other = fresh.get(str(row["metric"]), {"workloads": 0, "median": None})
        rows.append(
            [
                METRICS[str(row["metric"])].label,
                str(row["workloads"]),
                percent(row["signed"]),
                percent(row["median"], sign=False),
                percent(row["worst"], sign=False),
                str(other["workloads"]),
                percent(other["median"], sign=False),
                percent(row["limit"], sign=False),
                percent(row["rival"], sign=False),
            ]
        )
    columns = ["figure", "workloads", "signed", "median |error|", "worst"]
    columns += ["fresh", "fresh median", "limit", "AISimulate"]
    about = (
        "Open-loop workloads; fresh: those that no fit and no choice used. "
        f"Last column: {limits().rival}."
    )
    return TextTable("Serving, medians", about, columns, rows)


def markdown(found: Validation) -> str:
    """Return the tables as markdown."""
    return "\n\n".join(f"## {t.title}\n\n{markdown_table(t)}" for t in tables(found)) + "\n"


def markdown_table(table: TextTable) -> str:
    """Return what a table is about, and the table, as markdown."""
    lines = [table.about, "", _row(table.columns), _row(["---"] * len(table.columns))]
    return "\n".join([*lines, *(_row(row) for row in table.rows)])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
