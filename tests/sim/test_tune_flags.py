"""What engines are told: names as their documentation has them, and what has no option is said."""

import importlib
import json

import pytest

from formats import InputError
from sim import Scenario
from sim.tuning.flags import ENGINES, deployable, nested, yaml

BATCHING = "policies.batching"


def told(engine, **changes):
    return deployable(Scenario().changed(changes), engine)


def option(found, name):
    return found.command[found.command.index(name) + 1]


def test_vllm_gets_its_limits_by_their_names():
    found = told(
        "vllm",
        **{
            "hardware.tp": 2,
            "hardware.pp": 2,
            "engine.max_model_len": 8192,
            "engine.memory_utilisation": 0.8,
            "engine.cuda_graphs": False,
            "model.kv": "fp8",
            f"{BATCHING}.max_num_seqs": 96,
            f"{BATCHING}.max_num_batched_tokens": 1024,
            f"{BATCHING}.long_prefill_token_threshold": 512,
            "policies.memory.kv_blocks": 5000,
            "policies.memory.block_size": 32,
            "policies.caching.name": "none",
        },
    )
    expected = {
        "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "2",
        "--max-model-len": "8192",
        "--gpu-memory-utilization": "0.8",
        "--kv-cache-dtype": "fp8",
        "--max-num-seqs": "96",
        "--max-num-batched-tokens": "1024",
        "--long-prefill-token-threshold": "512",
        "--num-gpu-blocks-override": "5000",
        "--block-size": "32",
        "--scheduling-policy": "fcfs",
    }
    assert {name: option(found, name) for name in expected} == expected
    assert {"--enforce-eager", "--no-enable-prefix-caching"} <= set(found.command)
    assert found.unknown == []


def test_vllm_refuses_several_partial_prefills():
    found = told("vllm", **{f"{BATCHING}.max_num_partial_prefills": 4})
    assert "--max-num-partial-prefills" not in found.command
    assert "refuses --max-num-partial-prefills above 1" in found.unknown[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_quantisation_is_an_option_only_where_it_happens_at_load(engine):
    fp8, int8, w4 = (told(engine, **{"model.weights": w}) for w in ("fp8", "int8", "int4"))
    assert option(fp8, "--quantization") == "fp8"
    for found, name in ((int8, "int8"), (w4, "int4")):
        assert "--quantization" not in found.command
        assert any(f"{name} needs a checkpoint quantised to it" in note for note in found.notes)
    own = told(engine, **{"model.weights": "bf16"})
    assert "--quantization" not in own.command
    assert not any("quantised" in note for note in own.notes)


def test_tensorrt_llm_takes_no_quantisation_at_load():
    found = told("trtllm", **{"model.weights": "fp8"})
    assert "--quantization" not in found.command
    assert any("needs a checkpoint" in note for note in found.notes)


def test_the_share_of_memory_is_told_as_tokens_where_engines_mean_another_share():
    small, large = (
        {e: told(e, **{"engine.memory_utilisation": u}) for e in ENGINES} for u in (0.5, 0.9)
    )
    assert option(small["vllm"], "--gpu-memory-utilization") == "0.5"
    pools = [int(option(f["sglang"], "--max-total-tokens")) for f in (small, large)]
    assert pools[1] - pools[0] == pytest.approx(0.4 * 143.77e9 / 131072, rel=0.05)
    assert small["trtllm"].config["kv_cache_config.max_tokens"] == pools[0]
    assert small["triton"].config["max_tokens_in_paged_kv_cache"] == pools[0]
    for name, word in (("sglang", "--mem-fraction-static"), ("trtllm", "free_gpu_memory_fraction")):
        assert word not in " ".join(small[name].command)
        assert any(word in note for note in small[name].notes)


def test_sglang_gets_chunks_pages_and_eviction():
    found = told("sglang", **{f"{BATCHING}.max_num_batched_tokens": 2048, "hardware.dp": 2})
    expected = {"--chunked-prefill-size": "2048", "--page-size": "16", "--tp-size": "2"}
    expected |= {"--dp-size": "2", "--radix-eviction-policy": "lru", "--schedule-policy": "fcfs"}
    assert {name: option(found, name) for name in expected} == expected
    assert {"--enable-mixed-chunk", "--enable-dp-attention"} <= set(found.command)


def test_tensorrt_llm_reads_a_file():
    found = told("trtllm", **{f"{BATCHING}.max_num_seqs": 64, "engine.cuda_graphs": False})
    assert option(found, "--config") == "config.yaml"
    assert option(found, "--max_batch_size") == "64"
    content = nested(found.config)
    assert content["kv_cache_config"]["enable_block_reuse"] is True
    assert content["kv_cache_config"]["tokens_per_block"] == 16
    assert content["scheduler_config"] == {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    assert content["enable_chunked_prefill"] is True
    assert content["cuda_graph_config"] is None
    assert any("--extra_llm_api_options" in note for note in found.notes)


def test_triton_gets_batching_of_its_scheduler_and_of_the_backend():
    found = told("triton", **{f"{BATCHING}.max_num_seqs": 48, "policies.caching.name": "none"})
    files = found.files()
    assert "max_batch_size: 48" in files["config.pbtxt"]
    assert "preferred_batch_size: [ 48 ]" in files["config.pbtxt"]
    assert "max_queue_delay_microseconds: 0" in files["config.pbtxt"]
    for words in (
        "triton_max_batch_size:48",
        "batching_strategy:inflight_fused_batching",
        "enable_chunked_context:true",
        "batch_scheduler_policy:max_utilization",
        "enable_kv_cache_reuse:false",
    ):
        assert words in files["command.sh"]


DRAFT = {"name": "draft-model", "model": "llama-3.2-1b", "tokens": 3}


def vllm_spec(**decoding):
    return json.loads(option(told("vllm", decoding=decoding), "--speculative-config"))


def test_vllm_is_told_how_to_speculate():
    assert vllm_spec(name="prompt-lookup", tokens=5) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    drafter = vllm_spec(**DRAFT)
    assert drafter["method"] == "draft_model"
    assert (drafter["model"], drafter["num_speculative_tokens"]) == ("meta-llama/Llama-3.2-1B", 3)
    assert vllm_spec(name="mtp", tokens=2) == {"method": "mtp", "num_speculative_tokens": 2}
    assert vllm_spec(name="eagle")["model"] == "DRAFT_HEAD"
    found = told("vllm", decoding={"name": "eagle"})
    assert any("DRAFT_HEAD" in note for note in found.notes)
    assert found.unknown == []
    assert "--speculative-config" not in told("vllm").command


def test_sglang_counts_its_own_token_among_the_drafts():
    found = told("sglang", decoding=DRAFT)
    expected = {"--speculative-algorithm": "STANDALONE", "--speculative-num-steps": "3"}
    expected |= {"--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "4"}
    expected |= {"--speculative-draft-model-path": "meta-llama/Llama-3.2-1B"}
    assert {name: option(found, name) for name in expected} == expected
    lookup = told("sglang", decoding={"name": "prompt-lookup"})
    assert option(lookup, "--speculative-algorithm") == "NGRAM"
    assert "--speculative-num-steps" not in lookup.command


def test_tensorrt_llm_reads_its_drafts_from_the_file():
    content = nested(told("trtllm", decoding=DRAFT).config)["speculative_config"]
    assert content["decoding_type"] == "Draft_Target"
    assert (content["max_draft_len"], content["speculative_model"]) == (
        3,
        "meta-llama/Llama-3.2-1B",
    )
    short = told("trtllm", decoding={"name": "mtp", "length": "batch", "largest_batch": 8})
    assert nested(short.config)["speculative_config"] == {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 1,
        "max_concurrency": 8,
    }
    assert short.unknown == []


@pytest.mark.parametrize(
    ("engine", "decoding", "words"),
    [
        ("vllm", {"name": "lookahead"}, "decoding.name = lookahead"),
        ("vllm", {"name": "eagle", "length": "adaptive"}, "decoding.length = adaptive"),
        ("vllm", {"name": "medusa"}, "decoding.candidates = 32"),
        ("sglang", {"name": "medusa"}, "decoding.name = medusa"),
        ("trtllm", {"name": "medusa"}, "decoding.name = medusa"),
        ("triton", {"name": "eagle"}, "decoding.name = eagle"),
    ],
)
def test_ways_to_speculate_without_an_option_are_said(engine, decoding, words):
    assert any(words in line for line in told(engine, decoding=decoding).unknown)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_option_is_said(engine):
    found = told(
        engine,
        **{
            "policies.memory.watermark": 0.05,
            "policies.admission.name": "other",
            "hardware.cp": 2,
        },
    )
    said = "\n".join(found.unknown)
    for words in ("policies.memory.watermark = 0.05", "policies.admission.name", "hardware.cp = 2"):
        assert words in said
    assert "no known option for policies.memory.watermark" in found.files()["command.sh"]


@pytest.mark.parametrize("engine", ENGINES)
def test_defaults_leave_nothing_unsaid(engine):
    found = told(engine)
    assert found.unknown == []


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_yaml_that_a_cluster_reads(engine):
    reader = importlib.import_module("yaml") if _has_yaml() else pytest.skip("no YAML reader")
    found = told(engine, **{"hardware.tp": 4, "hardware.replicas": 3})
    values = reader.safe_load(found.values)
    assert values["replicaCount"] == 3
    assert values["resources"]["limits"] == {"nvidia.com/gpu": 4}
    if engine != "triton":
        assert [*values["command"], *values["args"]] == found.command
    if found.config:
        assert values["engineConfig"] == nested(found.config)


def _has_yaml():
    return importlib.util.find_spec("yaml") is not None


def test_yaml_keeps_words_that_look_like_numbers():
    assert yaml({"tag": "1.20", "on": True, "none": None}) == 'tag: "1.20"\non: true\nnone: null\n'


def test_other_makers_have_their_own_resource():
    found = told("vllm", **{"hardware.accelerator": "mi300x"})
    assert "amd.com/gpu: 1" in found.values
    assert any("image" in note for note in found.notes)


def test_an_unknown_engine_is_explained():
    with pytest.raises(InputError, match="did you mean 'sglang'"):
        deployable(Scenario(), "sglan")
