"""Kernels that a forward pass launches, and what launching more of them takes the host."""

from sim.steptime import StepTimeModel
from workloads.counts import elementwise_ops, expert_layers, linear_layers
from workloads.elementwise import Fusion
from workloads.models import ModelSpec

__all__ = ["extra_dispatch_s", "launches"]

UNFUSED_ATTENTION = 5  # two products, scaling, mask, softmax; FlashAttention is one
COPIES = 2  # of keys and of values to every query head of their group
EXPERT_KERNELS = 4  # routing, two grouped products, the sum


def launches(model: ModelSpec, tp: int = 1, fusion: Fusion = "compiled", fused: bool = True) -> int:
    """Return the kernels of one decode step.

    Parameters
    ----------
    model : ModelSpec
        Architecture.
    tp : int
        Tensor-parallel ranks.
    fusion : {"compiled", "kernels", "none"}
        How element-wise operations are fused.
    fused : bool
        FlashAttention, or separate products and softmax.

    Examples
    --------
    >>> from workloads.models import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> launches(llama) < launches(llama, fusion="none") < launches(llama, 1, "none", False)
    True
    """
    products = sum(g.count for g in linear_layers(model, tp) if g.tokens != "prefill")
    experts = EXPERT_KERNELS * sum(x.count for x in expert_layers(model, tp))
    small = sum(op.count for op in elementwise_ops(model, tp, greedy=True, fusion=fusion))
    return products + experts + small + _attention(model, fused)


def _attention(model: ModelSpec, fused: bool) -> int:
    if fused:
        return model.layers
    return model.layers * (UNFUSED_ATTENTION + COPIES * (model.kv_heads < model.heads))


def extra_dispatch_s(steps: StepTimeModel) -> dict[str, float]:
    """Return what more kernels than those of a compiled model add to dispatch times [s].

    Each takes the measured time of one eager launch. Between pieces of a graph only attention is
    launched by itself.

    Returns
    -------
    dict
        Knobs of the engine loop: eager_dispatch_s, piecewise_dispatch_s.
    """
    each, model = steps.kernels.launch(graph=False), steps.model
    usual = launches(model, steps.tp)
    now = launches(model, steps.tp, steps.fusion, steps.fused_attention)
    attention = _attention(model, steps.fused_attention) - _attention(model, True)
    return {
        "eager_dispatch_s": each * max(now - usual, 0),
        "piecewise_dispatch_s": each * attention,
    }
