"""From the requests table to the records of the compiled loop, and back to tables."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from policies.rules import Ordering, RequestView
from sim.core.layout import Records, Status
from sim.replica import make_records

__all__ = ["request_table", "step_table", "to_records", "with_second_stages"]

PASSED_ON = ("request", "class", "client", "priority", "session", "model")
RESULT_COLUMNS = (
    "first_token_s",
    "finish_s",
    "admitted_s",
    "emitted",
    "cached_tokens",
    "preemptions",
    "recomputed_tokens",
)


def to_records(table: pd.DataFrame, ordering: Ordering, ttft_s: float = np.inf) -> Records:
    """Return the records of a checked requests table.

    Parameters
    ----------
    table : DataFrame
        See `workloads.requests`.
    ordering : Ordering
        Policy that gives every request its place in the queue.
    ttft_s : float
        Objective that deadline-driven orders use [s].
    """
    hashes, starts, counts = _hashes(table)
    requests, records = make_records(len(table), hashes)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        requests[name] = table[name]
    if "priority" in table:
        requests["priority"] = table["priority"].fillna(0)
    requests["hash_start"], requests["hash_count"] = starts, counts
    requests["prefix_owner"], requests["prefix_tokens"] = _prefixes(table)
    requests["order_key"] = _order_keys(table, ordering, ttft_s)
    return records


def with_second_stages(records: Records) -> Records:
    """Return records with as many empty rows again: what follows a hand-off of its request."""
    count = len(records.requests)
    requests = make_records(2 * count)[0]
    requests[:count] = records.requests
    return Records(requests, records.hashes)


def _order_keys(table: pd.DataFrame, ordering: Ordering, ttft_s: float) -> npt.NDArray[np.float64]:
    if getattr(ordering, "by_arrival", False):
        return table["arrival_s"].to_numpy(np.float64)
    columns = table.to_dict("list")
    clients = columns.get("client", [""] * len(table))
    priorities = columns.get("priority", [0] * len(table))
    views = zip(
        columns["arrival_s"],
        columns["prompt_tokens"],
        columns["output_tokens"],
        priorities,
        clients,
        strict=True,
    )
    keys = [
        ordering.key(RequestView(arrival, prompt, output, int(priority), ttft_s, str(client)))
        for arrival, prompt, output, priority, client in views
    ]
    return np.array(keys, dtype=np.float64)


def _hashes(
    table: pd.DataFrame,
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return all block hashes renumbered from 1, and each request's first entry and count."""
    zeros = np.zeros(len(table), np.int64)
    if "hash_ids" not in table or len(table) == 0:
        return None, zeros, zeros
    lists = [np.asarray(ids, dtype=np.int64) for ids in table["hash_ids"]]
    counts = np.array([ids.size for ids in lists], dtype=np.int64)
    flat = np.unique(np.concatenate(lists), return_inverse=True)[1].astype(np.int64) + 1
    return flat, np.concatenate([[0], np.cumsum(counts)[:-1]]), counts


def _prefixes(table: pd.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the previous request of each request's session (-1 none), and the shared tokens."""
    owner = np.full(len(table), -1, dtype=np.int64)
    if "session" not in table or "prefix_tokens" not in table:
        return owner, np.zeros(len(table), np.int64)
    shared = table["prefix_tokens"].fillna(0).to_numpy(np.int64)
    session = table["session"].fillna("").astype(str)
    rows = pd.Series(np.arange(len(table)), index=table.index)
    previous = rows.groupby(session).shift().fillna(-1).to_numpy(np.int64)
    belongs = (session != "").to_numpy() & (shared > 0)
    return np.where(belongs, previous, -1), np.where(belongs & (previous >= 0), shared, 0)


def request_table(
    table: pd.DataFrame, records: Records, replica: npt.NDArray[np.int64]
) -> pd.DataFrame:
    """Return requests.csv: one row per request, in order of arrival."""
    requests = records.requests
    data: dict[str, object] = {
        "request": table["request"] if "request" in table else np.arange(len(table)),
        "arrival_s": requests["arrival_s"],
    }
    data |= {name: requests[name] for name in ("first_token_s", "finish_s")}
    data |= {name: requests[name] for name in ("prompt_tokens", "output_tokens", "cached_tokens")}
    data["status"] = np.array(Status.NAMES)[requests["status"]]
    data["emitted_tokens"] = requests["emitted"]
    data["admitted_s"] = requests["admitted_s"]
    data["preemptions"] = requests["preemptions"]
    data["recomputed_tokens"] = requests["recomputed_tokens"]
    data["retries"] = requests["retries"]
    data["replica"] = replica
    for name in PASSED_ON[1:]:
        if name in table:
            data[name] = table[name].to_numpy()
    return pd.DataFrame(data)


def step_table(rows: list[npt.NDArray[np.void]]) -> pd.DataFrame:
    """Return steps.csv of several replicas: one row per macro-step, by replica and time."""
    tables = [pd.DataFrame(part).assign(replica=i) for i, part in enumerate(rows)]
    return pd.concat(tables, ignore_index=True)
