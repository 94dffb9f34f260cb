"""Who is let in and who gives up, traced by hand: every step takes one second."""

import numpy as np
import pytest

from policies.rules import AdmissionRules
from sim.core.layout import Gate
from sim.gate import Buckets, draw_patience
from sim.testing import serve, toy_knobs
from tests.sim.engine_traces import columns, requests, statuses


def leaving(timeout=np.inf, patience=np.inf):
    """Return a preparation that gives every request a time-out and a patience after arrival."""

    def prepare(records):
        table = records.requests
        table["timeout_s"] = table["arrival_s"] + timeout
        table["patience_s"] = table["arrival_s"] + patience

    return prepare


def test_timed_out_in_the_queue_but_not_in_the_batch():
    """One at a time for 5 s each: the second waits 5 s, over its 3; the first runs on."""
    table = requests((0, 4, 5), (0, 4, 5), (4, 4, 5))
    replica = serve(table, toy_knobs(max_num_seqs=1), prepare=leaving(timeout=3.0))
    assert statuses(replica) == ["finished", "timed_out", "finished"]
    assert columns(replica, "finish_s") == [5.0, 3.0, 10.0]


def test_clients_leave_the_queue_and_the_prefill_without_a_token():
    """Patience 2.5 s. The second waits; the third's prompt takes 4 steps and is dropped at 2.5."""
    table = requests((0, 4, 5), (0, 4, 5))
    queued = serve(table, toy_knobs(max_num_seqs=1, impatient=1), prepare=leaving(patience=2.5))
    assert statuses(queued) == ["finished", "cancelled"]
    assert columns(queued, "finish_s")[1] == 2.5
    knobs = toy_knobs(max_num_batched_tokens=4, impatient=1, num_blocks=9)
    long = serve(requests((0, 16, 3)), knobs, prepare=leaving(patience=2.5))
    assert statuses(long) == ["cancelled"]
    assert long.state["free_blocks"][0] == 9


def test_first_token_after_the_client_has_left():
    """The step ends at 1 s, patience at 0.5 s: cancelled, and its second step changes nothing."""
    knobs = toy_knobs(impatient=1, num_blocks=9)
    replica = serve(requests((0, 8, 3)), knobs, prepare=leaving(patience=0.5))
    assert statuses(replica) == ["cancelled"]
    assert columns(replica, "emitted") == [0]
    assert replica.state["free_blocks"][0] == 9
    assert np.isnan(columns(replica, "first_token_s")[0])


def test_whoever_has_a_token_stays():
    knobs = toy_knobs(impatient=1)
    replica = serve(requests((0, 8, 9)), knobs, prepare=leaving(patience=1.5))
    assert statuses(replica) == ["finished"]


def test_those_who_left_make_room_in_the_queue():
    """A queue of one: at 3 s the waiting one has left after 2 s, so the new one may wait."""
    table = requests((0, 4, 9), (0.5, 4, 1), (3, 4, 1))
    knobs = toy_knobs(max_num_seqs=1, queue_limit=1)
    replica = serve(table, knobs, prepare=leaving(timeout=2.0))
    assert statuses(replica)[1:] == ["timed_out", "timed_out"]
    strict = serve(table, knobs)
    assert statuses(strict) == ["finished", "finished", "rejected"]


def test_load_is_shed_by_predicted_first_token():
    """0.1 s per prompt token, at most 2 s: 8 tokens fit beside nobody, 20 wait for 8 and do not."""
    table = requests((0, 8, 20), (0.1, 8, 1), (0.1, 14, 1))
    knobs = toy_knobs(max_num_seqs=1, shed_ttft_s=2.0, shed_token_s=0.1)
    assert statuses(serve(table, knobs)) == ["finished", "finished", "rejected"]


def test_load_is_shed_by_the_wait_of_the_head():
    """The head has waited 9 s for a sequence: whoever comes now would wait as long."""
    table = requests((0, 4, 20), (0, 4, 1), (9.0, 4, 1))
    knobs = toy_knobs(max_num_seqs=1, shed_ttft_s=5.0, shed_token_s=0.0)
    assert statuses(serve(table, knobs)) == ["finished", "finished", "rejected"]


def test_gates_refuse_and_answer():
    def gates(records):
        records.requests["gate"] = [Gate.OPEN, Gate.REFUSED, Gate.ANSWERED]

    table = requests((0, 4, 2), (1, 4, 2), (1, 4, 2))
    replica = serve(table, toy_knobs(answer_s=0.25), prepare=gates)
    assert statuses(replica) == ["finished", "rejected", "finished"]
    assert columns(replica, "finish_s") == [2.0, 1.0, 1.25]
    assert columns(replica, "emitted") == [2, 0, 2]
    assert replica.state["generated"][0] == 2


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_buckets_pass_at_most_rate_and_burst(rate):
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.1, 2000))
    bucket = Buckets(rate, 5.0)
    passed = times[[bucket.take(7, t) for t in times]]
    assert passed.size == int(rate * (times[-1] - times[0]) + 5)
    for span in (1.0, 4.0, 20.0):
        most = max(np.searchsorted(passed, passed + span) - np.arange(passed.size))
        assert most <= rate * span + 5 + 1e-9


def test_clients_have_their_own_buckets():
    bucket = Buckets(1e-9, 1.0)
    assert [bucket.take(c, 0.0) for c in (0, 1, 0, 2, 1)] == [True, True, False, True, False]


def test_patience_has_its_mean_and_variation():
    rng = np.random.default_rng(3)
    drawn = draw_patience(20_000, AdmissionRules(patience_s=8.0, patience_cv=0.5), rng)
    assert drawn.mean() == pytest.approx(8.0, rel=4 * 0.5 / np.sqrt(20_000))
    assert drawn.std() / drawn.mean() == pytest.approx(0.5, rel=0.03)
    alike = draw_patience(3, AdmissionRules(patience_s=8.0), rng)
    assert alike.tolist() == [8.0, 8.0, 8.0]
