"""Who is served first, traced by hand: every step takes one second, one request at a time."""

import numpy as np
import pytest

from policies.ordering import (
    EarliestDeadlineFirst,
    FairShare,
    FirstComeFirstServed,
    OnlineFirst,
    Priority,
    ShortestJobFirst,
)
from sim.records import to_records
from sim.testing import serve, toy_knobs
from tests.sim.engine_traces import columns, requests, statuses

FAIR = {"fair": 1, "input_weight": 1, "output_weight": 2}


def order(replica):
    """Return the requests in order of admission."""
    return np.argsort(columns(replica, "admitted_s"), kind="stable").tolist()


def alone(table, ordering, **changes):
    return serve(table, toy_knobs(max_num_seqs=1, **changes), ordering=ordering)


JOBS = requests((0, 4, 2), (0.1, 4, 9), (0.2, 4, 3), (0.3, 30, 1))


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        (FirstComeFirstServed(), [0, 1, 2, 3]),
        (ShortestJobFirst(prediction_error=0.0), [0, 2, 1, 3]),
        (Priority(), [0, 3, 1, 2]),
        (EarliestDeadlineFirst(), [0, 1, 2, 3]),
    ],
)
def test_orders(ordering, expected):
    table = JOBS.assign(priority=[0, 5, 5, 1])
    assert order(alone(table, ordering)) == expected


def test_deadlines_of_classes():
    """Chat must start in 1 s, batch in 60 s: the later chat request goes first."""
    table = requests((0, 4, 3), (0.1, 4, 1), (0.2, 4, 1))
    table["class"] = ["batch", "batch", "chat"]
    records = to_records(table, EarliestDeadlineFirst(), {"chat": 1.0, "batch": 60.0})
    assert np.argsort(records.requests["order_key"]).tolist() == [2, 0, 1]
    later = EarliestDeadlineFirst(default_ttft_s=5.0)
    assert to_records(table, later).requests["order_key"].tolist() == [5.0, 5.1, 5.2]


def test_predictions_err_as_told():
    """The log of predicted over true output has the deviation that was set, per request."""
    rng = np.random.default_rng(0)
    table = requests(*[(0, 1, 1000)] * 4000)
    luck = rng.standard_normal(4000)
    keys = to_records(table, ShortestJobFirst(0.3), luck=luck).requests["order_key"]
    errors = np.log((keys - 1) / 1000)
    assert errors.std() == pytest.approx(0.3, rel=0.04)
    exact = to_records(table, ShortestJobFirst(0.0), luck=luck).requests["order_key"]
    assert set(exact) == {1001.0}


def test_shortest_first_starves_the_longest():
    """Short jobs keep coming: fcfs starts the long one second, sjf last."""
    rows = [(0, 4, 2), (0.5, 4, 12), *((0.5 + i, 4, 2) for i in range(1, 12))]
    table = requests(*sorted(rows))
    fcfs = alone(table, FirstComeFirstServed())
    sjf = alone(table, ShortestJobFirst(0.0))
    assert order(fcfs).index(1) == 1
    assert order(sjf)[-1] == 1


def test_fair_share_alternates_between_clients():
    """a sends six at once, b three a moment later: after a's first they take turns.

    Each costs 4 + 2 x 2 = 8. After a's first (8 against b's lift to a's count), b and a alternate.
    """
    table = requests(*[(0, 4, 2)] * 6, *[(0.5, 4, 2)] * 3)
    table["client"] = ["a"] * 6 + ["b"] * 3
    fcfs = alone(table, FirstComeFirstServed())
    assert order(fcfs) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    fair = alone(table, FairShare(), **FAIR)
    first = order(fair)[:7]
    clients = [table["client"][i] for i in first]
    assert clients.count("b") == 3
    assert max(fair.lanes.served) - min(fair.lanes.served) <= 3 * 8


def test_silence_earns_no_credit():
    """b comes after a has been served 5 x 8: it starts level with a, not 40 ahead."""
    rows = [(0, 4, 2)] * 10 + [(9.5, 4, 2)] * 5
    table = requests(*rows)
    table["client"] = ["a"] * 10 + ["b"] * 5
    clients = [table["client"][i] for i in order(alone(table, FairShare(), **FAIR))]
    tail = clients[5:]
    assert 3 <= tail[:8].count("b") <= 5


def test_service_of_backlogged_clients_differs_by_a_bounded_amount():
    """The bound of the virtual token counter: 2 x max(input, output of a batch) tokens."""
    rng = np.random.default_rng(4)
    n = 120
    rows = [
        (0.0, int(p), int(o))
        for p, o in zip(rng.integers(1, 40, n), rng.integers(1, 20, n), strict=True)
    ]
    table = requests(*rows)
    table["client"] = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    seqs = 4
    replica = serve(table, toy_knobs(max_num_seqs=seqs, **FAIR), ordering=FairShare(), slices=[])
    admitted = np.array(columns(replica, "admitted_s"))
    per_client = [admitted[(table["client"] == c).to_numpy()].max() for c in "abc"]
    until = min(per_client)  # all three are backlogged before that
    served = dict.fromkeys("abc", 0.0)
    for i in np.flatnonzero(admitted < until):
        served[table["client"][i]] += table["prompt_tokens"][i] + 2 * table["output_tokens"][i]
    bound = 2 * max(40, seqs * 2 * 20)
    assert max(served.values()) - min(served.values()) <= bound


ONLINE = OnlineFirst(deadline_s=1000.0, margin_s=0.0)


def classes(table, *names):
    return table.assign(**{"class": list(names)})


def test_batch_work_waits_for_online():
    table = classes(requests((0, 4, 3), (0.1, 4, 1), (0.2, 4, 1)), "online", "batch", "online")
    assert order(alone(table, ONLINE)) == [0, 2, 1]


def test_batch_work_makes_room_for_online():
    """The batch request runs alone; at 2.5 s an online one takes its place, and it comes back."""
    table = classes(requests((0, 4, 9), (2.5, 4, 2)), "batch", "online")
    replica = alone(table, ONLINE, every_step=1)
    assert columns(replica, "preemptions") == [1, 0]
    assert columns(replica, "admitted_s")[1] == 3.0
    assert columns(replica, "finish_s")[0] > columns(replica, "finish_s")[1]
    assert statuses(replica) == ["finished", "finished"]


def test_batch_work_is_preempted_before_online():
    """Blocks run out while all decode: the batch request goes although it was admitted first."""
    table = classes(requests((0, 8, 5), (0, 8, 5), (0, 8, 5)), "batch", "online", "online")
    replica = serve(table, toy_knobs(num_blocks=7, background_seqs=9), ordering=ONLINE)
    assert columns(replica, "preemptions")[1:] == [0, 0]


def test_batch_work_leaves_memory_free_and_takes_few_tokens():
    table = classes(requests(*[(0, 8, 4)] * 4, (0.5, 8, 4)), *["batch"] * 4, "online")
    knobs = toy_knobs(num_blocks=20, background_seqs=9, background_free=14, every_step=1)
    replica = serve(table, knobs, ordering=ONLINE)
    assert columns(replica, "admitted_s")[:3] == [0.0, 0.0, 0.0]
    assert columns(replica, "admitted_s")[3] > 0.0
    slow = toy_knobs(background_seqs=9, background_tokens=4, every_step=1)
    rows = serve(classes(requests((0, 16, 1)), "batch"), slow, ordering=ONLINE).steps()
    assert rows["prefill_tokens"].tolist() == [4, 4, 4, 4]


def test_batch_work_near_its_deadline_is_urgent():
    """Deadline 10 s, margin 5 s: it counts as an online request that came at 5 s.

    Before it stand those that came until then, ten of two seconds each.
    """
    online = [(0.5 * i, 4, 2) for i in range(30)]
    table = requests((0, 4, 2), *online)
    table = classes(table, "batch", *["online"] * 30)
    patient = alone(table, OnlineFirst(deadline_s=1000.0, margin_s=0.0))
    assert order(patient)[-1] == 0
    urgent = alone(table, OnlineFirst(deadline_s=10.0, margin_s=5.0))
    assert columns(urgent, "admitted_s")[0] == 20.0
