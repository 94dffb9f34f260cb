"""Ways to make a model cheaper to serve, each a change of its counts.

A technique takes a ModelSpec and returns another one: other number formats (quantise), zeros that
a kernel may or may not use (sparsify), smaller shapes (prune_*), or another model (distil). What
it does to answers is a note with a source, or the words "quality: measure it".
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field, model_validator

from formats import InputError, did_you_mean
from formats.files import check
from workloads.attending import ExpandLatents, GroupHeads, LocalAttention, PickKeys
from workloads.models import ModelSpec, Part, PrecisionName, load_model
from workloads.precision import WIDE, precision, unit
from workloads.pruning import (
    MEASURE,
    PruneExperts,
    PruneHeads,
    PruneHidden,
    PruneLayers,
    PruneNeurons,
    changed,
)

__all__ = [
    "TECHNIQUES",
    "Distil",
    "ExpandLatents",
    "GroupHeads",
    "LocalAttention",
    "PickKeys",
    "PruneExperts",
    "PruneHeads",
    "PruneHidden",
    "PruneLayers",
    "PruneNeurons",
    "Quantise",
    "Sparsify",
    "Technique",
    "apply",
    "parse_techniques",
    "quality_notes",
    "with_formats",
]

_BF16 = "Kurtic et al., arXiv:2411.02355, abstract (all Llama-3.1 sizes)"


class Quantise(Part):
    """Store or multiply in fewer bits. Use it first: it costs the least quality per byte saved.

    Weights, activations, KV cache and accumulation are chosen apart. Only linear layers and
    experts change; embedding, lm_head, router and norms stay in ``dtype``, unless `weights` is
    16 bits or wider and so becomes ``dtype``.

    Examples
    --------
    >>> m = Quantise(weights="fp8", kv="fp8").apply(load_model("llama-3.1-8b"))
    >>> m.weights, m.activations, m.kv
    ('fp8', 'fp8', 'fp8')
    """

    name: Literal["quantise"] = "quantise"
    weights: PrecisionName | None = Field(default=None, description="format of linear weights")
    experts: PrecisionName | None = Field(
        default=None, description="format of routed experts; left out = as weights"
    )
    activations: PrecisionName | None = Field(
        default=None,
        description="format of GEMM inputs; left out = that of 8- and 4-bit floats and of int8 "
        "weights, else 16 bits",
    )
    kv: PrecisionName | None = Field(default=None, description="format of the KV cache")
    accumulation: PrecisionName | None = Field(default=None, description="format of sums")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model in the chosen formats."""
        change: dict[str, Any] = {}
        if self.weights:
            change |= {"weights": self.weights, "expert_weights": None}
            change["activations"] = _usual_activations(self.weights, model.dtype)
            if self.weights in WIDE:
                change["dtype"] = self.weights
        given = {"expert_weights": self.experts, "activations": self.activations}
        given |= {"kv": self.kv, "accumulation": self.accumulation}
        return changed(model, self, change | {k: v for k, v in given.items() if v})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        notes = [_weight_note(self.weights or self.experts or ""), _kv_note(self.kv or "")]
        given = [w for w in (self.weights, self.experts, self.kv, self.activations) if w]
        if self.accumulation is None and all(word in WIDE for word in given):
            return "16 bits or wider: the same numbers as published"
        return "; ".join(n for n in notes if n) or MEASURE


def _usual_activations(weights: str, dtype: str) -> str:
    """Return the format of GEMM inputs that serving engines pair with these weights."""
    if weights in WIDE:
        return weights
    pairs = {"fp8": "fp8", "int8": "int8", "fp4": "nvfp4"}
    only_weights = {"nf4", "mxfp4"}
    return dtype if weights in only_weights else pairs.get(unit(weights), dtype)


def _weight_note(weights: str) -> str:
    kind = unit(weights) if weights else ""
    notes = {
        "fp8": f"weights and activations in fp8: lossless within noise ({_BF16})",
        "int8": f"int8 weights and activations: 1-3 % lower scores when well tuned ({_BF16})",
        "int4": f"int4 weights: near 8 bits ({_BF16})",
    }
    if not weights or weights in WIDE:
        return ""
    return notes.get("" if weights == "int2" else kind, f"{weights} weights: {MEASURE}")


def _kv_note(kv: str) -> str:
    if not kv or kv in WIDE:
        return ""
    if unit(kv) == "fp8":
        return "fp8 KV cache: 94-99 % of baseline scores (vLLM blog, The State of FP8 KV-Cache)"
    return f"{kv} KV cache: {MEASURE}"


class Sparsify(Part):
    """Set weights to zero. Use 2:4 where the hardware has sparse units; else it saves nothing.

    Bytes shrink only with a kernel that stores what is not 0 (with 2 bits of place in 2:4, 16
    bits in a free pattern). Parameters and FLOPs stay those of the dense shapes; a 2:4 kernel is
    named to the hardware as ``sparse24_*``. Routed experts stay dense.

    Examples
    --------
    >>> from workloads.counts import linear_layers
    >>> linear_layers(Sparsify(pattern="2:4").apply(load_model("llama-3.1-8b")))[0].dtype
    'sparse24_bf16'
    """

    name: Literal["sparsify"] = "sparsify"
    pattern: Literal["2:4", "unstructured"] = Field(description="where zeros may stand")
    share: float = Field(default=0.5, gt=0, lt=1, description="share of zeros [1]")
    kernel: bool | None = Field(
        default=None, description="a sparse kernel exists; left out = yes for 2:4, else no"
    )

    @model_validator(mode="after")
    def _check(self) -> "Sparsify":
        if self.pattern == "2:4" and self.share != 0.5:
            raise ValueError("2:4 means a share of 0.5")
        return self

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with zeros."""
        kernel = self.pattern == "2:4" if self.kernel is None else self.kernel
        table = {"kind": self.pattern, "share": self.share, "kernel": kernel}
        return changed(model, self, {"sparsity": table})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        if self.share > 0.5:
            return MEASURE
        score = "67.1" if self.pattern == "2:4" else "69.7"
        return (
            f"OPT-175B, half of the weights, ARC-easy 71.0 -> {score} % "
            "(SparseGPT, arXiv:2301.00774); smaller models lose more"
        )


class Distil(Part):
    """Serve a student that learnt from this model. Use it when one task matters.

    Examples
    --------
    >>> Distil(student="llama-3.2-1b").apply(load_model("llama-3.1-70b")).distilled_from
    'Llama-3.1-70B'
    """

    name: Literal["distil"] = "distil"
    student: str = Field(min_length=1, description="model that learns, by name or file")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the student, linked to its teacher."""
        student = load_model(self.student)
        return changed(student, self, {"distilled_from": model.name})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return MEASURE


Technique: TypeAlias = (
    Quantise
    | Sparsify
    | PruneHeads
    | PruneNeurons
    | PruneHidden
    | PruneLayers
    | PruneExperts
    | Distil
    | GroupHeads
    | LocalAttention
    | PickKeys
    | ExpandLatents
)
TECHNIQUES: dict[str, type[Technique]] = {
    str(cls.model_fields["name"].default): cls
    for cls in (
        Quantise,
        Sparsify,
        PruneHeads,
        PruneNeurons,
        PruneHidden,
        PruneLayers,
        PruneExperts,
        Distil,
        GroupHeads,
        LocalAttention,
        PickKeys,
        ExpandLatents,
    )
}


def apply(model: ModelSpec, techniques: Iterable[Technique]) -> ModelSpec:
    """Return the model after all techniques, in order.

    Parameters
    ----------
    model : ModelSpec
        Left as it is.
    techniques : iterable of Technique
        Steps; ``parse_techniques`` makes them from tables of a file.

    Returns
    -------
    ModelSpec
        ``techniques`` names the steps; published counts are dropped once shapes change.

    Raises
    ------
    InputError
        A step does not fit the model.

    Examples
    --------
    >>> steps = [PruneLayers(drop=(30,)), Quantise(weights="int4")]
    >>> apply(load_model("llama-3.1-8b"), steps).techniques
    ('prune_layers drop=(30,)', 'quantise weights=int4')
    """
    for technique in techniques:
        model = technique.apply(model)
    return model


def parse_techniques(tables: Iterable[Mapping[str, Any]], where: str = "") -> list[Technique]:
    """Return techniques from tables such as ``{name = "quantise", weights = "fp8"}``.

    Raises
    ------
    InputError
        An unknown name or key, or a value out of range.
    """
    found: list[Technique] = []
    for table in tables:
        name = str(table.get("name", ""))
        if name not in TECHNIQUES:
            hint = did_you_mean(name, TECHNIQUES)
            raise InputError(f"no technique named {name!r}", where, repair=hint)
        cls: Any = TECHNIQUES[name]
        found.append(check(dict(table), cls, where or name))
    return found


def quality_notes(techniques: Iterable[Technique]) -> list[str]:
    """Return one line for each technique: its name and what is known about answers.

    Examples
    --------
    >>> quality_notes([PruneExperts(experts=4)])
    ['prune_experts: quality: measure it']
    """
    return [f"{t.name}: {t.quality()}" for t in techniques]


def with_formats(
    model: ModelSpec,
    weights: str | None = None,
    kv: str | None = None,
    activations: str | None = None,
) -> ModelSpec:
    """Return the model with other number formats, as ``--weights`` and ``--kv`` ask for.

    Raises
    ------
    InputError
        No such format.

    Examples
    --------
    >>> with_formats(load_model("llama-3.1-8b"), weights="w4a16").activations
    'bf16'
    """
    asked = {"weights": weights, "kv": kv, "activations": activations}
    named = {key: precision(value).name for key, value in asked.items() if value}
    return Quantise(**named).apply(model) if named else model
