"""Reading folders of kernel traces: one CSV (plain or .gz) per kind of kernel, in microseconds."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from formats import InputError, did_you_mean, read_table
from formats.files import check
from hardware.kernels_families import BYTES_PER_ELEMENT, COPY_PATHS, FAMILIES
from hardware.kernels_forms import GEMM_TYPES

__all__ = ["TRACE_COLUMNS", "About", "LeftOut", "read_about", "read_traces"]

_HEADS = ("n_heads", "n_kv_heads", "head_dim")
_DECODE = (*_HEADS, "batch", "context", "us")
_PREFILL = (*_HEADS, "batch", "q_len", "past_len", "us")
_ELEMENTWISE = ("op", "tokens", "width", "bytes", "us")
_EXPERTS = ("experts", "top_k", "hidden", "intermediate")
_BY_CACHE = ("attention_decode", "attention_prefill")
TRACE_COLUMNS: dict[str, tuple[str, ...]] = {
    **{f"gemm_{dtype}": ("dtype", "m", "n", "k", "us") for dtype in GEMM_TYPES},
    "gemm_sparse24_bf16": ("m", "n", "k", "dense_us", "sparse24_us"),
    "attention_decode": _DECODE,
    "attention_decode_extra": _DECODE,
    "attention_decode_fp8": _DECODE,
    "attention_beside_fp8": (*_HEADS, "batch", "context", "q_len", "us"),
    "attention_prefill": _PREFILL,
    "attention_prefill_fp8": _PREFILL,
    "attention_prefill_extra": _PREFILL,
    "attention_mixed": (*_HEADS, "seqs_q_context", "us"),
    "attention_uneven": (*_HEADS, "seqs_q_context", "us"),
    "attention_unfused": (
        *("n_heads", "head_dim", "q_len", "unfused_us", "flash_us"),
        "unfused_peak_mb",
    ),
    "elementwise": _ELEMENTWISE,
    "elementwise_engine": _ELEMENTWISE,
    **{name: (*_EXPERTS, "tokens", "us") for name in FAMILIES if name.startswith("moe_")},
    "memory": ("op", "bytes", "us"),
    "launch": ("case", "kernels", "us_per_kernel"),
}
OPTIONAL_COLUMNS = {
    kind: ("kv_dtype", "spread") for kind in TRACE_COLUMNS if kind.startswith(_BY_CACHE)
}
_TIMES = ("us", "unfused_us", "flash_us", "dense_us", "sparse24_us", "us_per_kernel")
_WORDS = ("dtype", "op", "case", "seqs_q_context")
_MAY_BE_ZERO = ("past_len",)
_RENAMES = {
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "q_len": "q",
    "past_len": "past",
    "unfused_us": "us",
    "sparse24_us": "us",
    "us_per_kernel": "us",
}


class LeftOut(BaseModel):
    """Rows of a table that nothing is fitted to."""

    model_config = ConfigDict(extra="forbid")

    kinds: tuple[str, ...] = Field(min_length=1, description="tables, such as gemm_bf16")
    column: str = Field(min_length=1, description="column looked at")
    value: float = Field(description="rows with this value are left out")
    reason: str = Field(min_length=3, description="why they are not to be trusted")


class About(BaseModel):
    """What ``about.json`` in a trace folder says."""

    model_config = ConfigDict(extra="ignore")

    source: str = Field(min_length=3, description="device, driver, software, script")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="day measured")
    leave_out: tuple[LeftOut, ...] = Field((), description="rows that are not to be trusted")


def read_about(folder: Path) -> About:
    """Read ``about.json`` of a trace folder, if there is one."""
    path = folder / "about.json"
    if not path.exists():
        return About(source=f"traces in a folder named {folder.name}", date="1970-01-01")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(f"cannot be read: {e}", str(path), repair="mend or remove it") from None
    return check(content, About, str(path))


def read_traces(folder: Path) -> dict[str, pd.DataFrame]:
    """Read a folder of traces.

    Parameters
    ----------
    folder : Path
        Holds ``<kind>.csv`` or ``<kind>.csv.gz`` for some of the kinds in `TRACE_COLUMNS`; other
        files (``power.csv``, ``device.json``) are left alone.

    Returns
    -------
    dict
        Family name -> table with the family's extents and ``s`` (seconds); also
        ``attention_mixed``, ``attention_uneven`` and ``launch`` where present.

    Raises
    ------
    InputError
        No such folder, no trace in it, a bad column, or a value out of range.
    """
    if not folder.is_dir():
        raise InputError("no such folder", str(folder), repair="name a folder of trace tables")
    found = {_kind(path): path for path in sorted(folder.glob("*.csv*")) if _kind(path)}
    if not found:
        allowed = ", ".join(f"{kind}.csv" for kind in TRACE_COLUMNS)
        raise InputError("holds no trace table", str(folder), allowed, "name one of these")
    tables: dict[str, pd.DataFrame] = {}
    about = read_about(folder)
    for kind, path in found.items():
        trusted = _trusted(kind, _read(kind, path), about)
        for name, table in _split(kind, trusted, path).items():
            parts = [tables[name], table] if name in tables else [table]
            tables[name] = _once(pd.concat(parts, ignore_index=True))
    return tables


def _trusted(kind: str, table: pd.DataFrame, about: About) -> pd.DataFrame:
    for part in about.leave_out:
        if kind in part.kinds and part.column in table:
            table = table[table[part.column].astype(float) != part.value]
    return table.reset_index(drop=True)


def _once(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per shape, the mean where one was measured in several files."""
    shape = [column for column in table if column not in ("s", "seqs_q_context")]
    if len(shape) + 1 < len(table.columns) or not table.duplicated(shape).any():
        return table
    return table.groupby(shape, sort=False)["s"].mean().reset_index()


def _kind(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return name if name in TRACE_COLUMNS else ""


def _read(kind: str, path: Path) -> pd.DataFrame:
    table = read_table(path, TRACE_COLUMNS[kind], OPTIONAL_COLUMNS.get(kind, ()))
    if table.empty:
        raise InputError("has a header but no rows", str(path), repair="measure again")
    for column in TRACE_COLUMNS[kind]:
        if column not in _WORDS:
            _check_numbers(table[column], column, path)
    return table


def _check_numbers(column: "pd.Series[float]", name: str, path: Path) -> None:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)
    low = numbers >= 0 if name in _MAY_BE_ZERO else numbers > 0
    bad = np.flatnonzero(~(low & np.isfinite(numbers)))
    if len(bad):
        where = f"{path} line {bad[0] + 2}"
        allowed = "a number of 0 or more" if name in _MAY_BE_ZERO else "a number above 0"
        what = f"{name} = {column.iloc[bad[0]]!r}"
        raise InputError(what, where, allowed, "mend or remove that line")


def _split(kind: str, table: pd.DataFrame, path: Path) -> dict[str, pd.DataFrame]:
    """Return the families of one file: by operation or path where it holds several."""
    renames = {k: v for k, v in _RENAMES.items() if k in table}
    table = table.rename(columns=renames)
    table["s"] = table.pop("us").astype(float) * 1e-6
    if kind in ("elementwise", "elementwise_engine"):
        _check_words(table["op"], BYTES_PER_ELEMENT, path)
        return {f"elementwise_{op}": part for op, part in table.groupby("op")}
    if kind == "memory":
        parts = table.groupby("op")
        return {str(op): part for op, part in parts if op in COPY_PATHS}
    if kind.startswith(_BY_CACHE):
        return _by_cache(kind, table, path)
    if kind in ("attention_mixed", "attention_uneven"):
        _check_sequences(table["seqs_q_context"], path)
    elif kind in FAMILIES:
        table = table[[*FAMILIES[kind].extents, "s"]]
    return {kind: table}


def _by_cache(kind: str, table: pd.DataFrame, path: Path) -> dict[str, pd.DataFrame]:
    """Return attention over equal sequences, by the type of the KV cache."""
    name = next(prefix for prefix in _BY_CACHE if kind.startswith(prefix))
    if "spread" in table:
        table = table[table["spread"].astype(str).isin(["uniform", "0", "0.0"])]
    if "kv_dtype" not in table:
        table = table.assign(kv_dtype="fp8" if kind.endswith("_fp8") else "bf16")
    families = {"bf16": name, "fp8": f"{name}_fp8"}
    _check_words(table["kv_dtype"], families, path, "kv_dtype")
    columns = [*FAMILIES[name].extents, "s"]
    return {families[str(kv)]: part[columns] for kv, part in table.groupby("kv_dtype")}


def _check_sequences(column: "pd.Series[str]", path: Path) -> None:
    good = column.astype(str).str.fullmatch(r"[1-9]\d*:[1-9]\d*( [1-9]\d*:[1-9]\d*)*")
    if not good.all():
        first = int(np.flatnonzero(~good.to_numpy())[0])
        what = f"seqs_q_context = {str(column.iloc[first])[:60]!r}"
        where = f"{path} line {first + 2}"
        raise InputError(what, where, "q:context per sequence, blanks between", "mend that line")


def _check_words(
    column: "pd.Series[str]", known: Mapping[str, object], path: Path, name: str = "op"
) -> None:
    unknown = [word for word in column.unique() if word not in known]
    if unknown:
        hint = did_you_mean(str(unknown[0]), known)
        raise InputError(f"{name} {unknown[0]!r} is not known", str(path), repair=hint)
