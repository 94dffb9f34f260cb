"""Ways to fill a step, traced by hand: every step takes one second unless the test says else."""

import numpy as np
import pytest

from policies.batching import Adaptive
from policies.rules import BatchRules
from sim.testing import serve, toy_knobs, toy_tables
from tests.sim.engine_traces import columns, requests, single_steps

STATIC = {"hold": 1, "together": 1, "prefill_first": 1, "every_step": 1}


def test_static_batch_waits_for_its_longest():
    """Two in a batch: outputs of 2 and 5 both end at 5; the third starts then, alone."""
    table = requests((0, 4, 2), (0, 4, 5), (0, 4, 1))
    replica = serve(table, toy_knobs(max_num_seqs=2, **STATIC))
    assert columns(replica, "first_token_s") == [1.0, 1.0, 6.0]
    assert columns(replica, "finish_s") == [5.0, 5.0, 6.0]
    assert columns(replica, "emitted") == [2, 5, 1]
    rows = single_steps(replica, "decode_requests", "padding")
    assert rows[:5] == [(0, 0), (2, 0), (1, 0), (1, 1), (1, 1)]


def test_padding_costs_time_but_no_gaps():
    """A decode takes 0.1 s per token of context: the ended request is computed along."""
    table = requests((0, 10, 2), (0, 20, 4))
    slow = toy_tables(step_s=1.0, decode_s=0.1)
    together = serve(table, toy_knobs(max_num_seqs=2, **STATIC), slow)
    assert together.lanes.gaps.sum() == 1 + 3
    apart = serve(table, toy_knobs(max_num_seqs=2, every_step=1), slow)
    # the fourth step: 11 of padding and 22 of its own, against 22 alone
    assert together.steps()["gpu_s"][3] > apart.steps()["gpu_s"][3] + 0.9
    assert together.state["n_padding"][0] == 0


def test_static_prompts_go_over_several_steps():
    """The budget takes one prompt per step; nobody decodes before all three are in."""
    table = requests((0, 8, 3), (0, 8, 3), (0, 8, 3))
    replica = serve(table, toy_knobs(max_num_batched_tokens=8, max_num_seqs=4, **STATIC))
    rows = single_steps(replica, "prefill_tokens", "decode_requests")
    assert rows == [(8, 0), (8, 0), (8, 0), (0, 3), (0, 3)]
    assert columns(replica, "finish_s") == [5.0, 5.0, 5.0]


def test_prompts_of_a_held_batch_go_without_its_padding():
    """Three answers of one token: the first two are over while the third prompt is computed."""
    table = requests((0, 8, 1), (0, 8, 1), (0, 8, 3))
    replica = serve(table, toy_knobs(max_num_batched_tokens=8, max_num_seqs=4, **STATIC))
    rows = single_steps(replica, "prefill_tokens", "decode_requests", "padding")
    assert rows == [(8, 0, 0), (8, 0, 0), (8, 0, 0), (0, 1, 2), (0, 1, 2)]


def test_static_batch_is_closed():
    """The second arrives a moment after the batch was chosen and waits for its end."""
    replica = serve(requests((0, 4, 6), (0.5, 4, 1)), toy_knobs(**STATIC))
    assert columns(replica, "admitted_s") == [0.0, 6.0]


@pytest.mark.parametrize(("size", "starts"), [(2, [1.0, 1.0, 4.5]), (4, [3.0, 3.0, 4.5])])
def test_dynamic_batch_starts_when_full_or_late(size, starts):
    """Arrivals at 0, 1 and 2.5; two are enough at 1 s, four never come: 3 s after the first."""
    table = requests((0, 4, 1), (1, 4, 1), (2.5, 4, 1))
    knobs = toy_knobs(fill_size=size, fill_timeout_s=3.0, **STATIC)
    admitted = columns(serve(table, knobs), "admitted_s")
    expected = starts if size == 2 else [3.0, 3.0, 3.0]
    assert admitted == pytest.approx([*expected[:2], 5.5 if size == 2 else 3.0])


def test_prompts_first_stop_decodes():
    """Continuous batching as in Orca and vLLM V0: the step of a new prompt decodes nobody."""
    table = requests((0, 4, 6), (2, 4, 3))
    replica = serve(table, toy_knobs(prefill_first=1, chunked=0, every_step=1))
    rows = single_steps(replica, "schedule_s", "prefill_tokens", "decode_requests")
    assert (2.0, 4, 0) in rows
    mixed = [r for r in rows if r[1] and r[2]]
    assert mixed == []
    both = serve(table, toy_knobs(every_step=1))
    assert (2.0, 4, 1) in single_steps(both, "schedule_s", "prefill_tokens", "decode_requests")


def test_whole_prompts_wait_for_room_in_the_step():
    """Budget 10, prompts of 6 and 8: uncut, the second takes the step after."""
    table = requests((0, 6, 1), (0, 8, 1))
    knobs = toy_knobs(max_num_batched_tokens=20, prefill_first=1, chunked=0, every_step=1)
    assert single_steps(serve(table, knobs), "prefill_tokens") == [(14,)]
    knobs["max_num_batched_tokens"] = 10
    assert single_steps(serve(table, knobs), "prefill_tokens") == [(6,), (8,)]


def test_cut_prompts_go_on_before_new_ones():
    """Prefill first with chunks of 5: the cut prompt is finished before the next begins."""
    table = requests((0, 9, 1), (0, 9, 1))
    knobs = toy_knobs(max_num_batched_tokens=5, prefill_first=1)
    assert columns(serve(table, knobs), "first_token_s") == [2.0, 4.0]


def test_prefill_only_ends_with_the_first_token():
    replica = serve(requests((0, 8, 5), (0, 4, 1)), toy_knobs(output_limit=1))
    assert columns(replica, "emitted", "finish_s") == [(1, 1.0), (1, 1.0)]
    assert replica.steps()["decode_requests"].sum() == 0


def test_decode_only_computes_one_token_per_output():
    """The KV cache of 7 of 8 prompt tokens is there; blocks for all are taken at admission."""
    replica = serve(requests((0, 8, 3)), toy_knobs(receive=1, every_step=1, num_blocks=9))
    rows = single_steps(replica, "prefill_tokens", "decode_requests", "decode_context")
    assert rows == [(0, 1, 7), (0, 1, 8), (0, 1, 9)]
    assert replica.steps()["free_blocks"].tolist() == [7, 6, 6]


def test_given_kv_cache_is_not_computed():
    """A hand-off: 8 tokens come with the request, whose first output was made elsewhere."""

    def hand_over(records):
        records.requests["given_tokens"] = 8
        records.requests["scheduled"] = records.requests["emitted"] = 1

    def serve_rest(**changes):
        replica = serve(requests((0, 8, 4)), toy_knobs(every_step=1, **changes), prepare=hand_over)
        return single_steps(replica, "prefill_tokens", "decode_requests")

    assert serve_rest() == [(0, 1)] * 3
    assert serve_rest(caching=1) == [(0, 1)] * 3


class Ladder:
    """One sequence more at every question, five at most."""

    def __init__(self):
        self.views = []

    def rules(self):
        return BatchRules(5, 64)

    def adapt(self, view):
        self.views.append(view)
        return BatchRules(len(self.views), 64, valid_s=2.0)


def test_an_adaptive_policy_is_asked_on_changes_and_when_rules_expire():
    policy = Ladder()
    replica = serve(requests((0, 4, 3), (0, 4, 3), (9, 4, 3)), toy_knobs(), policy=policy)
    assert policy.views[0].now_s == 0.0
    assert (policy.views[0].waiting, policy.views[0].running) == (2, 0)
    assert columns(replica, "admitted_s")[:2] == [0.0, 0.0]
    later = [view.now_s for view in policy.views if view.now_s >= 9.0]
    assert later[0] == 9.0


def test_rules_stay_within_the_limits():
    class Greedy(Ladder):
        def adapt(self, view):
            return BatchRules(1000, 100_000)

    replica = serve(requests(*[(0, 8, 2)] * 20), toy_knobs(every_step=1), policy=Greedy())
    rows = replica.steps()
    assert rows["running"].max() <= 5
    assert (rows["prefill_tokens"] + rows["decode_requests"]).max() <= 64


def test_adaptive_tokens_halve_on_slow_steps_and_grow_on_fast_ones():
    """A step takes 10 ms per token. Aiming at 0.5 s, the budget settles near 50 tokens."""
    table = requests(*[(0.05 * i, 200, 4) for i in range(40)])
    tables = toy_tables(step_s=0.0, token_s=0.01)
    knobs = toy_knobs(every_step=1, max_num_batched_tokens=256)
    fixed = serve(table, knobs, tables).steps()["gpu_s"]
    adaptive = serve(table, knobs, tables, policy=Adaptive(64, 256, 0.5, 0.1)).steps()["gpu_s"]
    assert np.percentile(fixed, 90) > 2.0
    assert np.percentile(adaptive, 90) < 1.2


def test_adaptive_sequences_follow_memory():
    """Requests of 60 tokens at the end, room for 400: six at once instead of twenty."""
    table = requests(*[(0, 20, 40)] * 20)
    knobs = toy_knobs(num_blocks=100, every_step=1)
    fixed = serve(table, knobs)
    careful = serve(table, knobs, policy=Adaptive(64, 256, 100.0, 1.0, 0.1))
    assert fixed.state["preemptions"][0] > 0
    assert careful.state["preemptions"][0] < fixed.state["preemptions"][0]


def test_adaptive_limits_are_those_of_a_rank_and_the_step_has_all_ranks():
    """Four ranks: the policy's own limits are 16 sequences and 64 tokens of each."""
    table = requests(*[(0, 8, 40)] * 200)
    knobs = toy_knobs(dp=4, units=4, unit_tokens=64, max_num_seqs=64, max_num_batched_tokens=256)
    policy = Adaptive(16, 64, step_objective_s=100.0, interval_s=0.1)
    replica = serve(table, knobs, toy_tables(tokens=1024, seqs=64), policy=policy)
    rows = replica.steps()
    assert rows["running"].max() == 64
    assert (rows["prefill_tokens"] + rows["decode_requests"]).max() > 64
    now = replica.knobs[0]
    assert now["max_num_seqs"] == 64
    assert now["unit_tokens"] * 4 == now["max_num_batched_tokens"]
    assert now["long_prefill_token_threshold"] == now["unit_tokens"]
