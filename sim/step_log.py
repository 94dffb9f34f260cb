"""Reading the step log: when its rows begin, and what happens in equal parts of the time."""

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["binned", "even_edges", "with_spans"]

Floats = npt.NDArray[np.float64]


def with_spans(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the step log with ``begin_s`` and ``span_s`` [s].

    A row begins when its first batch is formed or when the row before it on the same replica
    leaves the GPU, whichever is later, and ends when its last step leaves the GPU.

    Examples
    --------
    >>> rows = pd.DataFrame({"replica": [0, 0], "schedule_s": [0.0, 0.1], "output_s": [0.3, 0.7]})
    >>> with_spans(rows)["span_s"].round(6).tolist()
    [0.3, 0.4]
    """
    before = steps.groupby("replica", sort=False)["output_s"].shift(fill_value=0.0)
    begin = np.maximum(before, steps["schedule_s"])
    return steps.assign(begin_s=begin, span_s=(steps["output_s"] - begin).clip(lower=1e-12))


def even_edges(start_s: float, end_s: float, bins: int) -> Floats:
    """Return the edges of `bins` equal parts of a time [s], shape (bins + 1,)."""
    return np.linspace(start_s, max(end_s, start_s + 1e-9), bins + 1)


def binned(spans: pd.DataFrame, amounts: npt.ArrayLike, edges: Floats) -> Floats:
    """Return how much of an amount falls into each bin, summed over replicas, shape (bins,).

    Parameters
    ----------
    spans : DataFrame
        As `with_spans` returns it.
    amounts : array_like, shape (rows,)
        What each row does in all (tokens, joules, seconds); spread evenly over its span.
    edges : ndarray, shape (bins + 1,)
        Edges of the bins, rising [s].

    Examples
    --------
    >>> rows = pd.DataFrame({"replica": [0], "schedule_s": [0.0], "output_s": [4.0]})
    >>> binned(with_spans(rows), [8.0], np.array([0.0, 1.0, 4.0, 9.0])).tolist()
    [2.0, 6.0, 0.0]
    """
    total = np.zeros(edges.size - 1)
    table = spans[["replica", "begin_s", "output_s"]].assign(amount=np.asarray(amounts))
    for _, part in table.groupby("replica", sort=True):
        times = part[["begin_s", "output_s"]].to_numpy(np.float64).ravel()
        done = np.cumsum(part["amount"].to_numpy(np.float64))
        steps = np.column_stack([np.concatenate([[0.0], done[:-1]]), done]).ravel()
        total += np.diff(np.interp(edges, times, steps))
    return total
