"""Architecture of a model: what its file may say, and the catalog of shipped models."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from formats import Catalog, InputError
from workloads.precision import precision

__all__ = [
    "MLA",
    "MoE",
    "ModelSpec",
    "SparseAttention",
    "Sparsity",
    "Vision",
    "Window",
    "load_model",
    "models",
]

DATA = Path(__file__).parent / "data" / "models"
# Far above any model, so that a slip of the keyboard is named instead of counted.
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=10**9)]
Depth = Annotated[int, Field(ge=1, le=10_000)]


def _known_precision(name: str) -> str:
    return precision(name).name


PrecisionName = Annotated[str, AfterValidator(_known_precision)]


class Part(BaseModel):
    """Base of every table in a model file: unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MLA(Part):
    """Multi-head latent attention (DeepSeek-V2 report, arXiv:2405.04434, section 2.1)."""

    q_lora_rank: Count = Field(default=0, description="rank of the query; 0 = full [element]")
    kv_lora_rank: Size = Field(description="rank of the cached latent [element]")
    qk_nope_head_dim: Size = Field(description="head dimension without position [element]")
    qk_rope_head_dim: Size = Field(description="rotary key, shared by heads [element]")
    v_head_dim: Size = Field(description="value dimension of a head [element]")
    absorbed: bool = Field(
        default=True, description="decode on the latents; else expand all cached ones each step"
    )


class Window(Part):
    """Local attention: some layers see only the last tokens."""

    tokens: Size = Field(description="keys that a local layer sees, itself included [token]")
    pattern: str = Field(
        default="L",
        pattern="^[LG]+$",
        description="layer kinds, repeated over the depth: L local, G global",
    )
    kind: Literal["sliding", "chunked"] = Field(
        default="sliding", description="last tokens, or back to the start of a fixed chunk"
    )
    sinks: Count = Field(
        default=0, description="first tokens that local layers keep and see too [token]"
    )


class SparseAttention(Part):
    """Attention of global layers to some of the tokens; all of them stay in the cache.

    Top-k: an index of small keys scores every cached token and picks the best (DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1). Block: means of whole blocks are scored and blocks are picked
    (Quest, arXiv:2406.10774; NSA, arXiv:2502.11089).
    """

    kind: Literal["top-k", "block"] = Field(description="picks tokens, or whole blocks")
    tokens: Size = Field(description="keys that a token sees at most [token]")
    block: Size = Field(default=1, description="tokens that one score stands for [token]")
    index_dim: Count = Field(
        default=0,
        description="width of the index's keys; 0 = the attention's own keys score [element]",
    )
    index_heads: Count = Field(
        default=0, description="heads that score by the index; 0 = one [head]"
    )

    @model_validator(mode="after")
    def _check(self) -> "SparseAttention":
        if self.kind == "block" and self.block < 2:
            raise ValueError("a block needs 2 tokens or more")
        return self


class MoE(Part):
    """Mixture of experts in place of the feed-forward block of some layers."""

    experts: Size = Field(description="routed experts of a layer [expert]")
    top_k: Size = Field(description="routed experts of a token [expert]")
    intermediate: Size = Field(description="width of one routed expert [element]")
    shared_experts: Count = Field(default=0, description="experts that every token takes [expert]")
    shared_intermediate: Count = Field(
        default=0, description="width of all shared experts together [element]"
    )
    shared_gate: bool = Field(default=False, description="a sigmoid gate scales the shared expert")
    first_dense: Count = Field(default=0, description="leading layers without experts [layer]")
    period: Size = Field(default=1, description="every period-th layer has experts [layer]")
    dense_layers: tuple[Count, ...] = Field(
        default=(), description="further layers without experts, from 0 [layer]"
    )
    router_bias: bool = Field(default=False, description="the router has a bias for each expert")
    expert_bias: bool = Field(default=False, description="experts have biases")

    @model_validator(mode="after")
    def _check(self) -> "MoE":
        if self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        if bool(self.shared_experts) != bool(self.shared_intermediate):
            raise ValueError("shared_experts and shared_intermediate go together")
        return self

    def is_expert_layer(self, index: int) -> bool:
        """Return whether layer `index` (from 0) has experts."""
        regular = index >= self.first_dense and (index + 1) % self.period == 0
        return regular and index not in self.dense_layers


class Sparsity(Part):
    """Zeros in the weights of linear layers, and whether a kernel makes use of them."""

    kind: Literal["2:4", "unstructured"] = Field(description="two of four, or anywhere")
    share: float = Field(default=0.5, ge=0, lt=1, description="share of weights that are 0 [1]")
    kernel: bool = Field(default=True, description="a sparse kernel reads fewer bytes")


class Vision(Part):
    """Image encoder in front of a language model."""

    hidden: Size = Field(description="width of the encoder [element]")
    layers: Depth = Field(description="encoder blocks [layer]")
    heads: Size = Field(description="attention heads [head]")
    intermediate: Size = Field(description="width of the feed-forward block [element]")
    patch: Size = Field(description="edge of a square patch [pixel]")
    patches: Size = Field(description="patches of one image at the usual size [token]")
    positions: Count = Field(default=0, description="rows of the position table [token]")
    tokens: Size = Field(description="prompt tokens that one image becomes [token]")
    gated: bool = Field(default=False, description="gated feed-forward block")
    projector: Count = Field(default=0, description="parameters that map to the text width")


class ModelSpec(Part):
    """Architecture of one model, numbers of its publisher's config.json.

    Examples
    --------
    >>> m = load_model("llama-3.1-8b")
    >>> m.layers, m.attention, m.moe is None
    (32, 'gqa', True)
    """

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, description="name as published")
    publisher: str = Field(min_length=1, description="who published the weights")
    source: str = Field(min_length=3, description="where the architecture comes from")
    license: str = Field(default="", description="licence as commonly named, not checked; read it")
    note: str = Field(default="", description="doubts, and parts that are not counted")
    kind: Literal["decoder", "encoder"] = Field(default="decoder", description="causal or not")

    hidden: Size = Field(description="width of the residual stream [element]")
    layers: Depth = Field(description="blocks [layer]")
    heads: Size = Field(description="query heads [head]")
    kv_heads: Size = Field(description="key and value heads [head]")
    head_dim: Size = Field(description="dimension of one head [element]")
    intermediate: Count = Field(description="width of the dense feed-forward block [element]")
    vocab: Count = Field(description="rows of the embedding; 0 = none [token]")
    max_positions: Size = Field(description="longest sequence trained for [token]")
    default_max_context: Size | None = Field(
        default=None, description="longest sequence that an engine serves by default [token]"
    )

    tied_embeddings: bool = Field(default=False, description="lm_head is the embedding")
    lm_head: bool = Field(default=True, description="ends in logits over the vocabulary")
    gated: bool = Field(default=True, description="gate and up projections (SwiGLU, GeGLU)")
    qkv_bias: bool = Field(default=False, description="bias of the q, k, v projections")
    o_bias: bool = Field(default=False, description="bias of the output projection")
    mlp_bias: bool = Field(default=False, description="biases of the feed-forward block")
    qk_norm: Literal["none", "head", "full"] = Field(
        default="none", description="norm of q and k: one weight per head_dim, or per whole width"
    )
    norms_per_layer: Count = Field(default=2, description="norms of width hidden in a layer")
    norm_bias: bool = Field(default=False, description="norms have a bias (LayerNorm)")
    final_norm: bool = Field(default=True, description="a norm before the logits")
    sinks: bool = Field(default=False, description="one learnt attention sink per query head")
    rotary: bool = Field(default=True, description="rotary position embedding")
    learned_positions: Count = Field(default=0, description="rows of a position table [token]")
    extra_parameters: int = Field(
        default=0, ge=0, le=10**13, description="parameters that the note explains"
    )
    operators: str = Field(default="", description="operator list that this stands for")

    mla: MLA | None = None
    window: Window | None = None
    moe: MoE | None = None
    vision: Vision | None = None
    sparsity: Sparsity | None = None
    sparse_attention: SparseAttention | None = None

    dtype: PrecisionName = Field(default="bf16", description="format of all that is not quantised")
    weights: PrecisionName = Field(default="bf16", description="format of linear weights")
    expert_weights: PrecisionName | None = Field(
        default=None, description="format of expert weights, where it differs"
    )
    activations: PrecisionName = Field(default="bf16", description="format of GEMM inputs")
    kv: PrecisionName = Field(default="bf16", description="format of the KV cache")
    accumulation: PrecisionName = Field(default="fp32", description="format of sums in a GEMM")

    published_params: float | None = Field(default=None, gt=0, description="total, as published")
    published_active_params: float | None = Field(default=None, gt=0, description="per token")
    published_source: str = Field(default="", description="where the published counts stand")
    checkpoint_params: int | None = Field(
        default=None, gt=0, description="exact count in the published checkpoint [parameter]"
    )
    checkpoint_source: str = Field(default="", description="where the exact count stands")
    derived_from: str = Field(default="", description="model that pruning started from")
    distilled_from: str = Field(default="", description="teacher model")
    techniques: tuple[str, ...] = Field(default=(), description="compression steps taken, in order")

    @model_validator(mode="after")
    def _check(self) -> "ModelSpec":
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.moe and self.expert_layer_count == 0:
            raise ValueError("moe has no expert layer: first_dense or period is too large")
        if self.dense_layer_count and not self.intermediate:
            raise ValueError("intermediate is 0, but some layers have a dense block")
        if self.lm_head and not self.vocab:
            raise ValueError("lm_head needs a vocab above 0")
        return self

    @property
    def attention(self) -> Literal["mha", "gqa", "mqa", "mla"]:
        """Kind of attention: mha, gqa, mqa or mla."""
        if self.mla:
            return "mla"
        if self.kv_heads == self.heads:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"

    @property
    def expert_layer_count(self) -> int:
        """Layers with experts."""
        moe = self.moe
        return sum(moe.is_expert_layer(i) for i in range(self.layers)) if moe else 0

    @property
    def dense_layer_count(self) -> int:
        """Layers with a dense feed-forward block."""
        return self.layers - self.expert_layer_count

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """Whether each layer sees only a window."""
        pattern = self.window.pattern if self.window else "G"
        return tuple(pattern[i % len(pattern)] == "L" for i in range(self.layers))

    @property
    def max_context(self) -> int:
        """Longest sequence to serve [token]."""
        return self.default_max_context or self.max_positions

    @property
    def expert_precision(self) -> str:
        """Format of the weights of routed experts."""
        return self.expert_weights or self.weights


models: Catalog[ModelSpec] = Catalog("model", ModelSpec, [DATA])


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Return a model by catalog name, TOML file, Hugging Face config.json, or its folder.

    Parameters
    ----------
    name_or_path : str or Path
        A name of ``models`` or of an operator list; a path ending in ``.toml`` or ``.json``; a
        folder with config.json.

    Returns
    -------
    ModelSpec
        The checked architecture.

    Raises
    ------
    InputError
        No such model, or its file is bad.

    Examples
    --------
    >>> load_model("llama-3.1-8b").hidden
    4096
    """
    text = str(name_or_path)
    if not text:
        raise InputError("no model named", repair="give a name such as llama-3.1-8b")
    if text.endswith(".json") or (text not in models.paths and Path(text).is_dir()):
        from workloads.huggingface import load_huggingface  # it builds on this module

        return load_huggingface(Path(text))
    if text not in models.paths:
        from workloads.operators import as_model, operator_models  # it builds on this module

        if text in operator_models.paths:
            return as_model(text)
    return models.load(text)
