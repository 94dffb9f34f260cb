"""Number formats from the dtype and quantization_config of a Hugging Face config.json."""

from collections.abc import Callable

from formats import InputError, did_you_mean
from workloads.hf_config import HFConfig
from workloads.precision import ALIASES, PRECISIONS

__all__ = ["number_formats"]

Formats = dict[str, str]


def number_formats(config: HFConfig, top: HFConfig, default: str) -> Formats:
    """Return the format fields of a model: dtype, weights, activations, kv, expert_weights.

    Parameters
    ----------
    config, top : HFConfig
        The (text) configuration, and the whole file.
    default : str
        Format where the file names none.

    Returns
    -------
    dict of str
        Fields of ModelSpec.

    Raises
    ------
    InputError
        An unknown dtype or quantisation method.
    """
    source = config if config.get("torch_dtype", "dtype")[1] is not None else top
    wide = _dtype(source, default)
    found: Formats = {"dtype": wide, "weights": wide, "activations": wide, "kv": wide}
    quantised = config.table("quantization_config") or top.table("quantization_config")
    if quantised:
        found.update(_quantised(quantised))
    return found


def _dtype(config: HFConfig, default: str) -> str:
    name = config.text("torch_dtype", "dtype", default=default).removeprefix("torch.")
    if name == "auto":
        return default
    known = ALIASES.get(name, name)
    if known not in PRECISIONS:
        raise config.wrong("torch_dtype", name, "a known number format", "bfloat16, float16, ...")
    return known


def _quantised(config: HFConfig) -> Formats:
    method = config.text("quant_method").lower()
    if method not in METHODS:
        hint = did_you_mean(method, METHODS)
        raise InputError(f"quant_method = {method!r} is not known", config.where, repair=hint)
    return METHODS[method](config)


def _fp8(config: HFConfig) -> Formats:
    block = config.listed("weight_block_size", int)
    return {"weights": "fp8_block" if block else "fp8", "activations": "fp8"}


def _weight_only(config: HFConfig) -> Formats:
    bits = config.integer("bits", "w_bit")
    if bits == 8:
        return {"weights": "int8"}
    group = config.integer("group_size", "q_group_size", default=128, low=-1)
    zero = config.flag("zero_point", default=False) or not config.flag("sym", default=True)
    if bits != 4:
        raise config.wrong("bits", bits, "4 or 8", "4, 8")
    if 0 < group < 64:
        return {"weights": "int4_g32"}
    return {"weights": "int4_zero" if zero else "int4"}


def _bitsandbytes(config: HFConfig) -> Formats:
    if config.flag("load_in_8bit", "_load_in_8bit", default=False):
        return {"weights": "int8", "activations": "int8"}
    if config.flag("load_in_4bit", "_load_in_4bit", default=False):
        return {"weights": "nf4"}
    raise config.missing(["load_in_4bit", "load_in_8bit"])


def _mxfp4(_: HFConfig) -> Formats:
    return {"expert_weights": "mxfp4"}


def _compressed_tensors(config: HFConfig) -> Formats:
    groups = config.table("config_groups")
    first = groups.table(next(iter(groups.data), "group_0")) if groups else None
    weights = first.table("weights") if first else None
    if not first or not weights:
        raise config.missing(["config_groups.group_0.weights"])
    found = {"weights": _scheme(weights)}
    inputs = first.table("input_activations")
    if inputs:
        found["activations"] = _scheme(inputs)
    cache = config.table("kv_cache_scheme")
    if cache:
        found["kv"] = _scheme(cache)
    return found


def _scheme(scheme: HFConfig) -> str:
    """Return the format of a compressed-tensors scheme."""
    bits, kind = scheme.integer("num_bits"), scheme.text("type", default="int")
    group = scheme.integer("group_size", default=128, low=-1)
    if kind == "float" and bits == 4:
        return "mxfp4" if group == 32 else "nvfp4"
    if kind == "float" and bits == 8:
        return "fp8_block" if scheme.listed("block_structure", int) else "fp8"
    if kind == "int" and bits == 4:
        return "int4_g32" if 0 < group < 64 else "int4"
    if kind == "int" and bits == 8:
        return "int8"
    raise scheme.wrong("num_bits", bits, f"known for type {kind!r}", "4 or 8, int or float")


def _modelopt(config: HFConfig) -> Formats:
    algorithm = config.text("quant_algo", "quant_type", default="FP8").upper()
    known: dict[str, Formats] = {
        "FP8": {"weights": "fp8", "activations": "fp8"},
        "NVFP4": {"weights": "nvfp4", "activations": "nvfp4"},
        "W4A16_AWQ": {"weights": "int4"},
    }
    if algorithm not in known:
        raise config.wrong("quant_algo", algorithm, "known", ", ".join(known))
    cache = config.text("kv_cache_quant_algo", default="").upper()
    return known[algorithm] | ({"kv": "fp8"} if cache == "FP8" else {})


METHODS: dict[str, Callable[[HFConfig], Formats]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "gptq": _weight_only,
    "awq": _weight_only,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}
