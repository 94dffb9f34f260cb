"""Random workloads and knobs for tests of the engine, and what two runs must have in common."""

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from sim.testing import busy_knobs, busy_tables

TABLES = busy_tables(tokens=1024)
FRONT = {"front_request_s": 3e-3, "front_prompt_s": 1e-6, "front_token_s": 7e-4}
WHOLE = (
    "cached_tokens",
    "dram_tokens",
    "ssd_tokens",
    "emitted",
    "preemptions",
    "swaps",
    "recomputed_tokens",
    "status",
    "scheduled",
)
TIMES = ("admitted_s", "first_token_s", "finish_s", "last_token_s", "memory_wait_s")
COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "padding", "running", "waiting")
SUMS = ("gpu_s", "host_s", "energy_j", "flops", "bytes")


def changed(knobs, **values):
    new = knobs.copy()
    for name, value in values.items():
        new[name] = value
    return new


def random_table(seed, n, gap, prompts, outputs):
    """Return requests of random lengths in bursts and pauses."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(gap, n) if gap else np.zeros(n)),
            "prompt_tokens": rng.integers(1, prompts, n),
            "output_tokens": rng.integers(1, outputs, n),
        }
    )


def with_sessions(table, seed):
    """Return a table in which some requests repeat a part of their session's last prompt."""
    rng, n = np.random.default_rng(seed), len(table)
    session = rng.integers(0, 4, n)
    table = table.assign(session=[f"s{k}" if k else "" for k in session])
    before = table.groupby("session")["prompt_tokens"].shift(fill_value=0)
    shared = np.minimum(before, table["prompt_tokens"]) * rng.random(n)
    return table.assign(prefix_tokens=np.where(session > 0, shared.astype(int), 0))


@st.composite
def tables(draw, most=30):
    seed = draw(st.integers(0, 2**32))
    table = random_table(
        seed,
        draw(st.integers(1, most)),
        draw(st.sampled_from([0.0, 0.004, 0.03, 0.3])),
        draw(st.sampled_from([6, 60, 400])),
        draw(st.sampled_from([2, 30, 200])),
    )
    return with_sessions(table, seed) if draw(st.booleans()) else table


@st.composite
def engines(draw, table):
    size = draw(st.sampled_from([1, 3, 4, 16]))
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max())
    room = draw(st.sampled_from([1.0, 1.3, 2.0, 6.0, 40.0]))
    tokens = draw(st.sampled_from([16, 64, 256]))
    return busy_knobs(
        block_size=size,
        num_blocks=int(-(-longest // size) * room) + 1,
        max_num_seqs=min(draw(st.sampled_from([1, 3, 16, 64])), tokens),
        max_num_batched_tokens=tokens,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 7])),
        max_num_partial_prefills=draw(st.sampled_from([1, 2])),
        caching=draw(st.booleans()),
        watermark_blocks=draw(st.sampled_from([0, 0, 2])),
        warm_rows=draw(st.sampled_from([0, 5, 16, 1 << 20])),
        level_mean_s=draw(st.sampled_from([0.02, 0.2, 1e30])),
        **draw(st.sampled_from([{}, {}, FRONT])),
    )


@st.composite
def cases(draw):
    table = draw(tables())
    return table, draw(engines(table)), draw(st.integers(0, 1000))


def same_requests(a, b, rel):
    a, b = a.records.requests, b.records.requests
    for name in WHOLE:
        assert a[name].tolist() == b[name].tolist(), name
    for name in TIMES:
        assert np.allclose(a[name], b[name], rtol=rel, atol=1e-12 if rel else 0, equal_nan=True)


def same_tables(a, b):
    """Every number of two runs is the same."""
    same_requests(a, b, 0)
    assert a.steps().tobytes() == b.steps().tobytes()
    assert np.array_equal(a.lanes.gaps, b.lanes.gaps)


def same_steps(single, fused):
    """Every fused row is the sum of its single steps, in the same order."""
    assert fused["steps"].sum() == single.size
    if not single.size:
        return
    first = np.append(0, np.cumsum(fused["steps"]))[:-1]
    last = first + fused["steps"] - 1
    for name in (*COUNTS, "decode_context", "preempted"):
        assert single[name][first].tolist() == fused[name].tolist(), name
    for name in ("free_blocks", "unused_tokens", "largest_free_blocks"):
        assert single[name][last].tolist() == fused[name].tolist(), name
    assert np.allclose(single["schedule_s"][first], fused["schedule_s"], rtol=1e-9, atol=0)
    assert np.allclose(single["output_s"][last], fused["output_s"], rtol=1e-9, atol=0)
    for name in SUMS:
        sums = np.add.reduceat(single[name], first)
        assert np.allclose(sums, fused[name], rtol=1e-9, atol=0), name
    assert np.allclose(single["level"][last], fused["level"], rtol=1e-9, atol=0)
