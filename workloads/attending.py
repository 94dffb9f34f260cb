"""Other attention for a model: fewer KV heads, windows, picked keys, expanded latents."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from formats import InputError
from workloads.models import ModelSpec, Part
from workloads.pruning import MARKS, changed

__all__ = ["ExpandLatents", "GroupHeads", "LocalAttention", "PickKeys"]


class GroupHeads(Part):
    """Let query heads share keys and values (GQA; MQA with one). Use it to shrink the KV cache.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> GroupHeads(kv_heads=1).apply(load_model("llama-2-7b")).attention
    'mqa'
    """

    name: Literal["group_heads"] = "group_heads"
    kv_heads: PositiveInt = Field(description="KV heads that stay [head]")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with fewer KV heads."""
        if model.mla or self.kv_heads > model.kv_heads:
            what = f"{model.name} has {'latents' if model.mla else f'{model.kv_heads} KV heads'}"
            raise InputError(what, "group_heads kv_heads", "fewer KV heads than the model has")
        step = MARKS | {"derived_from": model.name, "kv_heads": self.kv_heads}
        return changed(model, self, step)

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return (
            "T5-XXL retrained for 5 % of its steps, mean of seven tasks: MHA 47.2, GQA with 8 KV "
            "heads 47.1, MQA 46.6 (arXiv:2305.13245, table 1); without retraining: measure it"
        )


class LocalAttention(Part):
    """Let layers see only a window of the last tokens, and some first ones (attention sinks).

    Use it where contexts are long and far tokens matter little. A pattern such as "LG" keeps
    every second layer global.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> from workloads.traffic import kv_bytes
    >>> m = LocalAttention(tokens=1020, sinks=4).apply(load_model("llama-3.1-8b"))
    >>> float(kv_bytes(m, 100_000)) / 131072
    1024.0
    """

    name: Literal["local_attention"] = "local_attention"
    tokens: PositiveInt = Field(description="last tokens that a local layer sees [token]")
    pattern: str = Field(
        default="L", pattern="^[LG]+$", description="layer kinds, repeated: L local, G global"
    )
    sinks: int = Field(default=0, ge=0, description="first tokens kept and seen too [token]")

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with a window."""
        table = {"tokens": self.tokens, "pattern": self.pattern, "sinks": self.sinks}
        return changed(model, self, {"window": table if "L" in self.pattern else None})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return (
            "with sinks perplexity stays level over millions of tokens, but nothing beyond the "
            "window is remembered (StreamingLLM, arXiv:2309.17453); on your task: measure it"
        )


class PickKeys(Part):
    """Let global layers attend to the best keys only (top-k, or blocks). Use it for long contexts.

    The whole cache stays in memory; scores of all tokens, or blocks, are read beside.
    """

    name: Literal["pick_keys"] = "pick_keys"
    kind: Literal["top-k", "block"] = Field(default="top-k", description="tokens, or blocks")
    tokens: PositiveInt = Field(description="keys that a token sees at most [token]")
    block: PositiveInt = Field(default=1, description="tokens that one score stands for [token]")
    index_dim: int = Field(
        default=0, ge=0, description="width of the index's keys; 0 = own keys score [element]"
    )
    index_heads: int = Field(default=0, ge=0, description="heads that score by the index [head]")

    @model_validator(mode="after")
    def _check(self) -> "PickKeys":
        if self.kind == "block" and self.block < 2:
            raise ValueError("kind block needs block = 2 or more")
        return self

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model with a budget of keys."""
        table = self.model_dump(exclude={"name"})
        return changed(model, self, {"sparse_attention": table})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return (
            "DeepSeek-V3.1 trained on with top-2048: MMLU-Pro 85.0 before and after "
            "(DeepSeek-V3.2-Exp model card); without training: measure it"
        )


class ExpandLatents(Part):
    """Decode latent attention (MLA) on expanded keys. Use it to see what absorption saves."""

    name: Literal["expand_latents"] = "expand_latents"

    def apply(self, model: ModelSpec) -> ModelSpec:
        """Return the model without absorbed projections."""
        if not model.mla:
            raise InputError("has no latent attention", model.name, repair="leave it out")
        return changed(model, self, {"mla": model.mla.model_dump() | {"absorbed": False}})

    def quality(self) -> str:
        """Return what is known about answers after this step."""
        return "the same numbers in another order"
