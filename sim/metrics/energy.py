"""Joules and watts: what prompts, outputs and waiting cost, and how warm it gets."""

import numpy as np

from sim.metrics.base import Observed, Value, metric
from sim.metrics.rates import output_tokens

__all__ = ["busy_energy_j", "idle_energy_j", "prefill_energy_j"]


def busy_energy_j(seen: Observed) -> float:
    """Return joules of all accelerators while they compute [J]."""
    return float(seen.step_sums("energy_j") @ seen.ranks)


@metric("energy_idle_j", "J", "energy of accelerators that wait", "energy")
def idle_energy_j(seen: Observed) -> float:
    """Return joules of all accelerators while they do not compute, to the window's end [J]."""
    idle_s = np.maximum(seen.held_s - seen.step_sums("gpu_s"), 0.0)
    return float((idle_s * seen.knobs("idle_w")) @ seen.ranks)


@metric("energy_prefill_j", "J", "energy of computing prompts", "energy")
def prefill_energy_j(seen: Observed) -> float:
    """Return joules caused by prompts [J].

    Steps of prompts only count whole; mixed steps are split as over the whole run.
    """
    total = float(seen.result.totals["prefill_energy_j"].to_numpy() @ seen.ranks)
    if seen.window.whole:
        return total
    if not seen.logged:
        return float("nan")
    steps = seen.steps
    prompts, joules = steps["prefill_tokens"] > 0, steps["energy_j"] * seen.ranks[steps["replica"]]
    mixed = prompts & (steps["decode_requests"] > 0)
    pure = prompts & ~mixed
    of_mixed = float(joules[mixed].sum())
    share = (total - float(joules[pure].sum())) / of_mixed if of_mixed else 0.0
    inside = joules * steps["share"]
    return float(inside[pure].sum() + share * inside[mixed].sum())


@metric("energy_decode_j", "J", "energy of computing output tokens", "energy")
def decode_energy_j(seen: Observed) -> float:
    """Return joules caused by output tokens [J]."""
    return busy_energy_j(seen) - prefill_energy_j(seen)


@metric("energy_j", "J", "energy of all accelerators", "energy")
def energy_j(seen: Observed) -> float:
    """Return all joules [J]."""
    return busy_energy_j(seen) + idle_energy_j(seen)


@metric("energy_per_output_token_j", "J", "all energy per output token", "energy")
def energy_per_output_token_j(seen: Observed) -> Value:
    """Return joules per output token [J]."""
    tokens = output_tokens(seen)
    return energy_j(seen) / tokens if tokens else None


@metric("decode_energy_per_output_token_j", "J", "decode energy per output token", "energy")
def decode_energy_per_output_token_j(seen: Observed) -> Value:
    """Return joules that outputs caused, per output token [J]."""
    tokens, joules = output_tokens(seen), decode_energy_j(seen)
    return joules / tokens if tokens else None


@metric("prefill_energy_per_prompt_token_j", "J", "prefill energy per computed token", "energy")
def prefill_energy_per_prompt_token_j(seen: Observed) -> Value:
    """Return joules that prompts caused, per prompt token computed [J]."""
    tokens = seen.step_sum("prefill_tokens")
    return prefill_energy_j(seen) / tokens if tokens else None


@metric("power_mean_w", "W", "mean power of all accelerators", "energy")
def power_mean_w(seen: Observed) -> Value:
    """Return joules over seconds [W]."""
    return energy_j(seen) / seen.window.span_s


@metric("power_max_w", "W", "largest power of one accelerator over its power window", "energy")
def power_max_w(seen: Observed) -> Value:
    """Return the largest moving mean of one accelerator's watts [W]."""
    return seen.step_most("window_w")


@metric("temperature_max_c", "degC", "highest temperature of an accelerator", "energy")
def temperature_max_c(seen: Observed) -> Value:
    """Return the highest temperature after a step [degC]."""
    return seen.step_most("temperature_c")
