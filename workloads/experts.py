"""Which experts a batch of tokens touches, for even and for skewed routing."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from formats import InputError

__all__ = ["distinct_experts", "inclusion_probabilities", "zipf_popularity"]

Array: TypeAlias = npt.NDArray[np.float64]


def zipf_popularity(experts: int, exponent: float) -> Array:
    """Return normalised popularity of experts, rank r taken in proportion to r**-exponent.

    Parameters
    ----------
    experts : int
        Experts of a layer.
    exponent : float
        0 is uniform; at least 0.

    Returns
    -------
    ndarray, shape (experts,)
        Popularity, sum 1.

    Examples
    --------
    >>> zipf_popularity(2, 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    if experts < 1 or not exponent >= 0:
        what = f"experts = {experts}, exponent = {exponent}"
        raise InputError(what, "zipf_popularity", "experts >= 1, exponent >= 0")
    raw = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    return np.asarray(raw / raw.sum())


def inclusion_probabilities(popularity: npt.ArrayLike, top_k: int) -> Array:
    """Return the probability that a token takes each expert when it takes `top_k` distinct ones.

    Successive draws without replacement: p = 1 - exp(-t w) with t such that sum p = top_k
    (Rosén, "Asymptotic theory for successive sampling", Ann. Math. Stat. 43, 1972). Exact for
    equal popularity.

    Parameters
    ----------
    popularity : array_like, shape (experts,)
        Weights w, at least 0, not all 0.
    top_k : int
        Distinct experts of a token, at most the number of experts with a weight above 0.

    Returns
    -------
    ndarray, shape (experts,)
        Probabilities; they sum to `top_k`.

    Examples
    --------
    >>> inclusion_probabilities([1, 1, 1, 1], 2).round(3).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    w = np.asarray(popularity, dtype=np.float64)
    alive = int(np.count_nonzero(w > 0))
    if not 0 < top_k <= alive or (w < 0).any():
        raise InputError(f"top_k = {top_k} of {alive} experts", "popularity", "1 to experts")
    if top_k == alive:
        return (w > 0).astype(np.float64)
    return np.asarray(-np.expm1(-_solve(w / w.sum(), top_k) * w / w.sum()))


def _solve(w: Array, top_k: int) -> float:
    """Return t with sum(1 - exp(-t w)) = top_k, by doubling and then halving an interval."""
    low, high = 0.0, 1.0
    while -np.expm1(-high * w).sum() < top_k:
        low, high = high, 2.0 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        if -np.expm1(-middle * w).sum() < top_k:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def distinct_experts(
    experts: int, top_k: int, tokens: npt.ArrayLike, exponent: float = 0.0
) -> Array:
    """Return the expected number of distinct experts that a batch of tokens touches.

    Uniform routing: E (1 - (1 - k/E)^t); skewed: the sum of 1 - (1 - p_e)^t over experts, with
    p_e from `inclusion_probabilities`. Tokens are taken as independent.

    Parameters
    ----------
    experts, top_k : int
        Experts of a layer, and of a token.
    tokens : array_like
        Tokens t of the batch, any shape.
    exponent : float
        Zipf exponent of popularity; 0 is uniform.

    Returns
    -------
    ndarray
        Experts, in the shape of `tokens`, between min(top_k, ...) and `experts`.

    Examples
    --------
    >>> distinct_experts(128, 8, [0, 1, 32]).round(1).tolist()
    [0.0, 8.0, 111.8]
    """
    t = np.asarray(tokens, dtype=np.float64)
    if exponent == 0:
        p = np.full(1, top_k / experts)
        return np.asarray(experts * _touched(p, t)[..., 0])
    p = inclusion_probabilities(zipf_popularity(experts, exponent), top_k)
    return np.asarray(_touched(p, t).sum(axis=-1))


def _touched(p: Array, tokens: Array) -> Array:
    """Return 1 - (1 - p)^t for every pair, accurate for small p."""
    with np.errstate(divide="ignore", invalid="ignore"):
        power = tokens[..., None] * np.log1p(-p)
    power = np.where(tokens[..., None] == 0, 0.0, power)
    return np.asarray(0.0 - np.expm1(power))
