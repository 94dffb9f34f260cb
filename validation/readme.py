"""The accuracy block of README.md: ``python -m validation.readme`` makes it anew.

Replays every measured workload, keeps predicted and measured (`STORED`), and writes the block
between the markers from what is kept (with ``--kept`` the block alone). A test holds the block
against the kept figures, and the kept figures against a replay of some workloads.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import pandas as pd

from formats import atomic_write, read_text
from validation import SEEDS
from validation.cases import Selection, select
from validation.kept import band_coverage, transfer_errors
from validation.kept_fleets import left_out_errors
from validation.measured import all_runs
from validation.serving import compare, replay
from validation.text import TextTable, percent
from validation.words import markdown_table, medians_table

__all__ = ["STORED", "block", "in_readme", "kept", "main"]

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).parent / "data" / "serving.csv"
"""Predicted and measured figures of every workload, rows of `validation.serving.compare`."""
START, END = "<!-- accuracy -->", "<!-- /accuracy -->"
LEFT_OUT = {
    "gemm_bf16": "GEMM bf16",
    "gemm_fp8": "GEMM fp8 with quantisation",
    "attention_decode": "decode attention",
    "attention_prefill": "prefill attention",
}
"""Family -> its words, of accelerators left out."""
FITTED = (
    "What was fitted on what. Kernel times: H200 traces of kernels alone. Host times of the engine "
    "profile: half of the logs of the first machine's runs (`validation/fit_engine.py`). Clock and "
    "power: the same training logs (`validation/fit_clock.py`); the form of the power window was "
    "chosen with the error of one other workload (`conv_r24`) in view. "
    "Other machines: one number, the speed of their host (`host_slowness`), from half of their "
    "logs. Fresh runs: nothing; they were committed before any prediction of them was made. "
    "AISimulate's workloads are not all the same ones."
)


def kept() -> pd.DataFrame:
    """Return the figures as they were last computed."""
    return pd.read_csv(STORED, comment="#")


def block() -> str:
    """Return the block from the kept figures."""
    parts = [FITTED, markdown_table(medians_table(kept())), markdown_table(_others())]
    return "\n\n".join(parts)


def _others() -> TextTable:
    """Return what is known beside serving: accelerators left out, and whether bands hold."""
    left, bands = transfer_errors(), band_coverage()
    rows = []
    for family, label in LEFT_OUT.items():
        part = left.loc[left["family"] == family, "median"]
        span = f"{percent(part.min(), sign=False)} .. {percent(part.max(), sign=False)}"
        rows.append([f"{label}, each of {len(part)} GPUs predicted from its datasheet", span])
    tpot = left_out_errors()
    whole = tpot.loc[tpot["backend"] == "all", "median"]
    span = f"{percent(whole.min(), sign=False)} .. {percent(whole.max(), sign=False)}"
    rows.append([f"Llama TPOT, each of {len(whole)} GPUs with the kernels of the others", span])
    for name, words in (
        ("own", "streams on H200"),
        ("fresh", "fresh H200 runs"),
        ("kernels", "kernels"),
    ):
        judged = bands[bands["family"] == name]
        if len(judged):
            held = float((judged["coverage"] * judged["cases"]).sum() / judged["cases"].sum())
            count = f"{int(judged['cases'].sum()):,}"
            rows.append(
                [f"80 % bands that held, {words}, {count} cases", percent(held, sign=False)]
            )
    about = "Beside serving: median errors of kernels, and how often bands held."
    return TextTable("Beside serving", about, ["what", "found"], rows)


def in_readme() -> str:
    """Return the block that README.md holds."""
    text = read_text(ROOT / "README.md")
    return text[text.index(START) + len(START) : text.index(END)].strip()


def _compared(names: tuple[str, str]) -> pd.DataFrame:
    run = all_runs()[names[0]]
    workload = run[names[1]]
    results = replay(run, workload, range(SEEDS))
    return compare(workload, results, run.scenario.model.weights or "bf16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay everything, keep the figures, write the block."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", action="store_true", help="write the block from kept figures")
    if not parser.parse_args(arguments).kept:
        _keep()
    readme, whole = ROOT / "README.md", f"{START}\n{block()}\n{END}"
    new = re.sub(f"{START}.*{END}", lambda _: whole, read_text(readme), flags=re.DOTALL)
    with atomic_write(readme) as path:
        path.write_text(new, encoding="utf-8")
    sys.stdout.write(f"{block()}\n")
    return 0


def _keep() -> None:
    """Replay every workload and keep what was predicted and measured."""
    names = [(run.name, workload.name) for run, workload in select(Selection())]
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(_compared, names))
    table = pd.concat([r for r in rows if len(r)], ignore_index=True)
    with atomic_write(STORED) as path:
        about = f"# Made by `python -m validation.readme` on {date.today().isoformat()}.\n"
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        path.write_text(about + text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
