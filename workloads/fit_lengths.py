"""Fitting of length distributions to traces: ``python -m workloads.fit_lengths TRACES OUT``.

Every file of ``data/lengths`` whose kind is "fitted" is made here, from the public traces named
in it; nothing in those files is written by hand.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError, atomic_write
from workloads.distributions import Quantiles
from workloads.lengths import Lengths, length_statistics

__all__ = ["PROBABILITIES", "fit_lengths", "fit_quantiles", "fit_ranks"]

Floats = npt.NDArray[np.float64]
RANKS = 16
PROBABILITIES: Floats = np.unique(
    np.round(
        np.concatenate(
            [np.arange(0, 101) / 100, [0.002, 0.005, 0.993, 0.995, 0.997, 0.998, 0.999, 0.9995]]
        ),
        4,
    )
)


def fit_quantiles(values: npt.ArrayLike, probabilities: Floats = PROBABILITIES) -> Quantiles:
    """Return the table of quantiles of observed lengths.

    Examples
    --------
    >>> fit_quantiles([10, 20, 30], np.array([0, 0.5, 1])).tokens
    [10.0, 20.0, 30.0]
    """
    data = np.asarray(values, dtype=np.float64)
    tokens = np.round(np.quantile(data, probabilities), 1).tolist()
    top = max(float(data.max()), 1.0)
    return Quantiles(
        probabilities=probabilities.tolist(), tokens=tokens, min_tokens=0, max_tokens=top
    )


def fit_ranks(first: npt.ArrayLike, other: npt.ArrayLike, ranks: int = RANKS) -> list[list[int]]:
    """Return how often the ranks of two lengths meet, as weights out of 1,000 for each row.

    Ties are split by a fixed random order, so that every row and column weighs the same.
    """
    rows, columns = _rank_cells(first, ranks, 1), _rank_cells(other, ranks, 2)
    counts = np.zeros((ranks, ranks))
    np.add.at(counts, (rows, columns), 1.0)
    shares = np.rint(1000 * counts / counts.sum(axis=1, keepdims=True)).astype(int)
    return [[int(x) for x in row] for row in shares]


def _rank_cells(values: npt.ArrayLike, ranks: int, seed: int) -> npt.NDArray[np.int64]:
    data = np.asarray(values)
    order = np.lexsort((np.random.default_rng(seed).random(data.size), data))
    cells = np.empty(data.size, dtype=np.int64)
    cells[order] = np.arange(data.size) * ranks // data.size
    return cells


def fit_lengths(
    prompt: npt.ArrayLike,
    output: npt.ArrayLike,
    image: npt.ArrayLike | None = None,
    ranks: int = RANKS,
    **text: str,
) -> Lengths:
    """Return the length distribution fitted to observed requests.

    Parameters
    ----------
    prompt, output : array_like, shape (n,)
        Lengths in tokens, the prompts without images.
    image : array_like, shape (n,), optional
        Image tokens of the prompts.
    ranks : int
        Rows and columns of the tables of joint ranks; 1 for independence.
    **text : str
        name, description, source and licence.
    """
    whole = np.asarray(prompt) + (0 if image is None else np.asarray(image))
    return Lengths(
        kind="fitted",
        prompt=fit_quantiles(prompt),
        output=fit_quantiles(output),
        image=None if image is None else fit_quantiles(image),
        output_ranks=fit_ranks(prompt, output, ranks),
        image_ranks=[] if image is None else fit_ranks(prompt, image, ranks),
        statistics=length_statistics(whole, output),
        **text,
    )


def _azure(folder: Path, which: str, name: str, what: str) -> Lengths:
    rows = pd.read_csv(folder / f"azure2023_{which}.csv.gz")
    return fit_lengths(
        rows["ContextTokens"],
        rows["GeneratedTokens"],
        name=name,
        description=what,
        source=f"Azure LLM inference trace 2023, {which}: github.com/Azure/AzurePublicDataset "
        "at b469a113 (Patel et al., Splitwise, ISCA 2024)",
        licence="CC-BY-4.0, Microsoft Azure; fitted statistics of the trace",
    )


FITS: dict[str, Callable[[Path], Lengths]] = {
    "azure-conv": lambda folder: _azure(
        folder, "conv", "Azure 2023 conversation", "One hour of a chat service, November 2023."
    ),
    "azure-code": lambda folder: _azure(
        folder, "code", "Azure 2023 code", "One hour of a code completion service, November 2023."
    ),
}


def to_toml(dist: Lengths) -> str:
    """Return the text of a file of ``data/lengths``."""
    lines: list[str] = []
    _table(dist.model_dump(exclude_none=True), "", lines)
    return "\n".join(lines) + "\n"


def _table(data: dict[str, Any], name: str, lines: list[str]) -> None:
    if name:
        lines += ["", f"[{name}]"]
    tables = {k: v for k, v in data.items() if isinstance(v, dict)}
    for key, value in data.items():
        if key not in tables and value not in ("", []):
            lines += _pair(key, value)
    for key, value in tables.items():
        _table(value, f"{name}.{key}" if name else key, lines)


def _pair(key: str, value: object) -> Iterator[str]:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        yield f'{key} = "{escaped}"'
    elif isinstance(value, list):
        yield f"{key} = ["
        rows = value if isinstance(value[0], list) else [value]
        for row in rows:
            inner = ", ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in row)
            text = f"[{inner}]," if rows is value else inner
            yield textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  ")
        yield "]"
    else:
        yield f"{key} = {value:.10g}" if isinstance(value, float) else f"{key} = {value}"


def main(arguments: list[str] | None = None) -> int:
    """Fit every distribution of `FITS` and write its file; return the exit code."""
    parser = argparse.ArgumentParser(description="Fit the named length distributions to traces.")
    parser.add_argument("traces", type=Path, help="folder of the public traces")
    parser.add_argument("out", type=Path, help="folder to write, such as workloads/data/lengths")
    chosen = parser.parse_args(arguments)
    try:
        for name, fit in FITS.items():
            text = to_toml(fit(chosen.traces))
            with atomic_write(chosen.out / f"{name}.toml") as temporary:
                temporary.write_text(text, encoding="utf-8")
    except InputError as e:
        sys.stderr.write(f"{e}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
