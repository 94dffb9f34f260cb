"""The rules of vLLM V1, traced by hand: every step takes one second, blocks hold four tokens."""

import numpy as np
import pytest

from sim.testing import serve, toy_knobs, toy_tables
from tests.sim.engine_traces import columns, requests, single_steps, statuses


def test_one_request():
    """Prompt in step 1, then one token per step; output of step n is seen when it ends."""
    replica = serve(requests((0, 8, 4)), toy_knobs(every_step=1))
    assert columns(replica, "first_token_s", "finish_s") == [(1.0, 4.0)]
    rows = single_steps(replica, "prefill_tokens", "decode_requests", "decode_context")
    assert rows == [(8, 0, 0), (0, 1, 8), (0, 1, 9), (0, 1, 10)]


def test_one_token_answers_take_no_decode():
    replica = serve(requests((0, 8, 1), (0, 3, 1)), toy_knobs(every_step=1))
    assert columns(replica, "finish_s") == [1.0, 1.0]
    assert single_steps(replica, "prefill_tokens", "decode_requests") == [(11, 0)]


def test_no_requests():
    replica = serve(requests(), toy_knobs())
    assert replica.steps().size == 0
    assert replica.state["step"][0] == 0


def test_prompts_are_cut_to_the_token_limit():
    """Budget 10: prompt of 8, then 2 of 14; one token and 9 more; one token and the last 3."""
    knobs = toy_knobs(max_num_batched_tokens=10, every_step=1)
    replica = serve(requests((0, 8, 9), (0, 14, 1)), knobs)
    rows = single_steps(replica, "prefill_requests", "prefill_tokens", "decode_requests")
    assert rows[:3] == [(2, 10, 0), (1, 9, 1), (1, 3, 1)]
    assert columns(replica, "first_token_s") == [1.0, 3.0]


def test_threshold_caps_the_prompt_tokens_of_a_request():
    knobs = toy_knobs(long_prefill_token_threshold=6, every_step=1)
    replica = serve(requests((0, 14, 1), (0, 3, 1)), knobs)
    assert single_steps(replica, "prefill_tokens") == [(6 + 3,), (6,), (2,)]


@pytest.mark.parametrize(("partial", "first"), [(1, 6), (2, 12)])
def test_cut_prompts_admitted_in_a_step(partial, first):
    """Two long prompts, six tokens each at most: one or both of them start in step 1."""
    knobs = toy_knobs(
        long_prefill_token_threshold=6, max_num_partial_prefills=partial, every_step=1
    )
    replica = serve(requests((0, 14, 1), (0, 14, 1)), knobs)
    assert replica.steps()["prefill_tokens"][0] == first


def test_sequences_are_limited():
    """Two at a time: the first is seen to end at 2, when the step from 2 to 3 is already formed."""
    replica = serve(requests((0, 4, 2), (0, 4, 5), (0, 4, 1)), toy_knobs(max_num_seqs=2))
    assert columns(replica, "admitted_s") == [0.0, 0.0, 2.0]
    assert columns(replica, "first_token_s") == [1.0, 1.0, 4.0]


def test_admitted_only_when_the_whole_prompt_fits():
    """Five blocks, two are taken; the second prompt needs four, its first chunk only three."""
    knobs = toy_knobs(num_blocks=5, max_num_batched_tokens=12)
    replica = serve(requests((0, 8, 4), (0, 16, 1)), knobs)
    assert columns(replica, "admitted_s", "first_token_s") == [(0.0, 1.0), (4.0, 6.0)]
    roomy = serve(requests((0, 8, 4), (0, 16, 1)), toy_knobs(num_blocks=6))
    assert columns(roomy, "admitted_s") == [0.0, 0.0]


def test_head_of_the_queue_blocks_those_behind():
    """The third would fit, but first come is first served."""
    replica = serve(requests((0, 8, 4), (0, 16, 1), (0, 2, 1)), toy_knobs(num_blocks=5))
    assert columns(replica, "admitted_s") == [0.0, 4.0, 4.0]


def test_watermark_is_kept_free_at_admission():
    """Of 6 blocks 2 are taken; a prompt of 3 blocks leaves 1, the watermark wants 2."""
    table = requests((0, 7, 2), (0, 12, 1))
    assert columns(serve(table, toy_knobs(num_blocks=6)), "admitted_s") == [0.0, 0.0]
    kept = serve(table, toy_knobs(num_blocks=6, watermark_blocks=2))
    assert columns(kept, "admitted_s") == [0.0, 2.0]


def three_in_six_blocks(**changes):
    """Three prompts of two blocks each fill six blocks; the first decode needs a seventh."""
    table = requests((0, 8, 5), (0, 8, 5), (0, 8, 5))
    return serve(table, toy_knobs(num_blocks=6, every_step=1, **changes))


def test_last_admitted_is_preempted_and_recomputed():
    """Step 2 takes the third's blocks; the others grow to 3 blocks; it restarts at their end, 5.

    Its first token was computed in step 1, so it recomputes 8 + 1 tokens, and no token twice.
    """
    replica = three_in_six_blocks()
    assert columns(replica, "preemptions", "recomputed_tokens") == [(0, 0), (0, 0), (1, 8)]
    assert columns(replica, "first_token_s") == [1.0, 1.0, 1.0]
    assert columns(replica, "finish_s") == [5.0, 5.0, 9.0]
    rows = single_steps(replica, "schedule_s", "prefill_tokens", "decode_requests", "preempted")
    assert rows[:2] == [(0.0, 24, 0, 0), (0.0, 0, 2, 1)]
    assert (5.0, 9, 0, 0) in rows
    assert columns(replica, "emitted") == [5, 5, 5]


def test_a_step_that_preempts_admits_nothing():
    """The fourth fits the two freed blocks at once, but waits until the next step."""
    table = requests((0, 8, 3), (0, 8, 3), (0, 8, 3), (0, 1, 1))
    replica = serve(table, toy_knobs(num_blocks=6, max_num_seqs=3, every_step=1))
    preempting = replica.steps()[replica.steps()["preempted"] > 0]
    assert preempting["prefill_requests"].tolist() == [0] * preempting.size


def test_the_preempted_goes_before_later_arrivals():
    """Both fit when the first two end, but one sequence only may run: it is the preempted one."""
    table = requests((0, 8, 5), (0, 8, 5), (0, 8, 5), (0.5, 16, 5))
    replica = serve(table, toy_knobs(num_blocks=6, every_step=1))
    assert columns(replica, "preemptions") == [0, 0, 1, 0]
    assert columns(replica, "admitted_s") == [0.0, 0.0, 0.0, 9.0]
    assert columns(replica, "finish_s")[2] == 9.0


def test_blocks_are_counted_through_macro_steps():
    """Prompt 7, output 10 in blocks of 4: blocks held are ceil(tokens in cache / 4)."""
    for fuse in (0, 1):
        replica = serve(requests((0, 7, 10)), toy_knobs(num_blocks=9, fuse=fuse, every_step=1))
        held = 9 - replica.steps()["free_blocks"]
        assert held.tolist() == [2, 2, 3, 3, 3, 3, 4, 4, 4, 4]
        assert replica.state["free_blocks"][0] == 9


def test_macro_steps_are_one_row():
    replica = serve(requests((0, 7, 100)), toy_knobs())
    assert replica.steps()["steps"].tolist() == [1, 1, 97, 1]
    assert replica.steps()["gpu_s"].tolist() == [1.0, 1.0, 97.0, 1.0]


def test_queue_limit_rejects_the_rest():
    table = requests((0, 4, 2), (0.1, 4, 1), (0.2, 4, 1), (0.3, 4, 1))
    replica = serve(table, toy_knobs(max_num_seqs=1, queue_limit=1))
    assert statuses(replica) == ["finished", "finished", "rejected", "rejected"]
    assert columns(replica, "finish_s")[2:] == [0.2, 0.3]


def test_no_batch_is_formed_after_the_horizon():
    table = requests((0, 4, 100), (50, 4, 1))
    replica = serve(requests(*table.to_numpy()[:0]), toy_knobs())
    assert replica.now == 0.0
    full = serve(table, toy_knobs(), slices=[10.5])
    assert full.records.requests["status"].tolist() == [1, 1]


def test_host_level_changes_at_its_own_times():
    """Levels are drawn by index, so grouping of steps cannot move them."""
    knobs = toy_knobs(level_mean_s=7.0, level_high=3.0)
    replica = serve(requests((0, 4, 400)), knobs, toy_tables(), seed=1)
    levels = replica.steps()["level"]
    assert np.unique(levels).size > 20
    assert ((levels >= 1.0) & (levels <= 3.0)).all()
    single = toy_knobs(level_mean_s=7.0, level_high=3.0, fuse=0)
    per_step = serve(requests((0, 4, 400)), single, toy_tables(), seed=1).steps()["level"]
    last = np.cumsum(replica.steps()["steps"]) - 1
    assert per_step[last].tolist() == levels.tolist()
