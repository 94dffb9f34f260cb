"""Any Hugging Face config.json as a ModelSpec."""

from pathlib import Path
from typing import Any

from formats import InputError, did_you_mean
from formats.files import check
from workloads.hf_config import HFConfig, read_json
from workloads.hf_families import FAMILIES, Family
from workloads.hf_parts import vision
from workloads.hf_quantization import number_formats
from workloads.models import ModelSpec

__all__ = ["from_config", "load_huggingface"]

# Names in model_type that stand for the text part of a larger model, or for a twin.
SAME_AS = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "kimi_k2": "deepseek_v3",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "camembert": "roberta",
    "chatglm": "glm",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
}


def load_huggingface(path: Path) -> ModelSpec:
    """Return the architecture that a config.json, or the folder that holds it, describes.

    Parameters
    ----------
    path : Path
        File or folder.

    Returns
    -------
    ModelSpec
        Default number formats are those of ``torch_dtype`` and ``quantization_config``.

    Raises
    ------
    InputError
        The file is not readable JSON, the architecture is unknown, or a key is missing, unknown
        or out of range; the message names it.
    """
    file = path / "config.json" if path.is_dir() else path
    top = read_json(file)
    name = file.parent.name if file.name == "config.json" else file.stem
    return from_config(top, name or file.stem)


def from_config(top: HFConfig, name: str = "config") -> ModelSpec:
    """Return the architecture that a parsed config.json describes.

    Examples
    --------
    >>> c = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
    ...      "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 256}
    >>> from_config(HFConfig(c, "config.json"), "tiny").attention
    'mha'
    """
    config = top.table("text_config") or top
    kind = _kind(top, config)
    family = FAMILIES[kind]
    fields = _shape(config, family)
    fields |= family.fixed | family.read(config, fields["layers"])
    fields |= number_formats(config, top, "fp32" if family.encoder else "bf16")
    fields |= vision(top, fields["hidden"])
    fields |= _ends(top, config, family)
    fields |= _identity(top, name, kind)
    config.refuse_unknown()
    return check(fields, ModelSpec, top.where)


def _kind(top: HFConfig, config: HFConfig) -> str:
    """Return the key of FAMILIES, from model_type or else from architectures."""
    named = config.text("model_type", default="") or top.text("model_type", default="")
    if not named:
        classes = top.listed("architectures", str) or []
        stem = classes[0].split("For")[0].removesuffix("Model") if classes else ""
        named = next((k for k in FAMILIES if k.replace("_", "") == stem.lower()), stem)
    if not named:
        raise top.missing(["model_type"])
    kind = SAME_AS.get(named, named)
    if kind not in FAMILIES:
        hint = did_you_mean(kind, FAMILIES)
        raise InputError(f"model_type = {named!r} is not a known architecture", top.where, "", hint)
    return kind


def _shape(config: HFConfig, family: Family) -> dict[str, Any]:
    hidden = config.integer("hidden_size", "n_embd", "n_embed", "d_model")
    heads = config.integer("num_attention_heads", "n_head", "n_heads")
    if family.head_dim is None and hidden % heads and config.get("head_dim")[1] is None:
        what = f"num_attention_heads = {heads} does not divide hidden_size = {hidden}"
        raise InputError(what, config.where, repair="correct one or add head_dim")
    return {
        "hidden": hidden,
        "layers": config.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "heads": heads,
        "kv_heads": config.integer(
            "num_key_value_heads", "multi_query_group_num", default=family.kv_heads or heads
        ),
        "head_dim": config.integer(
            "head_dim", "kv_channels", default=family.head_dim or hidden // heads
        ),
        "intermediate": _width(config, family, hidden),
        "vocab": config.integer("vocab_size", "padded_vocab_size"),
        "max_positions": config.integer(
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "seq_length",
            default=family.positions,
        ),
    }


def _width(config: HFConfig, family: Family, hidden: int) -> int:
    """Return the width of the dense block; older architectures mean a multiple by silence."""
    default = family.silent_width * hidden or None
    return config.integer(
        "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=default
    )


def _ends(top: HFConfig, config: HFConfig, family: Family) -> dict[str, Any]:
    """Return what surrounds the blocks: tied embeddings, logits, kind of model."""
    source = config if config.get("tie_word_embeddings")[1] is not None else top
    classes = top.listed("architectures", str) or []
    headless = family.encoder or bool(classes and classes[0].endswith("Model"))
    return {
        "tied_embeddings": source.flag("tie_word_embeddings", default=family.tied) and not headless,
        "lm_head": not headless,
        "kind": "encoder" if family.encoder else "decoder",
    }


def _identity(top: HFConfig, name: str, kind: str) -> dict[str, Any]:
    full = top.text("_name_or_path", default="") or name
    return {
        "name": full.rsplit("/", 1)[-1] or name,
        "publisher": full.split("/")[0] if full.count("/") == 1 else "not named in the file",
        "source": f"{top.where} ({kind})",
    }
