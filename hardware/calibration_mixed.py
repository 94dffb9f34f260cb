"""Uneven batches as traced: sequence lists to the extents of the mixed attention form."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from hardware.calibration_data import Calibration
from hardware.kernels_attention import decode_pace, items_per_sequence
from hardware.kernels_families import FAMILIES
from hardware.kernels_forms import Array, Chip, Coefficients
from hardware.kernels_mixed import mean_chunk
from hardware.kernels_schedule import uneven_s

__all__ = ["MIXED", "MIXED_PARTS", "mixed_table", "uneven_errors", "uneven_table"]

MIXED = "attention_mixed"
MIXED_PARTS = ("attention_decode", "attention_prefill")


def uneven_table(traces: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the traced batches that only decode, with the array of their contexts.

    Returns
    -------
    DataFrame
        Columns heads, kv_heads, head_dim, contexts, s; empty where none was traced.
    """
    found = [traces[name] for name in (MIXED, "attention_uneven") if name in traces]
    if not found:
        return pd.DataFrame(columns=["heads", "kv_heads", "head_dim", "contexts", "s"])
    table = pd.concat(found, ignore_index=True)
    pairs = [_pairs(text) for text in table.pop("seqs_q_context")]
    alone = [bool((p[:, 0] == 1).all()) for p in pairs]
    table["contexts"] = pd.Series([p[:, 1] for p in pairs], index=table.index, dtype=object)
    return table[alone].reset_index(drop=True)


def uneven_errors(table: pd.DataFrame, chip: Chip) -> Callable[[Coefficients], Array]:
    """Return a function of the coefficients of decode attention: log errors of uneven batches."""
    columns = [table[name].tolist() for name in ("contexts", "heads", "kv_heads", "head_dim")]
    rows = list(zip(*columns, strict=True))
    measured = np.log(table["s"].to_numpy(dtype=float))

    def errors(c: Coefficients) -> Array:
        seconds = [_alone_s(x, heads, kv, dim, chip, c) for x, heads, kv, dim in rows]
        left: Array = np.log(seconds) - measured
        return left

    return errors


def _alone_s(
    contexts: Array, heads: int, kv_heads: int, dim: int, chip: Chip, c: Coefficients
) -> float:
    shape = FAMILIES["attention_decode"].shape(1, 1, heads, kv_heads, dim)
    pace = decode_pace(shape, chip, c).scalar()
    busy, splits = uneven_s(contexts, items_per_sequence(heads, kv_heads), pace)
    return c["launch_s"] + c["split_s"] * (1 - 1 / splits) + busy


def mixed_table(traces: pd.DataFrame, made: Calibration, chip: Chip) -> pd.DataFrame:
    """Return the extents of the mixed form for traced batches.

    Parameters
    ----------
    traces : DataFrame
        Columns heads, kv_heads, head_dim, seqs_q_context (``q:context`` per sequence, the context
        with its new tokens), s.
    made : Calibration
        Holds fits of decode and prefill attention, which give the time of each part alone.
    """
    pairs = [_pairs(text) for text in traces["seqs_q_context"]]
    table = pd.DataFrame([_extents(p) for p in pairs], index=traces.index)
    table = table.join(traces.drop(columns="seqs_q_context"))
    table["decode_s"] = _part(table, made, chip, "attention_decode")
    table["prefill_s"] = _part(table, made, chip, "attention_prefill")
    uneven = [_uneven(p, row, made, chip) for p, row in zip(pairs, table.itertuples(), strict=True)]
    table["decode_s"] *= np.array(uneven)
    return table


def _pairs(text: str) -> Array:
    return np.array([part.split(":") for part in text.split()], dtype=float)


def _uneven(pairs: Array, row: tuple[object, ...], made: Calibration, chip: Chip) -> float:
    """Return by what factor a batch's own contexts slow its decode attention."""
    contexts = pairs[pairs[:, 0] == 1, 1]
    if not contexts.size:
        return 1.0
    heads, kv_heads, dim = (int(getattr(row, n)) for n in ("heads", "kv_heads", "head_dim"))
    layout = (heads, kv_heads, dim)
    c = made.families["attention_decode"].coefficients
    even = np.full(contexts.size, contexts.mean())
    return _alone_s(contexts, *layout, chip, c) / _alone_s(even, *layout, chip, c)


def _extents(pairs: Array) -> dict[str, float]:
    decoding = pairs[pairs[:, 0] == 1, 1]
    chunks = pairs[pairs[:, 0] > 1]
    q, past, sequences = mean_chunk(chunks[:, 0], chunks[:, 1] - chunks[:, 0])
    return {
        "batch": len(decoding),
        "context": decoding.mean() if len(decoding) else 0.0,
        "longest": decoding.max(initial=0.0),
        "q": q * sequences,
        "past": past,
        "sequences": sequences,
        "chunk": q,
    }


def _part(table: pd.DataFrame, made: Calibration, chip: Chip, name: str) -> Array:
    """Return the time of one part alone, 0 where the batch has none of it [s]."""
    family = FAMILIES[name]
    there = table["batch"] > 0 if name == "attention_decode" else table["sequences"] > 0
    asked = table[there]
    if name == "attention_prefill":
        asked = asked.drop(columns=["q", "batch"])
        asked = asked.rename(columns={"chunk": "q", "sequences": "batch"})
    seconds = np.zeros(len(table))
    shape = family.shape(*(asked[extent].to_numpy() for extent in family.extents))
    seconds[there] = made.families[name].predict(family, chip, shape)
    return seconds
