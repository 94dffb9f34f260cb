"""How far a figure may lie off: errors of kernels carried through the estimate, and other seeds.

Kernel errors are the held-out residuals of the calibration (P10 to P90). Each family's factor
scales its part of the step tables; the estimate is made again at both ends, and the ratio to the
estimate in the middle is the band of every figure, queueing included. All kernels are taken to be
off in the same direction, which is the cautious choice. The spread over seeds is added in
quadrature, on a log scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hardware.kernels import KernelModel, load_kernels
from hardware.kernels_families import FAMILIES
from sim.deployment import Deployment
from sim.exploring.curve import scaled
from sim.exploring.estimate import Estimate, estimate
from sim.scenario import Scenario
from workloads.precision import kernel_dtype

__all__ = ["Band", "kernel_bands", "reaching_steady_state", "rounded", "with_seeds"]

Z80 = 1.2816  # half-width of P10 to P90 of a normal distribution, in standard deviations
FALLBACK = (-0.1, 0.1)  # where a family has no residuals of its own
Ratios = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Band:
    """A figure with its P10 and P90, in the unit of the figure."""

    value: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Half-width over value [1]."""
        return (self.high - self.low) / 2.0 / abs(self.value) if self.value else 0.0


def _family_band(kernels: KernelModel, *names: str) -> tuple[float, float]:
    """Return P10 and P90 of log(measured / predicted) of the first family that has them."""
    for name in (n for n in names if n in FAMILIES):
        band = kernels.residuals(name)
        if band:
            return min(float(band["p10"]), 0.0), max(float(band["p90"]), 0.0)
    return FALLBACK


def _factors(deployment: Deployment, end: int) -> dict[str, float]:
    """Return the factors on token-wise kernels, decode and prompt attention at one end."""
    kernels, model = load_kernels(deployment.spec), deployment.model
    gemm = f"gemm_{kernel_dtype(model.weights, model.activations)}"
    families = {
        "linear": (gemm, "gemm_bf16"),
        "decode": (f"attention_decode_{model.kv}", "attention_decode"),
        "prefill": ("attention_prefill",),
    }
    return {
        part: float(np.exp(_family_band(kernels, *names)[end])) for part, names in families.items()
    }


def kernel_bands(
    scenario: Scenario, deployment: Deployment, requests: pd.DataFrame, middle: Estimate
) -> Ratios:
    """Return figure -> (low, high) over its estimate, from the errors of the kernels.

    Parameters
    ----------
    scenario, deployment, requests
        As for `estimate`.
    middle : Estimate
        The estimate with kernel times as they are.
    """
    ends = [
        estimate(scenario, scaled(deployment, **_factors(deployment, end)), requests).figures
        for end in (0, 1)
    ]
    found: Ratios = {}
    for name, value in middle.figures.items():
        ratios = [other[name] / value if value else 1.0 for other in ends]
        found[name] = min(1.0, *ratios), max(1.0, *ratios)
    return found


def reaching_steady_state(
    scenario: Scenario,
    deployment: Deployment,
    requests: pd.DataFrame,
    middle: Estimate,
    ratios: Ratios,
) -> Ratios:
    """Return bands of an estimate that also reach the steady state of an endless run.

    Far below saturation both agree. Close to it a run is over before the steady state is reached,
    and how far it gets is what the estimate is least sure of.

    Parameters
    ----------
    scenario, deployment, requests, middle
        As for `kernel_bands`.
    ratios : dict
        From `kernel_bands`.
    """
    ends = estimate(scenario, deployment, requests, endless=True).figures
    found = dict(ratios)
    for name, value in middle.figures.items():
        other = ends[name] / value if value else 1.0
        low, high = ratios[name]
        found[name] = min(low, other), max(high, other)
    return found


def with_seeds(
    value: float, ratio: tuple[float, float] | None, others: Sequence[float | None]
) -> Band:
    """Return a figure with its band.

    Parameters
    ----------
    value : float
        The figure.
    ratio : (float, float) or None
        From `kernel_bands`; None where the estimate does not give the figure.
    others : sequence of float or None
        The same figure of other seeds.

    Examples
    --------
    >>> with_seeds(10.0, (0.9, 1.1), [])
    Band(value=10.0, low=9.0, high=11.0)
    """
    low, high = ratio or (1.0, 1.0)
    seen = np.array([v for v in (value, *others) if v is not None and v > 0])
    noise = Z80 * float(np.log(seen).std(ddof=1)) if seen.size > 2 else 0.0
    down, up = (np.hypot(np.log(max(end, 1e-6)), noise) for end in (low, high))
    return Band(value, value * float(np.exp(-down)), value * float(np.exp(up)))


def rounded(band: Band) -> int:
    """Return how many significant digits the band justifies, 2 or 3.

    Examples
    --------
    >>> rounded(Band(10.0, 9.0, 11.0)), rounded(Band(10.0, 9.97, 10.03)), rounded(Band(1, 0.3, 2))
    (2, 3, 2)
    """
    if band.relative <= 0:
        return 3
    return int(np.clip(np.ceil(-np.log10(band.relative)) + 1, 2, 3))
