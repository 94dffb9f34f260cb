"""Time and energy of a simulation, by the tokens that caused them: input, cached or output."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.planning.bound import decode_attention_s
from sim.simulation import Result

__all__ = ["Phases", "phases"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds and joules of the accelerators, by the tokens that caused them.

    Attributes
    ----------
    seconds, joules : dict of str to float
        Keys input, cached, output; busy time of one rank [s], energy of all ranks
        while they work [J].
    tokens : dict of str to float
        Tokens of each.
    """

    seconds: dict[str, float]
    joules: dict[str, float]
    tokens: dict[str, float]


def phases(result: Result) -> Phases:
    """Return time and energy of a result by the tokens that caused them.

    A step's time is split as its kernels are: token-wise work by tokens, attention of prompts and
    of decoding as tabulated. Prompt attention over tokens that came from the prefix cache is what
    cached tokens cause; what is left of prompts is input, all of decoding is output.
    """
    prompt_s, attention_s, output_s = _step_seconds(result)
    cached_s = min(_cached_share(result) * attention_s, prompt_s)
    share = cached_s / prompt_s if prompt_s > 0 else 0.0
    hardware = result.scenario.hardware
    ranks = hardware.accelerators / hardware.replicas
    prompt_j = float(result.totals["prefill_energy_j"].sum()) * ranks
    output_j = float(result.totals["decode_energy_j"].sum()) * ranks
    hits = float(result.requests["cached_tokens"].sum())
    return Phases(
        {"input": prompt_s - cached_s, "cached": cached_s, "output": output_s},
        {"input": prompt_j * (1 - share), "cached": prompt_j * share, "output": output_j},
        {
            "input": float(result.requests["prompt_tokens"].sum()) - hits,
            "cached": hits,
            "output": float(result.requests["emitted_tokens"].sum()),
        },
    )


def _step_seconds(result: Result) -> tuple[float, float, float]:
    """Return seconds of prompts, of which attention, and of decoding, over all steps."""
    tables = result.deployment.tables
    columns = ("gpu_s", "steps", "prefill_tokens", "decode_requests", "decode_context")
    gpu, steps, prompt, decodes, contexts = (
        result.steps[name].to_numpy(np.float64) for name in columns
    )
    tokens = np.maximum(prompt + decodes, 1.0)
    linear = np.interp(tokens, np.arange(tables.linear_s.size), tables.linear_s)
    decoding = decode_attention_s(tables, decodes, contexts / np.maximum(decodes, 1.0))
    decoding = np.where(decodes > 0, decoding, 0.0)
    head = np.interp(decodes, np.arange(tables.head_s.size), tables.head_s)
    each = np.maximum(gpu / np.maximum(steps, 1.0), 1e-12)
    output = np.where(prompt > 0, linear * decodes / tokens + decoding + head, each)
    share = np.clip(output / each, 0.0, 1.0)
    attention = np.where(prompt > 0, np.clip(each - linear - decoding - head, 0.0, None), 0.0)
    return float((gpu * (1 - share)).sum()), float(attention.sum()), float((gpu * share).sum())


def _cached_share(result: Result) -> float:
    """Return which part of all prompt query-key pairs looks at cached tokens."""
    cached = result.requests["cached_tokens"].to_numpy(np.float64)
    new = result.requests["prompt_tokens"].to_numpy(np.float64) - cached
    total = float((new * (cached + new / 2)).sum())
    return float((new * cached).sum()) / total if total > 0 else 0.0
