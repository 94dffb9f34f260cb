import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from scipy import stats

from formats import InputError, check
from workloads.arrivals import (
    Arrivals,
    Burst,
    Client,
    Clients,
    ClosedLoop,
    ConstantRate,
    GammaGaps,
    Gaps,
    Piecewise,
    Poisson,
    ServeGenClients,
    Shaped,
    TraceArrivals,
    arrival_table,
    arrival_times,
    mean_rate,
    scale_rate,
)
from workloads.renewal import GapTable, renewal, unit_gaps, weibull_shape
from workloads.servegen import read_client_rates

rng = np.random.default_rng


class Holder(BaseModel):
    arrivals: Arrivals


def test_poisson_gaps_are_exponential_and_counts_poisson():
    times = arrival_times(Poisson(rate_per_s=5), 20_000.0, rng(1))
    assert stats.kstest(np.diff(times) * 5, "expon").statistic < 1.63 / np.sqrt(times.size)
    counts = np.histogram(times, np.arange(0, 20_001))[0]
    n = counts.size
    assert counts.mean() == pytest.approx(5, abs=3 * np.sqrt(5 / n))
    assert counts.var() == pytest.approx(5, rel=3 * np.sqrt(2 / n + 1 / (5 * n)))


@pytest.mark.parametrize("family", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gaps_have_mean_one_and_the_variation_asked_for(family, cv):
    gaps = unit_gaps(400_000, cv, family, rng(2))
    assert gaps.mean() == pytest.approx(1, abs=3 * cv / np.sqrt(gaps.size))
    assert gaps.std() == pytest.approx(cv, rel=0.03)


def test_weibull_shape_solves_its_equation():
    for cv in (0.1, 0.5, 1.0, 3.0, 50.0):
        k = weibull_shape(cv)
        ratio = stats.weibull_min(k).std() / stats.weibull_min(k).mean()
        assert ratio == pytest.approx(cv, rel=1e-6)


@pytest.mark.parametrize(
    "gaps",
    [
        (0.0, "gamma"),
        (0.4, "gamma"),
        (5.0, "gamma"),
        (3.0, "weibull"),
        GapTable(np.array([0, 0.9, 1]), np.array([0, 0.2, 8.0])),
    ],
)
def test_the_expected_count_is_the_rate_times_time_from_the_first_moment(gaps):
    """A process that started with a whole gap would be off by (cv^2 - 1) / 2 arrivals."""
    counts = np.array([renewal(2.0, gaps, rng(seed)).size for seed in range(4000)])
    assert counts.mean() == pytest.approx(2, abs=3.3 * counts.std() / np.sqrt(counts.size))


def test_constant_rate_is_exact():
    times = arrival_times(ConstantRate(rate_per_s=4), 2.5, rng(0))
    assert times.tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25]


def test_steps_have_their_own_rates_and_zero_means_none():
    steps = Piecewise(starts_s=[0, 100, 300], rates_per_s=[20, 0, 5], until_s=1300)
    times = arrival_times(steps, None, rng(3), count=10**6)
    counts = np.histogram(times, [0, 100, 300, 1300])[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(2000, abs=3 * np.sqrt(2000))
    assert counts[2] == pytest.approx(5000, abs=3 * np.sqrt(5000))
    assert times.max() < 1300
    assert mean_rate(steps) == pytest.approx(7000 / 1300)
    assert mean_rate(steps, 2600.0) == pytest.approx(7000 / 2600)


def test_steps_go_on_or_repeat():
    on = Piecewise(starts_s=[0, 10], rates_per_s=[1, 100])
    assert mean_rate(on, 20.0) == pytest.approx((10 + 1000) / 20)
    late = arrival_times(on, 110.0, rng(1))
    assert (late > 10).sum() == pytest.approx(10_000, abs=3 * 100)
    again = on.model_copy(update={"until_s": 20.0, "repeat": True})
    folded = arrival_times(again, 2000.0, rng(1)) % 20
    assert (folded > 10).mean() == pytest.approx(100 / 101, abs=0.001)


def test_a_steady_rate_with_regular_gaps_through_a_varying_clock():
    """With cv 0, arrival k comes when the cumulated rate reaches k + a fixed share."""
    steps = Piecewise(starts_s=[0, 10], rates_per_s=[1, 2], cv=0)
    times = arrival_times(steps, 20.0, rng(4))
    assert np.diff(times[times < 10]) == pytest.approx(1)
    assert np.diff(times[times > 10]) == pytest.approx(0.5)
    assert times.size == 30


def test_hours_and_days_follow_their_weights():
    hourly = [1.0] * 12 + [3.0] * 12
    daily = [1, 1, 1, 1, 1, 0, 0]
    spec = Shaped(rate_per_s=0.1, hourly=hourly, daily=daily, start_hour=12)
    assert mean_rate(spec) == 0.1
    week = 7 * 86400.0
    assert mean_rate(spec, week) == pytest.approx(0.1)
    times = arrival_times(spec, 4 * week, rng(5))
    hour = (times / 3600 + 12) % 168
    assert times.size == pytest.approx(0.1 * 4 * week, abs=4 * np.sqrt(0.4 * week))
    assert (hour < 120).all()
    assert (hour % 24 >= 12).mean() == pytest.approx(0.75, abs=3 * 0.43 / np.sqrt(times.size))


def test_clients_add_up_and_keep_their_names():
    spec = Clients(
        clients=[
            Client(name="a", rate_per_s=3, cv=4, family="weibull"),
            Client(name="b", rate_per_s=1, cv=0),
        ]
    )
    table = arrival_table(spec, 5000.0, rng(6))
    assert (np.diff(table["arrival_s"]) >= 0).all()
    counts = table["client"].value_counts()
    assert counts["b"] == pytest.approx(5000, abs=1)
    assert counts["a"] == pytest.approx(15_000, abs=3 * 4 * np.sqrt(15_000))
    assert mean_rate(spec) == 4
    gaps = np.diff(table.loc[table["client"] == "b", "arrival_s"])
    assert gaps == pytest.approx(1)
    first = arrival_table(spec, None, rng(6), count=100)
    assert len(first) == 100


def test_gap_tables_keep_rate_and_variation():
    spec = Gaps(rate_per_s=10, probabilities=[0, 0.9, 1], gaps=[0, 0, 3])
    # 0 with probability 0.9, else uniform on 0 to 3: mean 0.15, mean square 0.3
    assert spec.table().cv == pytest.approx(np.sqrt(0.3 / 0.15**2 - 1))
    times = arrival_times(spec, 20_000.0, rng(7))
    assert times.size / 20_000 == pytest.approx(10, abs=3 * 3.5 * np.sqrt(10 / 20_000))
    assert np.diff(times).std() * 10 == pytest.approx(spec.table().cv, rel=0.02)


def test_burst_and_closed_loop():
    assert arrival_times(Burst(at_s=3, count=4), None, rng(0)).tolist() == [3, 3, 3, 3]
    assert arrival_times(Burst(at_s=3, count=4), 2.0, rng(0)).size == 0
    loop = ClosedLoop(concurrency=8, think_s=2, think_cv=0.5)
    assert arrival_times(loop, None, rng(0), count=5).tolist() == [0] * 5
    assert mean_rate(loop) == np.inf
    pauses = loop.think_times(100_000, rng(1))
    assert pauses.mean() == pytest.approx(2, rel=0.01)
    assert pauses.std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    "spec",
    [
        Poisson(rate_per_s=2),
        GammaGaps(rate_per_s=2, cv=3),
        ConstantRate(rate_per_s=2),
        Gaps(rate_per_s=2, probabilities=[0, 1], gaps=[0, 1]),
        Piecewise(starts_s=[0, 5], rates_per_s=[1, 3], until_s=10, repeat=True),
        Shaped(rate_per_s=2, hourly=[1] * 24),
        Clients(clients=[Client(rate_per_s=2)]),
    ],
)
def test_scaling_the_rate_scales_the_rate(spec):
    assert mean_rate(scale_rate(spec, 2.5), 20.0) == pytest.approx(2.5 * mean_rate(spec, 20.0))
    assert scale_rate(Burst(count=10), 0.5).count == 5
    assert scale_rate(ClosedLoop(concurrency=8), 0.5).concurrency == 4


def test_the_same_seed_gives_the_same_times_and_another_seed_others():
    spec = GammaGaps(rate_per_s=3, cv=2)
    a, b, c = (arrival_times(spec, 100.0, rng(s)) for s in (1, 1, 2))
    assert (a == b).all()
    assert a.tolist() != c.tolist()


def test_a_longer_run_begins_like_a_shorter_one_by_count():
    spec = GammaGaps(rate_per_s=3, cv=2)
    long = arrival_times(spec, None, rng(1), count=1000)
    assert mean_rate(spec) == 3
    assert long[99:].size == 901
    assert arrival_times(spec, 50.0, rng(1), count=10).size == 10


def test_a_million_arrivals_take_less_than_a_second():
    start = time.perf_counter()
    times = arrival_times(Poisson(rate_per_s=1000), 1000.0, rng(1))
    assert time.perf_counter() - start < 1
    assert times.size > 990_000


def write_trace(folder: Path) -> Path:
    path = folder / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n4,5,1\n6,5,1\n30,5,1\n")
    return path


def test_times_of_a_trace_can_be_cut_and_sped_up(tmp_path: Path):
    spec = TraceArrivals(path=str(write_trace(tmp_path)), start_s=2, rate_scale=2)
    assert arrival_times(spec, None, rng(0), 10).tolist() == [1, 2, 14]
    assert arrival_times(spec, 10.0, rng(0)).tolist() == [1, 2]
    assert mean_rate(spec, 10.0) == 0.2


def write_clients(folder: Path) -> Path:
    path = folder / "clients.csv"
    head = "client_id,window_start_s,rate_req_per_s,iat_cv,iat_dist,param1,param2\n"
    path.write_text(head + "7,0,2,1,Gamma,1,1\n7,1200,4,3,Weibull,1,1\n9,600,1,0.5,Gamma,1,1\n")
    return path


def test_servegen_clients_have_their_rate_in_each_window(tmp_path: Path):
    spec = ServeGenClients(path=str(write_clients(tmp_path)), rate_scale=10)
    assert mean_rate(spec, 1800.0) == pytest.approx(10 * (2 + 4 + 1) / 3)
    table = arrival_table(spec, 1800.0, rng(1))
    for client, low, high, cv, expected in (
        ("client-7", 0, 600, 1, 12_000),
        ("client-7", 600, 1200, 1, 0),
        ("client-7", 1200, 1800, 3, 24_000),
        ("client-9", 600, 1200, 0.5, 6000),
    ):
        mine = table[table["client"] == client]["arrival_s"]
        count = int(((mine >= low) & (mine < high)).sum())
        assert count == pytest.approx(expected, abs=3.3 * cv * np.sqrt(expected))
    later = arrival_table(spec.model_copy(update={"start_s": 1000.0}), 600.0, rng(1))
    assert later["arrival_s"].between(0, 600).all()
    assert mean_rate(spec.model_copy(update={"start_s": 1000.0}), 600.0) == pytest.approx(
        10 * (200 * 1 + 400 * 4) / 600
    )


def test_a_real_client_table_gives_its_rate(trace_folder: Path):
    path = trace_folder / "servegen_reason_deepseek-r1_client_rates.csv.gz"
    rows = read_client_rates(path)
    spec = ServeGenClients(path=str(path))
    expected = rows["rate_per_s"].sum() * 600
    assert mean_rate(spec, 86_400.0) * 86_400 == pytest.approx(expected)
    table = arrival_table(spec, 86_400.0, rng(1))
    spread = np.sqrt((rows["rate_per_s"] * 600 * rows["cv"] ** 2).sum())
    assert len(table) == pytest.approx(expected, abs=3.3 * spread)
    assert set(table["client"]) <= set(rows["client"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7,0,-2,1,Gamma,1,1", "rate_req_per_s is -2 in row 1 (allowed: 0 to 1e+06)"),
        ("7,0,2,nan,Gamma,1,1", "iat_cv is nan in row 1"),
        ("7,0,2,1,Normal,1,1", "iat_dist is 'Normal' in row 1 (allowed: Gamma, Weibull"),
        ("x,0,2,1,Gamma,1,1", "client_id is x in row 1"),
        ("", "holds no client"),
    ],
)
def test_bad_client_tables_are_explained(tmp_path: Path, line: str, message: str):
    path = write_clients(tmp_path)
    path.write_text(path.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(InputError) as caught:
        read_client_rates(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "poisson"}, "rate_per_s is missing, add it"),
        ({"kind": "poisson", "rate_per_s": 0}, "greater than 0, got 0"),
        ({"kind": "poisson", "rate_per_s": float("inf")}, "finite number"),
        ({"kind": "gamma", "rate_per_s": 1, "cv": -1}, "greater than or equal to 0"),
        ({"kind": "gamma", "rate_per_s": 1, "cv": 1, "burst": 2}, "burst is not a known key"),
        ({"kind": "closed-loop", "concurrency": 0}, "greater than or equal to 1"),
        ({"kind": "piecewise", "starts_s": [1], "rates_per_s": [1]}, "must rise from 0"),
        ({"kind": "piecewise", "starts_s": [0], "rates_per_s": [0]}, "rate must be above 0"),
        ({"kind": "piecewise", "starts_s": [0, 1], "rates_per_s": [1]}, "1 rates for 2 starts"),
        (
            {"kind": "piecewise", "starts_s": [0], "rates_per_s": [1], "repeat": True},
            "repeat needs until_s",
        ),
        ({"kind": "shaped", "rate_per_s": 1, "hourly": [1] * 23}, "at least 24 items"),
        ({"kind": "shaped", "rate_per_s": 1, "hourly": [0] * 24}, "a weight above 0"),
        ({"kind": "gaps", "rate_per_s": 1, "probabilities": [0, 1], "gaps": [0, 0]}, "above 0"),
        ({"kind": "poison", "rate_per_s": 1}, "'poisson', 'gamma'"),
    ],
)
def test_bad_specifications_are_explained(spec, message):
    with pytest.raises(InputError) as caught:
        check({"arrivals": spec}, Holder, "x.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "duration", "count", "message"),
    [
        (Poisson(rate_per_s=1), None, None, "arrivals have no end; give duration_s"),
        (Poisson(rate_per_s=1), -1.0, None, "duration_s is -1 (allowed: above 0, at most 1e9 s)"),
        (Poisson(rate_per_s=1), float("nan"), None, "duration_s is nan"),
        (Poisson(rate_per_s=1), None, 0, "count is 0 (allowed: 1 to 50000000 requests)"),
        (Poisson(rate_per_s=1e6), 1e9, None, "1e+15 requests in 1e+09 s are too many"),
        (ClosedLoop(concurrency=1), 10.0, None, "a closed loop has no end of its own; give count"),
    ],
)
def test_bad_limits_are_explained(spec, duration, count, message):
    with pytest.raises(InputError) as caught:
        arrival_times(spec, duration, rng(0), count)
    assert message in str(caught.value)


@given(
    st.sampled_from(["poisson", "gamma", "piecewise", "shaped", "gaps", "constant", "clients"]),
    st.floats(0.01, 50),
    st.floats(0, 30),
    st.floats(0.5, 200),
    st.integers(0, 2**32),
)
def test_times_rise_and_lie_in_the_run(kind, rate, cv, duration, seed):
    spec: Arrivals = {
        "poisson": lambda: Poisson(rate_per_s=rate),
        "gamma": lambda: GammaGaps(rate_per_s=rate, cv=cv),
        "constant": lambda: ConstantRate(rate_per_s=rate),
        "gaps": lambda: Gaps(rate_per_s=rate, probabilities=[0, 0.5, 1], gaps=[0, cv, cv + 1]),
        "piecewise": lambda: Piecewise(starts_s=[0, 7], rates_per_s=[0, rate], until_s=9, cv=cv),
        "shaped": lambda: Shaped(rate_per_s=rate, hourly=[1, 0] * 12, cv=cv, start_hour=100),
        "clients": lambda: Clients(clients=[Client(rate_per_s=rate, cv=cv, family="weibull")]),
    }[kind]()
    times = arrival_times(spec, duration, rng(seed))
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration)).all()
