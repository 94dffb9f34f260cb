import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import InputError
from workloads.compression import (
    TECHNIQUES,
    Distil,
    ExpandLatents,
    GroupHeads,
    LocalAttention,
    PickKeys,
    PruneExperts,
    PruneHeads,
    PruneHidden,
    PruneLayers,
    PruneNeurons,
    Quantise,
    Sparsify,
    apply,
    parse_techniques,
    quality_notes,
    with_formats,
)
from workloads.counts import (
    expert_layers,
    kv_bytes_per_token,
    linear_flops_per_token,
    linear_layers,
    parameters,
    weight_bytes,
)
from workloads.models import load_model

LLAMA = load_model("llama-3.1-8b")
MOE = load_model("qwen3-30b-a3b")
# 32 layers of qkv, o, gate_up, down.
LINEAR = 32 * 218_103_808


@pytest.mark.parametrize(
    ("weights", "bits", "activations"),
    [
        ("fp8", 8, "fp8"),
        ("int8", 8, "int8"),
        ("w4a16", 4.125, "bf16"),
        ("nvfp4", 4.5, "nvfp4"),
        ("mxfp4", 4.25, "bf16"),
        ("fp6", 6.25, "bf16"),
        ("nf4", 4.1328125, "bf16"),
    ],
)
def test_quantised_weights_shrink_only_the_linear_layers(weights, bits, activations):
    model = Quantise(weights=weights).apply(LLAMA)
    assert model.activations == activations
    saved = weight_bytes(LLAMA) - weight_bytes(model)
    assert saved == pytest.approx(LINEAR * (16 - bits) / 8)
    assert parameters(model) == parameters(LLAMA)


def test_parts_are_quantised_apart():
    model = Quantise(kv="fp8", accumulation="fp16").apply(LLAMA)
    assert (model.weights, model.kv, model.accumulation) == ("bf16", "fp8", "fp16")
    experts = Quantise(experts="mxfp4").apply(MOE)
    assert (experts.weights, expert_layers(experts)[0].weights) == ("bf16", "mxfp4")
    saved = 48 * 128 * 3 * 2048 * 768 * (16 - 4.25) / 8
    assert weight_bytes(MOE) - weight_bytes(experts) == pytest.approx(saved)
    both = Quantise(weights="fp8").apply(load_model("gpt-oss-20b"))
    assert expert_layers(both)[0].weights == "fp8"


def test_wide_weights_change_all_that_is_not_quantised():
    model = with_formats(load_model("deepseek-v3"), weights="bf16")
    assert (model.dtype, model.weights, model.activations) == ("bf16", "bf16", "bf16")
    assert weight_bytes(model) == 2 * parameters(model).total
    assert with_formats(LLAMA) is LLAMA


def test_two_four_sparsity_needs_a_kernel():
    sparse = Sparsify(pattern="2:4").apply(LLAMA)
    # Half of the 16-bit values and 2 bits of place for each that stays.
    assert weight_bytes(LLAMA) - weight_bytes(sparse) == LINEAR * (2 - 0.5 * (2 + 0.25))
    assert {g.dtype for g in linear_layers(sparse)} == {"sparse24_bf16", "bf16"}
    without = Sparsify(pattern="2:4", kernel=False).apply(LLAMA)
    assert weight_bytes(without) == weight_bytes(LLAMA)
    assert linear_layers(without) == linear_layers(LLAMA)


def test_unstructured_zeros_save_bytes_only_with_a_kernel():
    plain = Sparsify(pattern="unstructured", share=0.8).apply(LLAMA)
    assert weight_bytes(plain) == weight_bytes(LLAMA)
    kernel = Sparsify(pattern="unstructured", share=0.8, kernel=True).apply(LLAMA)
    assert weight_bytes(LLAMA) - weight_bytes(kernel) == pytest.approx(LINEAR * (2 - 0.2 * 4))
    # Half of the weights with 16-bit places cost as much as all of them.
    half = Sparsify(pattern="unstructured", kernel=True).apply(LLAMA)
    assert weight_bytes(half) == weight_bytes(LLAMA)


def test_pruned_heads_shrink_the_cache():
    model = PruneHeads(heads=16).apply(LLAMA)
    assert (model.heads, model.kv_heads) == (16, 4)
    assert kv_bytes_per_token(model) == kv_bytes_per_token(LLAMA) / 2
    gone = 32 * (16 + 2 * 4 + 16) * 128 * 4096
    assert parameters(LLAMA).total - parameters(model).total == gone


def test_pruned_neurons_and_experts():
    model = PruneNeurons(share=0.25).apply(LLAMA)
    assert model.intermediate == 10752
    assert parameters(LLAMA).total - parameters(model).total == 32 * 3 * 4096 * 3584
    narrow = PruneNeurons(share=0.5).apply(MOE)
    assert narrow.moe.intermediate == 384
    fewer = PruneExperts(experts=64).apply(MOE)
    router = 48 * 2048 * 64
    assert parameters(fewer).active == parameters(MOE).active - router
    assert parameters(MOE).experts == 2 * parameters(fewer).experts


def test_minitron_by_its_recipe():
    steps = [PruneHidden(hidden=3072), PruneNeurons(share=1 - 9216 / 14336)]
    pruned, published = apply(LLAMA, steps), load_model("llama-3.1-minitron-4b-width")
    assert parameters(pruned) == parameters(published)
    assert pruned.derived_from == "Llama-3.1-8B"
    assert pruned.published_params is None


def test_pruned_layers_keep_their_kinds():
    gemma = load_model("gemma-3-4b")
    pruned = PruneLayers(drop=(0, 5, 33)).apply(gemma)
    kept = [x for i, x in enumerate(gemma.local_layers) if i not in (0, 5, 33)]
    assert pruned.local_layers == tuple(kept)
    deepseek = PruneLayers(drop=(1, 60)).apply(load_model("deepseek-v3"))
    assert (deepseek.dense_layer_count, deepseek.expert_layer_count) == (2, 57)
    every = PruneLayers(drop=tuple(range(5, 34, 6))).apply(gemma)
    assert all(every.local_layers)
    none = PruneLayers(drop=tuple(i for i in range(34) if gemma.local_layers[i])).apply(gemma)
    assert none.window is None


@given(st.sets(st.integers(0, 47), min_size=1, max_size=40))
def test_dropping_layers_drops_their_work(drop):
    model = PruneLayers(drop=tuple(drop)).apply(MOE)
    share = model.layers / MOE.layers
    assert linear_flops_per_token(model) == pytest.approx(share * linear_flops_per_token(MOE))
    assert kv_bytes_per_token(model) == pytest.approx(share * kv_bytes_per_token(MOE))


def test_a_student_knows_its_teacher():
    student = apply(load_model("llama-3.1-70b"), [Distil(student="llama-3.2-3b")])
    assert student.layers == 28
    assert student.distilled_from == "Llama-3.1-70B"


def test_steps_are_remembered_in_order():
    steps = [PruneHeads(heads=16), Quantise(weights="int4", kv="fp8")]
    model = apply(LLAMA, steps)
    assert model.techniques == ("prune_heads heads=16", "quantise weights=int4 kv=fp8")
    assert LLAMA.techniques == ()


def test_techniques_come_from_tables():
    tables = [{"name": "quantise", "weights": "fp8"}, {"name": "prune_layers", "drop": [3]}]
    assert parse_techniques(tables) == [Quantise(weights="fp8"), PruneLayers(drop=(3,))]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "quantize"}, "did you mean 'quantise'"),
        ({}, "no technique named ''"),
        ({"name": "quantise", "weigths": "fp8"}, "weigths is not a known key.*'weights'"),
        ({"name": "quantise", "weights": "fp3"}, "no number format named 'fp3'"),
        ({"name": "sparsify", "pattern": "2:4", "share": 0.6}, "2:4 means a share of 0.5"),
        ({"name": "prune_neurons", "share": 1.0}, "share"),
        ({"name": "prune_layers", "drop": []}, "drop"),
    ],
)
def test_bad_tables_are_explained(table, message):
    with pytest.raises(InputError, match=message):
        parse_techniques([table], "[model]")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (PruneHeads(heads=64), "heads = 64 is more than"),
        (PruneHeads(heads=12, kv_heads=8), "not a multiple"),
        (PruneLayers(drop=(32,)), "drop = 32"),
        (PruneLayers(drop=tuple(range(32))), "layers"),
        (PruneExperts(experts=4), "no experts"),
        (PruneHidden(hidden=9999), "hidden = 9999"),
        (Distil(student="nobody"), "no model named 'nobody'"),
    ],
)
def test_steps_that_do_not_fit_are_refused(step, message):
    with pytest.raises(InputError, match=message):
        step.apply(LLAMA)


def test_every_technique_says_what_it_does_to_answers():
    steps = [
        Quantise(weights="fp8", kv="fp8"),
        Quantise(weights="int8"),
        Quantise(weights="int4"),
        Quantise(weights="nvfp4"),
        Quantise(weights="int2"),
        Quantise(kv="int4"),
        Quantise(weights="bf16"),
        Sparsify(pattern="2:4"),
        Sparsify(pattern="unstructured", share=0.9),
        PruneHeads(heads=1),
        PruneNeurons(share=0.5),
        PruneHidden(hidden=64),
        PruneLayers(drop=(1,)),
        PruneExperts(experts=1),
        Distil(student="x"),
        GroupHeads(kv_heads=1),
        LocalAttention(tokens=64),
        PickKeys(tokens=64),
        ExpandLatents(),
    ]
    assert {s.name for s in steps} == set(TECHNIQUES)
    for step, note in zip(steps, quality_notes(steps), strict=True):
        known = ("arXiv", "blog", "measure it", "the same numbers")
        assert any(words in note for words in known), step
    assert "measure it" in steps[3].quality()
    assert "measure it" in steps[4].quality()
    for cls in TECHNIQUES.values():
        assert "Use" in cls.__doc__
