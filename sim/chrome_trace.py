"""A result as a Chrome trace: open it in Perfetto (https://ui.perfetto.dev) or chrome://tracing.

One process per replica with a track of engine steps and counters, and one process of requests,
each request a row of its own that shows queueing, prefill and decoding. Times are microseconds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from sim.simulation import Result

__all__ = ["chrome_trace"]

Event = dict[str, Any]
REQUESTS = 1_000_000  # process number of the requests
LANES = 512  # rows that requests share, so that a viewer stays usable


def chrome_trace(result: Result) -> dict[str, Any]:
    """Return a trace in the Trace Event Format (complete, counter and metadata events).

    Parameters
    ----------
    result : Result
        A simulation.

    Returns
    -------
    dict
        To be written as JSON; ``otherData`` carries scenario and schema version.
    """
    events = [*_names(result), *_step_events(result.steps), *_request_events(result.requests)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"schema_version": 1, "scenario": result.scenario.name},
    }


def _names(result: Result) -> Iterator[Event]:
    for replica in range(len(result.totals)):
        yield _meta("process_name", replica, f"replica {replica}")
        yield _meta("thread_name", replica, "engine steps")
    yield _meta("process_name", REQUESTS, "requests")


def _meta(kind: str, pid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _step_events(steps: pd.DataFrame) -> Iterator[Event]:
    previous: dict[int, float] = {}
    for row in steps.to_dict("records"):
        pid, end = int(row["replica"]), float(row["output_s"])
        begin = max(previous.get(pid, 0.0), float(row["schedule_s"]))
        previous[pid] = end
        keys = ("steps", "prefill_tokens", "decode_requests", "gpu_s", "host_s", "energy_j")
        kind = "prefill" if row["prefill_tokens"] else "decode"
        mixed = bool(row["prefill_tokens"]) and bool(row["decode_requests"])
        yield {
            "ph": "X",
            "name": "mixed" if mixed else kind,
            "pid": pid,
            "tid": 0,
            "ts": _us(begin),
            "dur": _us(max(end - begin, 0.0)),
            "args": {k: row[k] for k in keys},
        }
        yield from _counters(row, pid, end)


def _counters(row: dict[Any, Any], pid: int, when: float) -> Iterator[Event]:
    values = {
        "requests": {"running": row["running"], "waiting": row["waiting"]},
        "free KV blocks": {"blocks": row["free_blocks"]},
        "power": {"watts": round(float(row["window_w"]), 1)},
    }
    for name, args in values.items():
        yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _us(when), "args": args}


def _request_events(requests: pd.DataFrame) -> Iterator[Event]:
    """Yield queue, prefill and decode of every request; rows are reused once they are free."""
    parts = (
        ("queued", "arrival_s", "admitted_s"),
        ("prefill", "admitted_s", "first_token_s"),
        ("decode", "first_token_s", "finish_s"),
    )
    for lane, row in zip(_lanes(requests), requests.to_dict("records"), strict=True):
        for name, begin, end in parts:
            if np.isfinite(row[begin]) and np.isfinite(row[end]):
                yield {
                    "ph": "X",
                    "name": name,
                    "pid": REQUESTS,
                    "tid": int(lane),
                    "ts": _us(row[begin]),
                    "dur": _us(row[end] - row[begin]),
                    "args": {
                        "request": str(row["request"]),
                        "prompt_tokens": row["prompt_tokens"],
                        "output_tokens": row["output_tokens"],
                        "replica": row["replica"],
                    },
                }


def _lanes(requests: pd.DataFrame) -> list[int]:
    """Return a row for each request, the first that is free when it arrives."""
    free_at = np.zeros(LANES)
    lanes = []
    for arrival, finish in zip(requests["arrival_s"], requests["finish_s"], strict=True):
        lane = int(np.argmax(free_at <= arrival)) if (free_at <= arrival).any() else LANES - 1
        free_at[lane] = finish if np.isfinite(finish) else np.inf
        lanes.append(lane)
    return lanes
