"""Encoder work of image tokens, and what a cache of encoder outputs saves of it."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formats import InputError
from hardware.kernels import KernelModel
from policies.reuse import EncoderRules
from workloads.counts import vision_flops
from workloads.models import ModelSpec, Vision

__all__ = ["EncoderWork", "encoder_hits", "encoder_work", "vision_s"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DENSE_TOKENS = 4096  # rows at which FLOPs of an unknown encoder become seconds
OUTPUT_BYTES = 2.0  # an element of an encoder output, 16 bit


@dataclass(frozen=True)
class EncoderWork:
    """Encoder work of each request, shape (requests,).

    Attributes
    ----------
    seconds, flops : ndarray
        To do on the accelerator [s], [FLOP].
    saved_s : ndarray
        Saved by the cache [s].
    """

    seconds: Floats
    flops: Floats
    saved_s: Floats


def vision_s(kernels: KernelModel, vision: Vision, images: Floats) -> Floats:
    """Return seconds of the vision encoder and projector on batches of images.

    Parameters
    ----------
    kernels : KernelModel
        Of the accelerator.
    vision : Vision
        The model's encoder.
    images : ndarray
        Images of each request, not whole where an image is cropped.
    """
    rows = np.maximum(images * vision.patches, 1.0)
    width, inner = vision.hidden, vision.intermediate
    layer = kernels.gemm(rows, 3 * width, width, "bf16") + kernels.gemm(rows, width, width, "bf16")
    layer += (1 + vision.gated) * kernels.gemm(rows, inner, width, "bf16")
    layer += kernels.gemm(rows, width, inner, "bf16")
    heads = vision.heads
    causal = kernels.attention_prefill(
        float(vision.patches), 0.0, heads, heads, width // heads, sequences=np.maximum(images, 1.0)
    )
    total = vision.layers * (layer + 2.0 * causal)  # every patch sees every other, not half
    if vision.projector:
        into = max(vision.projector // width, 1)
        out = np.maximum(images * vision.tokens, 1.0)
        total = total + kernels.gemm(out, into, width, "bf16")
    return np.where(images > 0, total, 0.0)


def encoder_hits(tokens: Ints, rules: EncoderRules, token_bytes: float, draws: Floats) -> Ints:
    """Return which requests find their encoder output in the cache (1) or not (0).

    Parameters
    ----------
    tokens : ndarray, shape (requests,)
        Image tokens of each request in order of arrival.
    rules : EncoderRules
        Capacity of the cache, number of inputs and the skew of their use.
    token_bytes : float
        An encoder output per token [byte].
    draws : ndarray, shape (requests,)
        Uniform numbers that choose the inputs.

    Examples
    --------
    >>> rules = EncoderRules(True, cache_bytes=100.0, items=1)
    >>> encoder_hits(np.array([10, 0, 10]), rules, 2.0, np.zeros(3)).tolist()
    [0, 0, 1]
    """
    hits = np.zeros(tokens.size, np.int64)
    popular = np.cumsum(np.arange(1.0, rules.items + 1.0) ** -rules.zipf)
    items = np.searchsorted(popular, draws * popular[-1], side="right")
    held: OrderedDict[int, float] = OrderedDict()
    used = 0.0
    for i in np.flatnonzero(tokens):
        item = int(items[i])
        hits[i] = item in held
        used -= held.pop(item, 0.0)
        size = float(tokens[i]) * token_bytes
        held[item] = size
        used += size
        while used > rules.cache_bytes and held:
            used -= held.popitem(last=False)[1]
    return hits


def encoder_work(
    rules: EncoderRules,
    model: ModelSpec,
    kernels: KernelModel,
    tokens: Ints,
    rng: np.random.Generator,
) -> EncoderWork:
    """Return the encoder work of requests with image tokens.

    Raises
    ------
    InputError
        The model has no vision encoder and the policy does not say what one takes.
    """
    zeros = np.zeros(tokens.size)
    if not rules.encodes or not tokens.any():
        return EncoderWork(zeros, zeros, zeros)
    seconds, flops = _work(rules, model, kernels, tokens.astype(np.float64))
    hits = zeros
    if rules.cache_bytes > 0:
        draws = rng.random(tokens.size)
        hits = encoder_hits(tokens, rules, OUTPUT_BYTES * model.hidden, draws).astype(np.float64)
    return EncoderWork(seconds * (1 - hits), flops * (1 - hits), seconds * hits)


def _work(
    rules: EncoderRules, model: ModelSpec, kernels: KernelModel, tokens: Floats
) -> tuple[Floats, Floats]:
    if rules.flops_per_token > 0:
        width = model.hidden
        rate = 2.0 * DENSE_TOKENS * width**2
        rate /= float(kernels.gemm(float(DENSE_TOKENS), width, width, "bf16"))
        flops = tokens * rules.flops_per_token
        return flops / rate, flops
    if model.vision is None:
        raise InputError(
            f"{model.name} has no vision encoder",
            "[policies.encoder]",
            repair='give flops_per_token, or set name = "none"',
        )
    images = tokens / model.vision.tokens
    return vision_s(kernels, model.vision, images), vision_flops(model.vision, images)
