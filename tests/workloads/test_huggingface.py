import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formats import InputError
from workloads.counts import parameters
from workloads.hf_config import HFConfig
from workloads.hf_families import FAMILIES
from workloads.huggingface import from_config
from workloads.models import load_model

# Shapes as published config.json files give them, by the catalog entry they must equal.
PUBLISHED = json.loads((Path(__file__).parent / "hf_configs.json").read_text())
CONFIGS, OTHERS = PUBLISHED["catalog"], PUBLISHED["others"]
LABELS = {
    "name",
    "publisher",
    "source",
    "license",
    "note",
    "published_params",
    "published_active_params",
    "published_source",
    "checkpoint_params",
    "checkpoint_source",
    "derived_from",
    "distilled_from",
}


def read(config):
    return from_config(HFConfig(copy.deepcopy(config), "config.json"), "tiny")


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config_gives_the_catalog_entry(name):
    ours, theirs = load_model(name), read(CONFIGS[name])
    formats = {"dtype", "weights", "activations", "kv"} if name == "pythia-6.9b" else set()
    left = theirs.model_dump(exclude=LABELS | formats | {"window", "extra_parameters"})
    assert left == ours.model_dump(exclude=LABELS | formats | {"window", "extra_parameters"})
    assert theirs.local_layers == ours.local_layers
    # The catalog also counts two small norms of Llama 4's image encoder.
    small = 2816 if name == "llama-4-maverick" else 0
    assert parameters(theirs).total == parameters(ours).total - small


def test_parameter_totals_of_architectures_outside_the_catalog():
    # Counts of the published checkpoints: Command R 34.98B, Command R7B 8.03B, GLM-4-9B-0414 9.40B,
    # Granite 3.1 8B 8.17B, Qwen1.5-MoE-A2.7B 14.3B, ModernBERT base 149M.
    expected = {
        "cohere": 34.98e9,
        "cohere2": 8.03e9,
        "glm4": 9.40e9,
        "granite": 8.17e9,
        "qwen2_moe": 14.3e9,
        "modernbert": 149e6,
    }
    for name, total in expected.items():
        assert parameters(read(OTHERS[name])).total == pytest.approx(total, rel=4e-3), name


def test_window_patterns():
    assert read(OTHERS["cohere2"]).local_layers[:5] == (True, True, True, False, True)
    assert read(OTHERS["modernbert"]).local_layers[:4] == (False, True, True, False)
    late = CONFIGS["qwen2.5-7b"] | {
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 21,
    }
    assert sum(read(late).local_layers) == 7
    assert not read(late).local_layers[20]


@pytest.mark.parametrize(
    ("quantization", "weights", "activations", "kv"),
    [
        ({"quant_method": "fp8"}, "fp8", "fp8", "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", "bf16", "bf16"),
        ({"quant_method": "gptq", "bits": 4, "sym": False}, "int4_zero", "bf16", "bf16"),
        ({"quant_method": "gptq", "bits": 8}, "int8", "bf16", "bf16"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True},
            "int4_g32",
            "bf16",
            "bf16",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", "bf16", "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "int8", "bf16"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            "nvfp4",
            "nvfp4",
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int"},
                        "input_activations": {"num_bits": 8, "type": "int"},
                    }
                },
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            "int8",
            "int8",
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}
                },
            },
            "nvfp4",
            "bf16",
            "bf16",
        ),
    ],
)
def test_quantization_config_sets_the_formats(quantization, weights, activations, kv):
    model = read(CONFIGS["llama-3.1-8b"] | {"quantization_config": quantization})
    assert (model.weights, model.activations, model.kv) == (weights, activations, kv)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 33}, "num_attention_heads = 33"),
        ({"num_key_value_heads": 5}, "kv_heads"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_hidden_layers": 10**6}, "layers"),
        ({"model_type": "lama"}, "'llama'"),
        ({"model_type": "mamba"}, "mamba"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"num_experts": 8}, "num_experts"),
        ({"torch_dtype": "float7"}, "float7"),
        ({"quantization_config": {"quant_method": "magic"}}, "magic"),
        ({"quantization_config": {}}, "quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits = 3"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types lists 3"),
        ({"text_config": 3}, "text_config"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_bad_key_is_named(change, named):
    with pytest.raises(InputError, match=named):
        read(CONFIGS["llama-3.1-8b"] | change)


def test_missing_key_comes_with_a_hint():
    config = dict(CONFIGS["llama-3.1-8b"])
    config["num_hiden_layers"] = config.pop("num_hidden_layers")
    with pytest.raises(InputError, match=r"num_hidden_layers.*missing.*num_hiden_layers"):
        read(config)


def test_false_and_absent_features_pass():
    config = CONFIGS["llama-3.1-8b"] | {"mamba_d_state": None, "use_cache": True, "eos_token_id": 2}
    assert read(config).layers == 32


def test_load_model_takes_a_file_and_a_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["qwen3-8b"]))
    by_file = load_model(folder / "config.json")
    assert by_file == load_model(str(folder))
    assert by_file.name == "my-model"


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"model_type": 3}', "\ufeff{}"])
def test_a_file_that_is_no_config(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(file)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_architecture_reads_a_plain_config(kind):
    more = {
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attention_chunk_size": 16,
        "d_model": 64,
        "n_heads": 4,
    }
    model = read(
        {key: value for key, value in more.items() if asks_for(kind, key)}
        | {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
        | {"num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 256}
        | {"max_position_embeddings": 512, "torch_dtype": "bfloat16", "model_type": kind}
    )
    assert model.layers == 6
    assert parameters(model).total > 64 * 256


def asks_for(kind, key):
    moe = {"mixtral", "granitemoe", "phimoe", "olmoe", "gpt_oss", "llama4_text", "glm4_moe"}
    moe |= {"qwen2_moe", "qwen3_moe"}
    return {
        "kv_lora_rank": kind.startswith("deepseek"),
        "qk_nope_head_dim": kind.startswith("deepseek"),
        "qk_rope_head_dim": kind.startswith("deepseek"),
        "v_head_dim": kind.startswith("deepseek"),
        "num_experts": kind in moe,
        "num_experts_per_tok": kind in moe,
        "attention_chunk_size": kind == "llama4_text",
        "d_model": kind == "mpt",
        "n_heads": kind == "mpt",
    }[key]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(0, 5), max_size=4),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "x"]), max_size=50),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
ANY_CONFIG = st.sampled_from([*CONFIGS.values(), *OTHERS.values()])
EXTRA = st.sampled_from(
    [
        "quantization_config",
        "layer_types",
        "head_dim",
        "sliding_window",
        "num_experts",
        "text_config",
    ]
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=ANY_CONFIG, data=st.data())
def test_mutated_configs_give_a_model_or_a_clear_error(config, data):
    mutated = copy.deepcopy(config)
    target = data.draw(
        st.sampled_from([v for v in mutated.values() if isinstance(v, dict)] + [mutated])
    )
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(
            st.one_of(st.sampled_from(sorted(target) or ["x"]), EXTRA, st.text(max_size=6))
        )
        if data.draw(st.booleans()):
            target.pop(key, None)
        else:
            target[key] = data.draw(JUNK)
    model, message = outcome(mutated)
    assert message.startswith("config.json") if model is None else parameters(model).total > 0


def outcome(config):
    try:
        return from_config(HFConfig(config, "config.json"), "tiny"), ""
    except InputError as e:
        return None, str(e)


@settings(max_examples=200, deadline=None)
@given(st.recursive(JUNK, lambda x: st.dictionaries(st.text(max_size=9), x, max_size=4)))
def test_any_json_value_gives_a_model_or_a_clear_error(tmp_path_factory, value):
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(value))
    with pytest.raises(InputError):
        load_model(file)
