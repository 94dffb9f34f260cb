"""From the requests table to the records of the compiled loop, and back to tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from policies.rules import Ordering, OrderRules, RequestView
from sim.core.layout import Records, Status
from sim.replica import make_records

__all__ = ["order_rules", "request_table", "step_table", "to_records", "with_second_stages"]

PASSED_ON = ("request", "class", "client", "priority", "deadline_s", "session", "model")
# column of requests.csv -> field of the records
COUNTED = {
    "preemptions": "preemptions",
    "recomputed_tokens": "recomputed_tokens",
    "swaps": "swaps",
    "dram_tokens": "dram_tokens",
    "ssd_tokens": "ssd_tokens",
    "memory_wait_s": "memory_wait_s",
    "encoder_s": "extra_s",
    "encoder_saved_s": "saved_s",
}


def order_rules(ordering: Ordering) -> OrderRules:
    """Return what an ordering policy needs of the engine."""
    rules = getattr(ordering, "rules", None)
    return rules() if rules else OrderRules()


def to_records(
    table: pd.DataFrame,
    ordering: Ordering,
    ttft_s: float | Mapping[str, float] = np.inf,
    luck: npt.NDArray[np.float64] | None = None,
) -> Records:
    """Return the records of a checked requests table.

    Parameters
    ----------
    table : DataFrame
        See `workloads.requests`.
    ordering : Ordering
        Policy that gives every request its place in the queue.
    ttft_s : float or mapping
        Objective that deadline-driven orders use, also by traffic class [s].
    luck : ndarray, optional
        Standard normal draw of each request's predicted length.
    """
    hashes, starts, counts = _hashes(table)
    requests, records = make_records(len(table), hashes)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        requests[name] = table[name]
    if "priority" in table:
        requests["priority"] = table["priority"].fillna(0)
    if "client" in table:
        requests["client"] = pd.factorize(table["client"].fillna(""))[0]
    requests["hash_start"], requests["hash_count"] = starts, counts
    requests["prefix_owner"], requests["prefix_tokens"] = _prefixes(table)
    requests["order_key"] = _order_keys(table, ordering, ttft_s, luck)
    _mark_background(requests, table, order_rules(ordering))
    return records


def with_second_stages(records: Records) -> Records:
    """Return records with as many empty rows again: what follows a hand-off of its request."""
    count = len(records.requests)
    requests = make_records(2 * count)[0]
    requests[:count] = records.requests
    return Records(requests, records.hashes)


def _mark_background(
    requests: npt.NDArray[np.void], table: pd.DataFrame, rules: OrderRules
) -> None:
    """Mark the class that fills valleys, and when each of its requests becomes urgent."""
    if not rules.background_class or "class" not in table:
        return
    background = (table["class"] == rules.background_class).to_numpy()
    due = np.full(len(table), rules.background_deadline_s)
    if "deadline_s" in table:
        due = table["deadline_s"].fillna(rules.background_deadline_s).to_numpy(np.float64)
    requests["background"] = background
    urgent = requests["arrival_s"] + np.vectorize(rules.urgent_after_s, otypes=[float])(due)
    requests["urgent_s"] = np.where(background, urgent, np.inf)


def _order_keys(
    table: pd.DataFrame,
    ordering: Ordering,
    ttft_s: float | Mapping[str, float],
    luck: npt.NDArray[np.float64] | None,
) -> npt.NDArray[np.float64]:
    if getattr(ordering, "by_arrival", False):
        return table["arrival_s"].to_numpy(np.float64)
    views = request_views(table, ttft_s, luck)
    return np.array([ordering.key(view) for view in views], dtype=np.float64)


def request_views(
    table: pd.DataFrame,
    ttft_s: float | Mapping[str, float] = np.inf,
    luck: npt.NDArray[np.float64] | None = None,
) -> Iterator[RequestView]:
    """Yield what a policy may know of each request when it arrives."""
    columns: dict[str, list[Any]] = table.to_dict("list")  # type: ignore[assignment]
    n = len(table)
    classes = columns.get("class", [""] * n)
    if isinstance(ttft_s, Mapping):
        objectives = [ttft_s.get(str(name), np.inf) for name in classes]
    else:
        objectives = [ttft_s] * n
    yield from map(
        RequestView,
        columns["arrival_s"],
        columns["prompt_tokens"],
        columns["output_tokens"],
        map(int, columns.get("priority", [0] * n)),
        objectives,
        map(str, columns.get("client", [""] * n)),
        map(str, classes),
        columns.get("deadline_s", [np.nan] * n),
        [0.0] * n if luck is None else luck.tolist(),
    )


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
    for column, name in COUNTED.items():
        data[column] = requests[name]
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
