"""A plan on one accelerator, every figure of which is worked out here."""

import numpy as np
import pandas as pd
import pytest

from sim import Scenario, simulate
from sim.planning import plan
from sim.planning.verdict import units

HOURS, DAYS = 8760.0, 365.0
PRICE, RENT, LIFE, RATE = 20_000.0, 4.0, 2.0, 0.10
TARIFF, PUE, GRID = 0.20, 1.25, 400.0
RATE_PER_S, PROMPT, OUTPUT = 2.0, 600, 120
DISCOUNTS = [1.1 ** (-q / 4) for q in range(4)]

FILE = {
    "name": "by hand",
    "traffic": [
        {
            "name": "chat",
            "users": 17_280,  # x 2 x 5 / 86,400 s = 2 requests/s
            "sessions_per_user_day": 2,
            "requests_per_session": 5,
            "shape": "flat",
            "peak_factor": 1.0,
            "lengths": {
                "prompt": {"kind": "constant", "tokens": PROMPT},
                "output": {"kind": "constant", "tokens": OUTPUT},
            },
            "slo": {"ttft_s": 2.0, "tpot_s": 0.1, "percentile": 95},
        }
    ],
    "horizon": {"quarters": 4, "start": "2027Q1"},
    "service": {"spares": 0},
    "candidates": [
        {
            "accelerator": "h200-sxm",
            "node": "none",
            "acquire": ["buy", "on-demand", "reserved"],
            "price": PRICE,
            "rent": RENT,
            "reserved": 3.0,
        }
    ],
    "site": {
        "kind": "own",
        "electricity": TARIFF,
        "pue": PUE,
        "carbon_g_per_kwh": GRID,
    },
    "money": {
        "discount_rate": RATE,
        "life_years": LIFE,
        "salvage_share": 0.0,
        "maintenance_share": 0.06,
        "resale_decline": 0.2,
        "ports_per_node": 0,
        "storage_tb_per_node": 0,
        "staff_per_year": 1000,
        "software_per_accelerator_year": 200,
    },
    "search": {"requests": 1200, "replicas": 1, "caps": []},
    "uncertainty": {"samples": 16},
}


@pytest.fixture(scope="module")
def result():
    return plan(FILE)


@pytest.fixture(scope="module")
def ways(result):
    return {option.bill.way: option for option in result.options}


@pytest.fixture(scope="module")
def watts():
    """Mean power of the same load, simulated apart from the plan."""
    gaps = np.random.default_rng(11).exponential(1 / RATE_PER_S, 2000)
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(gaps),
            "prompt_tokens": PROMPT,
            "output_tokens": OUTPUT,
        }
    )
    done = simulate(Scenario(), table)
    idle = float(done.deployment.knobs["idle_w"][0])
    busy = float(done.totals["energy_j"].sum() - done.totals["idle_energy_j"].sum())
    end = float(table["arrival_s"].max())
    return (busy + (end - float(done.totals["busy_s"].sum())) * idle) / end


def test_one_replica_serves_two_requests_a_second(result):
    best = result.best
    assert best.fleet.replicas.tolist() == [[1, 1, 1, 1]]
    assert best.fleet.nodes.tolist() == [[1, 1, 1, 1]]
    assert best.fleet.serving.max() == pytest.approx(RATE_PER_S * best.rating.work[0])
    assert result.schedule["order"].tolist() == [1, 0, 0, 0]
    assert result.schedule["peak_per_s"].tolist() == pytest.approx([2.0] * 4)


def test_capital_is_an_annuity(ways):
    # 10 % over two years: 1 / (1/1.1 + 1/1.21) = 1.21 / 2.1 of the price each year
    quarter = PRICE * 1.21 / 2.1 / 4
    assert ways["buy"].bill.parts["capital"][0] == pytest.approx([quarter] * 4)
    assert ways["buy"].bill.parts["maintenance"][0] == pytest.approx([0.06 * PRICE / 4] * 4)
    assert ways["buy"].bill.parts["staff"][0] == pytest.approx([250.0] * 4)
    assert ways["buy"].bill.parts["software"][0] == pytest.approx([50.0] * 4)
    assert ways["buy"].bill.parts["hosting"][0] == pytest.approx([0.0] * 4)


def test_energy_is_of_simulated_watts(ways, watts):
    kwh = watts * HOURS / 4 / 1000
    bill = ways["buy"].bill.parts["energy"][0]
    assert bill == pytest.approx([kwh * PUE * TARIFF] * 4, rel=0.03)
    tdp = 700 * HOURS / 4 / 1000 * PUE * TARIFF
    assert bill[0] < 0.9 * tdp


def test_rent_is_hours_times_rate(ways):
    assert ways["on-demand"].bill.parts["rent"][0] == pytest.approx([RENT * HOURS / 4] * 4)
    assert ways["reserved"].bill.parts["rent"][0] == pytest.approx([3.0 * HOURS / 4] * 4)
    assert ways["reserved"].present == pytest.approx((3.0 * HOURS / 4 + 300) * sum(DISCOUNTS))


def test_present_cost_discounts_each_quarter(ways):
    energy = ways["buy"].bill.parts["energy"][0][0]
    quarter = PRICE * 1.21 / 2.1 / 4 + 0.06 * PRICE / 4 + 250 + 50 + energy
    assert ways["buy"].present == pytest.approx(quarter * sum(DISCOUNTS))
    assert ways["buy"].month == pytest.approx(quarter / 3)


def test_net_present_value_pays_now_and_sells_at_the_end(ways):
    energy = ways["buy"].bill.parts["energy"][0][0]
    running = 0.06 * PRICE / 4 + 300 + energy
    sold = PRICE * 0.8  # after a year, at 20 % decline
    by_hand = -PRICE - running * sum(DISCOUNTS) + sold / 1.1
    assert ways["buy"].npv == pytest.approx(by_hand)
    assert ways["on-demand"].npv == pytest.approx(-ways["on-demand"].present)


def test_tokens_share_the_cost_by_time_and_energy(ways):
    buy = ways["buy"]
    requests = RATE_PER_S * HOURS / 4 * 3600
    tokens = {"input": PROMPT * requests, "output": OUTPUT * requests}
    paid = sum(buy.per_million[k] * n / 1e6 for k, n in tokens.items())
    assert paid == pytest.approx(buy.bill.total()[0, 0])
    trial = buy.rating.trial
    assert trial.tokens["chat"] == {"input": PROMPT, "cached": 0.0, "output": OUTPUT}
    seconds, joules = trial.phases.seconds, trial.phases.joules
    energy = buy.bill.parts["energy"][0, 0]
    rest = buy.bill.total()[0, 0] - energy
    by_hand = rest * seconds["input"] / sum(seconds.values())
    by_hand += energy * joules["input"] / sum(joules.values())
    assert buy.per_million["input"] * tokens["input"] / 1e6 == pytest.approx(by_hand)


def test_requests_and_users_pay_for_their_tokens(ways):
    buy = ways["buy"]
    request = (PROMPT * buy.per_million["input"] + OUTPUT * buy.per_million["output"]) / 1e6
    assert buy.per_request["chat"] == pytest.approx(request)
    assert buy.per_user_month["chat"] == pytest.approx(request * 10 * DAYS / 12)


def test_break_even_by_hand(result, watts):
    even = result.break_evens["h200-sxm tp1"]
    kwh = PUE * TARIFF / 1000
    owned = (PRICE * 1.21 / 2.1 + 0.06 * PRICE) / HOURS + 125 * kwh
    assert even.owned_per_hour == pytest.approx(owned)
    full = float(result.best.rating.power(result.best.rating.per_replica))
    assert even.running_per_hour == pytest.approx((full - 125) * kwh)
    assert even.utilisation == pytest.approx(owned / (RENT - (full - 125) * kwh))
    assert 0 < even.needed < 1


def test_carbon_by_hand(result, ways):
    foot = result.footprints[ways["buy"].name]
    kwh = foot.energy_j / 3.6e6
    assert kwh * TARIFF == pytest.approx(ways["buy"].bill.parts["energy"].sum())
    making = 150_000 * 1 / LIFE  # one year of two
    assert foot.carbon_g == pytest.approx(kwh * GRID + making)


def test_every_assumption_names_its_source(result):
    table = result.assumptions.set_index("item")
    assert table.loc["electricity.us-industrial", "value"] == TARIFF
    assert table.loc["purchase h200-sxm tp1", "kind"] == "given"
    assert (table["source"].str.len() > 3).all()
    assert (table["kind"].isin(["datasheet", "measured", "fitted", "assumption", "given"])).all()


def test_a_rented_accelerator_draws_its_share_of_a_node(result, ways):
    """Bought, the whole node of eight is powered; by the hour, what one replica has of it."""
    bought, rented = ways["buy"], ways["on-demand"]
    candidate = rented.rating.candidate
    part = candidate.accelerators / candidate.node_accelerators
    assert rented.powered[0].max() == pytest.approx(
        part * (rented.fleet.replicas.max() + rented.pricing.file.service.spares)
    )
    assert bought.powered[0].max() == bought.bill.holding.owned.max()
    feet = result.footprints
    assert feet[rented.name].energy_j <= feet[bought.name].energy_j
    assert rented.peak_watts().max() <= bought.peak_watts().max()


def test_one_replica_serves_and_several_serve(result):
    rating = result.best.rating
    assert units(rating, 1) == "1 replica"
    assert units(rating, 2) == "2 replicas"
    words = result.verdicts[rating.candidate.name].sentence
    count = int(result.best.fleet.replicas.max())
    assert words.startswith(
        "1 replica serves the peak" if count == 1 else f"{count} replicas serve"
    )
