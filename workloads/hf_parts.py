"""Parts that several Hugging Face architectures share: windows, experts, MLA, image encoder."""

from typing import Any

from formats import InputError
from workloads.hf_config import HFConfig

__all__ = ["every", "experts", "layer_pattern", "mla", "vision", "window"]

Fields = dict[str, Any]
LETTERS = {"full_attention": "G", "sliding_attention": "L", "chunked_attention": "L"}


def layer_pattern(config: HFConfig, layers: int) -> str | None:
    """Return local (L) and global (G) layers from ``layer_types``, or None when absent.

    Raises
    ------
    InputError
        A layer is of another kind (linear attention, state space), or the list's length is wrong.
    """
    kinds = config.listed("layer_types", str)
    if kinds is None:
        return None
    if len(kinds) != layers:
        what = f"layer_types lists {len(kinds)} layers, num_hidden_layers says {layers}"
        raise InputError(what, config.where, repair="make them agree")
    for kind in kinds:
        if kind not in LETTERS:
            raise config.wrong("layer_types", kind, "supported", ", ".join(LETTERS))
    return "".join(LETTERS[k] for k in kinds)


def window(config: HFConfig, layers: int, usual: str, key: str = "sliding_window") -> Fields:
    """Return the window table: size from `key`, pattern from layer_types or `usual`.

    A window as long as the longest sequence is none.
    """
    pattern = layer_pattern(config, layers) or usual
    size = config.integer(key, default=0, low=0)
    longest = config.integer("max_position_embeddings", default=size + 1)
    if not size or size >= longest or "L" not in pattern:
        return {}
    kind = "chunked" if key == "attention_chunk_size" else "sliding"
    return {"window": {"tokens": size, "pattern": pattern, "kind": kind}}


def every(period: int) -> str:
    """Return the pattern of period - 1 local layers and a global one."""
    return "L" * (period - 1) + "G"


def experts(config: HFConfig, **fixed: object) -> Fields:
    """Return the moe table under the key names that architectures use.

    Parameters
    ----------
    config : HFConfig
        Configuration.
    **fixed : object
        Fields that the architecture, not its file, decides.
    """
    wide = config.integer("intermediate_size")
    inner = config.integer("moe_intermediate_size", default=wide)
    table: Fields = {
        "experts": config.integer("num_local_experts", "num_experts", "n_routed_experts"),
        "top_k": config.integer("num_experts_per_tok", "num_experts_per_token"),
        "intermediate": inner,
        "first_dense": config.integer("first_k_dense_replace", default=0, low=0),
        "period": config.integer("decoder_sparse_step", default=1),
        "dense_layers": tuple(config.listed("mlp_only_layers", int) or ()),
    }
    table.update(_shared(config, inner), **fixed)
    if config.integer("moe_layer_freq", default=1) != 1:
        raise config.wrong("moe_layer_freq", config.data["moe_layer_freq"], "supported", "1")
    return {"moe": table}


def _shared(config: HFConfig, inner: int) -> Fields:
    number = config.integer("n_shared_experts", "num_shared_experts", default=0, low=0)
    if number:
        return {"shared_experts": number, "shared_intermediate": number * inner}
    width = config.integer("shared_expert_intermediate_size", default=0, low=0)
    return {"shared_experts": 1, "shared_intermediate": width} if width else {}


def mla(config: HFConfig) -> Fields:
    """Return the mla table and the head dimension."""
    table = {
        "q_lora_rank": config.integer("q_lora_rank", default=0, low=0),
        **{
            key: config.integer(key)
            for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        },
    }
    return {"mla": table, "head_dim": table["qk_nope_head_dim"] + table["qk_rope_head_dim"]}


def vision(top: HFConfig, text_hidden: int) -> Fields:
    """Return the vision table of an image encoder whose form is known, else a note."""
    config = top.table("vision_config")
    if config is None:
        return {}
    kind = config.text("model_type", default="")
    readers = {
        "siglip_vision_model": _siglip,
        "llama4_vision_model": _llama4_vision,
        "clip_vision_model": _clip,
    }
    if kind not in readers:
        return {"note": f"The image encoder ({kind or 'of unnamed type'}) is not counted."}
    table = {
        "hidden": config.integer("hidden_size"),
        "layers": config.integer("num_hidden_layers"),
        "heads": config.integer("num_attention_heads"),
        "intermediate": config.integer("intermediate_size"),
        "patch": config.integer("patch_size"),
    }
    grid = (config.integer("image_size") // table["patch"]) ** 2
    if not grid:
        raise config.wrong("image_size", config.data["image_size"], "a patch or more", "pixels")
    return {"vision": table | readers[kind](config, top, grid, text_hidden)}


def _siglip(config: HFConfig, top: HFConfig, grid: int, text: int) -> Fields:
    tokens = top.integer("mm_tokens_per_image", default=grid)
    width = config.integer("hidden_size")
    return {
        "patches": grid,
        "positions": grid,
        "tokens": tokens,
        "projector": width * text + width,
    }


def _llama4_vision(config: HFConfig, _: HFConfig, grid: int, text: int) -> Fields:
    merged = 4 * config.integer("hidden_size")
    inner = config.integer("projector_input_dim")
    outer = config.integer("vision_output_dim", "projector_output_dim")
    return {
        "patches": grid + 1,
        "positions": grid + 1,
        "tokens": max(1, grid // 4),
        "projector": merged * inner + inner * outer + outer * text,
    }


def _clip(config: HFConfig, _: HFConfig, grid: int, text: int) -> Fields:
    width = config.integer("hidden_size")
    return {
        "patches": grid + 1,
        "positions": grid + 1,
        "tokens": grid,
        "projector": width * text + text + text * text + text,
    }
