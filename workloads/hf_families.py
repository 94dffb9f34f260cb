"""What each Hugging Face architecture adds to the common shape of a transformer.

Source of every default and bias: the configuration and modelling files of transformers 4.57.1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workloads.hf_config import HFConfig
from workloads.hf_parts import every, experts, layer_pattern, mla, window

__all__ = ["FAMILIES", "Family"]

Fields = dict[str, Any]
Reader = Callable[[HFConfig, int], Fields]


@dataclass(frozen=True)
class Family:
    """One architecture: what its code fixes, and what its file may set.

    Parameters
    ----------
    fixed : dict
        Fields of ModelSpec that the code decides.
    read : callable
        Takes the configuration and the number of layers, returns more fields.
    tied, kv_heads, head_dim : bool, int or None, int or None
        Defaults for tie_word_embeddings, num_key_value_heads (None = as many as heads) and
        head_dim (None = hidden_size / heads).
    encoder : bool
        Not causal, no logits.
    silent_width : int
        Multiple of hidden_size that an absent intermediate_size means; 0 = it must be there.
    positions : int or None
        Longest sequence where the file names none; None = it must be there.
    """

    fixed: Fields = field(default_factory=dict)
    read: Reader = lambda _config, _layers: {}
    tied: bool = False
    kv_heads: int | None = None
    head_dim: int | None = None
    encoder: bool = False
    silent_width: int = 0
    positions: int | None = None


ALL_BIASES = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
CLASSIC = {"gated": False, "norm_bias": True, **ALL_BIASES}


def _biases(config: HFConfig, _layers: int = 0, default: bool = False) -> Fields:
    """Return attention_bias (q, k, v and output) and mlp_bias."""
    attention = config.flag("attention_bias", default=default)
    mlp = config.flag("mlp_bias", default=False)
    return {"qkv_bias": attention, "o_bias": attention, "mlp_bias": mlp}


def _llama(config: HFConfig, layers: int) -> Fields:
    return _biases(config) | window(config, layers, "L")


def _qwen2(config: HFConfig, layers: int) -> Fields:
    first = config.integer("max_window_layers", default=layers, low=0)
    usual = "G" * min(first, layers) + "L" * max(0, layers - first)
    if not config.flag("use_sliding_window", default=False):
        config.get("sliding_window", "layer_types")
        return {}
    return window(config, layers, usual)


def _qwen3(config: HFConfig, layers: int) -> Fields:
    return _biases(config) | _qwen2(config, layers)


def _qwen2_moe(config: HFConfig, layers: int) -> Fields:
    bias = config.flag("qkv_bias", default=True)
    return {"qkv_bias": bias} | _qwen2(config, layers) | experts(config, shared_gate=True)


def _qwen3_moe(config: HFConfig, layers: int) -> Fields:
    return _qwen3(config, layers) | experts(config)


def _mixtral(config: HFConfig, layers: int) -> Fields:
    return window(config, layers, "L") | experts(config)


def _granite_moe(config: HFConfig, layers: int) -> Fields:
    return _llama(config, layers) | experts(config)


def _phi_moe(config: HFConfig, layers: int) -> Fields:
    bias = config.flag("lm_head_bias", default=False)
    extra = config.integer("vocab_size") if bias else 0
    return _granite_moe(config, layers) | {"extra_parameters": extra}


def _gemma2(config: HFConfig, layers: int) -> Fields:
    return _biases(config) | window(config, layers, "LG")


def _gemma3(config: HFConfig, layers: int) -> Fields:
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _biases(config) | window(config, layers, every(period))


def _deepseek(usual: str) -> Reader:
    """Return a reader for a generation whose usual routing method is `usual`."""

    def read(config: HFConfig, _layers: int) -> Fields:
        scored = config.text("topk_method", default=usual) == "noaux_tc"
        found = mla(config)
        if config.get("n_routed_experts")[1] is None:
            return found
        return found | experts(config, router_bias=scored)

    return read


def _glm4_moe(config: HFConfig, _layers: int) -> Fields:
    norm = config.flag("use_qk_norm", default=False)
    found = {"qkv_bias": config.flag("attention_bias", default=False)}
    return found | {"qk_norm": "head" if norm else "none"} | experts(config, router_bias=True)


def _gpt_oss(config: HFConfig, layers: int) -> Fields:
    found = _biases(config, default=True) | window(config, layers, "LG")
    return found | experts(config, router_bias=True, expert_bias=True)


def _llama4(config: HFConfig, layers: int) -> Fields:
    period = config.integer("no_rope_layer_interval", default=4)
    rope = config.listed("no_rope_layers", int)
    usual = "".join("L" if r else "G" for r in rope) if rope else every(period)
    inner = config.integer("intermediate_size")
    found = window(config, layers, usual, key="attention_chunk_size") | _biases(config)
    config.get("moe_layers", "use_qk_norm")
    step = config.integer("interleave_moe_layer_step", default=1)
    table = experts(config, period=step, shared_experts=1, shared_intermediate=inner)
    return found | table | {"intermediate": config.integer("intermediate_size_mlp", default=inner)}


def _cohere(config: HFConfig, _layers: int) -> Fields:
    norm = config.flag("use_qk_norm", default=False)
    return _biases(config) | {"qk_norm": "full" if norm else "none"}


def _cohere2(config: HFConfig, layers: int) -> Fields:
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return _biases(config) | window(config, layers, every(period))


def _glm4(config: HFConfig, _layers: int) -> Fields:
    return {"qkv_bias": config.flag("attention_bias", "add_qkv_bias", default=True)}


def _seed_oss(config: HFConfig, _layers: int) -> Fields:
    output = config.flag("attention_out_bias", default=False)
    return _biases(config, default=True) | {"o_bias": output}


def _one_bias(key: str, default: bool) -> Reader:
    """Return a reader of a single key for all biases, with a window on every layer."""

    def read(config: HFConfig, layers: int) -> Fields:
        on = config.flag(key, default=default)
        return dict.fromkeys(ALL_BIASES, on) | window(config, layers, "L")

    return read


def _falcon(config: HFConfig, _layers: int) -> Fields:
    heads = config.integer("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", default=False)
    one = config.flag("multi_query", default=True)
    given = config.integer("num_kv_heads", "n_head_kv", default=heads)
    norms = config.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    parallel = config.flag("parallel_attn", default=True)
    on = config.flag("bias", default=False)
    return {
        "kv_heads": given if new else (1 if one else heads),
        "norms_per_layer": norms if parallel else 2,
        "rotary": not config.flag("alibi", default=False),
        **dict.fromkeys(ALL_BIASES, on),
    }


def _gpt2(config: HFConfig, _layers: int) -> Fields:
    return {"learned_positions": config.integer("max_position_embeddings", "n_positions")}


def _lm_head_bias(config: HFConfig, _layers: int) -> Fields:
    return {"extra_parameters": config.integer("vocab_size")}


def _opt(config: HFConfig, _layers: int) -> Fields:
    hidden = config.integer("hidden_size")
    narrow = config.integer("word_embed_proj_dim", default=hidden)
    if narrow != hidden:
        raise config.wrong("word_embed_proj_dim", narrow, "supported", f"hidden_size = {hidden}")
    on = config.flag("enable_bias", default=True)
    final = config.flag("do_layer_norm_before", default=True)
    rows = config.integer("max_position_embeddings") + 2
    biases = dict.fromkeys(ALL_BIASES, on)
    return {"learned_positions": rows, "final_norm": final, **biases}


def _gpt_neox(config: HFConfig, _layers: int) -> Fields:
    on = config.flag("attention_bias", default=True)
    return {"qkv_bias": on, "o_bias": on}


def _bloom(config: HFConfig, _layers: int) -> Fields:
    return {"extra_parameters": 2 * config.integer("hidden_size", "n_embed")}


def _mpt(config: HFConfig, _layers: int) -> Fields:
    attention = config.table("attn_config") or HFConfig({}, config.where)
    on = not config.flag("no_bias", default=True)
    ratio = config.integer("expansion_ratio", default=4)
    return {
        "intermediate": ratio * config.integer("d_model", "hidden_size"),
        "kv_heads": attention.integer("kv_n_heads", default=config.integer("n_heads")),
        "norm_bias": on,
        **dict.fromkeys(ALL_BIASES, on),
    }


def _stablelm(config: HFConfig, _layers: int) -> Fields:
    if config.flag("qk_layernorm", default=False):
        raise config.wrong("qk_layernorm", True, "supported", "false")
    parallel = config.flag("use_parallel_residual", default=False)
    bias = config.flag("use_qkv_bias", default=False)
    return {"qkv_bias": bias, "norms_per_layer": 1 if parallel else 2}


def _bert(config: HFConfig, _layers: int) -> Fields:
    hidden, types = (
        config.integer("hidden_size"),
        config.integer("type_vocab_size", low=0, default=2),
    )
    rows = config.integer("max_position_embeddings")
    pooler = hidden * hidden + hidden
    return {"learned_positions": rows, "extra_parameters": (types + 2) * hidden + pooler}


def _modernbert(config: HFConfig, layers: int) -> Fields:
    period = config.integer("global_attn_every_n_layers", default=3)
    size = config.integer("local_attention", default=128)
    bias = config.flag("norm_bias", default=False)
    usual = layer_pattern(config, layers) or "G" + "L" * (period - 1)
    table = {"window": {"tokens": size, "pattern": usual}} if "L" in usual else {}
    return _biases(config) | {"norm_bias": bias} | table


_LLAMA = Family(read=_llama)
_BERT = Family({**CLASSIC, "final_norm": False, "rotary": False}, _bert, tied=True, encoder=True)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(read=_llama, kv_heads=8),
    "ministral": Family(read=_llama, kv_heads=8),
    "smollm3": Family(read=_llama, tied=True),
    "granite": _LLAMA,
    "ernie4_5": Family(read=_one_bias("use_bias", default=False), tied=True),
    "seed_oss": Family(read=_seed_oss),
    "hunyuan_v1_dense": Family({"qk_norm": "head"}, _llama),
    "exaone4": Family({"qk_norm": "head"}, lambda c, n: window(c, n, "LLLG")),
    "phi3": Family(read=lambda c, n: window(c, n, "L")),
    "qwen2": Family({"qkv_bias": True}, _qwen2),
    "qwen3": Family({"qk_norm": "head"}, _qwen3, head_dim=128),
    "qwen2_moe": Family(read=_qwen2_moe),
    "qwen3_moe": Family({"qk_norm": "head"}, _qwen3_moe, head_dim=128),
    "mixtral": Family(read=_mixtral, kv_heads=8),
    "granitemoe": Family(read=_granite_moe),
    "phimoe": Family({"norm_bias": True}, _phi_moe),
    "olmo2": Family({"qk_norm": "full"}, _llama),
    "olmoe": Family({"qk_norm": "full"}, lambda c, n: _biases(c) | experts(c)),
    "gemma": Family(read=_llama, tied=True, head_dim=256),
    "gemma2": Family({"norms_per_layer": 4}, _gemma2, tied=True, head_dim=256),
    "gemma3_text": Family(
        {"norms_per_layer": 4, "qk_norm": "head"}, _gemma3, tied=True, head_dim=256
    ),
    "deepseek_v2": Family(read=_deepseek("greedy")),
    "deepseek_v3": Family(read=_deepseek("noaux_tc")),
    "glm": Family(read=_glm4, head_dim=128),
    "glm4": Family({"norms_per_layer": 4}, _glm4, head_dim=128),
    "glm4_moe": Family(read=_glm4_moe),
    "gpt_oss": Family({"sinks": True}, _gpt_oss, head_dim=64),
    "llama4_text": Family(read=_llama4, head_dim=128),
    "cohere": Family({"norms_per_layer": 1}, _cohere, tied=True),
    "cohere2": Family({"norms_per_layer": 1}, _cohere2, tied=True),
    "falcon": Family(
        {"gated": False, "norm_bias": True}, _falcon, tied=True, silent_width=4, positions=2048
    ),
    "gpt_neox": Family(CLASSIC, _gpt_neox),
    "gpt2": Family({**CLASSIC, "rotary": False}, _gpt2, tied=True, silent_width=4),
    "gptj": Family(
        {"gated": False, "norm_bias": True, "mlp_bias": True, "norms_per_layer": 1},
        _lm_head_bias,
        silent_width=4,
    ),
    "opt": Family({**CLASSIC, "rotary": False}, _opt, tied=True),
    "bloom": Family(
        {**CLASSIC, "rotary": False}, _bloom, tied=True, silent_width=4, positions=2048
    ),
    "mpt": Family({"gated": False, "rotary": False}, _mpt, tied=True, silent_width=4),
    "phi": Family({**CLASSIC, "norms_per_layer": 1}, _lm_head_bias),
    "starcoder2": Family(
        {"gated": False, "norm_bias": True}, _one_bias("use_bias", default=True), tied=True
    ),
    "stablelm": Family({"norm_bias": True}, _stablelm),
    "nemotron": Family({"gated": False, "norm_bias": True}, _biases),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "modernbert": Family(read=_modernbert, tied=True, encoder=True),
}
