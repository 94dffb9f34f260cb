"""Products of ranks: which are legal, what each rank holds, what pipelines and exchanges cost."""

import itertools

import numpy as np
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.interconnect import collective_s
from hardware.links import load_link
from sim import Scenario
from sim.communication import Communication, expert_imbalance
from sim.deployment import deploy
from sim.parallelism import (
    Parallelism,
    check_parallelism,
    kv_bytes_per_token_of_rank,
    legal_tp,
    weight_bytes_of_rank,
)
from workloads.counts import kv_bytes_per_token, weight_bytes
from workloads.models import load_model

DENSE, MOE = "llama-3.1-70b", "qwen3-30b-a3b"


def made(model="llama-3.1-8b", accelerator="h200-sxm", longest=4096, **ranks):
    changes = {f"hardware.{name}": n for name, n in ranks.items()}
    changes |= {"model.name": model, "hardware.accelerator": accelerator}
    return deploy(Scenario().changed(changes), longest)


LEGAL = [
    p
    for p in itertools.product((1, 2, 4), (1, 2), (1, 2), (1, 2))
    if np.prod(p) <= 8  # tp, pp, dp, cp
]


@pytest.mark.parametrize(("tp", "pp", "dp", "cp"), LEGAL)
def test_every_legal_product_serves(tp, pp, dp, cp):
    deployment = made(tp=tp, pp=pp, dp=dp, cp=cp)
    assert deployment.parallel.accelerators == tp * pp * dp * cp
    assert deployment.plan.blocks > 0
    assert np.isfinite(deployment.tables.linear_s).all()


@pytest.mark.parametrize(
    ("tp", "dp", "ep"), [(1, 2, 2), (2, 2, 4), (4, 1, 4), (1, 4, 4), (2, 1, 1)]
)
def test_experts_may_spread_over_the_ranks_of_a_stage(tp, dp, ep):
    assert made(MOE, tp=tp, dp=dp, ep=ep).parallel.expert_tp == tp * dp // ep


ILLEGAL = [
    (DENSE, {"tp": 3}, "tp = 3 does not divide 64 heads", "tp = 2 or 4"),
    (DENSE, {"tp": 16}, "tp = 16 exceeds the 8 accelerators that a fast link joins", "tp = 8"),
    (DENSE, {"tp": 12}, "tp = 12 does not divide 64 heads (8 KV heads)", "tp = 8"),
    (DENSE, {"pp": 81}, "pp = 81 exceeds the 80 layers", "pp = 80"),
    (DENSE, {"ep": 2}, "ep = 2 needs experts", "ep = 1"),
    (MOE, {"tp": 4, "ep": 3}, "ep = 3 does not divide 128 experts", "ep = 2 or 4"),
    (MOE, {"tp": 2, "ep": 8}, "ep = 8 does not divide the 2 ranks of a stage", "ep = 2"),
    (DENSE, {"micro_batches": 4}, "micro_batches = 4 needs a pipeline", "set pp above 1"),
]


@pytest.mark.parametrize(("model", "ranks", "reason", "nearest"), ILLEGAL)
def test_an_illegal_product_is_refused_with_reason_and_nearest_choices(
    model, ranks, reason, nearest
):
    with pytest.raises(InputError) as caught:
        check_parallelism(Parallelism(**ranks), load_model(model), 8)
    assert reason in str(caught.value)
    assert nearest in str(caught.value)


@pytest.mark.parametrize(("model", "ranks", "reason", "nearest"), ILLEGAL)
def test_the_nearest_choices_are_legal(model, ranks, reason, nearest):
    if "=" not in nearest:
        return
    axis, choices = nearest.split(" = ")
    for choice in choices.split(" or "):
        check_parallelism(Parallelism(**ranks | {axis: int(choice)}), load_model(model), 8)


def test_short_memory_is_refused_with_the_smallest_product_that_fits():
    with pytest.raises(InputError) as caught:
        made(DENSE, "h100-sxm")
    assert "does not fit" in str(caught.value)
    assert "--tp 4" in str(caught.value)  # 141 GB of weights on 80 GB each, and its KV cache
    made(DENSE, "h100-sxm", tp=4)


def test_replicated_kv_heads_let_tensor_ranks_exceed_them():
    model = load_model(DENSE)
    assert legal_tp(model, 64) == [1, 2, 4, 8, 16, 32, 64]
    assert kv_bytes_per_token_of_rank(model, Parallelism(tp=16)) == pytest.approx(
        kv_bytes_per_token_of_rank(model, Parallelism(tp=8))
    )


@pytest.mark.parametrize("ranks", [{"tp": 2}, {"tp": 8}, {"pp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}])
def test_a_rank_of_a_dense_model_holds_its_share(ranks):
    model, parallel = load_model(DENSE), Parallelism(**ranks)
    share = weight_bytes_of_rank(model, parallel) * parallel.accelerators
    assert weight_bytes(model) <= share * 1.001
    assert share < 1.05 * weight_bytes(model)  # norms and the larger end of a pipeline
    kv = kv_bytes_per_token_of_rank(model, parallel) * parallel.accelerators
    assert kv == pytest.approx(kv_bytes_per_token(model))


def test_attention_data_parallelism_keeps_weights_and_splits_the_cache():
    model = load_model(MOE)
    alone, spread = Parallelism(), Parallelism(dp=4, ep=4)
    assert kv_bytes_per_token_of_rank(model, spread) == kv_bytes_per_token_of_rank(model, alone) / 4
    assert weight_bytes_of_rank(model, spread) < 0.4 * weight_bytes_of_rank(model, alone)


def test_a_pipeline_idles_with_fewer_batches_than_stages():
    """Bubbles: a round of m batches in p stages takes max(m, p) stage times."""
    full, half = Parallelism(pp=4), Parallelism(pp=4, micro_batches=2)
    assert full.rounds() == half.rounds() == 1.0
    a, b = made(pp=4), made(pp=4, micro_batches=2)
    tokens = 1024  # the same tokens in fewer, larger batches: per token the stages idle
    assert b.tables.linear_s[tokens] > 1.3 * a.tables.linear_s[tokens]


def test_a_pipeline_multiplies_throughput_not_speed():
    one, four = made("llama-3.1-8b"), made("llama-3.1-8b", pp=4)
    # a full step of the pipeline holds four batches, in the time of one batch and its sends
    ratio = four.tables.linear_s[-1] / one.tables.linear_s[-1]
    assert four.knobs["max_num_batched_tokens"][0] == 4 * one.knobs["max_num_batched_tokens"][0]
    assert 0.95 < ratio < 1.4


def test_uneven_stages_wait_for_the_largest():
    assert Parallelism(pp=3).stretch(32) == pytest.approx(11 * 3 / 32)


def test_context_ranks_shorten_long_prompts_and_split_the_cache():
    one, four = made(longest=1 << 16), made(longest=1 << 16, cp=4)
    assert four.plan.blocks > 3.5 * one.plan.blocks
    chunk, past = 13 * 8, 16 * 4  # 8192 tokens over 65536
    assert four.tables.prefill_s[chunk, past] < 0.35 * one.tables.prefill_s[chunk, past]


def test_tensor_parallelism_pays_two_sums_a_layer():
    """The time beyond the kernels is that of the link's all-reduces, twice per layer."""
    model, link = load_model("llama-3.1-8b"), load_link("nvlink4-h200")
    told = Communication(model, Parallelism(tp=4), link, load_link("infiniband-ndr"))
    tokens = np.array([16.0, 512.0])
    size = tokens * model.hidden * 2
    one = collective_s("custom_all_reduce", size, 4, link)
    assert told.layers_s(tokens) == pytest.approx(2 * model.layers * one)


def test_one_shot_sums_read_every_buffer():
    """Beyond vLLM's one-stage kernel, each further byte is read from all other ranks."""
    model, link = load_model("llama-3.1-70b"), load_link("nvlink4-h200")
    eight = Parallelism(tp=8)
    usual = Communication(model, eight, link, link)
    told = Communication(model, eight, link, link, one_shot=8e6)
    tokens = np.array([8.0, 64.0, 128.0, 4096.0])
    size = tokens * model.hidden * 2
    small, one, two, large = told.all_reduce_s(tokens)
    assert small == pytest.approx(usual.all_reduce_s(tokens)[0])
    rate = 7 * (size[2] - size[1]) / (two - one)
    assert 0.6 * 450e9 < rate < 450e9  # of NVLink 4, one direction
    assert two > 2 * usual.all_reduce_s(tokens)[2]
    assert large == collective_s("all_reduce", size[3:], 8, link)[0]
    pair = Communication(model, Parallelism(tp=2), link, link, one_shot=8e6)
    own = collective_s("custom_all_reduce", size[:3], 2, link)
    assert pair.all_reduce_s(tokens[:3]) == pytest.approx(own)


def test_overlap_hides_its_share_of_sums():
    model, link = load_model("llama-3.1-8b"), load_link("nvlink4-h200")
    half = Communication(model, Parallelism(tp=4), link, link, overlap=0.5)
    none = Communication(model, Parallelism(tp=4), link, link)
    tokens = np.array([64.0])
    assert half.layers_s(tokens) == pytest.approx(0.5 * none.layers_s(tokens))


def test_expert_exchanges_grow_with_ranks_tokens_and_imbalance():
    model, link = load_model(MOE), load_link("nvlink4-h200")
    tokens, even = np.array([4096.0, 16384.0]), np.ones(2)

    def exchange(ep, imbalance):
        parallel = Parallelism(dp=ep, ep=ep)
        return Communication(model, parallel, link, link).experts_s(tokens, imbalance)

    few, many = exchange(2, even), exchange(8, even)
    assert (few > 0).all()
    assert few[1] > 2 * few[0]
    assert (exchange(8, 1.5 * even) > 1.2 * many).all()
    # sent to other ranks, of each token: 1/2 of 1.99 copies over 2, 7/8 of 5.25 over 8
    assert many / few == pytest.approx((7 / 8 * 5.25 / 8) / (1 / 2 * 1.99 / 2), rel=0.15)


def test_imbalance_of_random_experts_matches_a_draw():
    """Busiest of 8 ranks of 128 equally popular experts, 8 of each token, drawn without weights."""
    model, tokens = load_model(MOE), 256
    rng = np.random.default_rng(0)
    moe = model.moe
    found = []
    for _ in range(60):
        ranks = rng.permuted(np.tile(np.arange(moe.experts), (tokens, 1)), axis=1)[:, : moe.top_k]
        loads = np.bincount(ranks.ravel() % 8, minlength=8)
        found.append(loads.max() / loads.mean())
    guess = expert_imbalance(model, 8, 0.0, np.array([float(tokens)]))[0]
    assert np.mean(found) == pytest.approx(guess, rel=0.05)


def test_popular_experts_make_one_rank_the_busiest():
    model, tokens = load_model(MOE), np.array([1e6])
    even, skewed = (expert_imbalance(model, 8, s, tokens)[0] for s in (0.0, 1.0))
    assert even == pytest.approx(1.0, abs=0.01)
    assert skewed > 1.1


def test_tensor_ranks_inside_a_rack_of_72():
    spec = load_accelerator("gb200")
    assert made("llama-3.1-405b", "gb200", tp=16).parallel.tp == 16
    assert spec.links is not None
    with pytest.raises(InputError, match="tp = 16 exceeds the 8"):
        made("llama-3.1-405b", "h200-sxm", tp=16)
