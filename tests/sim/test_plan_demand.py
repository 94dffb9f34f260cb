"""What is asked: volumes, growth, shapes, batches with deadlines."""

import numpy as np
import pandas as pd
import pytest

from formats import InputError, check
from sim.planning.batches import deadlines_met, replicas_for_batches
from sim.planning.demand import Batch, Horizon, Traffic, quarter_names
from sim.planning.load import Load, TrafficClass, batch_week, growth_factors
from sim.planning.planfile import PlanFile

CANDIDATE = [{"accelerator": "h200-sxm"}]


def load_of(*traffic, **more):
    return Load.of(PlanFile(traffic=list(traffic), candidates=CANDIDATE, **more))


class OneAnHour:
    """A batch class of which a replica does one request an hour."""

    def __init__(self, **keys):
        self.batch = Batch(**keys)

    def hours(self, growth):
        return growth[..., None] * batch_week(self.batch)


def test_users_sessions_and_requests_multiply():
    one = Traffic(users=86_400, sessions_per_user_day=3, requests_per_session=2)
    assert one.mean_rate_per_s == 6.0
    assert Traffic(requests_per_day=86_400).mean_rate_per_s == 1.0


def test_the_volume_is_said_once():
    with pytest.raises(InputError, match="users and requests_per_s are given"):
        check({"users": 5, "requests_per_s": 1}, Traffic, "traffic")
    with pytest.raises(InputError, match="none is given"):
        check({}, Traffic, "traffic")


@pytest.mark.parametrize("growth", [-1.0, -1.5])
def test_growth_below_nothing_is_refused_with_the_repair(growth):
    with pytest.raises(InputError, match=r"growth of -1\d0 % a year .* give a share above -1"):
        check({"requests_per_s": 1, "growth_per_year": growth}, Traffic, "traffic")
    with pytest.raises(InputError, match="give a share above -1"):
        check({"requests_per_day": 1, "growth_per_year": growth}, Batch, "batch")


def test_growth_compounds_by_quarters():
    assert growth_factors(0.21, 9, 0.0)[[0, 4, 8]] == pytest.approx([1.0, 1.21, 1.4641])
    assert growth_factors(-0.5, 5, 0.0)[4] == pytest.approx(0.5)


def test_a_shape_keeps_the_mean():
    week = load_of({"requests_per_s": 7, "shape": "chat-week"}).week[0]
    assert week.mean() == pytest.approx(7)
    assert week.max() > 1.3 * week.min()
    flat = load_of({"requests_per_s": 7, "shape": "flat"}).week[0]
    assert np.ptp(flat) == 0


def test_an_own_shape_is_days_times_hours():
    shape = {"hourly": [0.0] * 12 + [2.0] * 12, "daily": [1.0] * 5 + [0.0] * 2}
    week = load_of({"requests_per_s": 1, "shape": shape}).week[0].reshape(7, 24)
    assert week[5:].sum() == 0
    assert week[0, :12].sum() == 0
    assert week[0, 12:] == pytest.approx([168 / 60] * 12)


def test_the_peak_is_where_the_machines_are_asked_most():
    day = {"hourly": [1.0] * 12 + [0.0] * 12}
    night = {"hourly": [0.0] * 12 + [1.0] * 12}
    load = load_of(
        {"name": "many", "requests_per_s": 10, "shape": day, "peak_factor": 1.5},
        {"name": "long", "requests_per_s": 1, "shape": night, "peak_factor": 2.0},
    )
    rates, _ = load.peak(np.array([1.0, 1.0]))
    assert rates.tolist() == [30.0, 0.0]
    rates, _ = load.peak(np.array([1.0, 100.0]))
    assert rates.tolist() == [0.0, 4.0]


def test_a_peak_of_a_falling_demand_is_at_the_start():
    load = load_of({"requests_per_s": 10, "growth_per_year": -0.5})
    assert load.peak(np.ones(1))[1] == 0


def test_a_sample_has_the_rates_asked_and_the_same_lengths_at_every_rate():
    load = load_of(
        {"name": "a", "requests_per_s": 3}, {"name": "b", "requests_per_s": 1, "workload": "rag"}
    )
    slow, fast = (load.sample([3 * k, k], 600 / k) for k in (1.0, 10.0))
    counts = slow["class"].value_counts()
    assert counts["a"] == pytest.approx(1800, rel=0.1)
    assert counts["b"] == pytest.approx(600, rel=0.2)
    first = [t[t["class"] == "a"]["prompt_tokens"].head(500).tolist() for t in (slow, fast)]
    assert first[0] == first[1]


def test_a_named_workload_brings_its_objectives():
    one = TrafficClass.of(Traffic(requests_per_s=1, workload="chat"))
    assert (one.slo.ttft_s, one.slo.tpot_s, one.slo.percentile) == (0.45, 0.04, 99)
    own = TrafficClass.of(Traffic(requests_per_s=1, workload="chat", slo={"ttft_s": 3}))
    assert (own.slo.ttft_s, own.slo.tpot_s) == (3, None)


def test_a_trace_brings_its_rate_lengths_and_day(tmp_path):
    hours = np.concatenate([np.arange(0, 43_200, 60.0), np.arange(43_200, 86_400, 20.0)])
    trace = pd.DataFrame({"arrival_s": hours, "prompt_tokens": 64, "output_tokens": 8})
    trace.to_csv(tmp_path / "day.csv", index=False)
    one = TrafficClass.of(Traffic(trace="day.csv", trace_scale=10), tmp_path)
    assert one.week.mean() == pytest.approx(10 * len(trace) / 86_400, rel=0.01)
    assert one.week[18] / one.week[6] == pytest.approx(3.0, rel=0.02)
    load = Load((one,), 1, 0, tmp_path)
    drawn = load.sample([5.0], 400.0)
    assert len(drawn) == pytest.approx(2000, rel=0.1)
    assert set(drawn["prompt_tokens"]) == {64}


def test_quarters_are_named_across_years():
    assert quarter_names(Horizon(quarters=6, start="2026Q4"))[-1] == "2028Q1"


def test_deadlines_need_room_in_time():
    # 24 hours of work come at midnight; traffic takes both machines for the first 12 hours
    work = np.tile([24.0] + [0.0] * 23, 7)
    free = np.tile([0.0] * 12 + [2.0] * 12, 7)
    assert deadlines_met(free, [work], [24])
    assert not deadlines_met(free, [work], [23])
    assert not deadlines_met(free * 0.9, [work], [24])


def test_the_shorter_deadline_goes_first():
    one = np.tile([2.0] + [0.0] * 23, 7)
    free = np.tile([2.0] * 2 + [0.0] * 22, 7)
    assert deadlines_met(free, [one, one], [1, 2])
    assert not deadlines_met(free, [one, one], [1, 1])


def test_batches_fill_what_traffic_leaves():
    serving = np.tile([3.0] * 12 + [1.0] * 12, 7)[None, :]
    online = np.array([3])
    day = OneAnHour(requests_per_day=24)  # one replica, day and night
    # at night two of three are free: 24 hours of work in 12 hours
    assert replicas_for_batches(serving, online, [day], [np.ones(1)]).tolist() == [3]
    assert replicas_for_batches(serving, online, [day], [np.full(1, 1.01)]).tolist() == [4]
    soon = OneAnHour(requests_per_day=24, deadline_h=2)
    assert replicas_for_batches(serving, online, [soon], [np.ones(1)]).tolist() == [4]
    own = OneAnHour(requests_per_day=24, own_machines=True)
    assert replicas_for_batches(serving, online, [own], [np.ones(1)]).tolist() == [4]


def test_batches_all_at_once_need_the_deadline_to_spread():
    serving, online = np.zeros((1, 168)), np.zeros(1, np.int64)
    for deadline, replicas in ((1, 24), (6, 4), (12, 2), (24, 1)):
        one = OneAnHour(requests_per_day=24, submit_hour=20, deadline_h=deadline)
        assert replicas_for_batches(serving, online, [one], [np.ones(1)]).tolist() == [replicas]
