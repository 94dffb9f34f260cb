"""What a scenario serves: its model after compression, in formats that its accelerator runs.

A format that the hardware has no units for takes the path that engines take there (packed weights
widened on the fly, fp16 for bf16, fp32 for tf32), and a note says so; where there is no such path
it is an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from formats import InputError
from hardware.kernels import chip_of
from hardware.kernels_forms import GEMM_TYPES
from hardware.specs import AcceleratorSpec
from sim.scenario import Model, Scenario
from workloads.compression import Quantise, Technique, apply, parse_techniques, quality_notes
from workloads.counts import expert_layers, linear_layers
from workloads.models import ModelSpec, load_model
from workloads.precision import kernel_dtype, precision, unit

__all__ = ["Served", "served_model"]

WIDENED = ("fp8", "fp4", "fp6")  # whose packed weights a 16-bit kernel takes
INSTEAD = {"tf32": "fp32", "fp16": "bf16"}
SPARSE = "sparse24_"


@dataclass(frozen=True)
class Served:
    """A model as it is served.

    Attributes
    ----------
    model : ModelSpec
        Architecture and number formats.
    notes : tuple of str
        Paths that the hardware takes in place of those asked for.
    quality : tuple of str
        What is known about answers after each technique.
    """

    model: ModelSpec
    notes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()


def served_model(scenario: Scenario, spec: AcceleratorSpec) -> Served:
    """Return the model of a scenario as an accelerator serves it.

    Parameters
    ----------
    scenario : Scenario
        Model, techniques, formats.
    spec : AcceleratorSpec
        What runs it.

    Raises
    ------
    InputError
        A technique or format is unknown, does not fit the model, or the hardware has no way to
        run it.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> fp8 = Scenario(model={"weights": "fp8"})
    >>> served_model(fp8, load_accelerator("h200-sxm")).notes
    ()
    >>> served_model(fp8, load_accelerator("a100-sxm")).model.activations
    'bf16'
    """
    steps = techniques(scenario.model)
    model = apply(load_model(scenario.model.name), steps)
    model, notes = _runnable(model, spec, asked=scenario.model.activations)
    return Served(model, tuple(notes), tuple(quality_notes(steps)))


def techniques(choice: Model) -> list[Technique]:
    """Return the steps of a model section: its techniques in order, then its formats."""
    tables: list[Mapping[str, object]] = [
        {"name": name, **table} for name, table in choice.techniques.items()
    ]
    steps = parse_techniques(tables, "[model.techniques]")
    formats = {
        "weights": choice.weights,
        "experts": choice.experts,
        "activations": choice.activations,
        "kv": choice.kv,
        "accumulation": choice.accumulation,
    }
    given = {key: precision(word).name for key, word in formats.items() if word}
    return [*steps, Quantise(**given)] if given else steps


def _runnable(
    model: ModelSpec, spec: AcceleratorSpec, asked: str | None
) -> tuple[ModelSpec, list[str]]:
    """Return the model on paths that exist, and notes of those that were changed."""
    changes: dict[str, str] = {}
    notes = []
    for word in _lacking(model, spec):
        new, note = _instead(model, spec, word, asked)
        changes |= new
        notes.append(note)
    if "bf16" not in spec.peaks.given() and model.dtype == "bf16":
        notes += _half(spec)
    return model.model_copy(update=changes), notes


def _lacking(model: ModelSpec, spec: AcceleratorSpec) -> list[str]:
    """Return the kernel words of a model that a chip has no peak, or no sparse units, for."""
    peaks = chip_of(spec).peaks
    words = [g.dtype for g in linear_layers(model)] + [x.dtype for x in expert_layers(model)]
    found = dict.fromkeys(w for w in words if not _has(w, peaks, spec))
    return list(found)


def _has(word: str, peaks: Mapping[str, float], spec: AcceleratorSpec) -> bool:
    if word not in GEMM_TYPES:
        return False
    kind = GEMM_TYPES[word]
    sparse = not word.startswith(SPARSE) or spec.structured_sparsity
    return sparse and bool(kind.block or kind.precision in peaks)


def _instead(
    model: ModelSpec, spec: AcceleratorSpec, word: str, asked: str | None
) -> tuple[dict[str, str], str]:
    """Return what to change about a model whose kernel `word` cannot run, and a note."""
    if word.startswith(SPARSE):
        raise InputError(
            f"{spec.name} has no 2:4 sparse units",
            "[model.techniques] sparsify",
            repair="leave it out, or set kernel = false (zeros then save nothing)",
        )
    narrow = unit(model.activations)
    if word in WIDENED and narrow == word and asked is None:
        packed = kernel_dtype(model.weights, model.dtype)
        note = (
            f"{spec.name} has no {word} units: {model.weights} weights are widened to "
            f"{model.dtype} on the fly ({packed}), and multiplied at that rate"
        )
        return {"activations": model.dtype}, note
    peaks = spec.peaks.given()
    usual = INSTEAD.get(word, "")
    if usual in peaks:
        formats = dict.fromkeys(("dtype", "weights", "activations"), usual)
        return formats, f"{spec.name} has no {word} units: products run in {usual}"
    raise InputError(
        f"{spec.name} cannot multiply {word}",
        "[model] weights, activations",
        ", ".join(_usable(peaks)),
        "choose one of these, or packed weights such as w4a16",
    )


def _usable(peaks: Mapping[str, object]) -> Iterator[str]:
    return (name for name in peaks if name in GEMM_TYPES)


def _half(spec: AcceleratorSpec) -> Iterator[str]:
    """Yield how 16-bit products run on a chip without bf16."""
    given = spec.peaks.given()
    path = "fp16" if "fp16" in given else "fp32"
    if path in given:
        yield f"{spec.name} has no bf16 units: 16-bit products run in {path}, at its rate"
