"""Lengths of prompts and outputs: their joint distribution, samples, and the named ones.

A length distribution is a prompt distribution, an output distribution, and how the two go
together: independent, by a rank correlation, or by a table of joint ranks. The named ones are
statistics fitted to public traces, one TOML file each.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, model_validator
from scipy import special

from formats import Catalog, Kind
from workloads.distributions import Marginal, Positive, Strict

__all__ = [
    "LengthStatistics",
    "Lengths",
    "describe_lengths",
    "length_distributions",
    "length_statistics",
    "load_lengths",
    "rank_correlation",
    "sample_columns",
    "sample_lengths",
    "user_folders",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
RankTable = Annotated[
    list[list[Annotated[int, Field(ge=0)]]],
    Field(
        max_length=64,
        description="weight of (row: prompt rank, column: other rank), ranks in equal steps [1]",
    ),
]


class LengthStatistics(Strict):
    """Statistics of the data that a distribution was fitted to, for comparison."""

    requests: int = Field(ge=1, description="how many requests the data holds [1]")
    prompt_mean: Positive = Field(description="mean prompt [token]")
    prompt_p50: Positive = Field(description="median prompt [token]")
    prompt_p95: Positive = Field(description="95th percentile of the prompts [token]")
    prompt_p99: Positive = Field(description="99th percentile of the prompts [token]")
    output_mean: Positive = Field(description="mean output [token]")
    output_p50: Positive = Field(description="median output [token]")
    output_p95: Positive = Field(description="95th percentile of the outputs [token]")
    output_p99: Positive = Field(description="99th percentile of the outputs [token]")
    rank_correlation: Annotated[FiniteFloat, Field(ge=-1, le=1)] = Field(
        description="Spearman correlation of prompt and output [1]"
    )


class Lengths(Strict):
    """A joint distribution of prompt and output lengths, and of image tokens in the prompt.

    Dependence is at most one of `rank_correlation` (a Gaussian copula) and `output_ranks` (a table
    of joint ranks, uniform inside its cells: it also holds dependence that rises and falls again).
    Image tokens are part of the prompt: `image_share` says which part.

    Examples
    --------
    >>> from workloads.distributions import Constant, Uniform
    >>> both = Lengths(prompt=Constant(tokens=512), output=Uniform(low=1, high=3))
    >>> prompt, output = sample_lengths(both, 3, np.random.default_rng(1))
    >>> prompt.tolist(), output.tolist()
    ([512, 512, 512], [3, 1, 2])
    """

    schema_version: Literal[1] = 1
    name: str = Field(default="", description="what it is called")
    description: str = Field(default="", description="which requests it describes")
    kind: Kind = Field(default="assumption", description="fitted, measured or assumption")
    source: str = Field(default="", description="where its numbers come from")
    licence: str = Field(default="", description="licence of that data, with the attribution")
    prompt: Marginal = Field(description="lengths of the prompts, with any images [token]")
    output: Marginal = Field(description="lengths of the outputs [token]")
    image_share: list[Annotated[FiniteFloat, Field(ge=0, le=1)]] = Field(
        default_factory=list,
        max_length=4096,
        description="image part of a prompt, at equal steps of probability from 0 to 1 [1]",
    )
    rank_correlation: Annotated[FiniteFloat, Field(gt=-1, lt=1)] = Field(
        default=0.0, description="Spearman correlation of prompt and output [1]"
    )
    output_ranks: RankTable = Field(default_factory=list)
    image_ranks: RankTable = Field(default_factory=list)
    statistics: LengthStatistics | None = Field(default=None, description="of the data [token]")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rank_correlation and self.output_ranks:
            raise ValueError("give rank_correlation or output_ranks, not both")
        if self.image_ranks and not self.image_share:
            raise ValueError("image_ranks needs image_share")
        if any(b < a for a, b in pairwise(self.image_share)):
            raise ValueError("image_share must not fall")
        for table in (self.output_ranks, self.image_ranks):
            _check_ranks(table)
        return self


def _check_ranks(table: list[list[int]]) -> None:
    if table and ({len(row) for row in table} != {len(table)} or not all(map(any, table))):
        raise ValueError("a table of ranks must be square, with a positive weight in every row")


def sample_lengths(dist: Lengths, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw `n` pairs of prompt and output lengths.

    Parameters
    ----------
    dist : Lengths
        The distribution.
    n : int
        How many.
    rng : numpy.random.Generator
        The stream of lengths. The prompts drawn do not depend on the kind of dependence.

    Returns
    -------
    prompt, output : arrays of int64, shape (n,)
        At least 1 token each.
    """
    columns = sample_columns(dist, n, rng)
    return columns["prompt_tokens"], columns["output_tokens"]


def sample_columns(dist: Lengths, n: int, rng: np.random.Generator) -> dict[str, Ints]:
    """Draw the length columns of a requests table: prompt, output and, if any, image tokens.

    Returns
    -------
    dict of str to array of int64, shape (n,)
        ``prompt_tokens``, ``output_tokens`` and perhaps ``image_tokens``.
    """
    u, v, w = rng.random(n), rng.random(n), rng.random(n)
    return _columns(dist, u, v, w)


def _columns(dist: Lengths, u: Floats, v: Floats, w: Floats) -> dict[str, Ints]:
    prompt = _whole(dist.prompt.inverse(u), 1)
    output = _whole(dist.output.inverse(_dependent(u, v, dist)), 1)
    columns = {"prompt_tokens": prompt, "output_tokens": output}
    if dist.image_share:
        rank = _by_ranks(u, w, dist.image_ranks)
        share = np.interp(rank, np.linspace(0, 1, len(dist.image_share)), dist.image_share)
        columns["image_tokens"] = np.minimum(_whole(share * prompt, 0), prompt)
    return columns


def _whole(tokens: Floats, least: int) -> Ints:
    return np.maximum(np.rint(tokens), least).astype(np.int64)


def _dependent(u: Floats, v: Floats, dist: Lengths) -> Floats:
    if dist.rank_correlation:
        rho = 2 * np.sin(np.pi * dist.rank_correlation / 6)  # Pearson's rho of the normal scores
        mixed = rho * special.ndtri(u) + np.sqrt(1 - rho**2) * special.ndtri(v)
        return np.asarray(special.ndtr(mixed))
    return _by_ranks(u, v, dist.output_ranks)


def _by_ranks(u: Floats, v: Floats, table: list[list[int]]) -> Floats:
    """Turn independent uniform `v` into ranks that depend on the ranks `u` as the table says."""
    if not table:
        return v
    weights = np.array(table, dtype=np.float64)
    k = len(weights)
    cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    row = np.minimum((u * k).astype(np.int64), k - 1)
    flat = (cumulative + np.arange(k)[:, None]).ravel()
    cell = np.clip(np.searchsorted(flat, row + v, side="right"), row * k, row * k + k - 1)
    below = np.where(cell % k == 0, 0.0, flat[cell - 1] - row)
    width = np.maximum(flat[cell] - row - below, 1e-12)
    return np.clip((cell % k + (v - below) / width) / k, 0.0, 1.0)


def describe_lengths(dist: Lengths, points: int = 50_000) -> LengthStatistics:
    """Return means, percentiles and rank correlation of a distribution.

    Parameters
    ----------
    dist : Lengths
        The distribution.
    points : int
        Points of the quasi-random grid; the error of a mean falls about as 1 / points.

    Examples
    --------
    >>> from workloads.distributions import Constant, Uniform
    >>> d = Lengths(prompt=Uniform(low=1, high=9), output=Constant(tokens=2))
    >>> round(describe_lengths(d).prompt_mean, 2)
    5.0
    """
    i = np.arange(points, dtype=np.float64) + 0.5
    v, w = (i * 0.6180339887498949) % 1.0, (i * 0.7548776662466927) % 1.0  # Kronecker sequences
    drawn = _columns(dist, i / points, v, w)
    return length_statistics(drawn["prompt_tokens"], drawn["output_tokens"])


def length_statistics(prompt: npt.ArrayLike, output: npt.ArrayLike) -> LengthStatistics:
    """Return the statistics of observed lengths in tokens."""
    found: dict[str, float] = {}
    for name, values in (("prompt", np.asarray(prompt)), ("output", np.asarray(output))):
        found[f"{name}_mean"] = float(values.mean())
        for percent in (50, 95, 99):
            found[f"{name}_p{percent}"] = float(np.percentile(values, percent))
    rank = rank_correlation(prompt, output)
    return LengthStatistics(requests=np.size(prompt), rank_correlation=rank, **found)


def rank_correlation(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation; 0 where one of the two does not vary.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [10, 20, 40])
    1.0
    """
    x, y = _ranks(np.asarray(a)), _ranks(np.asarray(b))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))


def _ranks(values: npt.NDArray[np.float64]) -> Floats:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[index]


def user_folders(kind: str) -> list[Path]:
    """Return the folders of one kind named by the environment variable ROOFCAST_CATALOG."""
    named = os.environ.get("ROOFCAST_CATALOG", "").split(os.pathsep)
    return [Path(folder) / kind for folder in named if folder]


length_distributions: Catalog[Lengths] = Catalog(
    "length distribution",
    Lengths,
    [Path(__file__).parent / "data" / "lengths", *user_folders("lengths")],
)


def load_lengths(choice: "str | Lengths") -> Lengths:
    """Return a length distribution by name, from a path that ends in .toml, or as it is.

    Raises
    ------
    InputError
        No such distribution, or its file is bad.

    Examples
    --------
    >>> load_lengths("azure-conv").name
    'Azure 2023 conversation'
    """
    return choice if isinstance(choice, Lengths) else length_distributions.load(choice)
