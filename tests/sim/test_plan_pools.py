"""Candidates of two pools: prefill and decode apart, and two accelerators behind one router."""

import numpy as np
import pytest

from formats import InputError
from sim.disaggregation import hand_off_s
from sim.planning import plan
from sim.planning.bound import Bound
from sim.planning.load import Load
from sim.planning.parts import PartSpec
from sim.planning.planfile import PlanFile
from sim.planning.planner import settled
from sim.planning.pooled import link_rate
from sim.planning.prices import Ledger
from sim.planning.rating import Bench
from sim.planning.supply import CandidateSpec, expand
from sim.planning.write import plan_json
from workloads.counts import kv_bytes_per_token
from workloads.models import load_model

HOURS, RATE_PER_S = 8760.0, 20.0
H200, L40S = 30_000.0, 10_000.0
ALONE = {"node": "none", "price": H200, "rent": 3.0, "acquire": ["buy", "on-demand"]}
SECOND = {"accelerator": "l40s", "node": "none", "price": L40S, "rent": 1.0}
APART = ALONE | {"name": "apart", "mode": "disaggregated"}
MIXED = ALONE | {"name": "both", "mode": "mixed", "second": SECOND}


def file_of(*candidates, lengths="azure-conv", **more):
    traffic = {"name": "chat", "requests_per_s": RATE_PER_S, "shape": "flat", "peak_factor": 1.0}
    traffic |= {"lengths": lengths, "slo": {"ttft_s": 2.0, "tpot_s": 0.1, "percentile": 95}}
    return {
        "traffic": [traffic | more],
        "candidates": [{"accelerator": "h200-sxm"} | c for c in candidates],
        "horizon": {"quarters": 2},
        "service": {"spares": 0},
        "money": {"ports_per_node": 0, "storage_tb_per_node": 0, "discount_rate": 0.1},
        "search": {"requests": 300, "replicas": 2, "caps": [0.6]},
        "uncertainty": {"samples": 16},
    }


def bench_of(candidate, **more):
    file = PlanFile(**file_of(candidate, **more))
    (one,) = expand(file.candidates, file.model)
    return Bench(one, Load.of(file), file.search, np.ones(1))


@pytest.fixture(scope="module")
def result():
    single = [ALONE | {"name": "one kind"}, MIXED | {"name": "none of the other", "ratio": "3:0"}]
    return plan(file_of(*single, APART | {"ratio": "1:1"}, MIXED | {"ratio": "1:2"}))


def options(result, name):
    return {o.bill.way: o for o in result.options if o.rating.candidate.name == name}


def test_the_bound_is_the_least_of_prefill_decode_and_link():
    for ratio in ("1:1", "4:1", "1:4", "3:2"):
        bench = bench_of(APART | {"ratio": ratio})
        prefill, decode = (int(x) for x in ratio.split(":"))
        made, mix = bench.deployments, bench.mix
        parts = [
            prefill * Bound.of(made["prefill"], mix.prompts()).most,
            decode * Bound.of(made["decode"], mix.outputs()).most / mix.decode_share,
            link_rate(bench.candidate, made, mix),
        ]
        assert bench.bound.most == pytest.approx(min(parts))


def test_the_link_ends_it_where_it_is_slow():
    bench = bench_of(APART | {"ratio": "2:1", "link": "ethernet-tcp-10g"})
    each, mean = kv_bytes_per_token(load_model("llama-3.1-8b")), bench.mix.prompt.mean()
    # ten gigabits a second carry at most 1.25e9 bytes of KV cache each second
    assert bench.bound.limit == "link"
    assert bench.bound.most <= 1.25e9 / (each * mean) / bench.mix.decode_share
    seconds = hand_off_s(mean, each, 1, "ethernet-tcp-10g")
    assert bench.bound.most == pytest.approx(1 / seconds / bench.mix.decode_share)


def test_two_kinds_serve_the_sum_of_both_at_most():
    bench = bench_of(MIXED | {"ratio": "1:2"})
    first, second = (bench.deployments[name] for name in ("first", "second"))
    both = Bound.of(first, bench.mix).most + 2 * Bound.of(second, bench.mix).most
    assert bench.bound.most == pytest.approx(both)
    alone = bench_of(ALONE).bound
    assert bench.bound.most > alone.most
    # at the time of one step of the faster kind alone, only that kind serves
    fast = float(alone.step_s[20])
    assert bench.bound.rate_at(fast) == pytest.approx(alone.rates[20], rel=0.1)


@pytest.mark.parametrize("candidate", [APART | {"ratio": "1:1"}, MIXED | {"ratio": "1:1"}])
def test_a_unit_serves_no_more_than_its_bound(candidate):
    bench = bench_of(candidate)
    assert 0.4 < bench.saturation / bench.bound.most <= 1.0
    trial = bench.trial(0.5 * bench.saturation)
    assert trial.watts == pytest.approx(sum(trial.pool_watts.values()))
    assert set(trial.pool_watts) == {part.name for part in bench.candidate.parts}
    limited = bench.trial(0.5 * bench.saturation, 1, 0.6)
    assert limited.watts < trial.watts


def test_one_kind_at_count_0_is_the_plan_of_the_other(result):
    one, other = options(result, "one kind"), options(result, "none of the other")
    for way in ("buy", "on-demand"):
        assert one[way].present == other[way].present
        assert one[way].npv == other[way].npv
        assert (one[way].fleet.replicas == other[way].fleet.replicas).all()
        assert one[way].rating.power.watts.tolist() == other[way].rating.power.watts.tolist()


def test_apart_is_never_cheaper_than_its_bound(result):
    ways = options(result, "apart")
    bound = ways["buy"].rating.bench.bound.most
    units = RATE_PER_S / bound  # of two accelerators each
    discounts = np.array([1.0, 1.1**-0.25])
    hours = units * 2 * HOURS / 4
    assert ways["on-demand"].present >= (hours * 3.0 * discounts).sum()
    assert int(ways["buy"].fleet.replicas.min()) >= units
    assert ways["buy"].bill.holding.owned[0, 0] * 2 >= 2 * units


def test_both_kinds_are_paid_each_at_its_price(result):
    ways = options(result, "both")
    buy, rent = ways["buy"], ways["on-demand"]
    count = int(buy.fleet.replicas[0, 0])
    first, second = buy.bill.machines
    assert [b.holding.owned[0, 0] for b in buy.bill.machines] == [count, count]
    # a unit is one H200 and two L40S
    ratio = second.parts["capital"] / first.parts["capital"]
    assert ratio[0] == pytest.approx([2 * L40S / H200] * 2)
    assert buy.accelerators.tolist() == [3 * count] * 2
    assert rent.bill.parts["rent"][0] == pytest.approx([count * HOURS / 4 * (3.0 + 2 * 1.0)] * 2)
    assert buy.bill.total() == pytest.approx(
        sum(b.total() for b in buy.bill.machines) - first.parts["staff"]
    )
    assert result.best.present <= min(buy.present, rent.present)


def test_watts_of_both_kinds_add_up(result):
    fleet = options(result, "both")["buy"].fleet
    each = [kind.watts() for kind in fleet.kinds]
    assert np.sum(each, axis=0) == pytest.approx(fleet.watts())
    idle = [float(kind.rating.power.watts[0]) for kind in fleet.kinds]
    assert all((w > i).all() for w, i in zip(each, idle, strict=True))
    whole = fleet.rating.power
    apart = np.sum([kind.rating.power.watts for kind in fleet.kinds], axis=0)
    assert apart == pytest.approx(whole.watts, rel=0.02)  # each rises by itself


def test_the_table_says_what_a_unit_is(result):
    rows = {row["candidate"]: row for row in plan_json(result)["options"]}
    assert rows["apart"]["made_of"] == "1 prefill h200-sxm tp1 + 1 decode h200-sxm tp1"
    assert rows["both"]["made_of"] == "1 h200-sxm tp1 + 2 l40s tp1"
    assert rows["both"]["accelerator"] == "h200-sxm+l40s"


def test_two_kinds_have_prices_of_their_own_in_the_tornado():
    file = file_of(MIXED | {"ratio": "1:1", "second": SECOND | {"lead_time_weeks": 10}})
    found = plan(file)
    factors = set(found.tornado["factor"])
    assert {"price h200-sxm", "price l40s", "rent h200-sxm", "rent l40s", "model"} <= factors
    buy = options(found, "both")["buy"]
    assert buy.bill.machines[0].holding.owned[0, 0] > 0
    assert buy.bill.machines[1].holding.owned[0, 0] == 0  # rented until it is there
    assert buy.bill.machines[1].holding.hourly_h[0, 0] > 0


def test_a_stricter_objective_never_finds_more_in_a_unit():
    found = [
        bench_of(APART | {"ratio": "1:1"}, slo={"ttft_s": t, "tpot_s": 0.03}).capacity(1).rate_per_s
        for t in (1.0, 0.3, 0.1)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


@pytest.mark.parametrize(
    ("lengths", "more"), [("summarisation", "prefill"), ("reasoning", "decode")]
)
def test_the_best_ratio_follows_the_lengths(lengths, more):
    content = file_of(APART, lengths=lengths, requests_per_s=400.0)
    file = PlanFile(**content)
    (candidate,) = expand(file.candidates, file.model)
    assert candidate.unsettled
    found = settled(candidate, Load.of(file), file, Ledger(file))
    counts = {part.name: part.count for part in found.parts}
    assert max(counts, key=lambda name: counts[name]) == more
    assert found.name == f"apart {counts['prefill']}:{counts['decode']}"


def test_a_part_left_out_is_as_the_candidate_says():
    spec = CandidateSpec(accelerator="h200-sxm", mode="disaggregated", ratio="1:1")
    again = CandidateSpec(**spec.model_dump())  # every key given, many of them none
    served = PlanFile(**file_of(ALONE)).model
    (one,), (other,) = expand([spec], served), expand([again], served)
    assert one.made_of == other.made_of
    assert one.node == other.node


def test_units_share_nodes_of_one_kind():
    spec = CandidateSpec(
        accelerator="h200-sxm", mode="disaggregated", ratio="1:2", decode={"tp": 2}
    )
    served = PlanFile(**file_of(ALONE)).model
    (one,) = expand([spec], served)
    assert one.accelerators == 1 + 2 * 2
    assert one.kinds == (one,)
    (dear,) = expand([spec.model_copy(update={"decode": PartSpec(rent=9.0)})], served)
    assert [kind.offer.rent for kind in dear.kinds] == [None, 9.0]
    assert one.replicas_per_node == pytest.approx(8 / 5)


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (APART | {"ratio": "0:2"}, "leaves a pool without replicas"),
        (MIXED, "needs a ratio of its two accelerators"),
        (MIXED | {"ratio": "0:0"}, "leaves a pool without replicas"),
        (APART | {"ratio": "1:x"}, "ratio"),
        (APART | {"ratio": "1:1", "link": "string"}, "string"),
        (APART | {"prefill": {"kv": "fp8"}}, "kv"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(candidate, message):
    with pytest.raises(InputError, match=message):
        plan(file_of(candidate))
