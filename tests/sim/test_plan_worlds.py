"""Money over quarters, sampled worlds, and what they say of options."""

from types import SimpleNamespace

import numpy as np
import pytest

from hardware.economics import annuity, npv
from sim.planning.fleets import HOURS_PER_QUARTER, Worlds
from sim.planning.money import discounts, lead_quarters, purchases, quarter_rate
from sim.planning.options import _cheapest
from sim.planning.planfile import Uncertainty
from sim.planning.worlds import Sample, draw, one_at_a_time, split_lognormal


def candidate(node=8, owned=0, weeks=0.0):
    offer = SimpleNamespace(owned=owned, lead_time_weeks=weeks)
    return SimpleNamespace(offer=offer, node_accelerators=node, replicas_per_node=float(node))


def fleet_of(replicas, **keys):
    return SimpleNamespace(candidate=candidate(**keys), replicas=np.array([replicas]))


def test_annuity_limits():
    assert annuity(1000, 0.0, 4) == 250  # no interest: equal parts
    assert annuity(1000, 0.08, float("inf")) == pytest.approx(80)  # forever: interest alone
    assert annuity(1000, 0.08, 200) == pytest.approx(80, rel=1e-5)
    assert annuity(1000, 1e-9, 4) == pytest.approx(250, rel=1e-6)


def test_a_quarter_of_the_rate_four_times_is_the_rate():
    assert (1 + quarter_rate(0.12)) ** 4 == pytest.approx(1.12)
    flows = [-100.0] * 5
    assert npv(quarter_rate(0.12), flows) == pytest.approx(float(np.dot(flows, discounts(0.12, 5))))


def test_four_quarters_are_a_year():
    assert pytest.approx(8760) == 4 * HOURS_PER_QUARTER


def test_purchases_follow_the_growth_of_the_fleet():
    owned, bought = purchases(fleet_of([3, 9, 9, 17]), 1.0, spares=0)
    assert owned.tolist() == [[1, 2, 2, 3]]
    assert bought.tolist() == [[1, 1, 0, 1]]


def test_spares_are_nodes_and_stock_is_used_first():
    owned, bought = purchases(fleet_of([3, 9, 17], owned=17), 1.0, spares=1)
    assert owned.tolist() == [[2, 3, 4]]  # two nodes in stock, the 17th accelerator alone
    assert bought.tolist() == [[0, 1, 1]]


def test_nothing_is_given_back():
    owned, bought = purchases(fleet_of([17, 9, 1]), 1.0, spares=0)
    assert owned.tolist() == [[3, 3, 3]]
    assert bought.tolist() == [[3, 0, 0]]


def test_nothing_is_ready_before_its_lead_time():
    owned, bought = purchases(fleet_of([3, 9, 9, 17], weeks=20), 1.0, spares=0)
    assert lead_quarters(20) == 2
    assert owned.tolist() == [[0, 0, 2, 3]]
    assert bought.tolist() == [[0, 0, 2, 1]]


def test_a_factor_has_the_p10_and_p90_asked():
    limits = (0.7, 1.6)
    values = split_lognormal(np.linspace(0.0005, 0.9995, 1000), limits)
    assert np.percentile(values, [10, 50, 90]) == pytest.approx([0.7, 1.0, 1.6], rel=0.01)


def test_a_sample_fills_every_stratum_of_every_factor():
    sample = Sample(Uncertainty(samples=50), {"a": (0.9, 1.1), "b": (0.8, 1.2)}, seed=3)
    first, second = sample.worlds(["a"]), sample.worlds(["b"])
    assert np.array_equal(first.demand, second.demand)  # one world for all candidates
    assert not np.array_equal(first.price, second.price)  # but each has prices of its own
    strata = np.floor(50 * np.searchsorted(np.sort(first.growth), first.growth) / 50)
    assert sorted(strata.tolist()) == list(range(50))
    again = Sample(Uncertainty(samples=50), {"a": (0.9, 1.1), "b": (0.8, 1.2)}, seed=3)
    assert np.array_equal(again.worlds(["b"]).model, second.model)


def test_factors_alone_keep_the_others_at_one():
    sample = Sample(Uncertainty(samples=8, demand=(0.5, 3.0)), {"a": (0.9, 1.1)}, seed=0)
    worlds, names = one_at_a_time(sample, ["a"])
    i = names.index("demand")
    assert worlds.demand[2 * i : 2 * i + 2].tolist() == [0.5, 3.0]
    assert worlds.growth[2 * i : 2 * i + 2].tolist() == [1.0, 1.0]
    assert worlds.count == 2 * len(names)
    assert Worlds.central(3).demand.tolist() == [1.0] * 3


def test_the_cheapest_is_counted_over_worlds_that_have_one():
    costs = np.array([[1.0, 5.0, np.inf, 2.0], [2.0, 4.0, np.inf, 3.0]])
    assert _cheapest(costs).tolist() == [0.5, 0.25]


def test_quantiles_of_a_draw():
    assert draw([1.0, 2.0, 3.0]) == {"p10": 1.2, "p50": 2.0, "p90": 2.8}
