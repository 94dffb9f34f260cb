from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from formats import InputError, check
from workloads.distributions import Choice, Constant, Uniform
from workloads.lengths import Lengths
from workloads.prefix_cache import hit_rate_curve, infinite_hit_rate, lru_depths, with_hashes
from workloads.requests import HASH_BLOCK_TOKENS, check_requests
from workloads.sessions import (
    Documents,
    MultiTurn,
    SharedPrefix,
    Sharing,
    draw_turns,
    mean_turns,
    share_prefixes,
    take_turns,
)
from workloads.traces import read_trace

Ints = npt.NDArray[np.int64]
rng = np.random.default_rng


def requests(n: int, seed: int = 0) -> pd.DataFrame:
    source = rng(seed)
    return pd.DataFrame(
        {
            "arrival_s": np.arange(n) * 1.0,
            "prompt_tokens": source.integers(1, 1500, n),
            "output_tokens": source.integers(1, 50, n),
        }
    )


def blocks_of(prompts: "list[Ints]") -> list[list[object]]:
    """Name every begun 512-token block by all tokens up to its end; a partial one by its row."""
    out: list[list[object]] = []
    for row, tokens in enumerate(prompts):
        ends = range(HASH_BLOCK_TOKENS, tokens.size + HASH_BLOCK_TOKENS, HASH_BLOCK_TOKENS)
        out.append([tokens[:e].tobytes() if e <= tokens.size else row for e in ends])
    return out


def same_partition(names: list[list[object]], table: pd.DataFrame) -> bool:
    """Whether equal names and equal hash_ids are the same blocks."""
    flat = [n for row in names for n in row]
    ids = [int(i) for row in table["hash_ids"] for i in row]
    return len(flat) == len(ids) and len(set(flat)) == len(set(ids)) == len(
        set(zip(flat, ids, strict=True))
    )


def test_templates_come_before_the_prompt_and_are_shared_from_the_second_use():
    plain = requests(400)
    spec = SharedPrefix(prefixes=3, tokens=Choice(tokens=[100, 900], weights=[1, 1]), share=0.75)
    table = check_requests(share_prefixes(plain, spec, rng(1)))
    added = table["prompt_tokens"] - plain["prompt_tokens"]
    has = table["session"] != ""
    assert has.mean() == pytest.approx(0.75, abs=3 * np.sqrt(0.75 * 0.25 / 400))
    assert (added[~has] == 0).all()
    assert (table["prefix_tokens"] > 0).sum() == has.sum() - table["session"][has].nunique()
    for _, group in table[has].groupby("session"):
        assert group["prefix_tokens"].iloc[0] == 0
        assert set(group["prefix_tokens"].iloc[1:]) <= {100, 900}
        assert (added[group.index][1:] == group["prefix_tokens"].iloc[1:]).all()


def test_use_falls_with_rank():
    spec = SharedPrefix(prefixes=4, tokens=Constant(tokens=10), zipf=1)
    table = share_prefixes(requests(40_000), spec, rng(1))
    counts = table["session"].value_counts().sort_index()
    expected = 40_000 / np.arange(1, 5) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert counts.to_numpy() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("order", ["retrieved", "sorted"])
@pytest.mark.parametrize("system", [0, 300, 512, 1200])
def test_hashes_of_documents_are_those_of_the_tokens(order, system):
    """Build the token sequences themselves and name blocks by what stands before their end."""
    spec = Documents(
        system_tokens=system,
        documents=5,
        per_request=3,
        tokens=Choice(tokens=[60, 200, 512, 700], weights=[1, 1, 1, 1]),
        zipf=1.5,
        order=order,
    )
    plain = requests(300, 2)
    made = check_requests(share_prefixes(plain, spec, rng(4)))
    source = rng(4)  # the same draws again: lengths of the documents first, then which ones
    lengths = np.rint(spec.tokens.inverse(source.random(5))).astype(int)
    texts = [np.full(n, -2 - d) for d, n in enumerate(lengths)]
    total = made["prompt_tokens"] - plain["prompt_tokens"] - system
    prompts = []
    weights = np.cumsum(np.arange(1, 6) ** -1.5)
    drawn = np.searchsorted(weights, source.random((300, 3)) * weights[-1], side="right")
    while True:
        order_of = np.argsort(drawn, axis=1, kind="stable")
        ranked = np.take_along_axis(drawn, order_of, axis=1)
        twice = np.zeros(drawn.shape, dtype=bool)
        np.put_along_axis(twice, order_of[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
        if not twice.any():
            break
        again = source.random(int(twice.sum())) * weights[-1]
        drawn[twice] = np.searchsorted(weights, again, side="right")
    if order == "sorted":
        drawn.sort(axis=1)
    for row in range(300):
        parts = [np.full(system, -1), *(texts[d] for d in drawn[row])]
        own = np.arange(plain["prompt_tokens"].iloc[row]) + 10_000 * (row + 1)
        prompts.append(np.concatenate([*parts, own]))
        assert sum(p.size for p in parts) - system == total.iloc[row]
    assert same_partition(blocks_of(prompts), made)
    assert infinite_hit_rate(made).blocks > 0.1


def test_sorted_documents_share_more():
    base = {"documents": 30, "per_request": 4, "tokens": Constant(tokens=512), "zipf": 1.2}
    rates = [
        infinite_hit_rate(share_prefixes(requests(500), Documents(order=o, **base), rng(1))).blocks
        for o in ("retrieved", "sorted")
    ]
    assert rates[1] > 1.1 * rates[0]


ONE = Lengths(prompt=Uniform(low=1, high=900), output=Uniform(low=1, high=300))


def sessions(spec: MultiTurn, n: int, duration: float | None = None) -> pd.DataFrame:
    source = rng(7)
    turns = draw_turns(spec, n, source)
    total = int(turns.sum())
    lengths = {
        "prompt_tokens": source.integers(1, 900, total),
        "output_tokens": source.integers(1, 300, total),
    }
    starts = np.sort(source.random(n) * (duration or 1000.0))
    return check_requests(take_turns(starts, lengths, turns, spec, source, duration))


def test_each_turn_repeats_the_history():
    spec = MultiTurn(turns=Uniform(low=1, high=8), pause_s=20, pause_cv=0.5, answer_s_per_token=0.1)
    table = sessions(spec, 50)
    assert table["session"].nunique() == 50
    for _, turns in table.groupby("session"):
        gaps = np.diff(turns["arrival_s"])
        grown = np.diff(turns["prompt_tokens"]) - turns["output_tokens"].iloc[:-1]
        assert (gaps > 0.1 * turns["output_tokens"].iloc[:-1]).all()
        assert (grown >= 1).all()
        assert (grown < 900).all()
        assert turns["prefix_tokens"].tolist() == [0, *turns["prompt_tokens"].iloc[:-1]]


def test_pauses_and_answers_take_their_time():
    spec = MultiTurn(turns=Constant(tokens=400), pause_s=20, answer_s_per_token=0.1)
    table = sessions(spec.model_copy(update={"max_prompt_tokens": 10**8}), 20)
    spans = table.groupby("session")["arrival_s"].agg(np.ptp)
    assert spans.mean() / 399 == pytest.approx(20 + 0.1 * 150, rel=0.02)


def test_a_prompt_that_is_too_long_ends_the_session():
    spec = MultiTurn(turns=Constant(tokens=50), pause_s=1, max_prompt_tokens=5000)
    table = sessions(spec, 40)
    longest = table.groupby("session")["prompt_tokens"].max()
    assert longest.max() <= 5000
    assert longest.min() > 5000 - 1200
    with pytest.raises(InputError, match="every prompt is longer than 1 tokens"):
        sessions(spec.model_copy(update={"max_prompt_tokens": 1, "system_tokens": 9}), 3)


def test_system_prompts_are_shared_between_sessions_by_hashes():
    spec = MultiTurn(
        turns=Uniform(low=1, high=6), pause_s=20, system_tokens=1100, systems=2, zipf=1
    )
    table = sessions(spec, 60)
    first = [int(ids[0]) for ids in table["hash_ids"]]
    second = [int(ids[1]) for ids in table["hash_ids"]]
    assert len(set(first)) == len(set(second)) == 2
    assert "session" not in table
    plain = sessions(spec.model_copy(update={"system_tokens": 0}), 60)
    assert (table["prompt_tokens"] - 1100 == plain["prompt_tokens"]).all()
    # each full block after the system prompt is one session's, and turns of it share them
    assert infinite_hit_rate(table).tokens > infinite_hit_rate(plain).tokens


def test_turns_after_the_end_move_to_the_front_as_sessions_of_their_own():
    spec = MultiTurn(turns=Constant(tokens=10), pause_s=50, pause_cv=0.2, answer_s_per_token=0)
    table = sessions(spec, 200, duration=300.0)
    assert len(table) == 2000
    assert table["arrival_s"].between(0, 300, inclusive="left").all()
    early, late = np.histogram(table["arrival_s"], [0, 150, 300])[0]
    assert early == pytest.approx(late, rel=0.1)
    heads = table[~table["session"].duplicated()]
    assert (heads["prefix_tokens"] == 0).all()
    assert heads["prompt_tokens"].max() > 5000  # the middle of a conversation


def test_mean_turns_counts_those_that_fit():
    spec = MultiTurn(turns=Uniform(low=2, high=4), pause_s=1)
    assert mean_turns(spec, ONE) == pytest.approx(3, abs=0.05)
    short = spec.model_copy(update={"turns": Constant(tokens=10**4), "max_prompt_tokens": 6000})
    assert 9 < mean_turns(short, ONE, 500) < 11


def naive_hits(rows: "list[Ints]", prompts: Ints, capacity: int) -> tuple[float, float]:
    """An LRU cache of blocks, step by step: leading run hits, then all are touched tail first."""
    cache: OrderedDict[int, None] = OrderedDict()
    blocks = tokens = 0
    for ids, prompt in zip(rows, prompts, strict=True):
        run = 0
        while run < len(ids) and int(ids[run]) in cache:
            run += 1
        blocks += run
        tokens += min(run * HASH_BLOCK_TOKENS, int(prompt))
        for i in ids[::-1].tolist():
            cache[i] = None
            cache.move_to_end(i)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return blocks / sum(map(len, rows)), tokens / int(prompts.sum())


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1),
    st.integers(1, 511),
)
def test_the_curve_is_the_cache_simulated_at_every_capacity(rows, last):
    """Also for hashes that are not chained, where only the leading run counts."""
    arrays = [np.array(r, dtype=np.int64) for r in rows]
    prompts = np.array([(len(r) - 1) * HASH_BLOCK_TOKENS + last for r in rows])
    table = pd.DataFrame({"prompt_tokens": prompts, "hash_ids": arrays})
    capacities = [1, 2, 3, 5, 9, 100]
    curve = hit_rate_curve(table, capacities)
    for row, capacity in enumerate(capacities):
        found = curve.loc[row, ["blocks_hit", "tokens_hit"]].to_list()
        assert found == pytest.approx(naive_hits(arrays, prompts, capacity))
    assert infinite_hit_rate(table).blocks == pytest.approx(curve["blocks_hit"].iloc[-1])
    assert (np.diff(curve["blocks_hit"]) >= 0).all()


def test_depths_by_hand():
    rows = [np.array([1, 2]), np.array([3]), np.array([1, 2]), np.array([1, 4])]
    table = pd.DataFrame({"prompt_tokens": [1024, 512, 1000, 513], "hash_ids": rows})
    depths, tokens = lru_depths(table)
    never = np.iinfo(np.int64).max
    # before row 3 the order of use is 3, 1, 2; before row 4 it is 1, 2, 3
    assert depths.tolist() == [never, never, never, 2, 3, 1, never]
    assert tokens.tolist() == [512, 512, 512, 512, 488, 512, 1]


def test_prefixes_become_the_same_hashes_as_the_tokens_would():
    spec = MultiTurn(turns=Uniform(low=1, high=6), pause_s=30)
    table = sessions(spec, 30)
    history: dict[str, Ints] = {}
    prompts = []
    for row, (name, size, kept) in enumerate(
        zip(table["session"], table["prompt_tokens"], table["prefix_tokens"], strict=True)
    ):
        own = np.arange(size - kept) + 10**6 * (row + 1)
        prompts.append(np.concatenate([history.get(name, np.empty(0, int))[:kept], own]))
        history[name] = prompts[-1]
    assert same_partition(blocks_of(prompts), with_hashes(table))
    assert "prefix_tokens" not in check_requests(with_hashes(table).drop(columns="session"))


@pytest.mark.parametrize(
    ("which", "blocks", "tokens"), [("conversation", 0.366, 0.374), ("synthetic", 0.640, 0.651)]
)
def test_mooncake_hit_rates(trace_folder: Path, which: str, blocks: float, tokens: float):
    """Found by replaying the public traces; the paper states 40 and 66 %."""
    table = read_trace(trace_folder / f"mooncake_{which}_trace.jsonl.gz")
    found = infinite_hit_rate(table)
    assert found.blocks == pytest.approx(blocks, abs=0.0005)
    assert found.tokens == pytest.approx(tokens, abs=0.0005)
    curve = hit_rate_curve(table, [3000, 20_000, 10**6])
    for row, capacity in enumerate([3000, 20_000]):
        simulated = naive_hits(table["hash_ids"].to_list(), table["prompt_tokens"], capacity)
        assert curve.loc[row, ["blocks_hit", "tokens_hit"]].to_list() == pytest.approx(simulated)
    assert curve["blocks_hit"].iloc[2] == found.blocks


class Holder(BaseModel):
    sharing: Sharing


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "documents", "documents": 3, "tokens": {"kind": "constant", "tokens": 5}},
         "3 documents are fewer than per_request"),
        ({"kind": "shared-prefix"}, "tokens is missing, add it"),
        ({"kind": "multi-turn", "pause_s": 1}, "turns is missing, add it"),
        ({"kind": "multi-turns"}, "'shared-prefix', 'documents', 'multi-turn'"),
    ],
)  # fmt: skip
def test_bad_sharing_is_explained(spec, message):
    with pytest.raises(InputError) as caught:
        check({"sharing": spec}, Holder, "x.toml")
    assert message in str(caught.value)


def test_no_session_is_an_error():
    spec = MultiTurn(turns=Constant(tokens=2), pause_s=1)
    empty = np.empty(0, dtype=np.int64)
    lengths = {"prompt_tokens": empty, "output_tokens": empty}
    with pytest.raises(InputError, match="no session starts"):
        take_turns(np.empty(0), lengths, empty, spec, rng(0))
