"""Parameters of a model, counted exactly from its shapes."""

from dataclasses import dataclass

from workloads.layers import ExpertLayer, expert_layers, linear_layers
from workloads.models import ModelSpec, Vision

__all__ = [
    "ParameterCounts",
    "expert_parameters",
    "parameters",
    "small_parameters",
    "vision_parameters",
]


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model [parameter].

    Parameters
    ----------
    total : int
        All that are stored; a tied embedding counts once.
    active : int
        Those one text token uses: `top_k` experts instead of all, no image encoder.
    embedding : int
        Rows of the input embedding and of a position table.
    lm_head : int
        The output matrix; 0 if it is the embedding.
    linear, experts, other : int
        Dense GEMM weights, routed experts, and norms, biases, sinks and the like.
    vision : int
        Image encoder and projector.
    """

    total: int
    active: int
    embedding: int
    lm_head: int
    linear: int
    experts: int
    other: int
    vision: int

    @property
    def active_without_input(self) -> int:
        """Active parameters without an untied input embedding, as some publishers count."""
        return self.active - (self.embedding if self.lm_head else 0)


def parameters(model: ModelSpec) -> ParameterCounts:
    """Return the parameter counts of a model.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> parameters(load_model("llama-3.1-8b")).total
    8030261248
    """
    gemms = [g for g in linear_layers(model) if g.stored and g.name != "lm_head"]
    linear = sum(g.elements for g in gemms)
    embedding = (model.vocab + model.learned_positions) * model.hidden
    head = 0 if model.tied_embeddings or not model.lm_head else model.vocab * model.hidden
    vision = vision_parameters(model.vision) if model.vision else 0
    blocks = expert_layers(model)
    experts = sum(x.count * x.experts * expert_parameters(model, x) for x in blocks)
    idle = sum(x.count * (x.experts - x.top_k) * expert_parameters(model, x) for x in blocks)
    other = small_parameters(model)
    total = linear + experts + embedding + head + other + vision
    active = total - idle - vision
    return ParameterCounts(total, active, embedding, head, linear, experts, other, vision)


def expert_parameters(model: ModelSpec, block: ExpertLayer) -> int:
    """Return parameters of one expert in one layer, biases included [parameter]."""
    biased = bool(model.moe and model.moe.expert_bias)
    width = (2 if model.gated else 1) * block.intermediate + block.hidden
    return block.expert_elements + biased * width


def small_parameters(model: ModelSpec) -> int:
    """Return norms, biases, sinks and ``extra_parameters`` [parameter]."""
    return _norms(model) + _biases(model) + model.extra_parameters


def _norms(model: ModelSpec) -> int:
    parts = 1 + model.norm_bias
    whole = (model.norms_per_layer * model.layers + model.final_norm) * model.hidden * parts
    if model.mla:
        return whole + model.layers * (model.mla.q_lora_rank + model.mla.kv_lora_rank)
    per_layer = {
        "none": 0,
        "head": 2 * model.head_dim,
        "full": (model.heads + model.kv_heads) * model.head_dim,
    }[model.qk_norm]
    return whole + model.layers * per_layer


def _biases(model: ModelSpec) -> int:
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    mlp = (2 if model.gated else 1) * model.intermediate + model.hidden
    per_layer = model.qkv_bias * qkv + model.o_bias * model.hidden + model.sinks * model.heads
    found = model.layers * per_layer + model.mlp_bias * mlp * model.dense_layer_count
    if model.moe:
        router = model.moe.router_bias * model.moe.experts
        found += model.expert_layer_count * (router + model.moe.shared_gate * model.hidden)
    return found


def vision_parameters(vision: Vision) -> int:
    """Return parameters of an image encoder with its projector [parameter].

    Blocks of four square attention matrices and a feed-forward block with biases, two
    LayerNorms each; patch and position embedding; a final norm.
    """
    width = vision.hidden
    inner = (2 if vision.gated else 1) * vision.intermediate
    mlp = width * (inner + vision.intermediate) + inner + width
    block = 4 * (width + 1) * width + mlp + 4 * width
    patches = (3 * vision.patch**2 + 1) * width + vision.positions * width
    return vision.layers * block + patches + 2 * width + vision.projector
