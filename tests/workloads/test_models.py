import pytest
from pydantic import ValidationError

from formats import InputError
from formats.files import check
from workloads.counts import parameters
from workloads.models import ModelSpec, load_model, models
from workloads.operators import load_operators, operator_models
from workloads.precision import PRECISIONS, kernel_dtype, precision

PLAIN = {
    "name": "tiny",
    "publisher": "nobody",
    "source": "made up",
    "hidden": 64,
    "layers": 4,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 8,
    "intermediate": 128,
    "vocab": 100,
    "max_positions": 256,
}


def tiny(**change):
    return check(PLAIN | change, ModelSpec, "tiny.toml")


def test_parameters_of_a_tiny_model_by_hand():
    # qkv 64 x (64 + 32), o 64 x 64, gate and up 2 x 64 x 128, down 128 x 64, norms 2 x 64.
    layer = 64 * 96 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert parameters(tiny()).total == 4 * layer + 2 * 100 * 64 + 64
    assert parameters(tiny(tied_embeddings=True)).total == 4 * layer + 100 * 64 + 64
    biased = tiny(qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True)
    assert parameters(biased).total - parameters(tiny()).total == 4 * (96 + 64 + 256 + 64) + 9 * 64


@pytest.mark.parametrize(("kv_heads", "kind"), [(8, "mha"), (4, "gqa"), (2, "gqa"), (1, "mqa")])
def test_kind_of_attention_follows_from_heads(kv_heads, kind):
    assert tiny(kv_heads=kv_heads).attention == kind


def test_patterns_of_layers():
    local = tiny(window={"tokens": 16, "pattern": "LLG"})
    assert local.local_layers == (True, True, False, True)
    moe = {"experts": 4, "top_k": 2, "intermediate": 32, "first_dense": 1, "period": 2}
    assert (tiny(moe=moe).expert_layer_count, tiny(moe=moe).dense_layer_count) == (2, 2)
    assert tiny(moe=moe | {"dense_layers": [3]}).expert_layer_count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden": 3}, "hiden is not a known key, did you mean 'hidden'"),
        ({"hidden": None}, "hidden"),
        ({"kv_heads": 3}, "heads = 8 is not a multiple of kv_heads 3"),
        ({"layers": 0}, "layers"),
        ({"layers": 10**9}, "layers"),
        ({"intermediate": 0}, "intermediate is 0"),
        ({"vocab": 0}, "lm_head needs a vocab"),
        ({"weights": "fp5"}, "no number format named 'fp5'; did you mean 'fp"),
        ({"window": {"tokens": 4, "pattern": "LX"}}, "window.pattern"),
        ({"moe": {"experts": 2, "top_k": 3, "intermediate": 8}}, "top_k = 3 is more than"),
        (
            {"moe": {"experts": 2, "top_k": 1, "intermediate": 8, "first_dense": 4}},
            "no expert layer",
        ),
        (
            {"moe": {"experts": 2, "top_k": 1, "intermediate": 8, "shared_experts": 1}},
            "shared_experts and shared_intermediate go together",
        ),
        ({"source": ""}, "source"),
    ],
)
def test_bad_files_are_explained(change, message):
    with pytest.raises(InputError, match=message) as e:
        tiny(**change)
    assert str(e.value).startswith("tiny.toml")


def test_a_spec_does_not_change():
    with pytest.raises(ValidationError):
        tiny().hidden = 3


def test_load_model_by_name_path_and_mistake(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(models.paths["llama-3.1-8b"].read_text())
    assert load_model(file) == load_model("llama-3.1-8b") == load_model(str(file))
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-8b'"):
        load_model("llama-3.1-8B-instruct")
    with pytest.raises(InputError, match="no model named"):
        load_model("")


def test_bytes_of_formats_with_their_scales():
    bits = {name: precision(name).bytes * 8 for name in PRECISIONS}
    assert bits["bf16"] == bits["fp16"] == 16
    assert bits["tf32"] == 32
    assert bits["int4"] == 4 + 16 / 128
    assert bits["nvfp4"] == bits["fp4"] == 4.5
    assert bits["mxfp4"] == 4.25
    assert bits["fp6"] == 6.25
    assert bits["fp8_block"] == 8 + 32 / 16384
    # QLoRA: 0.127 bit of scales per parameter.
    assert bits["nf4"] == pytest.approx(4.127, abs=0.01)


@pytest.mark.parametrize(
    ("weights", "activations", "word"),
    [
        ("bf16", "bf16", "bf16"),
        ("tf32", "tf32", "tf32"),
        ("int4", "bf16", "w4a16"),
        ("mxfp4", "fp16", "w4a16"),
        ("fp8", "bf16", "w8a16"),
        ("fp6", "bf16", "w6a16"),
        ("fp8_block", "fp8", "fp8"),
        ("int4", "fp8", "fp8"),
        ("nvfp4", "nvfp4", "fp4"),
        ("int8", "int8", "int8"),
        ("fp8", "fp32", "fp32"),
    ],
)
def test_kernel_words(weights, activations, word):
    assert kernel_dtype(weights, activations) == word


@pytest.mark.parametrize("name", list(operator_models))
def test_operator_models_equal_their_published_counts(name):
    model = load_operators(name)
    if model.published_params:
        assert model.parameters == model.published_params
        assert model.flops == pytest.approx(model.published_flops, rel=3e-3)
    one, many = model.bytes([1, 64])
    assert one < many < 64 * one
    assert load_operators(str(operator_models.paths[name])) == model


def test_operators_count_a_convolution_by_hand():
    # conv1 of ResNet-50: 64 kernels of 3 x 7 x 7 on 112 x 112 pixels.
    conv1 = load_operators("resnet-50").operators[0]
    assert conv1.flops == 2 * 64 * 3 * 7 * 7 * 112 * 112
    assert conv1.parameters == 64 * 3 * 7 * 7 + 2 * 64
    moved = conv1.bytes(2, 2.0)
    assert float(moved) == 2 * (9408 + 128 + 2 * (3 * 224 * 224 + 64 * 112 * 112))


def test_tables_are_read_by_the_row():
    table = next(x for x in load_operators("dlrm-mlperf").operators if x.name == "embedding")
    assert float(table.bytes(10, 4.0)) == 4 * 10 * (26 * 128 + 26 * 128)
