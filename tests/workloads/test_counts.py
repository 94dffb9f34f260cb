"""Counts against numbers worked out by hand from the shapes in the comments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import InputError
from workloads.compression import with_formats
from workloads.counts import (
    activation_bytes,
    attended_keys,
    attention_flops,
    attention_layers,
    distinct_experts,
    elementwise_ops,
    expert_layers,
    inclusion_probabilities,
    kv_bytes,
    kv_bytes_per_token,
    kv_read_bytes,
    linear_flops_per_token,
    linear_layers,
    lm_head_flops,
    parameters,
    step_bytes,
    step_flops,
    vision_flops,
    weight_bytes,
    weight_bytes_touched,
    zipf_popularity,
)
from workloads.models import load_model, models

LLAMA = load_model("llama-3.1-8b")
MOE = load_model("qwen3-30b-a3b")
MLA = load_model("deepseek-v3")
LOCAL = load_model("gpt-oss-20b")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2-7b", 32 * 2 * 32 * 128 * 2),  # MHA: 32 layers, 32 heads of 128, 2 bytes
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),  # GQA: 8 KV heads
        ("falcon-7b", 32 * 2 * 1 * 64 * 2),  # MQA: 1 KV head of 64
        ("deepseek-v3", 61 * (512 + 64) * 2),  # MLA: latent 512 and rotary key 64
        ("gemma-2-9b", 42 * 2 * 8 * 256 * 2),  # every layer, windows left out
        ("bert-base", 0),  # an encoder keeps nothing
    ],
)
def test_kv_bytes_per_token(name, expected):
    assert kv_bytes_per_token(load_model(name), "bf16") == expected


def test_kv_formats_scale_with_their_bytes():
    assert kv_bytes_per_token(LLAMA, "fp8") == 65536
    assert kv_bytes_per_token(LLAMA, "int4") == 131072 * 4.125 / 16
    assert kv_bytes_per_token(with_formats(LLAMA, kv="fp8")) == 65536


def test_sliding_window_bounds_what_is_kept():
    # gpt-oss-20b: 12 layers see 128 tokens, 12 see all; 2 x 8 x 64 x 2 = 2048 bytes a layer.
    assert kv_bytes(LOCAL, [100, 1000]).tolist() == [
        24 * 100 * 2048,
        12 * 128 * 2048 + 12 * 1000 * 2048,
    ]
    # Mistral-7B-v0.1: all 32 layers see 4096 tokens; 4096 bytes a layer.
    assert float(kv_bytes(load_model("mistral-7b-v0.1"), 10_000)) == 32 * 4096 * 4096


def test_kv_read_of_windows_and_chunks():
    # A chunk of 10 tokens reads 128 + 9 keys in a sliding layer.
    expected = 12 * 2048 * (1000 + 137)
    assert float(kv_read_bytes(LOCAL, 1000, 10)) == expected
    # Llama-4: 36 layers read from the start of the 8192-token chunk, 12 read all; 4096 B a layer.
    chunked = load_model("llama-4-scout")
    assert float(kv_read_bytes(chunked, 8192 + 100)) == 36 * 4096 * 100 + 12 * 4096 * 8292


def test_kv_heads_are_copied_when_ranks_outnumber_them():
    assert kv_bytes_per_token(LLAMA, tp=8) == 131072 / 8
    assert kv_bytes_per_token(LLAMA, tp=16) == 131072 / 8
    assert kv_bytes_per_token(MLA, "bf16", tp=8) == 70272


def test_flops_of_one_llama_token():
    # qkv 6144 x 4096, o 4096 x 4096, gate and up 28672 x 4096, down 4096 x 14336: 218103808
    # multiply-adds in each of 32 layers.
    assert linear_flops_per_token(LLAMA) == 2 * 32 * 218_103_808
    assert lm_head_flops(LLAMA) == 2 * 128256 * 4096
    # 32 layers x 32 heads x 128 x 2 products x 2, for each of 1000 keys.
    assert float(attention_flops(LLAMA, 1, 999)) == 32 * 32 * 128 * 4 * 1000
    step = step_flops(LLAMA, [1], [999])
    assert step.total == 13_958_643_712 + 524_288_000 + 1_050_673_152


def test_flops_of_a_prompt():
    # 512 tokens see 1 + 2 + ... + 512 keys; logits of the last token only.
    step = step_flops(LLAMA, [512], [0])
    assert step.linear == 512 * 13_958_643_712
    assert step.attention == 32 * 32 * 128 * 4 * (512 * 513 / 2)
    assert step.lm_head == 1_050_673_152


def test_flops_of_experts():
    # 8 of 128 experts of 3 x 2048 x 768, router 2048 x 128, qkv 5120 x 2048, o 2048 x 4096.
    layer = 8 * 3 * 2048 * 768 + 2048 * 128 + 5120 * 2048 + 2048 * 4096
    assert linear_flops_per_token(MOE) == 2 * 48 * layer


def test_mla_gemms_by_hand():
    shapes = {g.name: (g.n, g.k, g.batch, g.tokens) for g in linear_layers(MLA)}
    assert shapes["qkv_a"] == (1536 + 576, 7168, 1, "all")
    assert shapes["q_b"] == (128 * 192, 1536, 1, "all")
    assert shapes["kv_b"] == (128 * 256, 512, 1, "prefill")
    assert shapes["k_absorb"] == (512, 128, 128, "decode")
    assert shapes["v_absorb"] == (128, 512, 128, "decode")
    assert shapes["o_proj"] == (7168, 128 * 128, 1, "all")
    # Without a query rank (V2-Lite) the query is one projection.
    lite = {g.name for g in linear_layers(load_model("deepseek-v2-lite"))}
    assert {"q_proj", "kv_a"} <= lite
    assert "q_b" not in lite


def test_mla_decodes_from_the_latent():
    (group,) = attention_layers(MLA)
    assert group.shape("prefill") == (128, 128, 192, 128)
    assert group.shape("decode") == (128, 1, 576, 512)
    assert float(attention_flops(MLA, 1, 9)) == 61 * 2 * 128 * (576 + 512) * 10
    assert float(attention_flops(MLA, 2, 0)) == 61 * 2 * 128 * (192 + 128) * 3
    # A second chunk expands the latents of the first one again.
    first, second = step_flops(MLA, [64], [0]), step_flops(MLA, [64], [100])
    assert second.linear - first.linear == 2 * 61 * 128 * 256 * 512 * 100


def test_a_context_of_any_window_splits_into_chunks():
    for window, chunked in ((None, False), (7, False), (7, True)):
        whole = attended_keys(50, 0, window, chunked)
        parts = attended_keys([20, 30], [0, 20], window, chunked)
        assert whole == parts.sum()


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([None, 1, 5, 16]), st.booleans())
def test_attended_keys_equal_counting_one_by_one(query, past, window, chunked):
    total = 0
    for i in range(past + 1, past + query + 1):
        if window is None:
            total += i
        else:
            total += (i - 1) % window + 1 if chunked else min(i, window)
    assert float(attended_keys(query, past, window, chunked)) == total


def test_an_encoder_sees_everything():
    assert float(attended_keys(10, 0, causal=False)) == 100


def test_weight_bytes_of_published_checkpoints():
    # gpt-oss model card: 12.8 and 60.8 GiB with mxfp4 experts.
    assert round(weight_bytes(load_model("gpt-oss-20b")) / 2**30, 1) == 12.8
    assert round(weight_bytes(load_model("gpt-oss-120b")) / 2**30, 1) == 60.8
    # hugging-quants Meta-Llama-3.1-8B-Instruct-AWQ-INT4: 4.68 + 1.05 GB in groups of 128.
    awq = with_formats(LLAMA, weights="int4_zero")
    assert weight_bytes(awq) / 1e9 == pytest.approx(5.73, abs=0.005)
    # bf16: two bytes a parameter.
    for name in ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b", "llama-3.2-1b", "bloom-176b"):
        model = load_model(name)
        assert weight_bytes(model) == 2 * parameters(model).total, name


@pytest.mark.parametrize("name", list(models))
def test_weight_bytes_follow_parameters_in_every_model(name):
    model = with_formats(load_model(name), weights="fp16")
    assert weight_bytes(model) == pytest.approx(2 * parameters(model).total, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "gemma-2-27b"])
def test_ranks_share_the_work(name):
    model = load_model(name)
    whole, ranks = linear_flops_per_token(model), 4 * linear_flops_per_token(model, tp=4)
    copied = {"router", "qkv_a", "kv_a"}
    extra = sum(2 * g.elements for g in linear_layers(model) if g.name in copied)
    assert ranks == pytest.approx(whole + 3 * extra)
    assert float(attention_flops(model, 7, 90, tp=4)) * 4 == float(attention_flops(model, 7, 90))
    assert 4 * weight_bytes(model, tp=4) >= weight_bytes(model)


def test_expert_parallel_ranks_hold_whole_experts():
    (one,), (of_four,) = expert_layers(MOE), expert_layers(MOE, tp=4, ep=4)
    assert (of_four.experts, of_four.intermediate) == (32, one.intermediate)
    (cut,) = expert_layers(MOE, tp=4)
    assert (cut.experts, cut.intermediate) == (128, 192)


@pytest.mark.parametrize(
    ("name", "tp"), [("llama-3.1-8b", 3), ("falcon-7b", 2), ("llama-3.1-8b", 0)]
)
def test_ranks_that_do_not_fit_are_refused(name, tp):
    with pytest.raises(InputError, match="allowed: 1"):
        linear_layers(load_model(name), tp)


def test_expert_ranks_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="ep = 3"):
        expert_layers(MOE, ep=3)


def test_touched_weights_of_a_dense_model():
    # All but the embedding, plus one row per token.
    expected = weight_bytes(LLAMA) - 2 * 128256 * 4096
    touched = weight_bytes_touched(LLAMA, [0, 1, 64])
    assert touched.tolist() == [0, expected + 8192, expected + 64 * 8192]


def test_touched_experts():
    # One token: 8 experts of 48 layers of 3 x 2048 x 768 x 2 bytes.
    expert = 3 * 2048 * 768 * 2
    first, second = weight_bytes_touched(MOE, [1, 2]) - 2048 * 2 * np.array([1, 2])
    assert second - first == pytest.approx(48 * expert * (8 - 8 * 8 / 128))
    assert float(weight_bytes_touched(MOE, 10**6)) == pytest.approx(
        weight_bytes(MOE) - 2 * 151936 * 2048 + 10**6 * 4096
    )


def test_step_bytes_add_up():
    step = step_bytes(LLAMA, [1, 1, 100], [999, 1999, 0])
    assert step.kv_read == 131072 * (1000 + 2000 + 100)
    assert step.kv_write == 131072 * 102
    assert step.weights == float(weight_bytes_touched(LLAMA, 102))
    assert step.total == step.weights + step.kv_read + step.kv_write
    assert step.activations == float(activation_bytes(LLAMA, 102))


def test_activation_bytes_by_hand():
    # In and out of qkv, o, gate_up, down, 2 bytes each, 32 layers.
    per_layer = 4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096
    assert float(activation_bytes(LLAMA, 3)) == 3 * 32 * 2 * per_layer
    narrow = with_formats(LLAMA, weights="fp8")
    read = 4096 + 4096 + 4096 + 14336
    assert float(activation_bytes(narrow, 3)) == 3 * 32 * (2 * per_layer - read)


def test_elementwise_kernels_of_llama():
    ops = {(x.name, x.op): (x.width, x.count) for x in elementwise_ops(LLAMA)}
    assert ops == {
        ("norm", "rms_norm_fused_add"): (4096, 65),
        ("rotary", "rotary"): (5120, 32),
        ("activation", "silu_and_mul"): (14336, 32),
        ("sample", "softmax_sample"): (128256, 1),
    }
    quantised = elementwise_ops(with_formats(LLAMA, weights="fp8"), tp=2, greedy=True)
    widths = [x.width for x in quantised if x.op == "quant_fp8_per_token"]
    assert widths == [4096, 2048, 4096, 7168]
    assert quantised[-1].op == "argmax"


def test_kernel_words():
    def words(**formats):
        return {g.name: g.dtype for g in linear_layers(with_formats(LLAMA, **formats))}

    assert words(weights="w4a16")["qkv"] == "w4a16"
    assert words(weights="fp8")["qkv"] == "fp8"
    assert words(weights="fp8")["lm_head"] == "bf16"
    assert words(weights="int8", activations="bf16")["down"] == "w8a16"
    assert words(weights="nvfp4")["down"] == "fp4"
    assert expert_layers(LOCAL)[0].dtype == "w4a16"
    assert {g.dtype for g in linear_layers(LOCAL)} == {"bf16"}


def test_distinct_experts_closed_form():
    assert distinct_experts(128, 8, [0, 1]).tolist() == [0, 8]
    assert float(distinct_experts(128, 8, 32)) == pytest.approx(128 * (1 - (120 / 128) ** 32))
    assert float(distinct_experts(8, 2, 10**5)) == pytest.approx(8)
    assert distinct_experts(4, 4, [0, 1, 5]).tolist() == [0, 4, 4]


def test_skewed_routing_against_sampling():
    rng = np.random.default_rng(5)
    popularity = zipf_popularity(64, 1.0)
    draws, tokens, top_k = 400, 16, 6
    gumbel = rng.gumbel(size=(draws, tokens, 64)) + np.log(popularity)
    chosen = np.argsort(-gumbel, axis=-1)[..., :top_k]
    taken = np.zeros((draws, tokens, 64), dtype=bool)
    np.put_along_axis(taken, chosen, True, axis=-1)
    assert inclusion_probabilities(popularity, top_k) == pytest.approx(
        taken.mean(axis=(0, 1)), abs=0.03
    )
    assert float(distinct_experts(64, top_k, tokens, 1.0)) == pytest.approx(
        taken.any(axis=1).sum(axis=-1).mean(), rel=0.02
    )


def test_skew_touches_fewer_experts():
    counts = [float(distinct_experts(128, 8, 64, s)) for s in (0.0, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 0.6 * counts[0]
    assert inclusion_probabilities(zipf_popularity(128, 1.5), 8).sum() == pytest.approx(8)


@pytest.mark.parametrize(
    "bad", [lambda: zipf_popularity(0, 1), lambda: inclusion_probabilities([1, 0], 2)]
)
def test_impossible_routing_is_refused(bad):
    with pytest.raises(InputError):
        bad()


def test_image_encoder_by_hand():
    # SigLIP of Gemma-3: 27 layers of 4 x 1152^2 + 2 x 1152 x 4304, 4096 patches.
    vision = load_model("gemma-3-4b").vision
    linear = 2 * 4096 * 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    attention = 27 * 4 * 4096**2 * 1152
    embed = 2 * 4096 * 3 * 14**2 * 1152
    projector = 2 * 256 * (1152 * 2560 + 1152)
    assert float(vision_flops(vision, 1)) == linear + attention + embed + projector
    assert vision_flops(vision, [0, 3]).tolist() == [
        0,
        3 * (linear + attention + embed + projector),
    ]


@pytest.mark.parametrize("name", list(models))
def test_every_model_counts_and_grows_with_work(name):
    model = load_model(name)
    past = np.array([0, 10, 5000])
    flops = attention_flops(model, 4, past)
    assert (np.diff(flops) >= 0).all()
    assert step_flops(model, [4, 1], [0, 50]).total > step_flops(model, [4], [0]).total
    touched = weight_bytes_touched(model, [1, 16, 256])
    assert (np.diff(touched) > 0).all()
    assert touched[-1] < weight_bytes(model) * 1.1
    assert sum(g.count for g in attention_layers(model)) == model.layers
    assert linear_flops_per_token(model) < 2.6 * parameters(model).active
