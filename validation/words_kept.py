"""Tables of kept errors as text: accelerators left out, other people's runs, what is missing."""

import pandas as pd

from validation.kept import TRANSFER_LIMIT
from validation.text import TextTable, percent

__all__ = ["absent_table", "coverage_table", "published_table", "transfer_table"]

FAMILIES = {
    "gemm_bf16": "GEMM bf16",
    "gemm_fp8": "GEMM fp8, quantised",
    "gemm_fp4": "GEMM fp4",
    "attention_decode": "decode attention",
    "attention_decode_fp8": "decode, fp8 KV",
    "attention_prefill": "prefill attention",
    "attention_prefill_fp8": "prefill, fp8 KV",
    "moe_bf16": "experts bf16",
    "moe_fp8": "experts fp8",
}
FIGURES = {
    "ttft_mean_s": "TTFT mean",
    "tpot_mean_s": "TPOT mean",
    "batch_s": "batch latency",
    "output_tokens_per_s": "output tokens",
}


def transfer_table(table: pd.DataFrame) -> TextTable:
    """Return median errors of accelerators left out, one row each."""
    wide = table.pivot(index="accelerator", columns="family", values="median")
    shown = [name for name in FAMILIES if name in wide]
    rows = [
        [str(name), *(percent(float(v), sign=False) for v in wide.loc[name, shown])]
        for name in table["accelerator"].unique()
    ]
    about = (
        "Median |error| of kernels, each accelerator predicted from its datasheet with "
        "coefficients fitted to the others (python -m hardware.fit_silicon TABLES --pooled); fp8 "
        "products with the quantisation of their activations, as measured. Whose "
        "coefficients a family takes was chosen on these figures. Wanted of GEMM and attention: "
        f"{percent(TRANSFER_LIMIT, sign=False)}."
    )
    columns = ["left out", *(FAMILIES[name] for name in shown)]
    return TextTable("Datasheet only", about, columns, rows)


def published_table(table: pd.DataFrame) -> TextTable:
    """Return errors of other people's runs by data set, engine, accelerator and figure."""
    keys = ["dataset", "engine", "accelerator", "figure"]
    rows = []
    for key, part in table.groupby(keys, sort=True):
        weights = part["rows"] / part["rows"].sum()
        signed, median = ((part[name] * weights).sum() for name in ("signed", "median"))
        *words, figure = key
        models = part["model"].nunique()
        rows.append(
            [
                *map(str, words),
                FIGURES.get(str(figure), str(figure)),
                f"{part['rows'].sum():,}",
                str(models),
                percent(float(signed)),
                percent(float(median), sign=False),
            ]
        )
    columns = [*keys[:3], "figure", "rows", "models", "signed", "median |error|"]
    about = (
        "Configurations that others measured; medians of groups of one model and precision, "
        "averaged by rows. Kept from the last python -m validation.published; each engine with its "
        "own profile, engines without one with that of vLLM. The raw tables are not part of the "
        "project."
    )
    return TextTable("Other people's runs", about, columns, rows)


LEVELS = {
    "own": "H200, vLLM 0.24: streams",
    "own_burst": "H200, vLLM 0.24: bursts",
    "fresh": "the same, fresh runs that no width was fitted to",
    "other": "other engines or accelerators",
    "datasheet": "accelerators without traces",
    "kernels": "kernels",
}
KINDS = {
    "ttft": "TTFT",
    "tail": "p99",
    "tpot": "TPOT",
    "e2e": "E2E",
    "rate": "throughput",
    "power": "power",
}


def coverage_table(table: pd.DataFrame) -> TextTable:
    """Return how often bands of 80 % held the measured value."""
    rows = [
        [
            LEVELS.get(str(row["family"]), str(row["family"])),
            KINDS.get(str(row["figure"]), str(row["figure"])),
            f"{int(row['cases']):,}",
            percent(row["coverage"], sign=False),
            percent(row["half_width"], sign=False),
            percent(row["median_error"], sign=False),
        ]
        for row in table.to_dict("records")
    ]
    columns = ["what", "figure", "cases", "in the band", "half-width", "median |error|"]
    about = (
        "Bands from P10 to P90 on cases that they were not made from; 80 % should lie inside. Kept "
        "from the last python -m validation.fit_bands (docs/bands.md)."
    )
    return TextTable("Bands", about, columns, rows)


def absent_table(table: pd.DataFrame) -> TextTable:
    """Return the rows of other people's tables that are not predicted, with the reason."""
    rows = [
        [str(r["dataset"]), str(r["reason"]), f"{r['rows']:,}"] for r in table.to_dict("records")
    ]
    about = "Rows of other people's tables that are not predicted, and why."
    return TextTable("Not represented", about, ["data set", "reason", "rows"], rows)
