"""Rows of NVIDIA's tables that a calibration can learn from: real layouts, cold operands."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hardware.catalog import load_accelerator
from hardware.kernels import BASE, carried, chip_of
from hardware.kernels_families import FAMILIES, Family
from hardware.kernels_forms import GEMM_TYPES, Array, Chip
from hardware.silicon import Converted, read_traces

__all__ = ["training_rows"]

NARROWEST = 256
"""Narrowest n or k of a layer, shares under tensor parallelism included."""
WIDEST_HEAD = 256
"""Largest head size; above it vLLM takes another kernel, up to 50 times slower."""
SHORTEST = 16
"""Shortest context or prompt [tokens]; below it an attention time is its launch alone."""
IDLE_SHARE = 0.15
"""Share of a time below which reading the operands once from memory would not show in it."""
LEAST_PRODUCT = 0.3
"""Least share of an fp8 time that is left to the product."""
MEBI = 1.05
"""Caches are printed in MB and built in MiB."""
_RENAMES = {"n_heads": "heads", "n_kv_heads": "kv_heads", "q_len": "q", "past_len": "past"}


def training_rows(
    tables: Path, accelerator: str, chip: Chip, quantised: bool = False
) -> dict[str, Converted]:
    """Return the usable rows of every family that the forms know and the chip can run.

    Parameters
    ----------
    tables : Path
        Folder of the Parquet files.
    accelerator : str
        A key of `hardware.silicon.SYSTEMS`.
    chip : Chip
        Its numbers.
    quantised : bool
        Leave the quantisation of their activations in fp8 products (`hardware.silicon_forms`).

    Returns
    -------
    dict of str to Converted
        Family -> columns of the family's extents and ``s`` [s], with the rows left out by reason.
    """
    found: dict[str, Converted] = {}
    for kind, converted in read_traces(tables, accelerator).items():
        table = converted.table.rename(columns=_RENAMES)
        table = table.assign(s=table["us"] * 1e-6).drop(columns="us")
        for name, part in _by_precision(kind, table).items():
            family = FAMILIES.get(name)
            if family is not None and len(part) and family.precision in ("", *chip.peaks):
                alone = part if quantised else _product_alone(name, part, chip)
                found[name] = _usable(family, alone, chip)
    return found


def _by_precision(kind: str, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    if "dtype" not in table:
        return {kind: table}
    return {f"{kind}_{d}": p.drop(columns="dtype") for d, p in table.groupby("dtype")}


def _product_alone(name: str, table: pd.DataFrame, chip: Chip) -> pd.DataFrame:
    """Take the quantisation of the activations out of the times of fp8 products.

    NVIDIA's rows hold both kernels; ours, and an engine step, count them apart. On the H200 the
    products then agree with ours within 3 % (median) up to 256 rows, from 22 .. 29 % before.
    From cache a unit is taken to move as many bytes per second as one of the H200.
    """
    if name != "gemm_fp8":
        return table
    quantise = FAMILIES["elementwise_quant_fp8_per_token"]
    shape = quantise.shape(table["m"].to_numpy(float), table["k"].to_numpy(float))
    measured = chip_of(load_accelerator(BASE))
    own = carried().families[quantise.name].coefficients
    scale = (measured.memory / measured.units) / (chip.memory / chip.units)
    seconds = quantise.form(shape, chip, {**own, "cache": own["cache"] * scale})
    return table.assign(s=np.maximum(table["s"] - seconds, LEAST_PRODUCT * table["s"]))


def _usable(family: Family, table: pd.DataFrame, chip: Chip) -> Converted:
    rows, dropped = len(table), dict[str, int]()
    for reason, out in (
        ("shape that no model has", _unreal(family.name, table)),
        ("warm cache: faster than memory allows", _warm(family.name, table, chip)),
    ):
        if out.any():
            dropped[reason] = int(out.sum())
            table = table[~out.reindex(table.index)]
    return Converted(table.reset_index(drop=True), dropped, rows)


def _unreal(name: str, table: pd.DataFrame) -> "pd.Series[bool]":
    if name.startswith("gemm"):
        return (table["n"] < NARROWEST) | (table["k"] < NARROWEST)
    if not name.startswith("attention"):
        return pd.Series(data=False, index=table.index)
    short = table["context" if "context" in table else "q"] < SHORTEST
    return short | (table["head_dim"] > WIDEST_HEAD)


def _warm(name: str, table: pd.DataFrame, chip: Chip) -> "pd.Series[bool]":
    """Return the rows whose operands stayed in the cache between calls.

    Where any row of a table beats the memory's bandwidth, its cache was warm; then every row that
    fits the cache is out, because an engine would read it from memory: unless its time is the
    launch's or the arithmetic's, so that memory does not matter.
    """
    flops_s, operands = _least_work(name, table, chip)
    memory_s = operands / chip.memory
    faster = memory_s > table["s"].to_numpy()
    matters = (memory_s > flops_s) & (memory_s > IDLE_SHARE * table["s"].to_numpy())
    fits = operands < chip.l2_bytes * MEBI
    return pd.Series(faster | (matters & fits & faster.any()), index=table.index)


def _least_work(name: str, table: pd.DataFrame, chip: Chip) -> tuple[Array, Array]:
    """Return seconds of arithmetic at the peak, and bytes of weights or cache read once.

    Activations are warm in an engine too.
    """
    t = {column: table[column].to_numpy(float) for column in table}
    if name.startswith("gemm"):
        kind = GEMM_TYPES[name.removeprefix("gemm_")]
        flops = 2 * t["m"] * t["n"] * t["k"]
        return flops / chip.peaks[kind.precision], t["n"] * t["k"] * kind.weight
    if name.startswith("attention_decode"):
        tokens, per = t["batch"] * t["context"] * t["head_dim"], 2 if name.endswith("fp8") else 4
        return 4 * tokens * t["heads"] / chip.attention_peak, per * tokens * t["kv_heads"]
    zero: npt.NDArray[np.float64] = np.zeros(len(table))
    return zero + 1.0, zero
