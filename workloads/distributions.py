"""Distributions of one whole number of tokens, each by its quantile function.

Sampling by quantiles keeps draws aligned: a changed distribution sees the same random numbers.
"""

from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from scipy import special

__all__ = [
    "MAX_TOKENS",
    "Choice",
    "Constant",
    "Gamma",
    "Histogram",
    "Lognormal",
    "Marginal",
    "Quantiles",
    "Strict",
    "Uniform",
]

Floats = npt.NDArray[np.float64]
MAX_TOKENS = 100_000_000
Tokens = Annotated[FiniteFloat, Field(ge=0, le=MAX_TOKENS)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=MAX_TOKENS)]


class Strict(BaseModel):
    """Base of the parts of a file: unknown keys are refused, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Constant(Strict):
    """Every request has the same length.

    Examples
    --------
    >>> Constant(tokens=128).inverse(np.array([0.1, 0.9])).tolist()
    [128.0, 128.0]
    """

    kind: Literal["constant"] = "constant"
    tokens: Tokens = Field(description="the length [token]")

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        return np.full(u.shape, self.tokens)


class Uniform(Strict):
    """Every whole length from low to high is equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: Tokens = Field(description="smallest length [token]")
    high: Tokens = Field(description="largest length [token]")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high = {self.high:g} is below low = {self.low:g}")
        return self

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        return np.minimum(np.floor(self.low + u * (self.high - self.low + 1)), self.high)


class _Clipped(Strict):
    min_tokens: Tokens = Field(default=1, description="shorter lengths become this [token]")
    max_tokens: Positive = Field(default=1_000_000, description="longer ones become this [token]")

    @model_validator(mode="after")
    def _clips(self) -> Self:
        if self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens = {self.max_tokens:g} is below min_tokens")
        return self

    def clip(self, tokens: Floats) -> Floats:
        """Return lengths inside the limits."""
        return np.clip(tokens, self.min_tokens, self.max_tokens)


class Lognormal(_Clipped):
    """Lengths whose logarithm is normal: ``ln L ~ N(ln median, sigma^2)``.

    Examples
    --------
    >>> Lognormal(median=1000, sigma=0.5).inverse(np.array([0.5]))
    array([1000.])
    """

    kind: Literal["lognormal"] = "lognormal"
    median: Positive = Field(description="half of the lengths are shorter [token]")
    sigma: Annotated[FiniteFloat, Field(ge=0, le=10)] = Field(
        description="standard deviation of the natural logarithm of the length [1]"
    )

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        return self.clip(self.median * np.exp(self.sigma * special.ndtri(u)))


class Gamma(_Clipped):
    """Gamma-distributed lengths, by mean and coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    mean: Positive = Field(description="mean length [token]")
    cv: Annotated[FiniteFloat, Field(ge=0.001, le=20)] = Field(
        description="standard deviation over mean [1]"
    )

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        shape = self.cv**-2.0
        return self.clip(special.gammaincinv(shape, u) * self.mean / shape)


class Quantiles(_Clipped):
    """Lengths by a table of quantiles, linear between its points.

    Examples
    --------
    >>> table = Quantiles(probabilities=[0, 0.5, 1], tokens=[10, 20, 100])
    >>> table.inverse(np.array([0.25, 0.75])).tolist()
    [15.0, 60.0]
    """

    kind: Literal["quantiles"] = "quantiles"
    probabilities: list[Annotated[FiniteFloat, Field(ge=0, le=1)]] = Field(
        min_length=2, max_length=4096, description="rising from 0 to 1 [1]"
    )
    tokens: list[Tokens] = Field(
        min_length=2, max_length=4096, description="length at each probability [token]"
    )

    @model_validator(mode="after")
    def _table(self) -> Self:
        p, t = np.array(self.probabilities), np.array(self.tokens)
        if len(p) != len(t):
            raise ValueError(f"{len(p)} probabilities for {len(t)} tokens")
        if p[0] != 0 or p[-1] != 1 or (np.diff(p) <= 0).any():
            raise ValueError("probabilities must rise from 0 to 1")
        if (np.diff(t) < 0).any():
            raise ValueError("tokens must not fall")
        return self

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        return self.clip(np.interp(u, self.probabilities, self.tokens))


class Histogram(_Clipped):
    """Lengths by a histogram, every whole length inside a bin equally likely."""

    kind: Literal["histogram"] = "histogram"
    edges: list[Tokens] = Field(
        min_length=2, max_length=4096, description="bin k holds edges[k] to edges[k+1] - 1 [token]"
    )
    weights: list[Annotated[FiniteFloat, Field(ge=0)]] = Field(
        min_length=1, max_length=4095, description="relative frequency of each bin [1]"
    )

    @model_validator(mode="after")
    def _bins(self) -> Self:
        if len(self.edges) != len(self.weights) + 1:
            raise ValueError(f"{len(self.weights)} weights need {len(self.weights) + 1} edges")
        if (np.diff(self.edges) <= 0).any():
            raise ValueError("edges must rise")
        if not 0 < sum(self.weights) < np.inf:
            raise ValueError("weights must have a positive, finite sum")
        return self

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        weights = np.array(self.weights)
        used = weights > 0
        edges = np.array(self.edges)
        low, high = edges[:-1][used], edges[1:][used]
        cumulative = np.append(0.0, np.cumsum(weights[used] / weights.sum()))
        k = np.clip(np.searchsorted(cumulative, u, side="right") - 1, 0, len(low) - 1)
        share = (u - cumulative[k]) / np.diff(cumulative)[k]
        last = np.maximum(np.ceil(high[k]) - 1, low[k])
        return self.clip(np.minimum(np.floor(low[k] + share * (high[k] - low[k])), last))


class Choice(_Clipped):
    """A choice of fixed lengths, each with its own frequency."""

    kind: Literal["choice"] = "choice"
    tokens: list[Tokens] = Field(
        min_length=1, max_length=4096, description="the possible lengths, rising [token]"
    )
    weights: list[Annotated[FiniteFloat, Field(gt=0)]] = Field(
        min_length=1, max_length=4096, description="relative frequency of each length [1]"
    )

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.tokens) != len(self.weights):
            raise ValueError(f"{len(self.weights)} weights for {len(self.tokens)} tokens")
        if (np.diff(self.tokens) <= 0).any():
            raise ValueError("tokens must rise")
        return self

    def inverse(self, u: Floats) -> Floats:
        """Return the quantile function at probabilities `u`, in tokens."""
        cumulative = np.cumsum(self.weights) / np.sum(self.weights)
        k = np.minimum(np.searchsorted(cumulative, u, side="right"), len(self.tokens) - 1)
        return self.clip(np.array(self.tokens)[k])


Marginal = Annotated[
    Constant | Uniform | Lognormal | Gamma | Quantiles | Histogram | Choice,
    Field(discriminator="kind"),
]
