"""ServeGen's description of loads: rates of clients by window, and histograms of lengths.

ServeGen (Alibaba, Apache-2.0, github.com/alibaba/ServeGen) decomposes a load into clients, each
with a rate and a burstiness in every window of ten minutes, and with histograms of its lengths.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError, did_you_mean, read_table, read_text

__all__ = ["WINDOW_S", "read_client_rates", "read_length_histograms", "sample_histograms"]

Floats = npt.NDArray[np.float64]
WINDOW_S = 600.0
RATE_COLUMNS = {
    "client_id": (0, 1e9),
    "window_start_s": (0, 1e9),
    "rate_req_per_s": (0, 1e6),
    "iat_cv": (0, 1000),
}


def read_client_rates(path: Path) -> pd.DataFrame:
    """Read a table of client rates.

    Parameters
    ----------
    path : Path
        CSV (plain or .gz) with client_id, window_start_s [s], rate_req_per_s [request/s], iat_cv
        [1] and iat_dist (Gamma, Weibull or Exponential).

    Returns
    -------
    pandas.DataFrame
        Columns client (str), start_s, rate_per_s, cv, family ("gamma" or "weibull").

    Raises
    ------
    InputError
        The file or one of its values is bad.
    """
    rows = read_table(path, [*RATE_COLUMNS, "iat_dist"], ["param1", "param2"], text=["iat_dist"])
    if rows.empty:
        raise InputError("holds no client", str(path), repair="fetch it again")
    for name, (low, high) in RATE_COLUMNS.items():
        rows[name] = _numbers(rows, name, low, high, path)
    families = {"gamma": "gamma", "exponential": "gamma", "weibull": "weibull"}
    family = rows["iat_dist"].str.lower().map(families)
    if family.isna().any():
        row = int(np.argmax(family.isna().to_numpy()))
        what = f"iat_dist is {str(rows['iat_dist'].iloc[row])[:40]!r} in row {row + 1}"
        raise InputError(what, str(path), "Gamma, Weibull, Exponential")
    return pd.DataFrame(
        {
            "client": "client-" + rows["client_id"].astype(int).astype(str),
            "start_s": rows["window_start_s"],
            "rate_per_s": rows["rate_req_per_s"],
            "cv": rows["iat_cv"],
            "family": family,
        }
    )


def _numbers(rows: pd.DataFrame, name: str, low: float, high: float, path: Path) -> Floats:
    values = pd.to_numeric(rows[name], errors="coerce").to_numpy(dtype=np.float64)
    bad = ~((values >= low) & (values <= high))
    if bad.any():
        row = int(np.argmax(bad))
        what = f"{name} is {str(rows[name].iloc[row])[:40]} in row {row + 1}"
        raise InputError(what, str(path), f"{low:g} to {high:g}")
    return values


def read_length_histograms(path: Path) -> pd.DataFrame:
    """Read a table of length histograms: one row per client and field.

    Returns
    -------
    pandas.DataFrame
        Columns client_id, field, weight (the client's summed rate), mean [token], and one column
        per bin named by its lower edge as an int, holding its probability.

    Raises
    ------
    InputError
        The file or one of its values is bad.
    """
    header = read_text(path).split("\n", 1)[0].strip().split(",")
    bins = [c for c in header if c.startswith("ge_") and c[3:].isdigit()]
    if not bins:
        raise InputError("has no columns ge_<tokens>", str(path), repair="name a length histogram")
    fixed = ["client_id", "field", "n_windows", "sum_window_rate", "mean"]
    rows = read_table(path, [*fixed, *bins], text=["field"])
    for name in [*bins, "sum_window_rate", "mean"]:
        rows[name] = _numbers(rows, name, 0, 1e9, path)
    names = {c: int(c[3:]) for c in bins} | {"sum_window_rate": "weight"}
    return rows.rename(columns=names).drop(columns="n_windows")


def sample_histograms(
    rows: pd.DataFrame, fields: list[str], n: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Draw requests from a mixture of clients by their rates, each field from its own histogram.

    Lengths inside a bin are equally likely, and rescaled in each client to its recorded mean where
    the bins allow it.

    Parameters
    ----------
    rows : pandas.DataFrame
        What `read_length_histograms` returns.
    fields : list of str
        The fields, such as "input_tokens".
    n : int
        How many requests.
    rng : numpy.random.Generator
        The stream.

    Returns
    -------
    dict of str to array of float64, shape (n,)
    """
    for field in fields:
        if not (rows["field"] == field).any():
            hint = did_you_mean(field, set(rows["field"]))
            raise InputError(f"no field {field!r}", "length histograms", repair=hint)
    weights = rows[rows["field"] == fields[0]].set_index("client_id")["weight"]
    counts = rng.multinomial(n, (weights / weights.sum()).to_numpy())
    order = rng.permutation(n)
    return {f: _field(rows[rows["field"] == f], weights, counts, rng)[order] for f in fields}


def _field(
    rows: pd.DataFrame,
    weights: "pd.Series[float]",
    counts: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> Floats:
    columns: list[Any] = list(rows.columns)
    edges = np.array([c for c in columns if isinstance(c, int)], dtype=np.float64)
    high = np.append(edges[1:], edges[-1] * 2**0.25)
    table = rows.set_index("client_id")
    parts = []
    for client, count in zip(weights.index, counts, strict=True):
        p = table.loc[client, [int(e) for e in edges]].to_numpy(dtype=np.float64)
        k = rng.choice(p.size, count, p=p / p.sum())
        inside = _position(p / p.sum(), edges, high, float(table.loc[client, "mean"]))
        spread = np.minimum(inside, 1 - inside)
        share = inside + spread * (2 * rng.random(count) - 1)
        parts.append(np.floor(edges[k] + share * (high - edges)[k]))
    return np.concatenate(parts)


def _position(p: Floats, low: Floats, high: Floats, mean: float) -> float:
    """Return the mean position inside the bins, 0 to 1, that gives the recorded mean."""
    wide = high - low > 1
    width = float(p[wide] @ (high - low)[wide])
    excess = mean - float(p @ low) + float(p[wide].sum()) / 2  # whole tokens are rounded down
    return float(np.clip(excess / width, 0.02, 0.98)) if width > 0 else 0.5
