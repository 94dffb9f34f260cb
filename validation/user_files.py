"""A user's own measurements: files of ``vllm bench serve``, GuideLLM, or requests.csv."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from formats import InputError, read_table, read_text

__all__ = ["COLUMNS", "UserRun", "read_measured"]

COLUMNS = ("arrival_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens")
FEWEST = 20
"""Requests of a file; half of them fit, half judge."""


@dataclass(frozen=True)
class UserRun:
    """What a user measured.

    Attributes
    ----------
    requests : DataFrame
        Columns `COLUMNS`, in order of arrival; times from the first arrival [s].
    kind : str
        Whose file it is.
    concurrency : int or None
        Users that waited for their answers, None where requests came by themselves.
    note : str
        What was assumed, empty where nothing was.
    """

    requests: pd.DataFrame
    kind: str
    concurrency: int | None = None
    note: str = ""


def read_measured(path: Path) -> UserRun:
    """Read measured requests, the format found by content.

    Parameters
    ----------
    path : Path
        JSON of ``vllm bench serve --save-result --save-detailed``, JSON of ``guidellm benchmark``,
        or a CSV with the columns of requests.csv.

    Raises
    ------
    InputError
        The file is none of these, lacks the single requests, or holds impossible times.
    """
    if path.suffix == ".csv" or path.name.endswith(".csv.gz"):
        run = UserRun(_finished(read_table(path, COLUMNS, _others(path))), "requests.csv")
    else:
        run = _from_json(path)
    return _checked(run, path)


def _others(path: Path) -> list[str]:
    """Return the columns of a table beside `COLUMNS`; they may be anything."""
    try:
        return [str(c) for c in pd.read_csv(path, nrows=0) if c not in COLUMNS]
    except (OSError, ValueError):
        return []  # read_table says what is wrong


def _finished(table: pd.DataFrame) -> pd.DataFrame:
    return table.dropna(subset=["first_token_s", "finish_s"])[list(COLUMNS)]


def _from_json(path: Path) -> UserRun:
    try:
        content = json.loads(read_text(path))
    except ValueError as e:
        what = f"is neither JSON nor CSV: {e}"
        raise InputError(what, str(path), repair="give one of the formats in --help") from None
    if isinstance(content, dict):
        for key, (name, reader) in READERS.items():
            if key in content:
                return _read(name, reader, content, path)
    allowed = "vllm bench serve, guidellm benchmark, requests.csv"
    raise InputError("holds none of the known results", str(path), allowed)


def _read(name: str, reader: "Reader", content: Mapping[str, Any], path: Path) -> UserRun:
    """Read a format; what its writer would not have written is bad input, not a fault."""
    try:
        return reader(content, path)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, InputError):
            raise
        what = f"is not as {name} writes it: {type(e).__name__} {e}"
        raise InputError(what, str(path), repair="measure again, or mend the file") from None


def _from_vllm(content: Mapping[str, Any], path: Path) -> UserRun:
    if "ttfts" not in content or "itls" not in content:
        what = "holds the totals only, not the single requests"
        raise InputError(what, str(path), repair="run vllm bench serve with --save-detailed")
    first = np.array(content["ttfts"], dtype=float)
    rest = np.array([float(np.sum(gaps)) for gaps in content["itls"]])
    starts, note = _starts(content, first.size, path)
    lengths = {"prompt_tokens": content["input_lens"], "output_tokens": content["output_lens"]}
    times = {"arrival_s": starts, "first_token_s": starts + first}
    table = pd.DataFrame(times | {"finish_s": starts + first + rest} | lengths)
    users = content.get("max_concurrency")
    endless = str(content.get("request_rate", "inf")) == "inf"
    kept = table[(first > 0) & (table["output_tokens"] > 0)]
    return UserRun(kept, "vllm bench serve", int(users) if users and endless else None, note)


def _starts(
    content: Mapping[str, Any], count: int, path: Path
) -> tuple["np.ndarray[Any, np.dtype[np.float64]]", str]:
    """Return when requests were sent, and what was assumed of it."""
    if content.get("start_times"):
        return np.array(content["start_times"], dtype=float), ""
    if str(content.get("request_rate", "inf")) != "inf":
        what = "has no start_times, so the arrivals at a finite rate are not known"
        raise InputError(what, str(path), repair="measure with vLLM 0.11 or later")
    return np.zeros(count), "no start_times: all requests are taken to be sent at once"


def _from_guidellm(content: Mapping[str, Any], path: Path) -> UserRun:
    found = [_guidellm_table(b) for b in content["benchmarks"]]
    if not found:
        raise InputError("holds no benchmark", str(path), repair="run guidellm benchmark again")
    largest = max(found, key=len)
    note = f"the largest of {len(found)} benchmarks in the file" if len(found) > 1 else ""
    return UserRun(largest, "GuideLLM", None, note)


def _guidellm_table(benchmark: Mapping[str, Any]) -> pd.DataFrame:
    requests = benchmark.get("requests") or {}
    done: Sequence[Mapping[str, Any]] = requests.get("successful") or []
    rows = []
    for one in done:
        start = one.get("request_start_time", one.get("start_time"))
        first, whole = one.get("time_to_first_token_ms"), one.get("request_latency")
        if start is not None and first is not None and whole is not None:
            times = (float(start), float(start) + float(first) / 1e3, float(start) + float(whole))
            rows.append((*times, one["prompt_tokens"], one["output_tokens"]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


Reader = Callable[[Mapping[str, Any], Path], UserRun]
READERS: dict[str, tuple[str, Reader]] = {
    "benchmarks": ("GuideLLM", _from_guidellm),
    "ttfts": ("vllm bench serve", _from_vllm),
    "mean_ttft_ms": ("vllm bench serve", _from_vllm),
}
"""A key that only this format has -> reader."""


def _checked(run: UserRun, path: Path) -> UserRun:
    table = run.requests.astype(dict.fromkeys(COLUMNS[:3], float))
    table = table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    if len(table) < FEWEST:
        what = f"holds {len(table)} finished requests"
        raise InputError(what, str(path), f"{FEWEST} or more", "measure longer")
    unknown = ~np.isfinite(table[list(COLUMNS[:3])].to_numpy()).all(axis=1)
    if unknown.any():
        what = f"request {int(unknown.argmax())} has a time that is no number"
        raise InputError(what, str(path), "seconds, all finite")
    first, ends = table["first_token_s"], table["finish_s"]
    wrong = (first < table["arrival_s"]) | (ends < first)
    if wrong.any():
        which = int(wrong.to_numpy().argmax())
        what = f"request {which} has its first token before it was sent or after its last"
        raise InputError(what, str(path), "arrival_s <= first_token_s <= finish_s")
    table[list(COLUMNS[:3])] -= table["arrival_s"].min()
    return UserRun(table, run.kind, run.concurrency, run.note)
