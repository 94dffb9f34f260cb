"""Reads NVIDIA's measured kernel tables (Parquet) into the columns of our own kernel traces.

The tables come with the Apache-2.0 packages aiconfigurator-core and aisimulate
(``systems/data/<system>/<family>/<framework>/<version>/<op>_perf.parquet``), one file
``<system>__<op>_perf.parquet`` per system and operation in one folder here. Times there are
milliseconds per call in replayed CUDA graphs; ours are microseconds.

Traps. Kernels ran back to back with a warm L2, so on GPUs with slow memory and a large L2 (L40S,
RTX PRO 6000) a GEMM of few rows whose weights fit the L2 beats the memory's bandwidth; on the H200
bf16 products up to m = 64 agree with our cold ones within 5 % from 6 MB of weights on. Runs were
short, so the power cap hardly acts: large products are 8 .. 15 % faster than our sustained ones.
``message_size`` counts elements (half 2 bytes, int8 1 byte). Different kernels, chosen by vLLM per
shape, stand in one table. The A100 table holds bf16 alone and expert loads that are skewed; there
is no custom all-reduce table of the L40S.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from formats import InputError, atomic_write, did_you_mean

__all__ = [
    "SYSTEMS",
    "TABLES_SOURCE",
    "Converted",
    "read_collectives",
    "read_decode",
    "read_gemm",
    "read_moe",
    "read_prefill",
    "read_traces",
    "write_tables",
]

SYSTEMS = {
    "a100-sxm": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Accelerator -> name of the system in NVIDIA's file names."""

TABLES_SOURCE = (
    "fitted to the kernel tables of NVIDIA aiconfigurator-core 0.12.0 (Apache-2.0, Copyright (c) "
    "2025-2026 NVIDIA CORPORATION & AFFILIATES)"
)
"""Attribution that every file of coefficients fitted to these tables carries."""

KERNEL_DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
MOE_DTYPES = {**KERNEL_DTYPES, "fp8_block": "fp8", "int4_wo": "w4a16", "w4a16_mxfp4": "w4a16"}
KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
MESSAGE_BYTES = {"half": 2, "int8": 1, "bfloat16": 2}
NOT_GATED = {2688: "hidden_size", 22: "topk"}
COLUMNS = {
    "gemm": ["dtype", "m", "n", "k"],
    "decode": ["n_heads", "n_kv_heads", "head_dim", "batch", "context"],
    "prefill": ["n_heads", "n_kv_heads", "head_dim", "batch", "q_len", "past_len"],
    "moe": ["dtype", "experts", "top_k", "hidden", "intermediate", "tokens"],
    "collectives": ["op", "dtype", "ranks", "bytes"],
}


@dataclass(frozen=True)
class Converted:
    """A table in our columns, and the rows that have no place in them.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per shape, mean over repeated measurements; time in ``us``.
    dropped : dict of str to int
        Reason -> number of source rows left out.
    rows : int
        Rows of the source.
    """

    table: pd.DataFrame
    dropped: dict[str, int] = field(default_factory=dict)
    rows: int = 0


def _read(folder: Path, accelerator: str, operation: str) -> pd.DataFrame:
    if find_spec("pyarrow") is None:
        repair = "install the extra: pip install 'roofcast[parquet]'"
        raise InputError("reading Parquet needs pyarrow", repair=repair)
    if accelerator not in SYSTEMS:
        hint = did_you_mean(accelerator, SYSTEMS)
        raise InputError(f"no NVIDIA table of {accelerator!r}", "accelerator", repair=hint)
    path = _find(folder, SYSTEMS[accelerator], operation)
    if path is None:
        repair = "name the folder of the tables"
        what = f"no table {operation}_perf.parquet of {SYSTEMS[accelerator]}"
        raise InputError(what, str(folder), repair=repair)
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as e:
        what = f"is not a Parquet table: {e}"
        raise InputError(what, str(path), repair="fetch it again") from None


def _find(folder: Path, system: str, operation: str) -> Path | None:
    """Return the table in a flat folder, else the newest version in the packages' own folders."""
    flat = folder / f"{system}__{operation}_perf.parquet"
    if flat.is_file():
        return flat
    nested = [p for p in folder.rglob(f"{operation}_perf.parquet") if system in p.parts]
    return max(nested, key=_version, default=None)


def _version(path: Path) -> list[tuple[int, str]]:
    """Return a key that puts 0.10 after 0.9."""
    parts = re.findall(r"\d+|\D+", path.parent.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


class _Sieve:
    """Takes rows out of a table and counts them by reason."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table, self.rows, self.dropped = table, len(table), dict[str, int]()

    def drop(self, reason: str, rows: pd.Series) -> None:
        """Leave out the rows where `rows` is true."""
        count = int(rows.sum())
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            self.table = self.table[~rows]

    def drop_bad(self) -> None:
        """Leave out rows without a positive time."""
        self.drop("time missing or not positive", ~(self.table["latency"] > 0))

    def finish(self, family: str, names: dict[str, str]) -> Converted:
        """Return the rest in our columns, repeated shapes averaged."""
        table = self.table.rename(columns=names).assign(us=self.table["latency"] * 1e3)
        columns = COLUMNS[family]
        mean = table.groupby(columns, sort=True)["us"].mean().reset_index()
        return Converted(mean, self.dropped, self.rows)


def read_gemm(folder: Path, accelerator: str) -> Converted:
    """Read matrix products: activations (m, k) times weights (k, n).

    Parameters
    ----------
    folder : Path
        Folder of the Parquet files.
    accelerator : str
        A key of `SYSTEMS`.

    Returns
    -------
    Converted
        Columns dtype, m, n, k, us [µs]; dtype bf16, fp8 or
        fp4 (nvfp4). Times of fp8 hold the quantisation of the activations too: on the H200 they
        are about 3 us above our own of the product alone.

    Raises
    ------
    InputError
        No pyarrow, no such accelerator or no such file.
    """
    sieve = _Sieve(_read(folder, accelerator, "gemm"))
    sieve.drop_bad()
    _map_dtype(sieve, "gemm_dtype", KERNEL_DTYPES)
    return sieve.finish("gemm", {})


def _map_dtype(sieve: _Sieve, column: str, words: dict[str, str]) -> None:
    for word in sorted(set(sieve.table[column]) - set(words)):
        sieve.drop(f"{column} {word} has no counterpart", sieve.table[column] == word)
    sieve.table = sieve.table.assign(dtype=sieve.table[column].map(words))


def _attention(folder: Path, accelerator: str, operation: str, kv_dtype: str) -> _Sieve:
    if kv_dtype not in KV_DTYPES:
        hint = did_you_mean(kv_dtype, KV_DTYPES)
        raise InputError(f"no KV precision {kv_dtype!r}", "kv_dtype", repair=hint)
    sieve = _Sieve(_read(folder, accelerator, operation))
    sieve.drop_bad()
    if "window_size" in sieve.table:
        sieve.drop("sliding window", sieve.table["window_size"] > 0)
    other = sieve.table["kv_cache_dtype"] != KV_DTYPES[kv_dtype]
    sieve.drop(f"KV cache not {kv_dtype}", other)
    return sieve


_HEADS = {"num_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "batch_size": "batch"}


def read_decode(folder: Path, accelerator: str, kv_dtype: str = "bf16") -> Converted:
    """Read decode attention: one new token per sequence against its whole context.

    Parameters
    ----------
    folder, accelerator
        As in `read_gemm`.
    kv_dtype : str
        ``bf16`` or ``fp8``: precision of the KV cache to keep.

    Returns
    -------
    Converted
        Columns n_heads, n_kv_heads, head_dim, batch, context, us [µs]; context counts the new
        token.
    """
    sieve = _attention(folder, accelerator, "generation_attention", kv_dtype)
    sieve.table = sieve.table.assign(context=sieve.table["step"] + sieve.table["isl"])
    return sieve.finish("decode", _HEADS)


def read_prefill(folder: Path, accelerator: str, kv_dtype: str = "bf16") -> Converted:
    """Read prefill attention: batch equal prompts, causal.

    Returns
    -------
    Converted
        Columns n_heads, n_kv_heads, head_dim, batch, q_len, past_len, us [µs].
    """
    sieve = _attention(folder, accelerator, "context_attention", kv_dtype)
    return sieve.finish("prefill", {**_HEADS, "isl": "q_len", "step": "past_len"})


def read_moe(folder: Path, accelerator: str) -> Converted:
    """Read mixtures of experts as one rank runs them: all experts, gated, even load.

    Tensor parallelism divides the intermediate size. Rows of a share of the experts (expert
    parallelism) have no counterpart, nor have experts without a gate (two matrices in place of
    three). Even loads are kept; where none was measured (A100), the least skewed. Experts in fp8
    are those with a scale per block, as published checkpoints have them, where both were measured:
    on the H100 and H200 one scale per tensor takes 1 to 3 times the time of bf16.

    Returns
    -------
    Converted
        Columns dtype, experts, top_k, hidden, intermediate, tokens, us [µs].
    """
    sieve = _Sieve(_read(folder, accelerator, "moe"))
    sieve.drop_bad()
    sieve.drop("share of the experts (expert parallel)", sieve.table["moe_ep_size"] > 1)
    for value, column in NOT_GATED.items():
        sieve.drop("experts without a gate", sieve.table[column] == value)
    kept = min(sieve.table["distribution"], default="balanced")
    sieve.drop(f"load not {kept}", sieve.table["distribution"] != kept)
    if (sieve.table["moe_dtype"] == "fp8_block").any():
        sieve.drop("fp8 experts with one scale per tensor", sieve.table["moe_dtype"] == "fp8")
    _map_dtype(sieve, "moe_dtype", MOE_DTYPES)
    share = sieve.table["inter_size"] // sieve.table["moe_tp_size"]
    sieve.table = sieve.table.assign(intermediate=share)
    names = {"num_experts": "experts", "topk": "top_k", "hidden_size": "hidden"}
    return sieve.finish("moe", {**names, "num_tokens": "tokens"})


def read_collectives(folder: Path, accelerator: str) -> Converted:
    """Read collectives of one node.

    Returns
    -------
    Converted
        Columns op, dtype, ranks, bytes, us [µs]. `bytes` is the whole buffer of one rank: the
        input of a reduction or exchange, the output of a gather. `op` is all_reduce, all_gather,
        reduce_scatter, all_to_all (NCCL) or custom_all_reduce (vLLM in a CUDA graph) and
        custom_all_reduce_eager (the same called from Python).
    """
    nccl = _read(folder, accelerator, "nccl").rename(columns={"nccl_dtype": "dtype"})
    nccl = nccl.assign(op=nccl["op_name"].replace({"alltoall": "all_to_all"}))
    tables = [nccl]
    if (folder / f"{SYSTEMS[accelerator]}__custom_allreduce_perf.parquet").is_file():
        tables.append(_read_custom(folder, accelerator))
    table = pd.concat([t[["op", "dtype", "num_gpus", "message_size", "latency"]] for t in tables])
    sieve = _Sieve(table)
    sieve.drop_bad()
    size = sieve.table["message_size"] * sieve.table["dtype"].map(MESSAGE_BYTES)
    sieve.table = sieve.table.assign(bytes=size)
    return sieve.finish("collectives", {"num_gpus": "ranks"})


def _read_custom(folder: Path, accelerator: str) -> pd.DataFrame:
    custom = _read(folder, accelerator, "custom_allreduce")
    words = {"vllm_graph": "custom_all_reduce", "vllm_eager": "custom_all_reduce_eager"}
    custom = custom.assign(op=custom["backend"].map(words))
    return custom.rename(columns={"allreduce_dtype": "dtype"})


def _read_decode_fp8(folder: Path, accelerator: str) -> Converted:
    return read_decode(folder, accelerator, "fp8")


def _read_prefill_fp8(folder: Path, accelerator: str) -> Converted:
    return read_prefill(folder, accelerator, "fp8")


_READERS: dict[str, Callable[[Path, str], Converted]] = {
    "gemm": read_gemm,
    "attention_decode": read_decode,
    "attention_decode_fp8": _read_decode_fp8,
    "attention_prefill": read_prefill,
    "attention_prefill_fp8": _read_prefill_fp8,
    "moe": read_moe,
}


def read_traces(
    folder: Path, accelerator: str, families: Sequence[str] = tuple(_READERS)
) -> dict[str, Converted]:
    """Read every kernel family of one accelerator.

    Parameters
    ----------
    folder, accelerator
        As in `read_gemm`.
    families : sequence of str
        Of gemm, attention_decode, attention_prefill, the same with _fp8 (KV cache), moe.

    Returns
    -------
    dict of str to Converted
        Family -> table; it is empty where nothing of the kind was measured.
    """
    for family in families:
        if family not in _READERS:
            hint = did_you_mean(family, _READERS)
            raise InputError(f"no kernel family {family!r}", "families", repair=hint)
    return {family: _READERS[family](folder, accelerator) for family in families}


def write_tables(found: Mapping[str, Converted], out: Path, source: str, date: str) -> list[Path]:
    """Write tables as trace files that ``roofcast calibrate`` reads, and what they are.

    Parameters
    ----------
    found : mapping
        From `read_traces`.
    out : Path
        Folder to write to; made if absent.
    source, date : str
        For ``about.json``: where the rows come from, day measured (YYYY-MM-DD).

    Returns
    -------
    list of Path
        The files, such as gemm_bf16.csv, attention_decode.csv, moe_fp8.csv.

    Raises
    ------
    InputError
        The date is not one.
    """
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise InputError(f"date = {date!r}", "--date", "YYYY-MM-DD")
    written = []
    for family, converted in found.items():
        for name, table in _parts(family, converted.table).items():
            if table.empty:
                continue
            with atomic_write(out / f"{name}.csv") as temporary:
                table.to_csv(temporary, index=False, float_format="%.4g")
            written.append(out / f"{name}.csv")
    with atomic_write(out / "about.json") as temporary:
        temporary.write_text(json.dumps({"source": source, "date": date}) + "\n", encoding="utf-8")
    return written


def _parts(family: str, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a table by precision; a mixture of experts drops the column, as our traces do."""
    if "dtype" not in table:
        return {family: table}
    shown = table.columns if family == "gemm" else table.columns.drop("dtype")
    return {f"{family}_{dtype}": part[shown] for dtype, part in table.groupby("dtype")}
