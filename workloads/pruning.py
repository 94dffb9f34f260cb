"""Pruning: fewer heads, neurons, layers or experts, or a narrower model.

Every step returns a new ModelSpec; what was published about the old shapes is dropped.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from formats import InputError
from formats.files import check
from workloads.models import ModelSpec, Part

__all__ = [
    "PruneExperts",
    "PruneHeads",
    "PruneHidden",
    "PruneLayers",
    "PruneNeurons",
    "changed",
]

MEASURE = "quality: measure it"
MARKS = {"published_params": None, "published_active_params": None, "checkpoint_params": None}


class PruneHeads(Part):
    """Remove attention heads. Use it to shrink the KV cache; retrain afterwards."""

    name: Literal["prune_heads"] = "prune_heads"
    heads: PositiveInt = Field(description="query heads that stay [head]")
    kv_heads: PositiveInt | None = Field(
        default=None, description="KV heads that stay; left out = the same group size [head]"
    )

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with fewer heads."""
        group = model.heads // model.kv_heads
        kv = self.kv_heads or max(1, self.heads // group)
        _at_most("heads", self.heads, model.heads, model)
        _at_most("kv_heads", kv, model.kv_heads, model)
        return _reshaped(model, self, {"heads": self.heads, "kv_heads": kv})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return MEASURE


class PruneNeurons(Part):
    """Narrow the feed-forward blocks, experts too. Use it with distillation.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> PruneNeurons(share=0.5).apply(load_model("llama-3.1-8b")).intermediate
    7168
    """

    name: Literal["prune_neurons"] = "prune_neurons"
    share: float = Field(gt=0, lt=1, description="share of neurons that go [1]")
    multiple: PositiveInt = Field(default=64, description="widths are rounded up to it [element]")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with narrower blocks."""
        change: dict[str, Any] = {"intermediate": self._left(model.intermediate)}
        if model.moe:
            table = model.moe.model_dump()
            for key in ("intermediate", "shared_intermediate"):
                table[key] = self._left(table[key])
            change["moe"] = table
        return _reshaped(model, self, change)

    def _left(self, width: int) -> int:
        exact = width * (1 - self.share)
        return min(width, int(-(-exact // self.multiple)) * self.multiple)

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return _MINITRON


_MINITRON = (
    "Llama-3.1-8B to 4.5B by width, with distillation: MMLU 65.3 -> 60.5 "
    "(Minitron, arXiv:2408.11796, table 1); without retraining: measure it"
)


class PruneHidden(Part):
    """Narrow the residual stream. Use it with distillation, best together with neurons.

    Examples
    --------
    >>> from workloads.counts import parameters
    >>> from workloads.models import load_model
    >>> small = PruneHidden(hidden=3072).apply(load_model("llama-3.1-8b"))
    >>> small = PruneNeurons(share=1 - 9216 / 14336).apply(small)
    >>> round(parameters(small).total / 1e9, 1)
    4.5
    """

    name: Literal["prune_hidden"] = "prune_hidden"
    hidden: PositiveInt = Field(description="width that stays [element]")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the narrower model."""
        _at_most("hidden", self.hidden, model.hidden, model)
        return _reshaped(model, self, {"hidden": self.hidden})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return _MINITRON


class PruneLayers(Part):
    """Remove whole layers. Use it where latency counts: each layer less is a step less.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> PruneLayers(drop=(1, 2)).apply(load_model("llama-3.1-8b")).layers
    30
    """

    name: Literal["prune_layers"] = "prune_layers"
    drop: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        min_length=1, description="layers that go, counted from 0 [layer]"
    )

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the shallower model; kinds of the remaining layers stay as they are."""
        gone = set(self.drop)
        _at_most("drop", max(gone), model.layers - 1, model)
        kept = [i for i in range(model.layers) if i not in gone]
        change: dict[str, Any] = {"layers": len(kept)}
        if model.window:
            pattern = "".join("L" if model.local_layers[i] else "G" for i in kept)
            local = {"window": model.window.model_dump() | {"pattern": pattern}}
            change |= local if "L" in pattern else {"window": None}
        if model.moe:
            dense = tuple(n for n, i in enumerate(kept) if not model.moe.is_expert_layer(i))
            regular = {"first_dense": 0, "period": 1, "dense_layers": dense}
            change["moe"] = model.moe.model_dump() | regular
        return _reshaped(model, self, change)

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return (
            "10 of the 40 layers of Llama-2-13B: MMLU 55.0 -> 52.2 "
            "(ShortGPT, arXiv:2403.03853); generated text suffers more: measure it"
        )


class PruneExperts(Part):
    """Remove routed experts. Use it when memory is short and traffic narrow."""

    name: Literal["prune_experts"] = "prune_experts"
    experts: PositiveInt = Field(description="experts of a layer that stay [expert]")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with fewer experts."""
        if not model.moe:
            raise InputError("has no experts to prune", model.name, repair="leave it out")
        _at_most("experts", self.experts, model.moe.experts, model)
        table = model.moe.model_dump() | {"experts": self.experts}
        return _reshaped(model, self, {"moe": table})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return MEASURE


def _at_most(key: str, value: int, most: int, model: ModelSpec) -> None:
    if value > most:
        what = f"{key} = {value} is more than the model has"
        raise InputError(what, model.name, f"at most {most}", "choose a smaller one")


def _reshaped(model: ModelSpec, step: Part, change: dict[str, Any]) -> ModelSpec:
    """Return a model of other shapes: what was published no longer describes it."""
    return changed(model, step, MARKS | {"derived_from": model.name} | change)


def changed(model: ModelSpec, step: Part, change: dict[str, Any]) -> ModelSpec:
    """Return a checked copy of a model with some fields changed and the step noted."""
    given = step.model_dump(exclude={"name"}, exclude_none=True, exclude_defaults=True)
    label = " ".join([str(step.model_dump()["name"]), *(f"{k}={v}" for k, v in given.items())])
    fields = model.model_dump() | change | {"techniques": (*model.techniques, label)}
    return check(fields, ModelSpec, f"{model.name}, {label}")
