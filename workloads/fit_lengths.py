"""Fitting of length distributions to traces: ``python -m workloads.fit_lengths TRACES OUT``.

Every file of ``data/lengths`` whose kind is "fitted" is made here, from the public traces named
in it; nothing in those files is written by hand.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from formats import InputError, atomic_write
from workloads.distributions import Quantiles
from workloads.lengths import Lengths, length_statistics
from workloads.servegen import read_length_histograms, sample_histograms
from workloads.toml_text import to_toml
from workloads.traces import read_trace

__all__ = ["PROBABILITIES", "fit_lengths", "fit_quantiles", "fit_ranks", "write_fits"]

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

    The last point is placed so that the mean of the longest lengths is kept: a straight line to
    the longest one would lie above a convex tail.

    Examples
    --------
    >>> fit_quantiles([10, 20, 30], np.array([0, 0.5, 1])).tokens
    [10.0, 20.0, 30.0]
    """
    data = np.asarray(values, dtype=np.float64)
    tokens = np.quantile(data, probabilities)
    tail = np.quantile(data, np.linspace(probabilities[-2], 1, 4001)).mean()
    tokens[-1] = np.clip(2 * tail - tokens[-2], tokens[-2], tokens[-1])
    return Quantiles(
        probabilities=probabilities.tolist(),
        tokens=np.round(tokens, 1).tolist(),
        min_tokens=1,
        max_tokens=max(float(data.max()), 1.0),
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
        Lengths in tokens.
    image : array_like, shape (n,), optional
        Image tokens among those of the prompt.
    ranks : int
        Rows and columns of the tables of joint ranks; 1 for independence.
    **text : str
        name, description, source and licence.
    """
    share = None if image is None else np.asarray(image) / np.asarray(prompt)
    return Lengths(
        kind="fitted",
        prompt=fit_quantiles(prompt),
        output=fit_quantiles(output),
        output_ranks=fit_ranks(prompt, output, ranks),
        image_share=[] if share is None else _shares(share),
        image_ranks=[] if share is None else fit_ranks(prompt, share, ranks),
        statistics=length_statistics(prompt, output),
        **text,
    )


def _shares(values: Floats) -> list[float]:
    return [float(x) for x in np.round(np.quantile(values, np.linspace(0, 1, 101)), 4)]


SERVEGEN_REQUESTS = 200_000


def _azure(folder: Path, which: str, longest: int | None = None, **text: str) -> Lengths:
    rows = read_trace(folder / f"azure2023_{which}.csv.gz")
    if longest:
        rows = rows[rows["prompt_tokens"] <= longest]
    source = f"Azure LLM inference trace 2023, {which}: github.com/Azure/AzurePublicDataset"
    return fit_lengths(
        rows["prompt_tokens"],
        rows["output_tokens"],
        None,
        RANKS,
        source=f"{source} at b469a113 (Patel et al., Splitwise, ISCA 2024)",
        licence="CC-BY-4.0, Microsoft Azure; fitted statistics of the trace",
        **text,
    )


def _trace(folder: Path, file: str, ranks: int, **text: str) -> Lengths:
    rows = read_trace(folder / file)
    return fit_lengths(rows["prompt_tokens"], rows["output_tokens"], None, ranks, **text)


def _servegen(folder: Path, which: str, with_images: bool, **text: str) -> Lengths:
    rows = read_length_histograms(folder / f"servegen_{which}_length_hist.csv.gz")
    fields = ["text_tokens", "image_tokens"] if with_images else ["input_tokens"]
    rng = np.random.default_rng(0)
    drawn = sample_histograms(rows, [*fields, "output_tokens"], SERVEGEN_REQUESTS, rng)
    prompt = np.maximum(np.sum([drawn[f] for f in fields], axis=0), 1)
    return fit_lengths(
        prompt,
        np.maximum(drawn["output_tokens"], 1),
        drawn["image_tokens"] if with_images else None,
        RANKS,
        source=f"ServeGen, {which}: github.com/alibaba/ServeGen at f891d118 "
        "(length histograms of clients)",
        licence="Apache-2.0, Alibaba; fitted statistics of the histograms",
        **text,
    )


def _mooncake(folder: Path, which: str, **text: str) -> Lengths:
    return _trace(
        folder,
        f"mooncake_{which}_trace.jsonl.gz",
        RANKS,
        source=f"Mooncake {which} trace: github.com/kvcache-ai/Mooncake at 3b5a5941 "
        "(Qin et al., FAST 2025)",
        licence="Apache-2.0, Moonshot AI; fitted statistics of the trace",
        **text,
    )


FITS: dict[str, Callable[[Path], Lengths]] = {
    "azure-conv": lambda folder: _azure(
        folder,
        "conv",
        name="Azure 2023 conversation",
        description="One hour of a chat service, November 2023.",
    ),
    "azure-code": lambda folder: _azure(
        folder,
        "code",
        name="Azure 2023 code",
        description="One hour of a code completion service, November 2023.",
    ),
    "code-completion": lambda folder: _azure(
        folder,
        "code",
        2048,
        name="Code completion",
        description="The requests of azure-code whose prompt fits an editor's 2,048 tokens.",
    ),
    "sharegpt": lambda folder: _trace(
        folder,
        "llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl.gz",
        4,
        name="ShareGPT-like chat",
        description="300 ShareGPT prompts with the answers of Llama-3.1-8B, as LLMServingSim "
        "replays them; few and long answers.",
        source="LLMServingSim workload sharegpt-llama-3.1-8b-300: "
        "github.com/casys-kaist/LLMServingSim at 5daddb21",
        licence="MIT, KAIST CASYS; fitted statistics of the workload",
    ),
    "reasoning": lambda folder: _servegen(
        folder,
        "reason_deepseek-r1",
        False,
        name="Reasoning",
        description="One day of DeepSeek-R1: outputs are thoughts and answer, with a long tail.",
    ),
    "image-questions": lambda folder: _servegen(
        folder,
        "multimodal_mm-image",
        True,
        name="Questions about images",
        description="One day of an image-and-text model; prompts are text and image tokens.",
    ),
    "batch-labelling": lambda folder: _servegen(
        folder,
        "language_m-small",
        False,
        name="Labelling in bulk",
        description="Short prompts and answers of a small model used through an API, two weeks; "
        "the clients whose histograms are published, 43 % of the rate.",
    ),
    "mooncake-conversation": lambda folder: _mooncake(
        folder,
        "conversation",
        name="Mooncake conversation",
        description="One hour of a long-context chat service.",
    ),
    "mooncake-synthetic": lambda folder: _mooncake(
        folder,
        "synthetic",
        name="Mooncake synthetic",
        description="Long-context benchmarks put together by Mooncake's authors.",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Fit every distribution of `FITS` and write its file; return the exit code."""
    return write_fits(FITS, "lengths", arguments)


def write_fits(
    fits: Mapping[str, Callable[[Path], BaseModel]], noun: str, arguments: list[str] | None
) -> int:
    """Fit every entry and write its file; return the exit code.

    Parameters
    ----------
    fits : mapping
        Name -> function of the folder of traces.
    noun : str
        What they are: the folder under ``workloads/data``.
    arguments : list of str or None
        Folder of traces, folder to write; None = the command line.
    """
    parser = argparse.ArgumentParser(description=f"Fit named {noun} to public traces.")
    parser.add_argument("traces", type=Path, help="folder of the public traces")
    parser.add_argument("out", type=Path, help=f"folder to write, such as workloads/data/{noun}")
    chosen = parser.parse_args(arguments)
    try:
        for name, fit in fits.items():
            text = to_toml(fit(chosen.traces))
            with atomic_write(chosen.out / f"{name}.toml") as temporary:
                temporary.write_text(text, encoding="utf-8")
    except InputError as e:
        sys.stderr.write(f"{e}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
