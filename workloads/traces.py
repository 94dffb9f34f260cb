"""Request traces of other projects, read into requests tables; the format is found by content.

==============  =====================================================  =========================
format          recognised by                                          time, tokens, sharing
==============  =====================================================  =========================
csv             header with arrival_s                                  the project's own columns
azure           header TIMESTAMP,ContextTokens,GeneratedTokens         date and time; tokens
burstgpt        header with Request tokens, Response tokens            seconds; tokens; failures
                                                                       (0 response tokens) left out
mooncake        JSON lines with timestamp and input_length             ms; tokens; 512-token hashes
llmservingsim   JSON lines with timestamp_ms and input_length          ms; tokens; 16-token hashes
sharegpt        JSON list of conversations, or JSON lines of them      none; characters; sessions
==============  =====================================================  =========================
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError, did_you_mean, read_table, read_text
from workloads.requests import HASH_BLOCK_TOKENS, block_counts, check_requests, read_requests

__all__ = [
    "TraceFormat",
    "day_shape",
    "detect_format",
    "read_trace",
    "scale_trace_rate",
    "time_window",
]

TraceFormat = Literal["csv", "azure", "burstgpt", "mooncake", "llmservingsim", "sharegpt"]
FORMATS: tuple[str, ...] = get_args(TraceFormat)
HEAD_BYTES = 1 << 16
CHARACTERS_PER_TOKEN = 4.0  # assumption: English text under a tokenizer of 100,000 or more tokens
AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
BURSTGPT = ["Timestamp", "Request tokens", "Response tokens"]
BURSTGPT_MORE = ["Session ID", "Elapsed time", "Model", "Total tokens", "Log Type"]


def read_trace(path: Path, trace_format: str = "auto") -> pd.DataFrame:
    """Read a request trace of any known format.

    Parameters
    ----------
    path : Path
        The file, plain or .gz.
    trace_format : str
        One of the formats listed above, or "auto" to find it by content.

    Returns
    -------
    pandas.DataFrame
        The requests table; the first arrival is at 0 where the trace has dates.

    Raises
    ------
    InputError
        The file or one of its values is bad, or its format is not known.
    """
    chosen = detect_format(path) if trace_format == "auto" else trace_format
    if chosen not in READERS:
        hint = did_you_mean(chosen, FORMATS)
        raise InputError(f"no trace format named {chosen!r}", str(path), repair=hint)
    return check_requests(READERS[chosen](path), str(path))


def detect_format(path: Path) -> str:
    """Return the format of a trace, by its first bytes.

    Raises
    ------
    InputError
        The file is unreadable or of no known format.
    """
    head = _head(path).lstrip("\ufeff \t\r\n")
    if head.startswith(("[", "{")):
        return _json_format(head, path)
    header = {c.strip().strip('"') for c in head.splitlines()[0].split(",")} if head else set()
    for name, columns in (("csv", {"arrival_s"}), ("azure", {*AZURE}), ("burstgpt", {*BURSTGPT})):
        if columns <= header:
            return name
    raise _unknown(path)


def _json_format(head: str, path: Path) -> str:
    first = head.splitlines()[0]
    for name, key in (
        ("llmservingsim", '"timestamp_ms"'),
        ("mooncake", '"timestamp"'),
        ("sharegpt", '"conversations"'),
    ):
        if key in (head if head.startswith("[") else first):
            return name
    raise _unknown(path)


def _unknown(path: Path) -> InputError:
    known = ", ".join(FORMATS)
    repair = "name it with --format, or convert it to arrival_s,prompt_tokens,output_tokens"
    return InputError("is of no known trace format", str(path), known, repair)


def _head(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(HEAD_BYTES).decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error, ValueError):
        return read_text(path)


def _read_azure(path: Path) -> pd.DataFrame:
    rows = read_table(path, AZURE, text=["TIMESTAMP"])
    when = pd.to_datetime(rows["TIMESTAMP"], format="ISO8601", utc=True, errors="coerce")
    bad = when.isna().to_numpy()
    if bad.any():
        row = int(np.argmax(bad))
        shown = str(rows["TIMESTAMP"].iloc[row])[:40]
        what = f"TIMESTAMP is {shown!r} in row {row + 1}"
        raise InputError(what, str(path), "such as 2023-11-16 18:15:46.6805900")
    return pd.DataFrame(
        {
            "arrival_s": (when - when.min()).dt.total_seconds(),
            "prompt_tokens": rows["ContextTokens"],
            "output_tokens": rows["GeneratedTokens"],
        }
    )


def _read_burstgpt(path: Path) -> pd.DataFrame:
    rows = read_table(path, BURSTGPT, BURSTGPT_MORE, text=["Model", "Session ID", "Log Type"])
    names = ["arrival_s", "prompt_tokens", "output_tokens"]
    table = rows[BURSTGPT].set_axis(names, axis=1)
    for column in ("Model", "Session ID"):
        if column in rows:
            table[{"Model": "class", "Session ID": "session"}[column]] = rows[column]
    return table[table["output_tokens"] != 0]


def _read_mooncake(path: Path) -> pd.DataFrame:
    return _json_table(path, "timestamp")


def _read_llmservingsim(path: Path) -> pd.DataFrame:
    table = _json_table(path, "timestamp_ms")
    if "hash_ids" in table:
        where = str(path)
        plain = check_requests(table.drop(columns="hash_ids"), where)
        table["hash_ids"] = _coarser(table["hash_ids"].to_list(), plain["prompt_tokens"], where)
    return table


def _coarser(fine: list[Any], prompts: "pd.Series[int]", where: str) -> list[Any]:
    """Turn chained hashes of full 16-token blocks into hashes of begun 512-token blocks.

    A chained hash stands for everything up to its block, so the last one of each 512 tokens names
    the larger block; a begun last block is shared by nobody and gets a number of its own.
    """
    step = HASH_BLOCK_TOKENS // 16
    private, out = 1 << 62, []
    for row, (ids, need) in enumerate(zip(fine, block_counts(prompts), strict=True)):
        if not isinstance(ids, list) or len(ids) != int(prompts.iloc[row]) // 16:
            what = f"hash_ids in row {row + 1} is not one number for each 16 tokens of the prompt"
            raise InputError(what, where, repair="fetch the trace again")
        kept = ids[step - 1 :: step]
        out.append(kept if len(kept) == need else [*kept, private + row])
    return out


def _json_table(path: Path, time_key: str) -> pd.DataFrame:
    columns = {"arrival_s": time_key, "prompt_tokens": "input_length"}
    columns |= {"output_tokens": "output_length"}
    rows = list(_json_lines(path, tuple(columns.values())))
    if not rows:
        raise InputError("holds no requests", str(path), repair="fetch it again")
    data = {name: [r[key] for r in rows] for name, key in columns.items()}
    data["arrival_s"] = [_milliseconds(t) for t in data["arrival_s"]]
    table = pd.DataFrame(data, dtype=object)
    have = sum("hash_ids" in r for r in rows)
    if have not in (0, len(rows)):
        what = f"hash_ids is in {have} of {len(rows)} rows"
        raise InputError(what, str(path), "all rows or none", "remove it, or complete it")
    if have:
        table["hash_ids"] = [r["hash_ids"] for r in rows]
    return table


def _milliseconds(value: object) -> object:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return value / 1e3 if good else value  # type: ignore[operator]


def _json_lines(path: Path, keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = _json(line, f"{path} line {number}")
        if not isinstance(row, dict):
            raise InputError("is not a JSON object", f"{path} line {number}", repair="mend it")
        for key in keys:
            if key not in row:
                raise InputError(f"{key!r} is missing", f"{path} line {number}", repair="add it")
        yield row


def _json(text: str, where: str) -> Any:  # noqa: ANN401 - JSON holds anything
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        what = f"is not valid JSON: {e.msg} at column {e.colno}"
        raise InputError(what, where, repair="mend that line") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"is not usable JSON: {e}", where, repair="mend that line") from None


def _read_sharegpt(path: Path) -> pd.DataFrame:
    text = read_text(path)
    if text.lstrip().startswith("["):
        items = _json(text, str(path))
    else:
        items = list(_json_lines(path, ("conversations",)))
    rows: list[tuple[int, int, str, int]] = []
    for number, item in enumerate(items, start=1):
        rows += _conversation(item, f"{path} conversation {number}", f"s{number}")
    names = ["prompt_tokens", "output_tokens", "session", "prefix_tokens"]
    return pd.DataFrame(rows, columns=names).assign(arrival_s=0.0)


def _conversation(item: object, where: str, session: str) -> Iterator[tuple[int, int, str, int]]:
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        raise InputError("'conversations' is not a list", where, repair="mend that entry")
    context = previous = 0
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise InputError("a turn has no text in 'value'", where, repair="mend that entry")
        tokens = max(1, round(len(turn["value"]) / CHARACTERS_PER_TOKEN))
        if turn.get("from") in ("gpt", "assistant", "chatgpt", "bing") and context:
            yield context, tokens, session, previous
            previous = context
        context += tokens


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "csv": read_requests,
    "azure": _read_azure,
    "burstgpt": _read_burstgpt,
    "mooncake": _read_mooncake,
    "llmservingsim": _read_llmservingsim,
    "sharegpt": _read_sharegpt,
}


def time_window(
    table: pd.DataFrame, start_s: float = 0.0, end_s: float | None = None
) -> pd.DataFrame:
    """Return the requests that arrive in [start_s, end_s), with start_s as the new time 0.

    A session whose previous prompt lies before the window starts afresh in it.

    Raises
    ------
    InputError
        The window is empty or holds no request.

    Examples
    --------
    >>> t = pd.DataFrame({"arrival_s": [0.0, 5.0], "prompt_tokens": 9, "output_tokens": 1})
    >>> time_window(t, 2, 8)["arrival_s"].tolist()
    [3.0]
    """
    end = np.inf if end_s is None else end_s
    if not 0 <= start_s < end:
        raise InputError(f"window [{start_s:g}, {end:g}) s is empty", "trace", "start below end")
    inside = table[(table["arrival_s"] >= start_s) & (table["arrival_s"] < end)].copy()
    if inside.empty:
        last = float(table["arrival_s"].iloc[-1])
        what = f"no request arrives in [{start_s:g}, {end:g}) s"
        raise InputError(what, "trace", f"within 0 to {last:g} s")
    inside["arrival_s"] -= start_s
    if "prefix_tokens" in inside:
        inside.loc[~inside["session"].duplicated(), "prefix_tokens"] = 0
    return inside.reset_index(drop=True)


def scale_trace_rate(table: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Return the same requests at `factor` times the rate: arrival times are divided by it.

    Raises
    ------
    InputError
        The factor is not positive and finite.
    """
    if not 0 < factor < np.inf:
        raise InputError(f"rate_scale is {factor:g}", "trace", "above 0")
    return table.assign(arrival_s=table["arrival_s"] / factor)


def day_shape(
    arrival_s: npt.ArrayLike, start_hour: int = 0, weights: npt.ArrayLike | None = None
) -> tuple[list[float], list[float]]:
    """Return the hourly and daily shape of a load of at least a day.

    Parameters
    ----------
    arrival_s : array_like, shape (n,)
        Arrival times in seconds.
    start_hour : int
        Hour of the week at time 0, 0 to 167.
    weights : array_like, optional
        Requests behind each time, where the times are those of counting windows.

    Returns
    -------
    hourly : list of 24 floats
        Mean rate in each hour of the day over the mean of all hours.
    daily : list of 7 floats
        Mean rate on each day of the week over the mean of all days; 1 for a day not observed.

    Raises
    ------
    InputError
        The times span less than 24 hours.
    """
    hours = (np.asarray(arrival_s, dtype=np.float64) // 3600).astype(np.int64)
    span = int(hours.max()) + 1 if hours.size else 0
    if span < 24:
        raise InputError(f"the trace spans {span} h", "day shape", "24 h or more")
    counts = np.bincount(hours, weights, minlength=span).astype(np.float64)
    week = (np.arange(span) + start_hour) % 168
    hourly = _mean_by(week % 24, counts, 24)
    daily = _mean_by(week // 24, counts / np.maximum(hourly, 1e-12)[week % 24], 7)
    return [round(float(x), 4) for x in hourly], [round(float(x), 4) for x in daily]


def _mean_by(group: npt.NDArray[np.int64], values: npt.NDArray[np.float64], n: int) -> Any:  # noqa: ANN401
    seen = np.bincount(group, minlength=n)
    mean = np.bincount(group, values, minlength=n) / np.maximum(seen, 1)
    mean /= mean[seen > 0].mean() or 1.0
    return np.where(seen > 0, mean, 1.0)
