"""Money functions against hand-computed cases, identities and refusals; the table of costs."""

from math import inf, isinf, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware.costs
from formats import InputError
from hardware import economics as e
from hardware.catalog import VARIABLE
from hardware.costs import COLUMNS, convert, cost, costs, read_costs

rates = st.floats(0.001, 0.5)
lives = st.floats(0.5, 40)
prices = st.floats(1, 1e6)


@given(rates, st.integers(1, 30))
def test_recovery_payments_discount_back_to_the_price(rate, years):
    payment = e.capital_recovery_factor(rate, years)
    assert e.npv(rate, [-1.0, *[payment] * years]) == pytest.approx(0, abs=1e-9)


@given(lives)
def test_recovery_is_continuous_at_rate_zero_and_at_infinite_life(years):
    assert e.capital_recovery_factor(1e-9, years) == pytest.approx(1 / years, rel=1e-6)
    assert e.capital_recovery_factor(0.1, 1000) == pytest.approx(
        e.capital_recovery_factor(0.1, inf)
    )


def test_recovery_is_the_textbook_value():
    assert e.capital_recovery_factor(0.08, 5) == pytest.approx(0.25046, abs=5e-6)


@given(rates, st.integers(1, 20), prices, st.floats(0, 1))
def test_annuity_with_salvage_discounts_to_zero(rate, years, price, share):
    salvage = share * price
    payment = e.annuity(price, rate, years, salvage)
    flows = [-price, *[payment] * years]
    flows[-1] += salvage
    assert e.npv(rate, flows) == pytest.approx(0, abs=1e-9 * price)


def test_annuity_of_something_kept_whole_is_the_interest():
    assert e.annuity(100, 0.07, 3, salvage=100) == pytest.approx(7)


@given(prices, rates, lives)
def test_owning_gets_cheaper_per_hour_with_life_and_dearer_with_rate(price, rate, years):
    base = e.owned_cost_per_hour(price, rate, years)
    assert e.owned_cost_per_hour(price, rate, years + 1) < base
    assert e.owned_cost_per_hour(price, rate + 0.01, years) > base
    assert e.owned_cost_per_hour(price, rate, years, maintenance=0.05) == pytest.approx(
        base + 0.05 * price / 8760
    )


def test_energy_and_facility_of_a_node_by_hand():
    # 10.2 kW for a year of 8760 h at 0.08 USD/kWh and PUE 1.2
    joules = 10_200 * 8760 * 3600
    assert e.energy_cost(joules, 0.08, 1.2) == pytest.approx(10.2 * 8760 * 0.08 * 1.2)
    assert e.facility_cost(10_200, 195.94, 8760 * 3600) == pytest.approx(10.2 * 195.94 * 12)


@given(st.floats(0, 1e12), st.floats(1, 2), st.floats(0, 900))
def test_carbon_is_linear_in_energy(joules, pue, grams):
    once = e.carbon_grams(joules, grams, pue)
    assert e.carbon_grams(2 * joules, grams, pue) == pytest.approx(2 * once)
    assert e.carbon_grams(joules, grams, pue, 50) == pytest.approx(once + 50)


@given(st.floats(0.1, 10), st.floats(0, 5), st.floats(0.01, 5))
def test_at_break_even_owning_costs_as_much_as_rent(owned, running, margin):
    rent = running + margin
    use = e.break_even_utilisation(owned, rent, running)
    assert owned + use * running == pytest.approx(use * rent)


def test_break_even_never_comes_when_rent_is_below_running_cost():
    assert isinf(e.break_even_utilisation(1, 0.5, 0.5))
    assert isinf(e.break_even_hours(1, 0.5, 0.6))


def test_interruptions_raise_the_useful_rate():
    assert e.spot_rate(1.0, 0, 5) == 1
    assert e.spot_rate(1.0, 0.02, 0.25) == pytest.approx(1 / 0.995)
    with pytest.raises(InputError, match="share of time lost"):
        e.spot_rate(1.0, 2, 0.5)


def test_reservation_is_paid_unused():
    assert e.reserved_cost(0, 100, 2, 3) == 200
    assert e.reserved_cost(100, 100, 2, 3) == 200
    assert e.rent_cost(0, 3) == 0


works = st.fixed_dictionaries(
    {
        name: st.builds(e.Work, st.floats(1, 1e9), st.floats(0.1, 1e5), st.floats(0.1, 1e7))
        for name in ("input", "cached", "output")
    }
)


@given(works, st.floats(0, 1e5), st.floats(0, 1e4))
def test_split_conserves_money(work, time_cost, energy):
    split = e.cost_per_million_tokens(work, time_cost, energy)
    total = sum(split[name] * work[name].tokens / 1e6 for name in work)
    assert total == pytest.approx(time_cost + energy, rel=1e-9, abs=1e-9)


def test_split_follows_cause():
    work = {"input": e.Work(1e6, 1, 0), "output": e.Work(1e6, 1, 1), "cached": e.Work(0, 0, 0)}
    split = e.cost_per_million_tokens(work, time_cost=10, energy_cost=4)
    assert split == {"input": 5, "output": 9, "cached": 0}


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({}, "nothing was served"),
        ({"input": e.Work(0, 0, 0)}, "nothing was served"),
        ({"input": e.Work(0, 1, 0)}, "input has 1 s and 0 J but no tokens"),
        ({"input": e.Work(1, -1, 0)}, "input seconds = -1"),
        ({"input": e.Work(1, 1, 0)}, "nothing was served: 1 s, 0 J"),
    ],
)
def test_split_refuses_what_it_cannot_share(work, message):
    with pytest.raises(InputError, match=message):
        e.cost_per_million_tokens(work, 1, 1)


def test_request_needs_a_price_per_class():
    assert e.cost_per_request({"input": 1e6}, {"input": 3, "output": 9}) == 3
    with pytest.raises(InputError, match="no price for 'cached' tokens"):
        e.cost_per_request({"cached": 1}, {"input": 3})


@given(prices, st.floats(-0.05, 0.2), st.integers(-10, 10))
def test_price_years_go_there_and_back(value, inflation, years):
    there = e.in_price_year(value, 2020, 2020 + years, inflation)
    assert e.in_price_year(there, 2020 + years, 2020, inflation) == pytest.approx(value)


@given(prices, st.floats(0, 0.5))
def test_learning_falls_by_the_rate_per_doubling(price, rate):
    assert e.learned_price(price, 2, rate) == pytest.approx(price * (1 - rate))
    assert e.learned_price(price, 1, rate) == price


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: e.capital_recovery_factor(-0.1, 5), "rate = -0.1"),
        (lambda: e.capital_recovery_factor(0.1, 0), "years = 0"),
        (lambda: e.capital_recovery_factor(0, inf), "rate = 0"),
        (lambda: e.capital_recovery_factor(nan, 5), "rate = nan"),
        (lambda: e.annuity(100, 0.1, 5, salvage=101), "salvage = 101 .allowed: 0 .. 100"),
        (lambda: e.annuity(inf, 0.1, 5), "price = inf"),
        (lambda: e.owned_cost_per_hour(1, 0, 1, availability=0), "availability = 0"),
        (lambda: e.energy_cost(1, 0.1, 0.9), "pue = 0.9"),
        (lambda: e.energy_cost(-1, 0.1), "joules = -1"),
        (lambda: e.facility_cost(-1, 1, 1), "power = -1"),
        (lambda: e.salvage_value(1, 1.1, 1), "decline = 1.1"),
        (lambda: e.rent_cost(-1, 1), "hours = -1"),
        (lambda: e.carbon_grams(1, 3000), "grid intensity = 3000"),
        (lambda: e.learned_price(1, 0.5, 0.1), "volume ratio = 0.5"),
        (lambda: e.npv(-1, [1]), "rate = -1"),
    ],
)
def test_the_offending_value_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_public_names_are_complete():
    public = {name for name in vars(e) if name.isidentifier() and not name.startswith("_")}
    assert public == set(e.__all__)


def test_table_has_the_columns_and_no_item_twice():
    table = costs()
    assert list(table.columns) == list(COLUMNS)
    assert table["item"].is_unique
    assert cost("rent.h200-sxm").value == 3.5


def test_currency_goes_through_dollars():
    assert convert(1, "EUR") == cost("fx.eur-usd").value
    assert convert(convert(7, "EUR"), "USD", "EUR") == pytest.approx(7)
    with pytest.raises(InputError, match=r"fx\.xyz-usd"):
        convert(1, "XYZ")


def write(path: Path, row: str) -> Path:
    path.write_text(",".join(COLUMNS) + "\n" + row + "\n")
    return path


GOOD = "purchase.dream,1000,USD/accelerator,USD,2026,assumption,rule: mine,2026-11"


def test_user_costs_add_and_replace(tmp_path, monkeypatch):
    own = "pue.google,1.3,ratio,,2026,measured,own meter,2026-11-02"
    write(tmp_path / "costs.csv", GOOD + "\n" + own)
    shipped = len(costs())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert cost("purchase.dream").value == 1000
    assert cost("pue.google").value == 1.3
    assert len(costs()) == shipped + 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD + "\n" + GOOD, "line 3: item 'purchase.dream' stands twice"),
        (GOOD.replace("1000", "-5"), "line 2: value = '-5.*allowed: 0 .."),
        (GOOD.replace("1000", "cheap"), "value = 'cheap'"),
        (GOOD.replace("1000", ""), "value = ''"),
        (GOOD.replace("1000", "inf"), "value = 'inf'"),
        (GOOD.replace(",2026,", ",26,"), "price_year = '26"),
        (GOOD.replace("assumption", "guess"), "kind 'guess' is not known"),
        (GOOD.replace("USD,2026", "Dollar,2026"), "currency = 'Dollar'"),
        (GOOD.replace("2026-11", "Nov"), "date = 'Nov'"),
        (GOOD.replace("rule: mine", ""), "source is empty"),
        (GOOD.replace("purchase.dream", "Purchase Dream"), "item = 'Purchase Dream'"),
    ],
)
def test_bad_rows_are_refused_by_line(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_costs(write(tmp_path / "costs.csv", row))


def test_missing_column_is_named(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("item,value\nx,1\n")
    with pytest.raises(InputError, match="column 'unit' is missing"):
        read_costs(path)


def test_shipped_table_is_valid():
    assert len(read_costs(hardware.costs._SHIPPED)) == len(costs())
