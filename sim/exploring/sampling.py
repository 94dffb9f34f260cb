"""How far a figure of one run may lie off by chance: batch means, after warm-up is left out.

The requests in order of arrival, those of the warm-up left out by MSER-5 (`sim.metrics.window`),
are cut into at most `BATCHES` batches of at least `FEWEST` requests; the figure of each batch
(mean, percentile, or tokens over the time that the batch spans) scatters about that of the run.
With n batches the half-width from P50 to P90 is t(0.9, n - 1) s / sqrt(n), s the standard
deviation of their logarithms (A. M. Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.stats import t as student

from sim.metrics.window import in_system, mser

__all__ = ["BATCHES", "FEWEST", "batches_of", "sampling_error"]

BATCHES, FEWEST = 20, 10
COLUMNS = ("arrival_s", "first_token_s", "finish_s", "output_tokens")
Batch = pd.DataFrame


def _ttft(batch: Batch) -> "pd.Series[float]":
    return batch["first_token_s"] - batch["arrival_s"]


def _tpot(batch: Batch) -> "pd.Series[float]":
    spread = batch["finish_s"] - batch["first_token_s"]
    return (spread / (batch["output_tokens"] - 1))[batch["output_tokens"] > 1]


def _e2e(batch: Batch) -> "pd.Series[float]":
    return batch["finish_s"] - batch["arrival_s"]


_VALUES: dict[str, Callable[[Batch], "pd.Series[float]"]] = {
    "ttft": _ttft,
    "tpot": _tpot,
    "e2e": _e2e,
}


def sampling_error(batches: Sequence[Batch], figure: str) -> float:
    """Return the half-width of a latency's log error by chance, 0 where it is not known [1].

    Parameters
    ----------
    batches : sequence of DataFrame
        From `batches_of`.
    figure : str
        Such as ttft_mean_s or e2e_p99_s; rates and power follow from what was asked and have 0.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> first = np.arange(400.0) + random.exponential(1.0, 400)
    >>> table = pd.DataFrame({"arrival_s": np.arange(400.0), "first_token_s": first})
    >>> table["finish_s"], table["output_tokens"] = first + 1, 2
    >>> 0.03 < sampling_error(batches_of(table), "ttft_mean_s") < 0.11  # 1.28 / sqrt(400) = 0.064
    True
    """
    name, _, rest = figure.partition("_")
    statistic = _statistic(rest)
    if name not in _VALUES or statistic is None:
        return 0.0
    values = [statistic(_VALUES[name](batch).dropna()) for batch in batches]
    logs = np.log([v for v in values if np.isfinite(v) and v > 0])
    if logs.size < 3:
        return 0.0
    return float(student.ppf(0.9, logs.size - 1) * logs.std(ddof=1) / np.sqrt(logs.size))


def _statistic(rest: str) -> Callable[["pd.Series[float]"], float] | None:
    if rest == "mean_s":
        return lambda values: float(values.mean())
    if rest.startswith("p") and rest[1:-2].isdigit():
        share = int(rest[1:-2]) / 100
        return lambda values: float(values.quantile(share))
    return None


def batches_of(requests: pd.DataFrame) -> list[Batch]:
    """Return the requests of a run after its warm-up, in batches by order of arrival.

    Parameters
    ----------
    requests : DataFrame
        Requests of a run: arrival_s, first_token_s, finish_s, output_tokens.

    Returns
    -------
    list of DataFrame
        Empty where there are fewer than `FEWEST` requests.
    """
    table = requests.sort_values("arrival_s", kind="stable")[list(COLUMNS)]
    table = table.iloc[mser(in_system(table)) :]
    count = min(BATCHES, len(table) // FEWEST)
    if not count:
        return []
    edges = np.linspace(0, len(table), count + 1).astype(int)
    return [table.iloc[start:end] for start, end in pairwise(edges)]
