"""The compiled loop against plain Python, and against itself in single steps and slices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.layout import ITL_BINS, ITL_BINS_PER_E, ITL_MIN_S
from sim.testing import busy_knobs, serve
from tests.sim.engine_cases import (
    COUNTS,
    TABLES,
    cases,
    changed,
    random_table,
    same_requests,
    same_steps,
    same_tables,
)
from tests.sim.reference_engine import reference


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
    same_tables(fused, sliced)
    same_requests(single, fused, rel=1e-9)
    same_steps(single.steps(), fused.steps())
    assert np.array_equal(single.lanes.gaps, fused.lanes.gaps)
    for name in ("energy_j", "prefill_energy_j", "busy_s", "idle_s", "flops", "bytes", "now"):
        assert single.state[name][0] == pytest.approx(fused.state[name][0], rel=1e-9)
    for name in ("step", "generated", "prefilled", "evictions", "hit_blocks", "preemptions"):
        assert single.state[name][0] == fused.state[name][0]


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
    table = random_table(5, 40, 0.02, 300, 90)
    one, two = (serve(table, busy_knobs(num_blocks=150), TABLES, seed=3) for _ in range(2))
    same_tables(one, two)
    other = serve(table, busy_knobs(num_blocks=150), TABLES, seed=4)
    assert one.steps()["level"].tolist() != other.steps()["level"].tolist()
