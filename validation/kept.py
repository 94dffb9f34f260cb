"""Errors that were computed once and kept: accelerators left out, other people's runs."""

from pathlib import Path

import pandas as pd

from formats import read_table
from hardware.fit_silicon import TRANSFER

__all__ = ["band_coverage", "published_rows", "transfer_errors", "transfer_rows"]

_TRANSFER = (
    "accelerator",
    "family",
    "donors",
    "used",
    "rows",
    "median",
    "p90",
    "p10_log",
    "p50_log",
    "p90_log",
)
TRANSFER_LIMIT = 0.15
"""Median of matrix products and attention of an accelerator without traces [1]."""
LIMITED = (
    "gemm_bf16",
    "gemm_fp8",
    "gemm_fp4",
    "attention_decode",
    "attention_decode_fp8",
    "attention_prefill",
    "attention_prefill_fp8",
)


def transfer_errors() -> pd.DataFrame:
    """Return the errors of accelerators that were predicted without their traces.

    Returns
    -------
    DataFrame
        As `hardware.fit_silicon.leave_one_out` made them, the coefficients that are used.
    """
    table = read_table(TRANSFER, _TRANSFER)
    return table[table["used"].astype(str) == "True"].reset_index(drop=True)


_COVERAGE = ("family", "figure", "cases", "coverage", "half_width", "median_error")


def band_coverage() -> pd.DataFrame:
    """Return how often bands held, as ``python -m validation.fit_bands`` found it."""
    path = Path(__file__).parent / "data" / "coverage.csv"
    return pd.read_csv(path, comment="#")[list(_COVERAGE)] if path.exists() else pd.DataFrame()


def transfer_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return them as rows of the table of all cases."""
    if table.empty:
        return pd.DataFrame()
    limited = table["family"].isin(LIMITED)
    return pd.DataFrame(
        {
            "family": "datasheet only",
            "case": table["accelerator"] + " " + table["family"],
            "figure": "median |error|, accelerator left out",
            "unit": "1",
            "predicted": pd.NA,
            "measured": pd.NA,
            "error": table["median"],
            "low": pd.NA,
            "high": table["p90"],
            "limit": [TRANSFER_LIMIT if known else pd.NA for known in limited],
            "fitted": "no",
            "source": "NVIDIA aiconfigurator-core kernel tables",
            "licence": "Apache-2.0",
        }
    )


LICENCES = {
    "Splitwise phases": "MIT",
    "Argonne batches": "BSD-3-Clause",
}


def published_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return other people's runs, by group, as rows of the table of all cases."""
    if table.empty:
        return pd.DataFrame()
    words = ["accelerator", "model", "engine", "precision"]
    return pd.DataFrame(
        {
            "family": "other people's runs",
            "case": table[words].astype(str).agg(", ".join, axis=1),
            "figure": "median |error| of " + table["figure"],
            "unit": "1",
            "predicted": pd.NA,
            "measured": pd.NA,
            "error": table["median"],
            "low": pd.NA,
            "high": table["p90"],
            "limit": pd.NA,
            "fitted": "no",
            "source": table["dataset"],
            "licence": [LICENCES.get(name, "Apache-2.0") for name in table["dataset"]],
        }
    )
