"""Every router against its contract, and each against what it promises, on made-up loads."""

import numpy as np
import pytest

from policies.base import Registry
from policies.routing import Replicas, RoutedRequest, routing

LOOKING = [name for name in routing if routing.cls(name).looks]
BLIND = [name for name in routing if not routing.cls(name).looks]
REQUEST = RoutedRequest(prompt_tokens=1000, session=7)


def choose(name, replicas, request=REQUEST, seed=0, **parameters):
    policy = routing.make({"name": name, **parameters})
    return policy.choose(request, replicas, np.random.default_rng(seed))


@pytest.mark.parametrize("name", list(routing))
def test_every_router_returns_a_position_of_any_fleet(name):
    for size in (1, 2, 7):
        replicas = Replicas.of(np.arange(size)[::-1], total_blocks=np.full(size, 10))
        assert 0 <= choose(name, replicas) < size


@pytest.mark.parametrize("name", list(routing))
def test_every_router_chooses_the_same_with_the_same_stream(name):
    replicas = Replicas.of([3, 1, 4, 1, 5], total_blocks=np.full(5, 10))
    assert choose(name, replicas, seed=3) == choose(name, replicas, seed=3)


@pytest.mark.parametrize("name", list(routing))
def test_no_router_changes_what_it_looks_at(name):
    replicas = Replicas.of([3, 1, 4], queued_tokens=[5, 6, 7], cached_tokens=[1, 2, 3])
    choose(name, replicas)
    assert replicas.outstanding.tolist() == [3, 1, 4]
    assert replicas.queued_tokens.tolist() == [5, 6, 7]
    assert replicas.cached_tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", BLIND)
def test_a_blind_router_places_all_at_once_within_the_fleet(name):
    policy = routing.make({"name": name})
    places = policy.assign(1000, 7, np.random.default_rng(1))
    assert places.shape == (1000,)
    assert set(places.tolist()) == set(range(7))


@pytest.mark.parametrize("name", LOOKING)
def test_a_looking_router_does_not_place_blindly(name):
    with pytest.raises(NotImplementedError):
        routing.make({"name": name}).assign(1, 2, np.random.default_rng(0))


def test_every_router_says_when_to_use_it():
    assert isinstance(routing, Registry)
    assert all("Use it" in (routing.cls(name).__doc__ or "") for name in routing)


def test_round_robin_goes_on_where_it_stopped():
    policy = routing.make({"name": "round-robin"})
    rng = np.random.default_rng(0)
    assert policy.assign(4, 3, rng).tolist() == [0, 1, 2, 0]
    assert policy.choose(REQUEST, Replicas.of([0, 0, 0]), rng) == 1


def test_weighted_round_robin_serves_in_proportion_to_speed():
    policy = routing.make({"name": "weighted-round-robin"})
    replicas = Replicas.of([0, 0, 0], speed=[1.0, 0.5, 0.5])
    rng = np.random.default_rng(0)
    counts = np.bincount([policy.choose(REQUEST, replicas, rng) for _ in range(400)])
    assert counts.tolist() == [200, 100, 100]


def test_least_outstanding_takes_the_shortest_and_the_first_of_equals():
    assert choose("least-outstanding", Replicas.of([2, 1, 1])) == 1


def test_by_speed_a_fast_replica_may_hold_more():
    replicas = Replicas.of([3, 2], speed=[1.0, 0.25])
    assert choose("least-outstanding", replicas) == 1
    assert choose("least-outstanding", replicas, by_speed=True) == 0


def test_least_kv_compares_shares_not_blocks():
    replicas = Replicas.of([0, 0], free_blocks=[60, 50], total_blocks=[200, 100])
    assert choose("least-kv", replicas) == 1


def test_power_of_all_choices_is_least_outstanding():
    replicas = Replicas.of([5, 4, 3, 9])
    assert choose("power-of-choices", replicas, choices=4) == 2


def test_power_of_two_never_takes_the_worst():
    replicas = Replicas.of([5, 4, 3, 9])
    assert all(choose("power-of-choices", replicas, seed=s) != 3 for s in range(50))


def test_shortest_ttft_weighs_queue_cache_and_speed():
    # 4000 queued at 1000/s, 500 queued at 100/s, 4000 queued but all cached
    replicas = Replicas.of(
        [1, 1, 1],
        queued_tokens=[4000, 500, 4000],
        prompt_tokens_per_s=[1000.0, 100.0, 1000.0],
        cached_tokens=[0, 0, 900],
    )
    assert choose("shortest-ttft", replicas) == 2


def test_a_session_stays_until_its_home_is_a_hot_spot_or_gone():
    policy = routing.make({"name": "session-affinity", "factor": 1.5, "slack": 2.0})
    rng = np.random.default_rng(0)
    assert policy.choose(REQUEST, Replicas.of([1, 0, 1]), rng) == 1
    assert policy.choose(REQUEST, Replicas.of([0, 2, 0]), rng) == 1
    assert policy.choose(REQUEST, Replicas.of([0, 90, 1]), rng) == 0
    assert policy.choose(REQUEST, Replicas.of([5, 5], index=[1, 2]), rng) == 0
    gone = Replicas.of([5, 4], index=[2, 3])
    assert policy.choose(REQUEST, gone, rng) == 1


def test_the_guard_leaves_out_an_overloaded_match():
    replicas = Replicas.of([20, 1, 0], cached_tokens=[900, 300, 0])
    assert choose("cache-aware", replicas) == 1
    assert choose("cache-aware", replicas, guard=False) == 0


def test_a_short_match_does_not_count():
    replicas = Replicas.of([3, 2, 1], cached_tokens=[300, 0, 0])
    assert choose("cache-aware", replicas, least_match=0.5) == 2
