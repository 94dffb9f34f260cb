"""Bound, capacity and ranking: what is never exceeded, and what never turns round."""

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from sim.planning import plan
from sim.planning.bound import Bound, Mix
from sim.planning.load import Load
from sim.planning.planfile import PlanFile
from sim.planning.rated import Fault, rate
from sim.planning.rating import STEP, Bench
from sim.planning.supply import expand
from sim.planning.trial import judge
from sim.scenario import Slo

SMALL = {
    "horizon": {"quarters": 2},
    "search": {"requests": 400, "replicas": 1, "caps": []},
    "uncertainty": {"samples": 16},
}


def file_of(candidates=None, **traffic):
    chat = {"name": "chat", "requests_per_s": 40, "shape": "flat", "workload": "chat"} | traffic
    chips = candidates or [{"accelerator": "h200-sxm", "acquire": ["buy"]}]
    return SMALL | {"traffic": [chat], "candidates": chips}


def bench_of(accelerator="h200-sxm", lengths="azure-conv", **slo):
    file = PlanFile(
        **SMALL
        | {"candidates": [{"accelerator": accelerator}]}
        | {"traffic": [{"requests_per_s": 5, "lengths": lengths, "slo": slo}]}
    )
    candidate = expand(file.candidates, file.model)[0]
    return Bench(candidate, Load.of(file), file.search, np.ones(1))


@pytest.mark.parametrize(
    ("accelerator", "lengths"),
    [
        ("h200-sxm", "azure-conv"),
        ("h200-sxm", "azure-code"),
        ("h200-sxm", "summarisation"),
        ("l40s", "reasoning"),
    ],
)
def test_the_bound_is_above_what_the_simulation_reaches(accelerator, lengths):
    bench = bench_of(accelerator, lengths)
    reached = bench.saturation / bench.bound.most
    assert 0.6 < reached <= 1.0
    trial = bench.trial(0.6 * bench.saturation)
    judged = judge_tpot(bench, 0.6 * bench.saturation)
    assert trial.busy > 0.4
    assert bench.bound.tpot_s(0.6 * bench.saturation) <= judged[0] * 1.001


def judge_tpot(bench, rate_per_s):
    """Mean TPOT of a trial, through an objective at the median."""
    bench.__dict__["slos"] = {"requests": Slo(tpot_s=10.0, percentile=50)}
    bench._trials.clear()
    return [j.found_s for j in bench.trial(rate_per_s).judgements]


def test_longer_requests_lower_the_bound():
    bench = bench_of()
    most = [
        Bound.of(bench.deployment, bench.mix.scaled(p, o)).most
        for p, o in ((1, 1), (1.5, 1), (1, 1.5), (1.5, 1.5))
    ]
    assert most[0] > most[1] > most[3]
    assert most[0] > most[2] > most[3]


def test_a_prefix_cache_raises_the_bound():
    bench = bench_of()
    mix = bench.mix
    cached = Mix(mix.prompt, mix.output, 0.5)
    assert Bound.of(bench.deployment, cached).most > 1.2 * Bound.of(bench.deployment, mix).most


def test_capacity_is_the_last_rate_of_the_grid_that_passes():
    bench = bench_of(ttft_s=0.5, tpot_s=0.05)
    found = bench.capacity(1)
    assert found.at is not None
    assert found.at.met
    above = found.rate_per_s / STEP
    assert (
        above > bench.saturation
        or not bench.trial(bench.grid[int(np.searchsorted(bench.grid, above * 0.999))]).met
    )


def test_a_stricter_objective_never_finds_more():
    found = [
        bench_of(ttft_s=ttft, tpot_s=tpot).capacity(1).rate_per_s
        for ttft, tpot in ((2.0, 0.1), (0.6, 0.1), (0.6, 0.03), (0.3, 0.03), (0.3, 0.012))
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.3 * found[-1] > 0


def test_objectives_hold_together():
    requests = pd.DataFrame(
        {
            "arrival_s": 0.0,
            "first_token_s": [0.1, 0.1, 0.9, 0.1],
            "finish_s": [1.1, 3.1, 1.9, 1.1],
            "output_tokens": 11,
            "status": ["finished", "finished", "finished", "unfinished"],
            "class": "a",
        }
    )
    seen, good = judge(requests, {"a": Slo(ttft_s=0.5, tpot_s=0.15, percentile=50)})
    assert good == {"a": 0.25}  # one is slow to start, one slow to write, one never ends
    assert {j.objective: j.found_s for j in seen} == pytest.approx({"ttft_s": 0.9, "tpot_s": 0.3})
    assert seen[0].spare == pytest.approx(-0.8)


@pytest.fixture(scope="module")
def base():
    return plan(file_of())


@pytest.mark.parametrize(
    "stricter",
    [
        {"slo": {"ttft_s": 0.25, "tpot_s": 0.04, "percentile": 99}},
        {"slo": {"ttft_s": 0.45, "tpot_s": 0.02, "percentile": 99}},
        {"requests_per_s": 60},
        {"peak_factor": 2.5},
        {"growth_per_year": 3.0},
    ],
)
def test_asking_more_never_costs_less(base, stricter):
    more = plan(file_of(**stricter))
    assert more.best.present >= base.best.present
    assert (more.best.fleet.replicas >= base.best.fleet.replicas).all()


@pytest.mark.parametrize(
    ("section", "dearer"),
    [
        ("site", {"electricity": 0.5}),
        ("site", {"hosting": 400.0}),
        ("site", {"pue": 2.0}),
        ("money", {"maintenance_share": 0.2}),
        ("money", {"life_years": 2.0}),
    ],
)
def test_dearer_never_costs_less(base, section, dearer):
    assert plan(file_of() | {section: dearer}, earlier=base).best.present > base.best.present


def test_more_demand_never_takes_fewer_replicas():
    rating = rate_of(file_of())
    counts = rating.replicas_needed(np.linspace(0.0, 500, 2001))
    assert (np.diff(counts) >= 0).all()
    assert counts[0] == 0
    assert counts[1] == 1


def rate_of(content):
    file = PlanFile(**content)
    return rate(expand(file.candidates, file.model)[0], Load.of(file), file)


def test_a_cheaper_candidate_never_loses_rank():
    chips = [
        {"accelerator": "h200-sxm", "acquire": ["buy"]},
        {"accelerator": "l40s", "acquire": ["buy"]},
    ]
    ranks, result = [], None
    for price in (40_000.0, 20_000.0, 4_000.0, 1_000.0):
        chips[0]["price"] = price
        result = plan(file_of(chips), earlier=result)
        order = [o.rating.candidate.accelerator for o in result.options]
        ranks.append(order.index("h200-sxm"))
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1] == 0


@pytest.mark.slow
def test_the_result_does_not_depend_on_processes():
    chips = [{"accelerator": ["h200-sxm", "l40s"], "acquire": ["buy", "on-demand"]}]
    one, two = (plan(file_of(chips), workers=w).table() for w in (1, 2))
    assert one.equals(two)


def test_a_load_that_can_never_be_met_is_named():
    chips = [{"accelerator": "h200-sxm", "acquire": ["buy"], "limit": 8, "node": "none"}]
    with pytest.raises(InputError) as e:
        plan(file_of(chips, requests_per_s=400))
    message = str(e.value)
    assert "the load is never met from 2027Q1 on" in message
    assert "saturate at" in message
    assert "raise limit" in message


def test_a_site_without_power_is_named(base):
    with pytest.raises(InputError, match=r"the site has 5.0 kW.*raise .site. power_limit_w"):
        plan(file_of() | {"site": {"power_limit_w": 5000}}, earlier=base)


def test_a_node_too_heavy_for_the_rack_is_named(base):
    with pytest.raises(InputError, match=r"a node draws up to 8.4 kW and a rack has 8.0"):
        plan(file_of() | {"site": {"rack": {"power_w": 8000}}}, earlier=base)


def test_a_budget_too_small_is_named(base):
    with pytest.raises(InputError, match=r"1,000 may be spent; raise .money. budget"):
        plan(file_of() | {"money": {"budget": 1000}}, earlier=base)


def test_an_objective_below_one_step_is_named_with_the_floor():
    fault = rate_of(file_of(slo={"tpot_s": 0.001, "percentile": 99}))
    assert isinstance(fault, Fault)
    assert fault.limit == "tpot"
    assert "shorter than one decode step of h200-sxm tp1" in fault.what
    assert "ask for more than 4" in fault.repair


def test_an_objective_that_no_load_meets_is_named():
    fault = rate_of(file_of(slo={"ttft_s": 0.002, "percentile": 99}))
    assert fault.limit == "ttft"
    assert "even at" in fault.what
    assert "ask for 0." in fault.repair


def test_a_model_that_does_not_fit_is_left_out_and_the_others_stay():
    chips = [
        {"accelerator": "l4", "model": "llama-3.1-70b", "name": "small"},
        {"accelerator": "h200-sxm", "acquire": ["buy"]},
    ]
    result = plan(file_of(chips))
    assert result.best.rating.candidate.accelerator == "h200-sxm"
    assert result.faults["small"].limit == "memory"
    assert "does not fit" in result.faults["small"].what


def test_spare_nodes_cost(base):
    more = plan(file_of() | {"service": {"spares": 3}})
    assert more.best.present > base.best.present
    assert (more.best.fleet.nodes - base.best.fleet.nodes == 2).all()


def test_an_earlier_result_serves_again_only_for_the_same_load(base):
    again = plan(file_of() | {"site": {"pue": 1.0}}, earlier=base)
    assert again.best.rating.trial is base.best.rating.trial
    other = plan(file_of(requests_per_s=41), earlier=base)
    assert other.best.rating.trial is not base.best.rating.trial


def test_a_whole_fleet_keeps_the_objectives_that_a_part_of_it_promised():
    content = file_of(requests_per_s=120) | {
        "search": {"requests": 1500, "replicas": 3, "caps": []}
    }
    rating = rate_of(content)
    count = int(rating.replicas_needed(rating.peak_rates.sum()))
    assert count > 5  # more than were simulated together
    bench = rating.bench
    whole = bench.trial(float(rating.peak_rates.sum()) / count, count)
    assert whole.met
    assert whole.good["chat"] >= 0.99


@pytest.mark.parametrize(
    "ranks", [{"tp": 2}, {"tp": 4, "pp": 2}, {"dp": 2, "ep": 2, "model": "qwen3-30b-a3b"}]
)
def test_the_bound_holds_for_replicas_of_several_ranks(ranks):
    content = file_of([{"accelerator": "h200-sxm"} | ranks])
    file = PlanFile(**content)
    candidate = expand(file.candidates, file.model)[0]
    bench = Bench(candidate, Load.of(file), file.search, np.ones(1))
    assert candidate.accelerators == np.prod(
        [v for k, v in ranks.items() if k in ("tp", "pp", "dp")]
    )
    assert 0.3 * bench.bound.most < bench.saturation <= bench.bound.most
    assert bench.trial(2.0).watts > candidate.accelerators * 100


def test_ranks_that_no_node_joins_are_left_out_with_the_reason():
    fault = rate_of(file_of([{"accelerator": "h200-sxm", "tp": 16}]))
    assert fault.limit == "design"
    assert "16" in fault.what
