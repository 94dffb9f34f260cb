"""Uneven batches as traced: sequence lists to the extents of the mixed attention form."""

import numpy as np
import pandas as pd

from hardware.calibration_data import Calibration
from hardware.kernels_families import FAMILIES
from hardware.kernels_forms import Array, Chip
from hardware.kernels_mixed import mean_chunk, padded_context

__all__ = ["MIXED", "MIXED_PARTS", "mixed_table"]

MIXED = "attention_mixed"
MIXED_PARTS = ("attention_decode", "attention_prefill")


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
    batches = [_extents(text) for text in traces["seqs_q_context"]]
    table = pd.DataFrame(batches, index=traces.index).join(traces.drop(columns="seqs_q_context"))
    table["decode_s"] = _part(table, made, chip, "attention_decode")
    table["prefill_s"] = _part(table, made, chip, "attention_prefill")
    return table


def _extents(text: str) -> dict[str, float]:
    pairs = np.array([part.split(":") for part in text.split()], dtype=float)
    decoding = pairs[pairs[:, 0] == 1, 1]
    chunks = pairs[pairs[:, 0] > 1]
    q, past, sequences = mean_chunk(chunks[:, 0], chunks[:, 1] - chunks[:, 0])
    mean = decoding.mean() if len(decoding) else 0.0
    spread = decoding.std() / mean if len(decoding) else 0.0
    return {
        "batch": len(decoding),
        "context": float(padded_context(mean, spread)),
        "spread": spread,
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
