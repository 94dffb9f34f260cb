"""Who waits for whom: the longest waits, requests that were overtaken, fairness among clients."""

import numpy as np
import numpy.typing as npt

from sim.metrics.base import Floats, Observed, Value, metric

__all__ = ["client_service", "overtaken", "waits_s"]

Ints = npt.NDArray[np.int64]
STARVED_TIMES = 10.0  # a wait of so many mean waits counts as starving


def waits_s(seen: Observed) -> Floats:
    """Return how long each request waited for a batch; until it left or the end if it got none."""
    table = seen.requests
    until = table["admitted_s"].fillna(table["finish_s"]).fillna(seen.window.end_s)
    waits: Floats = (until - table["arrival_s"]).to_numpy(np.float64)
    return np.maximum(waits, 0.0)


def overtaken(arrival_s: Floats, admitted_s: Floats) -> Ints:
    """Return how many later arrivals started before each request.

    Parameters
    ----------
    arrival_s, admitted_s : ndarray, shape (requests,)
        Arrival and first batch [s]; NaN or infinite where it never started.

    Examples
    --------
    >>> overtaken(np.array([0.0, 1.0, 2.0]), np.array([9.0, 1.0, 2.0])).tolist()
    [2, 0, 0]
    """
    order = np.lexsort((np.arange(arrival_s.size), arrival_s))
    starts = np.where(np.isnan(admitted_s), np.inf, admitted_s)[order]
    ranks = np.unique(starts, return_inverse=True)[1] + 1
    counts = np.zeros(order.size, np.int64)
    tree = np.zeros(ranks.max(initial=0) + 1, np.int64)
    for i in range(order.size - 1, -1, -1):
        k = ranks[i] - 1
        while k > 0:
            counts[order[i]] += tree[k]
            k -= k & -k
        k = ranks[i]
        while k < tree.size:
            tree[k] += 1
            k += k & -k
    return counts


@metric("queue_max_s", "s", "longest wait for a batch, also of those that got none", "waits")
def queue_max_s(seen: Observed) -> Value:
    """Return the longest wait [s]."""
    waits = waits_s(seen)
    return float(waits.max()) if waits.size else None


@metric("starved_share", "1", "share of requests that waited over ten times the mean wait", "waits")
def starved_share(seen: Observed) -> Value:
    """Return the share of waits above ten mean waits [1]."""
    waits = waits_s(seen)
    mean = float(waits.mean()) if waits.size else 0.0
    return float((waits > STARVED_TIMES * mean).mean()) if mean > 0 else None


@metric("overtaken_max", "request", "most later arrivals that started before a request", "waits")
def overtaken_max(seen: Observed) -> Value:
    """Return by how many later arrivals a request was overtaken at most [request]."""
    table = seen.requests
    if not len(table):
        return None
    counts = overtaken(*(table[n].to_numpy(np.float64) for n in ("arrival_s", "admitted_s")))
    return int(counts.max())


@metric("deadlines_met", "1", "share of requests with a deadline that were done by then", "run")
def deadlines_met(seen: Observed) -> Value:
    """Return finished within `deadline_s` after arrival, of those that have one; None without."""
    due = seen.column("deadline_s")
    due = np.where(due > 0, due, np.nan)
    asked = np.isfinite(due)
    if not asked.any():
        return None
    done = (seen.requests["status"] == "finished").to_numpy()
    took = seen.column("finish_s") - seen.column("arrival_s")
    return float((done & (took <= due))[asked].mean())


def client_service(seen: Observed) -> Floats:
    """Return the tokens served to each client: computed prompts and outputs, shape (clients,)."""
    table = seen.requests
    if "client" not in table:
        return np.zeros(0)
    prompts = table["prompt_tokens"].where(table["admitted_s"].notna(), 0)
    tokens = prompts + table["emitted_tokens"]
    return tokens.groupby(table["client"]).sum().to_numpy(np.float64)


@metric("client_fairness", "1", "Jain's index of tokens served per client; 1 = all alike", "waits")
def client_fairness(seen: Observed) -> Value:
    """Return (sum x)^2 / (n sum x^2) of the clients' tokens; None with fewer than two [1].

    R. Jain, D. Chiu, W. Hawe, "A quantitative measure of fairness and discrimination for resource
    allocation in shared computer systems", DEC-TR-301, 1984.
    """
    served = client_service(seen)
    if served.size < 2 or not served.any():
        return None
    return float(served.sum() ** 2 / (served.size * (served**2).sum()))


@metric("client_ttft_ratio", "1", "mean TTFT of the worst client over that of the best", "waits")
def client_ttft_ratio(seen: Observed) -> Value:
    """Return the ratio of the extreme clients' mean times to first token [1]."""
    table = seen.requests
    if "client" not in table:
        return None
    ttft = (table["first_token_s"] - table["arrival_s"]).groupby(table["client"]).mean().dropna()
    return float(ttft.max() / ttft.min()) if len(ttft) > 1 and ttft.min() > 0 else None
