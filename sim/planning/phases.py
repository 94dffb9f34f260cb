"""Time and energy of a simulation, by the tokens that caused them: input, cached or output."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.core.layout import StepTables
from sim.planning.bound import decode_attention_s
from sim.simulation import Result

__all__ = ["Phases", "phases", "pool_names", "rank_counts"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds and joules of the accelerators, by the tokens that caused them.

    Attributes
    ----------
    seconds, joules : dict of str to float
        Keys input, cached, output; busy time of one rank of the first pool [s], energy of all
        ranks while they work [J].
    tokens : dict of str to float
        Tokens of each.
    """

    seconds: dict[str, float]
    joules: dict[str, float]
    tokens: dict[str, float]


def rank_counts(result: Result) -> Floats:
    """Return the accelerators of each replica of a result."""
    return np.array([made.parallel.accelerators for made in result.deployments], np.float64)


def pool_names(result: Result) -> list[str]:
    """Return the pool of each replica of a result, "all" without pools."""
    return ["all"] * len(result.totals) if result.fleet is None else result.fleet.pools


def phases(result: Result) -> Phases:
    """Return time and energy of a result by the tokens that caused them.

    A step's time is split as its kernels are: token-wise work by tokens, attention of prompts and
    of decoding as tabulated. Prompt attention over tokens that came from the prefix cache is what
    cached tokens cause; what is left of prompts is input, all of decoding is output. Replicas of
    several pools count by their accelerators, over those of the first pool.
    """
    ranks = rank_counts(result)
    prompt_s, attention_s, output_s = _all_seconds(result, ranks / ranks[0])
    cached_s = min(_cached_share(result) * attention_s, prompt_s)
    share = cached_s / prompt_s if prompt_s > 0 else 0.0
    totals = result.totals[["prefill_energy_j", "decode_energy_j"]].to_numpy(np.float64)
    prompt_j, output_j = (float(x) for x in ranks @ totals)
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


def _all_seconds(result: Result, weights: Floats) -> Floats:
    """Return seconds of prompts, of which attention, and of decoding, over all replicas."""
    total = np.zeros(3)
    names = np.array(pool_names(result))
    for name in dict.fromkeys(names.tolist()):
        own = np.flatnonzero(names == name)
        steps = result.steps[result.steps["replica"].isin(own)]
        tables = result.deployments[own[0]].tables
        total += weights[own[0]] * np.array(_step_seconds(steps, tables))
    return total


def _step_seconds(steps: pd.DataFrame, tables: StepTables) -> tuple[float, float, float]:
    """Return seconds of prompts, of which attention, and of decoding, over steps."""
    columns = ("gpu_s", "steps", "prefill_tokens", "decode_requests", "decode_context")
    gpu, count, prompt, decodes, contexts = (steps[name].to_numpy(np.float64) for name in columns)
    tokens = np.maximum(prompt + decodes, 1.0)
    linear = np.interp(tokens, np.arange(tables.linear_s.size), tables.linear_s)
    decoding = decode_attention_s(tables, decodes, contexts / np.maximum(decodes, 1.0))
    decoding = np.where(decodes > 0, decoding, 0.0)
    head = np.interp(decodes, np.arange(tables.head_s.size), tables.head_s)
    each = np.maximum(gpu / np.maximum(count, 1.0), 1e-12)
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
