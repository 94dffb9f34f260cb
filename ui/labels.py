"""Names that people read: of catalog entries, of keys, of figures."""

from functools import lru_cache

from formats import Quantity
from hardware.catalog import accelerators
from hardware.specs import AcceleratorSpec
from sim.engines import engines
from sim.units import readable
from workloads.lengths import length_distributions
from workloads.models import ModelSpec, models
from workloads.named import workloads
from workloads.precision import PRECISIONS

__all__ = ["CHOICES", "LABELS", "accelerator_help", "choice_label", "model_help"]

# dotted key of the scenario -> plain name; others get theirs from the schema
LABELS = {
    "hardware.accelerator": "accelerator",
    "hardware.replicas": "replicas (independent engines)",
    "hardware.tp": "tensor parallel (TP) [accelerators]",
    "hardware.pp": "pipeline parallel (PP) [stages]",
    "hardware.dp": "data parallel attention (DP) [ranks]",
    "hardware.ep": "expert parallel (EP) [ranks]",
    "hardware.power_cap_w": "power limit per accelerator [W]",
    "hardware.ambient_c": "inlet temperature [°C]",
    "model.name": "model",
    "model.weights": "format of weights",
    "model.activations": "format of activations",
    "model.kv": "format of the KV cache",
    "engine.profile": "serving engine",
    "engine.cuda_graphs": "CUDA graphs",
    "engine.memory_utilisation": "memory the engine may use [share]",
    "engine.max_model_len": "longest request [token]",
    "engine.host_slowness": "host slowness [factor]",
    "slo.ttft_s": "time to first token (TTFT) [s]",
    "slo.tpot_s": "time per output token (TPOT) [s]",
    "slo.e2e_s": "arrival to last token (E2E) [s]",
    "slo.percentile": "share that must meet them [%]",
    "run.seed": "seed",
    "run.horizon_s": "stop at [s]",
}
CHOICES = {
    "hardware.accelerator": tuple(accelerators),
    "model.name": tuple(models),
    "model.weights": tuple(PRECISIONS),
    "model.activations": tuple(PRECISIONS),
    "model.kv": tuple(PRECISIONS),
    "engine.profile": tuple(engines),
    "workload.named": tuple(workloads),
    "workload.lengths": tuple(length_distributions),
}


@lru_cache(maxsize=1)
def _names() -> dict[tuple[str, str], str]:
    """Return (key, id) -> name of every entry of the catalogs."""
    found = {("hardware.accelerator", n): _chip(accelerators.load(n)) for n in accelerators}
    found |= {("model.name", n): models.load(n).name for n in models}
    found |= {("engine.profile", n): engines.load(n).name for n in engines}
    found |= {("workload.named", n): workloads.load(n).name for n in workloads}
    catalog = length_distributions
    return found | {("workload.lengths", n): catalog.load(n).name or n for n in catalog}


def _chip(spec: AcceleratorSpec) -> str:
    return spec.name.removeprefix("NVIDIA ") if spec.vendor == "NVIDIA" else spec.name


def choice_label(path: str, value: str | None) -> str:
    """Return what a list shows for a value of a key."""
    if value is None:
        return "as in the model's file"
    return _names().get((path, value), value)


def _said(name: str, quantity: Quantity) -> str:
    return (
        f"- {name}: {readable(quantity.value, quantity.unit)} ({quantity.kind}, {quantity.source})"
    )


def accelerator_help(spec: AcceleratorSpec) -> str:
    """Return the main numbers of an accelerator with their sources, as hover text."""
    peaks = spec.peaks.given()
    half = peaks.get("bf16") or peaks.get("fp16") or next(iter(peaks.values()))
    fidelity = "timed on this part" if spec.calibration else "carried over from measured parts"
    rows = [
        _said("memory", spec.memory.bytes),
        _said("bandwidth", spec.memory.bytes_per_s),
        _said("16-bit peak, dense", half),
        _said("power limit", spec.power.tdp_w),
        f"- kernel times: {fidelity}",
    ]
    return "Chip that serves the model.\n\n" + "\n".join(rows)


def model_help(spec: ModelSpec) -> str:
    """Return what a model is, with its source, as hover text."""
    size = (
        f"{spec.published_params / 1e9:,.1f} billion parameters, " if spec.published_params else ""
    )
    experts = f", {spec.moe.experts} experts (top {spec.moe.top_k})" if spec.moe else ""
    return (
        f"Model that is served: {size}{spec.layers} layers, {spec.attention} attention{experts}, "
        f"by {spec.publisher}. Source: {spec.source}"
    )
