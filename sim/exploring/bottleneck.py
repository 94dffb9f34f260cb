"""What limits a run, computed from where the time of its requests and steps goes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.metrics.devices import peak_precision
from sim.metrics.waits import WAITS
from sim.simulation import Result
from sim.units import readable

__all__ = ["Causes", "causes", "sentences"]

CAP_SHARE = 0.98  # mean busy power over the cap from which on the cap counts as reached


@dataclass(frozen=True)
class Causes:
    """Where the time of requests goes, and what a mean decode step is made of.

    Attributes
    ----------
    shares : dict of str to float
        Cause -> share of request time [1]; adds up to 1.
    step_s, weights_s, kv_s, arithmetic_s : float
        A mean decode step; the time that its weights and KV cache take at peak bandwidth, and
        its FLOPs at peak rate [s].
    weights, kv : float
        Bytes of weights and KV cache that it reads [byte].
    batch : float
        Sequences that it decodes.
    capped : float
        Mean power while computing over the power limit [1].
    """

    shares: dict[str, float]
    step_s: float
    weights_s: float
    kv_s: float
    arithmetic_s: float
    weights: float
    kv: float
    batch: float
    capped: float

    @property
    def largest(self) -> str:
        """The cause with the largest share."""
        return max(self.shares, key=lambda name: self.shares[name])

    @property
    def memory_bound(self) -> bool:
        """Whether decoding waits for memory rather than for arithmetic."""
        return self.weights_s + self.kv_s > self.arithmetic_s


def causes(result: Result, figures: dict[str, Any]) -> Causes:
    """Return where the time of a run goes.

    Request time outside of waits is service; it is split into prompts and decoding by the mean
    TTFT over the mean E2E, and decoding by how a mean decode step would run at the roofs of the
    accelerator: reading weights, reading the KV cache, arithmetic, and the rest (launches, kernels
    below the roof).

    Parameters
    ----------
    result : Result
        A simulation with its step log.
    figures : dict
        Its summary.
    """
    step = _decode_step(result)
    waits = {name: float(figures.get(f"wait_{name}_share") or 0.0) for name in WAITS}
    service = max(1.0 - sum(waits.values()), 0.0)
    e2e = max(float(figures["e2e_mean_s"] or 0.0), 1e-9)
    ttft = float(figures["ttft_mean_s"] or 0.0)
    before = (waits["queue"] + waits["memory"]) * e2e
    prompts = service * float(np.clip((ttft - before) / e2e, 0.0, 1.0))
    decode = service - prompts
    total = max(step["step_s"], 1e-12)
    moved = min((step["weights_s"] + step["kv_s"]) / total, 1.0)
    bound = max(step["weights_s"] + step["kv_s"], 1e-12)
    shares = waits | {
        "prompts": prompts,
        "weights": decode * moved * step["weights_s"] / bound,
        "kv": decode * moved * step["kv_s"] / bound,
    }
    busy_w = _busy_watts(result)
    cap = float(result.deployment.knobs["cap_w"][0])
    shares["rest"] = max(1.0 - sum(shares.values()), 0.0)
    return Causes(shares=shares, capped=busy_w / cap, **step)


def _busy_watts(result: Result) -> float:
    """Return mean watts of an accelerator while it computes [W]."""
    totals = result.totals
    busy = float(totals["busy_s"].sum())
    return float((totals["energy_j"] - totals["idle_energy_j"]).sum()) / max(busy, 1e-9)


def _decode_step(result: Result) -> dict[str, float]:
    """Return the mean step that decodes only, weighted by time."""
    deployment, steps = result.deployment, result.steps
    rows = steps[(steps["prefill_tokens"] == 0) & (steps["decode_requests"] > 0)]
    names = ("step_s", "weights_s", "kv_s", "arithmetic_s", "weights", "kv", "batch")
    if rows.empty:
        return dict.fromkeys(names, 0.0)
    count, gpu = float(rows["steps"].sum()), float(rows["gpu_s"].sum())
    batch = float((rows["decode_requests"] * rows["steps"]).sum()) / count
    sizes = deployment.tables.linear_bytes
    weights = float(np.interp(batch, np.arange(sizes.size), sizes))
    kv = max(float(rows["bytes"].sum()) / count - weights, 0.0)
    bandwidth = deployment.spec.memory_bytes_per_s
    peak = deployment.spec.peak(peak_precision(deployment.spec, deployment.model))
    return {
        "step_s": gpu / count,
        "weights_s": weights / bandwidth,
        "kv_s": kv / bandwidth,
        "arithmetic_s": float(rows["flops"].sum()) / count / peak,
        "weights": weights,
        "kv": kv,
        "batch": batch,
    }


def sentences(found: Causes) -> list[str]:
    """Return what limits a run in plain words, the largest cause first."""
    share = f"{100 * found.shares[found.largest]:.0f} % of the requests' time"
    words = {
        "queue": f"Requests wait to be admitted: {share}. More is asked than a step has room for.",
        "memory": f"KV memory is full: requests wait for free KV blocks, {share}.",
        "host": f"The host holds the accelerator back: {share} goes to CPU work.",
        "recompute": f"Preempted requests are computed again: {share}.",
        "transfer": f"KV caches on their way between pools take {share}.",
        "prompts": f"Computing prompts takes {share}; that is arithmetic, not memory.",
        "rest": f"Kernels run below the roofs of the chip (launches, small shapes): {share}.",
    }
    said = [words.get(found.largest, "")] if found.largest in words else []
    if found.step_s > 0:
        said.append(_decode_words(found))
    if found.capped > CAP_SHARE:
        said.append("The power limit is reached while computing, so the clock is lowered.")
    return said


def _decode_words(found: Causes) -> str:
    """Return why a decode step takes as long as it does."""
    moved = readable(found.weights + found.kv, "byte")
    at_peak = readable(found.weights_s + found.kv_s, "s")
    batch = f"{found.batch:.0f}" if found.batch >= 9.5 else f"{found.batch:.1f}"
    if not found.memory_bound:
        return (
            f"Decoding is compute-bound: the arithmetic of a step for {batch} sequences takes "
            f"{readable(found.arithmetic_s, 's')} at peak, moving its {moved} only {at_peak}."
        )
    main = "the model's weights" if found.weights >= found.kv else "the KV cache"
    return (
        f"Decoding is memory-bound: each step reads {moved}, mostly {main}, to write one token "
        f"for each of {batch} sequences. That takes at least {at_peak} of the "
        f"{readable(found.step_s, 's')} step; the arithmetic would take "
        f"{readable(found.arithmetic_s, 's')}."
    )
