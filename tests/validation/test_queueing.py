import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import InputError
from validation.queueing import (
    batch_capacity,
    batch_response_bound,
    erlang_c,
    little,
    md1,
    mg1,
    mg1_ps,
    mm1,
    mmc,
)

loads = st.floats(0.01, 0.98)


@given(loads)
def test_mm1_is_the_mmc_of_one_server(load):
    assert mmc(load, 1.0, 1).response_s == pytest.approx(mm1(load, 1.0).response_s, rel=1e-9)


@given(loads, st.floats(0.0, 9.0))
def test_constant_service_waits_half_as_long_and_variation_adds(load, variation):
    assert md1(load, 1.0).wait_s == pytest.approx(mm1(load, 1.0).wait_s / 2)
    assert mg1(load, 1.0, variation).wait_s >= md1(load, 1.0).wait_s


@given(loads, st.integers(1, 60), st.floats(1e-3, 1e3))
def test_time_scales_with_the_service(load, servers, scale):
    one = mmc(load * servers, 1.0, servers)
    scaled = mmc(load * servers / scale, scale, servers)
    assert scaled.wait_s == pytest.approx(one.wait_s * scale, rel=1e-9)
    assert scaled.present == pytest.approx(one.present, rel=1e-9)
    assert scaled.load == pytest.approx(load)


@given(loads, st.integers(2, 60))
def test_one_queue_for_many_servers_waits_less_than_one_for_each(load, servers):
    assert mmc(load * servers, 1.0, servers).wait_s < mm1(load, 1.0).wait_s


@given(loads)
def test_sharing_responds_like_exponential_service(load):
    assert mg1_ps(load / 2, 2.0).response_s == pytest.approx(mm1(load / 2, 2.0).response_s)


def test_erlang_c_against_its_sum():
    offered, servers = 8.0, 10
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    assert erlang_c(offered, 1.0, servers) == pytest.approx(full / (below + full), rel=1e-12)


def test_little_joins_times_and_numbers():
    queue = mmc(3.0, 0.5, 2)
    assert queue.waiting == pytest.approx(little(3.0, queue.wait_s))
    assert queue.present == pytest.approx(queue.waiting + 3.0 * 0.5)  # plus those in service


def test_batches_trade_time_for_rate():
    assert batch_capacity(0.01, 0.001, 1) == pytest.approx(1 / 0.011)
    assert batch_capacity(0.01, 0.001, 10**9) == pytest.approx(1000.0, rel=1e-6)
    # without a fixed part a batch is worth nothing: bound of light load is 3/2 of no wait
    assert batch_response_bound(1e-9, 1.0, 1e-9) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mm1(10.0, 0.1), "the load is 1: the queue grows without end"),
        (lambda: mmc(20.0, 0.1, 2), "allowed: below 20 per second"),
        (lambda: mm1(-1.0, 0.1), "arrival_per_s is -1"),
        (lambda: mm1(1.0, math.inf), "service_s is inf"),
        (lambda: mmc(1.0, 1.0, 0), "servers is 0"),
        (lambda: mg1(0.5, 1.0, -0.1), "squared_variation is -0.1"),
    ],
)
def test_what_has_no_steady_state_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
