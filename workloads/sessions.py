"""Sharing of prompt prefixes: conversations, agents, system prompts, templates and documents.

Sharing is explicit in the requests table, in one of two ways: `session` and `prefix_tokens` (the
first tokens equal those of the session's previous prompt), or `hash_ids` (one chained hash per
512-token block) where prefixes of several kinds lie inside each other.
"""

from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, FiniteFloat, model_validator

from formats import InputError
from workloads.distributions import Marginal, Strict
from workloads.lengths import Lengths, sample_columns
from workloads.renewal import unit_gaps
from workloads.requests import HASH_BLOCK_TOKENS, block_counts, split_rows

__all__ = [
    "Documents",
    "MultiTurn",
    "SharedPrefix",
    "Sharing",
    "draw_turns",
    "mean_turns",
    "share_prefixes",
    "take_turns",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Exponent = Annotated[FiniteFloat, Field(ge=0, le=10)]
Pause = Annotated[FiniteFloat, Field(ge=0, le=1e7)]


class SharedPrefix(Strict):
    """System prompts or templates: a few prefixes, one in front of each prompt."""

    kind: Literal["shared-prefix"] = "shared-prefix"
    prefixes: int = Field(default=1, ge=1, le=1_000_000, description="how many there are [1]")
    tokens: Marginal = Field(description="length of each prefix [token]")
    zipf: Exponent = Field(
        default=0.0, description="use falls as rank to the minus this; 0 is equal use [1]"
    )
    share: Share = Field(default=1.0, description="part of the requests that have one [1]")


class Documents(Strict):
    """Retrieval: a system prompt, then documents of a collection, then the question."""

    kind: Literal["documents"] = "documents"
    system_tokens: int = Field(default=0, ge=0, le=10_000_000, description="system prompt [token]")
    documents: int = Field(ge=1, le=10_000_000, description="documents in the collection [1]")
    per_request: int = Field(default=4, ge=1, le=200, description="documents in a prompt [1]")
    tokens: Marginal = Field(description="length of each document [token]")
    zipf: Exponent = Field(
        default=1.0, description="use falls as rank to the minus this; 0 is equal use [1]"
    )
    order: Literal["retrieved", "sorted"] = Field(
        default="retrieved", description="sorted puts popular documents first: more sharing"
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.documents < self.per_request:
            raise ValueError(f"{self.documents} documents are fewer than per_request")
        return self


class MultiTurn(Strict):
    """Conversations or agents: each turn's prompt is the whole history and something new.

    The lengths of the workload are those of one turn: what is new in the prompt, and the answer.
    A turn arrives one pause after the answer to the previous one, which is taken to last
    `answer_s_per_token` for each token. The rate of the arrivals counts requests, not sessions.
    """

    kind: Literal["multi-turn"] = "multi-turn"
    turns: Marginal = Field(description="turns in a session [turn]")
    first_tokens: Marginal | None = Field(
        default=None, description="what the first turn adds to its prompt, as task and code [token]"
    )
    pause_s: Pause = Field(description="mean pause between an answer and the next turn [s]")
    pause_cv: Annotated[FiniteFloat, Field(ge=0, le=100)] = Field(
        default=1.0, description="standard deviation over mean of the pause [1]"
    )
    answer_s_per_token: Annotated[FiniteFloat, Field(ge=0, le=100)] = Field(
        default=0.03, description="assumed time of an answer per output token [s]"
    )
    max_prompt_tokens: int = Field(
        default=131_072, ge=1, le=100_000_000, description="a longer prompt ends a session [token]"
    )
    system_tokens: int = Field(
        default=0, ge=0, le=10_000_000, description="system prompt that sessions share [token]"
    )
    systems: int = Field(default=1, ge=1, le=1_000_000, description="different system prompts [1]")
    zipf: Exponent = Field(
        default=0.0, description="use of system prompts falls as rank to the minus this [1]"
    )


Sharing = Annotated[SharedPrefix | Documents | MultiTurn, Field(discriminator="kind")]


def draw_turns(spec: MultiTurn, sessions: int, rng: np.random.Generator) -> Ints:
    """Return the number of turns of each session, 1 to 10,000."""
    drawn = np.rint(spec.turns.inverse(rng.random(sessions)))
    return np.clip(drawn, 1, 10_000).astype(np.int64)


def mean_turns(spec: MultiTurn, lengths: Lengths, sessions: int = 4000) -> float:
    """Return the mean number of requests of a session, some cut short by max_prompt_tokens.

    Parameters
    ----------
    spec : MultiTurn
        The sessions.
    lengths : Lengths
        Lengths of one turn.
    sessions : int
        Sessions of the estimate, always the same ones.

    Examples
    --------
    >>> from workloads.distributions import Constant
    >>> one = Lengths(prompt=Constant(tokens=100), output=Constant(tokens=50))
    >>> spec = MultiTurn(turns=Constant(tokens=9), pause_s=10, max_prompt_tokens=400)
    >>> mean_turns(spec, one)
    3.0
    """
    rng = np.random.default_rng(0)
    turns = draw_turns(spec, sessions, rng)
    drawn = sample_columns(lengths, int(turns.sum()), rng)
    new = _new_tokens(drawn["prompt_tokens"], _within(turns), spec, rng)
    prompts = spec.system_tokens + new + _cumulated_before(new + drawn["output_tokens"], turns)
    return max(float((prompts <= spec.max_prompt_tokens).sum() / sessions), 1e-3)


def share_prefixes(
    table: pd.DataFrame, spec: SharedPrefix | Documents, rng: np.random.Generator
) -> pd.DataFrame:
    """Put shared prefixes in front of the prompts of a table.

    Parameters
    ----------
    table : pandas.DataFrame
        A requests table without sharing; its prompts are what follows the prefix.
    spec : SharedPrefix or Documents
        What is shared.
    rng : numpy.random.Generator
        The stream of sharing.

    Returns
    -------
    pandas.DataFrame
        The table with longer prompts, and session and prefix_tokens or hash_ids.
    """
    if isinstance(spec, SharedPrefix):
        return _with_prefix(table, spec, rng)
    return _with_documents(table, spec, rng)


def _popular(n: int, size: int | tuple[int, int], zipf: float, rng: np.random.Generator) -> Ints:
    """Draw ranks 0 to n - 1 whose use falls as (rank + 1) ** -zipf."""
    cumulative = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -zipf)
    drawn = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return np.asarray(np.minimum(drawn, n - 1), dtype=np.int64)


def _with_prefix(table: pd.DataFrame, spec: SharedPrefix, rng: np.random.Generator) -> pd.DataFrame:
    n = len(table)
    which = _popular(spec.prefixes, n, spec.zipf, rng)
    has = rng.random(n) < spec.share
    lengths = np.rint(spec.tokens.inverse(rng.random(spec.prefixes))).astype(np.int64)
    added = np.where(has, lengths[which], 0)
    session = pd.Series(which, index=table.index).map(lambda k: f"prefix-{k}").where(has, "")
    again = has & session.duplicated().to_numpy()
    return table.assign(
        prompt_tokens=table["prompt_tokens"] + added,
        session=session.astype("str"),
        prefix_tokens=np.where(again, added, 0),
    )


def _with_documents(table: pd.DataFrame, spec: Documents, rng: np.random.Generator) -> pd.DataFrame:
    k, n = spec.per_request, len(table)
    lengths = np.rint(spec.tokens.inverse(rng.random(spec.documents))).astype(np.int64)
    chosen = _different(_popular(spec.documents, (n, k), spec.zipf, rng), spec, rng)
    if spec.order == "sorted":
        chosen = np.sort(chosen, axis=1)
    ends = np.cumsum(np.column_stack([np.full(n, spec.system_tokens), lengths[chosen]]), axis=1)
    prompts = table["prompt_tokens"].to_numpy() + ends[:, -1]
    hashes = _chained_hashes(ends, chosen, prompts)
    return table.assign(prompt_tokens=prompts, hash_ids=hashes.to_numpy())


def _different(chosen: Ints, spec: Documents, rng: np.random.Generator) -> Ints:
    """Draw again, at most 20 times, where a prompt has a document twice."""
    for _ in range(20):
        order = np.argsort(chosen, axis=1, kind="stable")
        ranked = np.take_along_axis(chosen, order, axis=1)
        twice = np.zeros(chosen.shape, dtype=bool)
        np.put_along_axis(twice, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
        if not twice.any():
            break
        chosen[twice] = _popular(spec.documents, int(twice.sum()), spec.zipf, rng)
    return chosen


def _chained_hashes(ends: Ints, parts: Ints, prompts: Ints) -> "pd.Series[Any]":
    """Name 512-token blocks by what stands before their end: the parts begun so far.

    Parameters
    ----------
    ends : array, shape (n, k + 1)
        Token at which the common start and each of the k parts end.
    parts : array, shape (n, k)
        Which part stands in each place.
    prompts : array, shape (n,)
        Length of the prompt; what follows the last part is shared with nobody.
    """
    chains = np.zeros_like(ends)
    for place in range(parts.shape[1]):
        pairs = chains[:, place] * (int(parts.max()) + 1) + parts[:, place]
        chains[:, place + 1] = _codes(pairs) + chains[:, place].max() + 1
    counts = block_counts(prompts)
    row = np.repeat(np.arange(len(prompts)), counts)
    block = _within(counts)
    stop = (block + 1) * HASH_BLOCK_TOKENS
    place = (ends[row] < stop[:, None]).sum(axis=1)
    private = place > parts.shape[1]
    chain = chains[row, np.minimum(place, parts.shape[1])]
    return _numbered(chain, block, private, counts)


def _within(counts: Ints) -> Ints:
    """Return 0, 1, ... inside each group of the given sizes."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _codes(keys: Ints) -> Ints:
    """Give equal keys equal numbers from 0, in order of appearance."""
    return np.asarray(pd.factorize(keys)[0], dtype=np.int64)


def _numbered(
    chain: Ints, block: Ints, private: npt.NDArray[np.bool_], counts: Ints
) -> "pd.Series[Any]":
    """Return numbers of blocks: shared by chain and place, private on their own; cut into rows."""
    keys = chain * (int(block.max()) + 1) + block
    first = int(keys.max()) + 1
    keys = np.where(private, first + np.arange(keys.size), keys)
    return split_rows(_codes(keys), counts)


def take_turns(
    starts: Floats,
    lengths: dict[str, Ints],
    turns: Ints,
    spec: MultiTurn,
    rng: np.random.Generator,
    duration_s: float | None = None,
) -> pd.DataFrame:
    """Return the requests of sessions.

    Parameters
    ----------
    starts : array, shape (s,)
        Arrival of each session's first turn in seconds, in rising order.
    lengths : dict of arrays, shape (turns.sum(),)
        New prompt tokens and output tokens of each turn, session after session.
    turns : array, shape (s,)
        Turns of each session, at least 1.
    spec : MultiTurn
        Pauses, limits, system prompts.
    rng : numpy.random.Generator
        The stream of sharing.
    duration_s : float, optional
        Turns later than this move to the front as sessions that began before time 0, whose first
        visible turn finds nothing cached: so the load is level from the first second.

    Returns
    -------
    pandas.DataFrame
        The requests table, with hash_ids where sessions share system prompts and with session
        and prefix_tokens otherwise.
    """
    if starts.size == 0:
        raise InputError("no session starts", "multi-turn", repair="raise duration_s or the rate")
    session = np.repeat(np.arange(turns.size), turns)
    turn = _within(turns)
    new = _new_tokens(lengths["prompt_tokens"], turn, spec, rng)
    before = _cumulated_before(new + lengths["output_tokens"], turns)
    gaps = spec.pause_s * unit_gaps(turn.size, spec.pause_cv, "gamma", rng)
    gaps += spec.answer_s_per_token * lengths["output_tokens"]
    data = {
        "arrival_s": starts[session] + _cumulated_before(gaps, turns),
        "prompt_tokens": spec.system_tokens + before + new,
        "output_tokens": lengths["output_tokens"],
        **({"image_tokens": lengths["image_tokens"]} if "image_tokens" in lengths else {}),
        "session": session,
        "system": _popular(spec.systems, turns.size, spec.zipf, rng)[session],
    }
    return _ordered(pd.DataFrame(data), spec, duration_s)


def _new_tokens(drawn: Ints, turn: Ints, spec: MultiTurn, rng: np.random.Generator) -> Ints:
    u = rng.random(drawn.size)
    if spec.first_tokens is None:
        return drawn
    first = np.rint(spec.first_tokens.inverse(u)).astype(np.int64)
    return np.where(turn == 0, drawn + first, drawn)


def _cumulated_before(values: npt.NDArray[Any], counts: Ints) -> npt.NDArray[Any]:
    """Return, inside each group, the sum of the values before each place."""
    total = np.cumsum(values) - values
    return np.asarray(total - np.repeat(total[np.cumsum(counts) - counts], counts))


def _ordered(table: pd.DataFrame, spec: MultiTurn, duration_s: float | None) -> pd.DataFrame:
    fits = table["prompt_tokens"] <= spec.max_prompt_tokens
    if not fits.any():
        what = f"every prompt is longer than {spec.max_prompt_tokens} tokens"
        raise InputError(what, "multi-turn", repair="raise max_prompt_tokens")
    table = table[fits].copy()
    lap = np.zeros(len(table), dtype=np.int64)
    if duration_s is not None:
        lap, table["arrival_s"] = _laps(table["arrival_s"].to_numpy(), duration_s)
    table["session"] = table["session"] + lap * (int(table["session"].max()) + 1)
    table = table.sort_values("arrival_s", kind="stable", ignore_index=True)
    if spec.system_tokens:
        return _session_hashes(table, spec.system_tokens)
    return _session_prefixes(table)


def _laps(arrival: Floats, duration_s: float) -> tuple[Ints, Floats]:
    lap = np.asarray(arrival // duration_s, dtype=np.int64)
    return lap, np.minimum(arrival - lap * duration_s, np.nextafter(duration_s, 0))


def _session_prefixes(table: pd.DataFrame) -> pd.DataFrame:
    previous = table.groupby("session")["prompt_tokens"].shift(fill_value=0)
    names = ("s" + table["session"].astype(str)).astype("str")
    return table.drop(columns="system").assign(session=names, prefix_tokens=previous)


def _session_hashes(table: pd.DataFrame, system_tokens: int) -> pd.DataFrame:
    prompts = table["prompt_tokens"].to_numpy()
    counts = block_counts(prompts)
    row = np.repeat(np.arange(len(table)), counts)
    block = _within(counts)
    stop = (block + 1) * HASH_BLOCK_TOKENS
    own = table["session"].to_numpy()[row] + int(table["system"].max()) + 1
    chain = np.where(stop <= system_tokens, table["system"].to_numpy()[row], own)
    hashes = _numbered(chain, block, stop > prompts[row], counts)
    return table.drop(columns=["session", "system"]).assign(hash_ids=hashes.to_numpy())
