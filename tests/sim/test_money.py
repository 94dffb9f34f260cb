"""What an accelerator-hour costs, rented or owned, and what a fleet is in words."""

from types import SimpleNamespace

import pytest

from hardware.capital import capital_recovery_factor
from hardware.catalog import load_accelerator
from hardware.costs import cost
from sim.exploring.money import price_of
from sim.fleets.words import pool_words

H200 = load_accelerator("h200-sxm")


def test_owning_costs_capital_and_space_by_the_hour_and_energy_by_the_joule():
    owned = price_of("h200-sxm", H200, "owned")
    price = cost("purchase.h200-sxm").value
    rate, life = cost("capital.discount-rate").value, cost("life.default").value
    without_resale = price * capital_recovery_factor(rate, life) / 8760
    assert 0.5 * without_resale < owned.per_hour < 2 * without_resale
    energy = cost("pue.industry").value * cost("electricity.us-industrial").value / 3.6e6
    assert owned.per_joule == pytest.approx(energy)
    assert len(owned.sources) == 9


def test_what_has_no_price_has_none():
    assert price_of("mine.toml", H200, "owned") is None
    assert price_of("mine.toml", H200) is None


def test_pools_in_words():
    def pool(name, role, replicas):
        return SimpleNamespace(name=name, role=role, replicas=replicas)

    def made(ranks):
        model = SimpleNamespace(name="Llama")
        return SimpleNamespace(spec=H200, model=model, parallel=SimpleNamespace(accelerators=ranks))

    result = SimpleNamespace(
        fleet=SimpleNamespace(pools=["front", "decode"]),
        deployments=[made(1), made(4)],
        scenario=SimpleNamespace(
            pools=[pool("front", "prefill", 2), pool("decode", "decode", 3), pool("off", "both", 1)]
        ),
    )
    assert pool_words(result) == (
        "front (prefill): 2 x NVIDIA H200 SXM 141GB, Llama; "
        "decode: 3 x 4 x NVIDIA H200 SXM 141GB, Llama"
    )
