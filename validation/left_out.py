"""TPOT of Llama on accelerators whose kernels were carried over from the others.

The rows are those of `validation.silicon_e2e` and so are scenarios and engine profiles; only the
kernel times differ. They are those that the other accelerators give (`left_out` of
`hardware.fit_silicon`, on NVIDIA's tables; kernels measured on an H200 alone come from there, and
on the H200 itself from where a fit would start), as for an accelerator known by its datasheet.
``python -m validation.left_out PATH`` keeps the errors as `STORED`.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from formats import InputError, atomic_write, read_text
from hardware.catalog import accelerators
from hardware.fit_silicon import LEFT_OUT
from validation.silicon_e2e import SYSTEMS, dense_rows, predict, scenario_of

__all__ = ["LIMIT", "STORED", "compare", "judge", "left_out_file", "main", "stored"]

STORED = Path(__file__).parent / "data" / "left_out.csv"
"""Errors by system and engine, as `judge` returns them."""
LIMIT = 0.15
"""Median absolute error of TPOT that an accelerator is held to [1]."""
LINKS = {"h100_sxm": "nvlink4-h100", "h200_sxm": "nvlink4-h200", "b200_sxm": "nvlink5-b200"}


def left_out_file(accelerator: str, folder: Path) -> Path:
    """Write the accelerator with the kernels carried over to it; return the file.

    Parameters
    ----------
    accelerator : str
        Id in the catalog.
    folder : Path
        Where to write.
    """
    text = read_text(accelerators.paths[accelerator])
    line = f'calibration = "{(LEFT_OUT / f"{accelerator}.toml").as_posix()}"'
    path = folder / f"{accelerator}.toml"
    path.write_text(re.sub(r"(?m)^calibration = .*$", line, text), encoding="utf-8")
    return path


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ``tpot_error``: predicted over measured, minus 1.

    Parameters
    ----------
    rows : DataFrame
        From `validation.silicon_e2e.dense_rows`.
    """
    with TemporaryDirectory() as name:
        files = {s: left_out_file(SYSTEMS[s], Path(name)) for s in rows["system"].unique()}
        found = []
        for _, row in rows.iterrows():
            changes: dict[str, object] = {"hardware.accelerator": str(files[row["system"]])}
            changes["hardware.link"] = LINKS[row["system"]]
            found.append(predict(row, scenario_of(row).changed(changes))[1])
    return rows.assign(tpot_error=found / (rows["silicon_tpot_ms"] * 1e-3) - 1.0)


def judge(compared: pd.DataFrame) -> pd.DataFrame:
    """Return errors by system, over all its engines and by engine.

    Returns
    -------
    DataFrame
        system, backend ("all" for all its engines), rows, bias (signed median), median and p90 of
        the absolute error, limit.
    """
    out = []
    for system, part in compared.groupby("system"):
        for backend, group in [("all", part), *part.groupby("backend")]:
            error = group["tpot_error"]
            sizes = (error.median(), error.abs().median(), error.abs().quantile(0.9))
            out.append((system, backend, len(group), *sizes, LIMIT))
    columns = ["system", "backend", "rows", "bias", "median", "p90", "limit"]
    return pd.DataFrame(out, columns=columns)


def stored() -> pd.DataFrame:
    """Return what was found when the table was last compared, as `judge` returns it."""
    return pd.read_csv(STORED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all rows, print and keep the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="silicon_e2e.csv or .csv.gz")
    try:
        found = judge(compare(dense_rows(parser.parse_args(arguments).path)))
    except InputError as e:
        parser.error(str(e))
    sys.stdout.write(found.round(3).to_string(index=False) + "\n")
    with atomic_write(STORED) as path:
        found.to_csv(path, index=False, float_format="%.4f", lineterminator="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
