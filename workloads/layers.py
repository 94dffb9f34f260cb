"""The kernels of one forward pass, as a serving engine runs them: shapes and counts."""

from dataclasses import dataclass, replace
from typing import Literal

from formats import InputError
from workloads.models import MLA, ModelSpec
from workloads.precision import kernel_dtype

__all__ = [
    "AttentionGroup",
    "ExpertLayer",
    "LinearLayer",
    "ScoreIndex",
    "attention_layers",
    "expert_layers",
    "linear_layers",
]

Tokens = Literal["all", "prefill", "decode", "logits"]


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """One GEMM of shape (tokens, k) x (k, n), `count` times in a forward pass.

    Parameters
    ----------
    name : str
        qkv, o_proj, gate_up, down, router, shared_gate_up, shared_down, lm_head, ...
    n, k : int
        Columns of the output and length of the sum, on one tensor-parallel rank [element].
    count : int
        Calls in one forward pass.
    tokens : {"all", "prefill", "decode", "logits"}
        Rows: every token of the step, those of prompts, those of decoding requests, or only
        tokens whose logits are needed.
    dtype : str
        Word of the kernel table (bf16, fp8, w4a16, sparse24_bf16, ...).
    weights : str
        Number format in which the weights lie in memory.
    batch : int
        Independent GEMMs in one call (heads of an absorbed MLA projection).
    stored : bool
        False where the weights are those of another entry (absorbed MLA forms).
    """

    name: str
    n: int
    k: int
    count: int
    tokens: Tokens = "all"
    dtype: str = "bf16"
    weights: str = "bf16"
    batch: int = 1
    stored: bool = True

    @property
    def elements(self) -> int:
        """Weights of all calls together [element]."""
        return self.n * self.k * self.count * self.batch


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Routed experts of one rank: `count` layers of (tokens, experts, top_k, sizes)."""

    count: int
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    gated: bool
    dtype: str
    weights: str

    @property
    def expert_elements(self) -> int:
        """Weights of one expert of one layer [element]."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate


@dataclass(frozen=True, slots=True)
class ScoreIndex:
    """What sparse attention scores tokens, or blocks of them, by.

    Parameters
    ----------
    block : int
        Tokens that one score stands for [token].
    width : int
        Elements of a key that is read for a score [element].
    cached : float
        Elements that a token adds to the cache for it [element].
    products : int
        Multiply-adds of one score of one query token.
    """

    block: int = 1
    width: int = 0
    cached: float = 0.0
    products: int = 0


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that share one attention shape, on one tensor-parallel rank.

    Parameters
    ----------
    count : int
        Layers.
    heads, kv_heads, head_dim, value_dim : int
        Shape of the kernel for prompts; `value_dim` differs from `head_dim` only in MLA.
    kind : {"mha", "gqa", "mqa", "mla"}
        Kind of attention.
    window : int or None
        Keys that a token sees at most [token].
    chunked : bool
        The window starts at a multiple of itself and doesn't slide.
    latent : (int, int) or None
        MLA: key and value dimension of the cached latent, which decoding reads as one KV head.
    causal : bool
        False in encoders.
    sinks : int
        First tokens that a window keeps and sees too [token].
    budget : int or None
        Keys that sparse attention picks at most [token].
    index : ScoreIndex
        What sparse attention picks keys by.
    absorbed : bool
        MLA decodes on the latents.
    """

    count: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    kind: Literal["mha", "gqa", "mqa", "mla"]
    window: int | None = None
    chunked: bool = False
    latent: tuple[int, int] | None = None
    causal: bool = True
    sinks: int = 0
    budget: int | None = None
    index: ScoreIndex = ScoreIndex()
    absorbed: bool = True

    def shape(self, phase: Literal["prefill", "decode"]) -> tuple[int, int, int, int]:
        """Return (heads, kv_heads, head_dim, value_dim) of the kernel of a phase.

        MLA decodes in absorbed form: all heads share one latent KV head.
        """
        if self.latent and self.absorbed and phase == "decode":
            return self.heads, 1, *self.latent
        return self.heads, self.kv_heads, self.head_dim, self.value_dim

    @property
    def reach(self) -> int | None:
        """Keys that a token sees at most: window and sinks, or the budget [token]."""
        limits = [n for n in (self.window and self.window + self.sinks, self.budget) if n]
        return min(limits) if limits else None

    @property
    def kept(self) -> int | None:
        """Tokens of a sequence that stay in the cache, None = all [token]."""
        return self.window + self.sinks if self.window else None

    @property
    def kv_width(self) -> float:
        """Elements cached for one token in one layer of this rank [element]."""
        if self.latent:
            return self.latent[0] + self.index.cached
        return self.kv_heads * (self.head_dim + self.value_dim) + self.index.cached


def linear_layers(model: ModelSpec, tp: int = 1) -> list[LinearLayer]:
    """Return the GEMMs of one forward pass on one tensor-parallel rank.

    q, k, v are one GEMM, gate and up are one; KV heads are copied where tp exceeds them; the
    MLA down-projections and the router are whole on every rank. Routed experts are not here:
    `expert_layers`. MLA has three entries beside them: ``kv_b`` for prompts (its rows are all
    keys that a prompt chunk attends to, cached ones included), ``k_absorb`` and ``v_absorb``
    for decoding.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Tensor-parallel ranks; divides the heads.

    Returns
    -------
    list of LinearLayer
        In order of execution.

    Raises
    ------
    InputError
        `tp` doesn't divide the heads, or heads and KV heads don't fit each other.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> [(x.name, x.n, x.k, x.count) for x in linear_layers(load_model("llama-3.1-8b"))][:2]
    [('qkv', 6144, 4096, 32), ('o_proj', 4096, 4096, 32)]
    """
    check_tp(model, tp)
    found = [*_attention_gemms(model, tp), *_dense_gemms(model, tp), *_moe_gemms(model, tp)]
    if model.lm_head:
        found.append(_gemm(model, "lm_head", split(model.vocab, tp), model.hidden, 1, "logits"))
    return found


def check_tp(model: ModelSpec, tp: int) -> None:
    """Raise InputError unless `tp` ranks can share the heads."""
    kv = model.kv_heads
    if tp < 1 or model.heads % tp or (kv % tp and tp % kv):
        ranks = [
            d
            for d in range(1, model.heads + 1)
            if model.heads % d == 0 and (model.kv_heads % d == 0 or d % model.kv_heads == 0)
        ]
        what = f"tp = {tp} does not divide {model.heads} heads ({model.kv_heads} KV heads)"
        raise InputError(what, model.name, ", ".join(map(str, ranks)))


def split(width: int, ranks: int) -> int:
    """Return the share of one rank, rounded up [element]."""
    return -(-width // ranks)


def _gemm(
    model: ModelSpec, name: str, n: int, k: int, count: int, tokens: Tokens = "all"
) -> LinearLayer:
    """Return a GEMM in the format of its kind: router and lm_head stay unquantised."""
    if name in {"router", "lm_head"}:
        return LinearLayer(name, n, k, count, tokens, model.dtype, model.dtype)
    sparse = bool(model.sparsity and model.sparsity.kind == "2:4" and model.sparsity.kernel)
    word = kernel_dtype(model.weights, model.activations, sparse)
    return LinearLayer(name, n, k, count, tokens, word, model.weights)


def _attention_gemms(model: ModelSpec, tp: int) -> list[LinearLayer]:
    if model.mla:
        return _mla_gemms(model, model.mla, tp)
    queries = model.heads // tp * model.head_dim
    keys = max(1, model.kv_heads // tp) * model.head_dim
    return [
        _gemm(model, "qkv", queries + 2 * keys, model.hidden, model.layers),
        _gemm(model, "o_proj", model.hidden, queries, model.layers),
    ]


def _mla_gemms(model: ModelSpec, mla: MLA, tp: int) -> list[LinearLayer]:
    heads, layers, hidden = model.heads // tp, model.layers, model.hidden
    nope, value, rank = mla.qk_nope_head_dim, mla.v_head_dim, mla.kv_lora_rank
    q_width = heads * (nope + mla.qk_rope_head_dim)
    latent = rank + mla.qk_rope_head_dim
    if mla.q_lora_rank:
        down = [
            _gemm(model, "qkv_a", mla.q_lora_rank + latent, hidden, layers),
            _gemm(model, "q_b", q_width, mla.q_lora_rank, layers),
        ]
    else:
        down = [
            _gemm(model, "q_proj", q_width, hidden, layers),
            _gemm(model, "kv_a", latent, hidden, layers),
        ]
    absorbed: tuple[tuple[str, int, int], ...] = (
        ("k_absorb", rank, nope),
        ("v_absorb", value, rank),
    )
    return [
        *down,
        _gemm(model, "kv_b", heads * (nope + value), rank, layers, "prefill"),
        *(
            LinearLayer(x, n, k, layers, "decode", model.dtype, model.dtype, heads, stored=False)
            for x, n, k in absorbed
            if mla.absorbed
        ),
        _gemm(model, "o_proj", hidden, heads * value, layers),
    ]


def _dense_gemms(model: ModelSpec, tp: int) -> list[LinearLayer]:
    count = model.dense_layer_count
    return _mlp_gemms(model, "", split(model.intermediate, tp), count) if count else []


def _mlp_gemms(model: ModelSpec, prefix: str, width: int, count: int) -> list[LinearLayer]:
    up, n = ("gate_up", 2 * width) if model.gated else ("up", width)
    return [
        _gemm(model, f"{prefix}{up}", n, model.hidden, count),
        _gemm(model, f"{prefix}down", model.hidden, width, count),
    ]


def _moe_gemms(model: ModelSpec, tp: int) -> list[LinearLayer]:
    moe, count = model.moe, model.expert_layer_count
    if not moe:
        return []
    found = [_gemm(model, "router", moe.experts, model.hidden, count)]
    if moe.shared_intermediate:
        width = split(moe.shared_intermediate, tp)
        found += _mlp_gemms(model, "shared_", width, count)
    return found


def expert_layers(model: ModelSpec, tp: int = 1, ep: int = 1) -> list[ExpertLayer]:
    """Return the routed experts of one rank; empty for a dense model.

    Tensor parallelism cuts every expert's width; expert parallelism gives each of `ep` ranks
    ``experts / ep`` whole experts (`top_k` then stays that of a token over all ranks).

    Examples
    --------
    >>> from workloads.models import load_model
    >>> [(x.count, x.experts, x.intermediate) for x in expert_layers(load_model("qwen3-30b-a3b"))]
    [(48, 128, 768)]
    """
    moe = model.moe
    if not moe:
        return []
    if ep < 1 or moe.experts % ep:
        raise InputError(f"ep = {ep} does not divide {moe.experts} experts", model.name)
    return [
        ExpertLayer(
            model.expert_layer_count,
            moe.experts // ep,
            moe.top_k,
            model.hidden,
            split(moe.intermediate, tp if ep == 1 else 1),
            model.gated,
            kernel_dtype(model.expert_precision, model.activations),
            model.expert_precision,
        )
    ]


def attention_layers(model: ModelSpec, tp: int = 1) -> list[AttentionGroup]:
    """Return the attention shapes of one rank: global layers first, then those with a window.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> groups = attention_layers(load_model("qwen2.5-14b"))
    >>> [(g.count, g.heads, g.kv_heads, g.window) for g in groups]
    [(48, 40, 8, None)]
    """
    check_tp(model, tp)
    local, window = sum(model.local_layers), model.window
    groups = [_group(model, tp, model.layers - local, None)]
    groups = [_sparse(group, model) for group in groups]
    if window:
        local_group = _group(model, tp, local, window.tokens, window.kind == "chunked")
        groups.append(replace(local_group, sinks=window.sinks))
    return [g for g in groups if g.count]


def _group(
    model: ModelSpec, tp: int, count: int, window: int | None, chunked: bool = False
) -> AttentionGroup:
    heads, mla = model.heads // tp, model.mla
    causal = model.kind == "decoder"
    if mla:
        rank, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
        dim, value = mla.qk_nope_head_dim + rope, mla.v_head_dim
        latent = (rank + rope, rank)
        group = AttentionGroup(
            count, heads, heads, dim, value, "mla", window, chunked, latent, causal
        )
        return replace(group, absorbed=mla.absorbed)
    kv, dim = max(1, model.kv_heads // tp), model.head_dim
    return AttentionGroup(
        count, heads, kv, dim, dim, model.attention, window, chunked, None, causal
    )


def _sparse(group: AttentionGroup, model: ModelSpec) -> AttentionGroup:
    """Return global layers with the budget of sparse attention, if the model has it.

    Without an index of their own, scores come from the attention's keys, or from means of blocks
    of them, which are cached beside.
    """
    sparse = model.sparse_attention
    if not sparse:
        return group
    own = group.latent[0] if group.latent else group.kv_heads * group.head_dim
    products = group.heads * (group.latent[0] if group.latent else group.head_dim)
    if sparse.index_dim:
        products = max(sparse.index_heads, 1) * sparse.index_dim
    width = sparse.index_dim or own
    beside = sparse.index_dim > 0 or sparse.block > 1
    cached = width / sparse.block if beside else 0.0
    return replace(
        group, budget=sparse.tokens, index=ScoreIndex(sparse.block, width, cached, products)
    )
