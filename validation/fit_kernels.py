"""Kernels inside the engine, from its profiles: ``python -m validation.fit_kernels``.

Writes the element-wise kernels that the engine's compiler makes, and what decoding beside a prompt
takes beyond the prompt, as traces for ``roofcast calibrate``, and into the engine profile what its
attention takes beyond the kernel tables: there one call follows the other and hides the merging of
splits, in the engine another kernel waits.
"""

import gzip
import sys
from pathlib import Path

import pandas as pd
from scipy.stats import theilslopes

from formats import atomic_write, read_table
from hardware.catalog import load_accelerator
from hardware.kernels import KernelModel, load_kernels
from hardware.kernels_families import BYTES_PER_ELEMENT
from sim.engines import engines
from validation.fit_engine import Fitted, write_profile
from workloads.models import ModelSpec, load_model

__all__ = ["attention_extra", "beside_prompts", "compiled_kernels", "main"]

DATA = Path(__file__).parent / "data" / "h200-extra"
LATER = Path(__file__).parent / "data" / "h200-fresh"
TRACES = Path("hardware/data/traces/h200-sxm")
MIXED = Path("hardware/data/traces/h200-sxm-mixed/attention_mixed_fp8.csv")
MODELS = {
    "llama8b_3000": "llama-3.1-8b",
    "llama8b_bf16": "llama-3.1-8b",
    "llama8b_fp8": "llama-3.1-8b",
    "llama3b_bf16": "llama-3.2-3b",
    "qwen14b": "qwen2.5-14b",
    "qwen32b": "qwen3-32b",
    "qwen30b_a3b": "qwen3-30b-a3b",
}
GAP_US = 0.25  # between kernels of a graph without the profiler: span of untraced steps less work
SAMPLING = ("gumbel", "ArgMax", "direct_copy_kernel")
LAYOUT = ["n_heads", "n_kv_heads", "head_dim"]
FEWEST = 8  # calls of a layer's kernel in a step; fewer belong to the first or last layer


def kind(kernel: str) -> str:
    """Return what a kernel does, empty for what has a table of its own.

    Examples
    --------
    >>> kind("triton_red_fused_fused_add_rms_norm_2"), kind("nvjet_sm90_tst_64x8")
    ('norm_compiled', '')
    """
    narrow = "clamp" in kernel
    rules = (
        ("reshape_and_cache", "kv_write_fp8" if "unsigned char" in kernel else "kv_write"),
        ("FlashAttnFwd", "attention"),
        ("act_and_mul", ""),
        ("silu", "silu_quant_compiled" if narrow else "silu_compiled"),
        ("rms_norm", "norm_quant_compiled" if narrow else "norm_compiled"),
        ("cutlass_scaled_mm_div_max", "quant_compiled"),
        ("triton_poi_fused", "rotary_compiled"),
        ("triton_red_fused", "qk_norm_compiled"),
    )
    return next((found for part, found in rules if part in kernel), "")


def width(found: str, model: ModelSpec) -> int:
    """Return the elements of a token that a kernel works on."""
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = {
        "norm": model.hidden,
        "silu": model.intermediate,
        "quant": query,
        "rotary": query + key,
        "qk": query + key,
        "kv": 2 * key,
    }
    return widths[found.split("_")[0]]


def compiled_kernels(traces: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return element-wise kernels of the engine as traces: op, tokens, width, bytes, us.

    Parameters
    ----------
    traces : DataFrame
        One row per kernel of a profiled step: run, trace, kind (decode, prefill), kernel, us.
    steps : DataFrame
        Composition of the profiled steps.
    """
    rows = []
    for (run, trace, phase), part in traces.groupby(["run", "trace", "kind"], sort=False):
        model = load_model(MODELS[str(run)])
        step = _step(steps, str(run), str(trace), str(phase))
        if step is None:
            continue
        for op, calls in part.assign(op=part["kernel"].map(kind)).groupby("op"):
            if op not in ("", "attention") and len(calls) >= FEWEST:
                micros = float(calls["us"].median()) + GAP_US
                rows.append((op, step["tokens"], width(str(op), model), micros))
        sampled = part.loc[part["kernel"].str.contains("|".join(SAMPLING)), "us"]
        rows.append(
            ("sample", step["requests"], model.vocab, sampled.sum() + GAP_US * sampled.size)
        )
    table = pd.DataFrame(rows, columns=["op", "tokens", "width", "us"])
    size = table["op"].map(BYTES_PER_ELEMENT) * table["tokens"] * table["width"]
    table.insert(3, "bytes", size.astype(int))
    return table.sort_values(["op", "tokens", "width"]).reset_index(drop=True).round({"us": 3})


def _step(steps: pd.DataFrame, run: str, trace: str, phase: str) -> pd.Series | None:
    """Return tokens, requests and mean context of the profiled steps, None where they differ."""
    known = steps[(steps["run"] == run) & (steps["trace"] == trace)]
    known = known[(known["n_prefill"] > 0) == (phase == "prefill")]
    tokens = known["prefill_tokens"] + known["n_decode"]
    if tokens.nunique() != 1:
        return None
    requests = known["n_prefill"] + known["n_decode"]
    context = known["decode_context"].mean() / max(known["n_decode"].max(), 1) + 1
    return pd.Series({"tokens": tokens.iloc[0], "requests": requests.iloc[0], "context": context})


def attention_extra(
    traces: pd.DataFrame, steps: pd.DataFrame, kernels: KernelModel
) -> pd.DataFrame:
    """Return decode attention with its merge beyond the kernel table: sequences, seconds."""
    found = {}
    for (run, trace, phase), part in traces.groupby(["run", "trace", "kind"], sort=False):
        step = _step(steps, str(run), str(trace), str(phase))
        if phase != "decode" or step is None:
            continue
        model = load_model(MODELS[str(run)])
        calls = part.loc[part["kernel"].map(kind) == "attention", "us"]
        inside = (calls.sum() / model.layers + 2 * GAP_US) * 1e-6
        kv = "fp8" if run == "llama8b_fp8" else "bf16"
        layout = (model.heads, model.kv_heads, model.head_dim, kv)
        alone = float(kernels.attention_decode(step["requests"], step["context"], *layout))
        found[f"{run} {trace}"] = (step["requests"], inside - alone)
    return pd.DataFrame(found, index=["sequences", "s"]).T


def beside_prompts(batches: pd.DataFrame) -> pd.DataFrame:
    """Return what decoding takes in calls that hold a prompt chunk as well, without the chunk.

    Parameters
    ----------
    batches : DataFrame
        `attention_mixed_fp8.csv` of ``mixed_extra.py``. Kept: an fp8 cache, even contexts, and
        chunks with nothing cached that were timed alone too.

    Returns
    -------
    DataFrame
        Columns of the traces ``attention_beside_fp8``.
    """
    even = batches[(batches["scheduled"] == 1) & (batches["spread"] == "uniform")]
    narrow = even[(even["kv_dtype"] == "fp8") & (even["past"] == 0) & (even["chunk"] > 0)]
    by = [*LAYOUT, "chunk"]
    alone = narrow[narrow["decodes"] == 0][[*by, "us"]]
    both = narrow[narrow["decodes"] > 0].merge(alone, on=by, suffixes=("", "_alone"))
    both = both.assign(us=(both["us"] - both["us_alone"]).round(3))
    renames = {"decodes": "batch", "chunk": "q_len"}
    return both.rename(columns=renames)[[*LAYOUT, "batch", "context", "q_len", "us"]]


def _write(table: pd.DataFrame, name: str) -> None:
    with atomic_write(TRACES / f"{name}.csv.gz") as temporary:
        text = table.to_csv(index=False, lineterminator="\n")
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


def _profiled(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels of a folder's profiled steps, and the steps."""
    columns = ("run", "trace", "kind", "kernel", "us")
    traces = read_table(folder / "kernel_traces.csv.gz", columns, ("steps", "position", "start_us"))
    return traces, pd.read_csv(folder / "traced_steps.csv.gz")


def main() -> int:
    """Write the traces and the profile; print what was found."""
    traces, steps = _profiled(DATA)
    table = pd.concat([compiled_kernels(traces, steps), compiled_kernels(*_profiled(LATER))])
    table = table.sort_values(["op", "tokens", "width"]).reset_index(drop=True)
    _write(table, "elementwise_engine")
    _write(beside_prompts(pd.read_csv(MIXED)), "attention_beside_fp8")
    extra = attention_extra(traces, steps, load_kernels(load_accelerator("h200-sxm")))
    slope, start, _, _ = theilslopes(extra["s"], extra["sequences"])
    basis = f"{len(extra)} profiles of decode steps, robust line through sequences"
    fitted = [
        Fitted("gpu", "attention_per_layer", float(start), basis),
        Fitted("gpu", "attention_per_sequence", float(slope), basis),
    ]
    for path in engines.paths.values():
        write_profile(path, path, fitted, "H200 profiles", "validation.fit_kernels")
    extra["s"] *= 1e6
    sys.stdout.write(f"{table.to_string()}\n{extra.round(2).to_string()}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
