"""The compiled loop against plain Python, and against itself in single steps and slices."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.layout import ITL_BINS, ITL_BINS_PER_E, ITL_MIN_S
from sim.testing import busy_knobs, busy_tables, serve
from tests.sim.reference_engine import reference

TABLES = busy_tables()
WHOLE = ("cached_tokens", "emitted", "preemptions", "recomputed_tokens", "status", "scheduled")
TIMES = ("admitted_s", "first_token_s", "finish_s", "last_token_s")
COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "running", "waiting")


@st.composite
def workloads(draw, sharing=True):
    """Requests of random lengths in bursts and pauses; some repeat the session's last prompt."""
    n = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    gap = draw(st.sampled_from([0.0, 0.004, 0.03, 0.3]))
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(gap, n) if gap else np.zeros(n)),
            "prompt_tokens": rng.integers(1, draw(st.sampled_from([6, 60, 400])), n),
            "output_tokens": rng.integers(1, draw(st.sampled_from([2, 30, 200])), n),
        }
    )
    if sharing and draw(st.booleans()):
        session = rng.integers(0, 4, n)
        table["session"] = [f"s{k}" if k else "" for k in session]
        before = table.groupby("session")["prompt_tokens"].shift(fill_value=0)
        shared = np.minimum(before, table["prompt_tokens"]) * rng.random(n)
        table["prefix_tokens"] = np.where(session > 0, shared.astype(int), 0)
    return table


@st.composite
def engines(draw, table):
    size = draw(st.sampled_from([1, 3, 4, 16]))
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max())
    room = draw(st.sampled_from([1.0, 1.3, 2.0, 6.0, 40.0]))
    return busy_knobs(
        block_size=size,
        num_blocks=int(-(-longest // size) * room) + 1,
        max_num_seqs=draw(st.sampled_from([1, 3, 16, 64])),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 256])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 7])),
        max_num_partial_prefills=draw(st.sampled_from([1, 2])),
        caching=draw(st.booleans()),
        watermark_blocks=draw(st.sampled_from([0, 0, 2])),
        level_mean_s=draw(st.sampled_from([0.02, 0.2, 1e30])),
    )


@st.composite
def cases(draw):
    table = draw(workloads())
    knobs = draw(engines(table))
    knobs["max_num_seqs"] = min(knobs["max_num_seqs"][0], knobs["max_num_batched_tokens"][0])
    return table, knobs, draw(st.integers(0, 1000))


def changed(knobs, **values):
    new = knobs.copy()
    for name, value in values.items():
        new[name] = value
    return new


def bins(gaps):
    place = np.log(np.maximum(gaps, ITL_MIN_S) / ITL_MIN_S) * ITL_BINS_PER_E
    return np.bincount(np.minimum(place.astype(int), ITL_BINS - 1), minlength=ITL_BINS)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_equals_the_plain_python_engine(case):
    table, knobs, seed = case
    plain = reference(table, knobs, TABLES, seed)
    fast = serve(table, changed(knobs, every_step=1), TABLES, seed=seed)
    jobs, requests = sorted(plain.jobs, key=lambda j: j.index), fast.records.requests
    for name, field in (("cached", "cached_tokens"), ("preemptions", "preemptions")):
        assert [getattr(j, name) for j in jobs] == requests[field].tolist()
    assert [j.recomputed for j in jobs] == requests["recomputed_tokens"].tolist()
    for name, field in (("admitted", "admitted_s"), ("first", "first_token_s")):
        assert np.allclose([getattr(j, name) for j in jobs], requests[field], rtol=1e-9, atol=0)
    assert np.allclose([j.finish for j in jobs], requests["finish_s"], rtol=1e-9, atol=0)
    rows = fast.steps()
    decided = [rows[name].tolist() for name in COUNTS[:3]]
    decided += [rows["decode_context"].tolist(), rows["running"].tolist()]
    assert [list(c) for c in list(zip(*plain.steps, strict=True))[1:]] == decided
    assert np.allclose([s[0] for s in plain.steps], rows["schedule_s"], rtol=1e-9, atol=0)
    assert float(plain.state["energy_j"][0]) == pytest.approx(fast.state["energy_j"][0], rel=1e-9)
    assert len(plain.pool.free) == fast.state["free_blocks"][0]


@settings(max_examples=40, deadline=None)
@given(cases(), st.lists(st.floats(0, 3), max_size=12))
def test_macro_steps_and_slices_change_nothing(case, slices):
    table, knobs, seed = case
    single = serve(table, changed(knobs, fuse=0), TABLES, seed=seed)
    fused = serve(table, knobs, TABLES, seed=seed)
    sliced = serve(table, knobs, TABLES, seed=seed, slices=slices)
    same_tables(fused, sliced, rel=0)
    same_requests(single, fused, rel=1e-9)
    same_steps(single.steps(), fused.steps())
    assert np.array_equal(single.lanes.gaps, fused.lanes.gaps)
    for name in ("energy_j", "prefill_energy_j", "busy_s", "idle_s", "flops", "bytes", "now"):
        assert single.state[name][0] == pytest.approx(fused.state[name][0], rel=1e-9)
    for name in ("step", "generated", "prefilled", "evictions", "hit_blocks", "preemptions"):
        assert single.state[name][0] == fused.state[name][0]


def same_requests(a, b, rel):
    a, b = a.records.requests, b.records.requests
    for name in WHOLE:
        assert a[name].tolist() == b[name].tolist()
    for name in TIMES:
        assert np.allclose(a[name], b[name], rtol=rel, atol=0, equal_nan=True)


def same_tables(a, b, rel):
    same_requests(a, b, rel)
    assert a.steps().tobytes() == b.steps().tobytes()
    assert np.array_equal(a.lanes.gaps, b.lanes.gaps)


def same_steps(single, fused):
    """Every fused row is the sum of its single steps, in the same order."""
    assert fused["steps"].sum() == single.size
    first = np.append(0, np.cumsum(fused["steps"]))[:-1]
    for name in (*COUNTS, "decode_context", "preempted"):
        assert single[name][first].tolist() == fused[name].tolist(), name
    last = first + fused["steps"] - 1
    assert single["free_blocks"][last].tolist() == fused["free_blocks"].tolist()
    assert np.allclose(single["schedule_s"][first], fused["schedule_s"], rtol=1e-9, atol=0)
    assert np.allclose(single["output_s"][last], fused["output_s"], rtol=1e-9, atol=0)
    for name in ("gpu_s", "host_s", "energy_j", "flops", "bytes"):
        sums = np.add.reduceat(single[name], first)
        assert np.allclose(sums, fused[name], rtol=1e-9, atol=0), name
    assert np.allclose(single["level"][last], fused["level"], rtol=1e-9, atol=0)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_histogram_holds_every_gap(case):
    table, knobs, seed = case
    plain = reference(table, knobs, TABLES, seed)
    fast = serve(table, knobs, TABLES, seed=seed)
    assert fast.lanes.gaps.sum() == (table["output_tokens"] - 1).sum() == len(plain.gaps)
    exact = bins(np.array(plain.gaps)) if plain.gaps else np.zeros(ITL_BINS)
    # a gap that lies on an edge may fall to either side by rounding
    moved = np.abs(np.cumsum(exact) - np.cumsum(fast.lanes.gaps))
    assert moved.sum() <= 0.01 * max(len(plain.gaps), 100)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_nothing_is_lost(case):
    table, knobs, seed = case
    replica = serve(table, changed(knobs, every_step=1), TABLES, seed=seed)
    requests, rows, state = replica.records.requests, replica.steps(), replica.state[0]
    assert (requests["status"] == 1).all()
    assert requests["emitted"].tolist() == table["output_tokens"].tolist()
    assert state["generated"] == table["output_tokens"].sum()
    assert state["free_blocks"] == knobs["num_blocks"][0]
    assert (rows["free_blocks"] >= 0).all()
    assert (rows["free_blocks"] <= knobs["num_blocks"][0]).all()
    tokens = rows["prefill_tokens"] + rows["decode_requests"]
    assert (tokens <= knobs["max_num_batched_tokens"][0]).all()
    assert (rows["running"] <= knobs["max_num_seqs"][0]).all()
    computed = rows["prefill_tokens"].sum() + rows["decode_requests"].sum()
    asked = (table["prompt_tokens"] + table["output_tokens"] - 1).sum()
    if not knobs["caching"][0]:
        assert computed == asked + requests["recomputed_tokens"].sum()
    assert (requests["admitted_s"] >= requests["ready_s"]).all()
    assert (requests["first_token_s"] > requests["admitted_s"]).all()
    assert (requests["finish_s"] >= requests["first_token_s"]).all()


def test_same_seed_same_table():
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(0.02, 40)),
            "prompt_tokens": rng.integers(1, 300, 40),
            "output_tokens": rng.integers(1, 90, 40),
        }
    )
    one, two = (serve(table, busy_knobs(num_blocks=150), TABLES, seed=3) for _ in range(2))
    same_tables(one, two, rel=0)
    other = serve(table, busy_knobs(num_blocks=150), TABLES, seed=4)
    assert one.steps()["level"].tolist() != other.steps()["level"].tolist()
