"""How far a figure may lie off: P10 and P90 of its error, from four sources.

Kernels: held-out residuals of the calibration (P10 to P90) scale each part of the step tables, and
the estimate is made again at both ends, queueing included. Errors of different parts (token-wise
kernels, decode attention, prompt attention) are independent and add in quadrature; of those within
a part a share is the same in all kernels of a step, the rest averages out. Where an engine's steps
were measured on several machines of a kind, their errors stand in the place of those of kernels:
another machine is another draw, and near saturation a few percent of a step are much of a wait.
Engine: what measured runs leave beyond that (`sim.exploring.engine_error`). Sampling: other seeds,
else batch means (`sim.exploring.sampling`).
All add in quadrature on a log scale; P50 is the prediction. docs/bands.md says how good they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hardware.kernels import KernelModel, load_kernels
from hardware.kernels_families import FAMILIES
from sim.deployment import Deployment
from sim.exploring.curve import scaled, scaled_steps
from sim.exploring.engine_error import (
    OWN,
    StepSpread,
    engine_error,
    kernel_share,
    level_of,
    step_spread,
)
from sim.exploring.estimate import Estimate, estimate
from sim.exploring.sampling import batches_of, sampling_error
from sim.scenario import Scenario
from sim.simulation import Result
from workloads.precision import kernel_dtype

__all__ = [
    "Band",
    "band_table",
    "bands_of",
    "kernel_logs",
    "model_bands",
    "reaching_steady_state",
    "rounded",
    "step_logs",
    "with_seeds",
]

Z80 = 1.2816  # half-width of P10 to P90 of a normal distribution, in standard deviations
FALLBACK = (-0.1, 0.1)  # where a family has no residuals of its own
Ratios = dict[str, tuple[float, float]]
Floats = npt.NDArray[np.float64]


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

    def below(self, ceiling: float) -> "Band":
        """Return the band with an upper end that does not pass a ceiling."""
        return Band(self.value, self.low, min(self.high, ceiling))


def _family_band(kernels: KernelModel, *names: str) -> tuple[float, float]:
    """Return P10 and P90 of log(measured / predicted) of the first family that has them."""
    for name in (n for n in names if n in FAMILIES):
        band = kernels.residuals(name)
        if band:
            return min(float(band["p10"]), 0.0), max(float(band["p90"]), 0.0)
    return FALLBACK


def _factors(deployment: Deployment, part: str, end: int) -> dict[str, float]:
    """Return the factors on token-wise kernels, decode and prompt attention at one end of one."""
    kernels, model = load_kernels(deployment.spec), deployment.model
    gemm = f"gemm_{kernel_dtype(model.weights, model.activations)}"
    families = {
        "linear": (gemm, "gemm_bf16"),
        "decode": (f"attention_decode_{model.kv}", "attention_decode"),
        "prefill": ("attention_prefill",),
    }
    factors = dict.fromkeys(families, 1.0)
    factors[part] = float(np.exp(_family_band(kernels, *families[part])[end]))
    return factors


PARTS = ("linear", "decode", "prefill")


def kernel_logs(
    scenario: Scenario, deployment: Deployment, requests: pd.DataFrame, middle: Estimate
) -> Ratios:
    """Return figure -> (lower, upper) half-width of its log error, from the errors of kernels."""
    ends = [
        [scaled(deployment, **_factors(deployment, part, end)) for end in (0, 1)] for part in PARTS
    ]
    return _in_quadrature(ends, scenario, requests, middle)


def step_logs(
    scenario: Scenario,
    deployment: Deployment,
    requests: pd.DataFrame,
    middle: Estimate,
    spread: StepSpread,
) -> Ratios:
    """Return figure -> (lower, upper) half-width of its log error, from the errors of steps.

    Parameters
    ----------
    scenario, deployment, requests, middle
        As for `model_bands`.
    spread : StepSpread
        Half-widths of log(measured / predicted) of step times.
    """
    few, prompts = np.exp(spread.few), np.exp(spread.prompts)
    ends = [
        [scaled_steps(deployment, factor, 1.0) for factor in (1 / few, few)],
        [scaled_steps(deployment, 1.0, factor) for factor in (1 / prompts, prompts)],
    ]
    return _in_quadrature(ends, scenario, requests, middle)


def _in_quadrature(
    parts: Sequence[Sequence[Deployment]],
    scenario: Scenario,
    requests: pd.DataFrame,
    middle: Estimate,
) -> Ratios:
    """Make the estimate again at both ends of independent parts; add their log errors."""
    squares = {name: np.zeros(2) for name in middle.figures}
    for part in parts:
        ends = [estimate(scenario, deployment, requests) for deployment in part]
        for name, value in middle.figures.items():
            ratios = [e.figures[name] / value for e in ends] if value > 0 else [1.0]
            logs = np.log(np.clip([1.0, *ratios], 1e-3, 1e3))
            squares[name] += np.square([logs.min(), logs.max()])
    return {name: (float(low), float(high)) for name, (low, high) in _roots(squares)}


def _roots(squares: dict[str, Floats]) -> list[tuple[str, Floats]]:
    return [(name, np.sqrt(both)) for name, both in squares.items()]


def model_bands(
    scenario: Scenario, deployment: Deployment, requests: pd.DataFrame, middle: Estimate
) -> Ratios:
    """Return figure -> (low, high) over its estimate: steps or kernels, and engine.

    Of accelerators and engines whose steps were measured, the errors of steps on other machines and
    models stand for those of kernels.

    Parameters
    ----------
    scenario, deployment, requests
        As for `estimate`.
    middle : Estimate
        The estimate with kernel times as they are.
    """
    found: Ratios = {}
    level, share = level_of(scenario, deployment, requests), kernel_share()
    if level in OWN:
        logs, share = step_logs(scenario, deployment, requests, middle, step_spread()), 1.0
    else:
        logs = kernel_logs(scenario, deployment, requests, middle)
    for name, (low, high) in logs.items():
        beyond = engine_error(level, deployment.spec.kind, name)
        ends = (-np.hypot(low * share, beyond), np.hypot(high * share, beyond))
        found[name] = (float(np.exp(ends[0])), float(np.exp(ends[1])))
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
        As for `model_bands`.
    ratios : dict
        From `model_bands`.
    """
    ends = estimate(scenario, deployment, requests, endless=True).figures
    found = dict(ratios)
    for name, value in middle.figures.items():
        other = ends[name] / value if value else 1.0
        low, high = ratios[name]
        found[name] = min(low, other), max(high, other)
    return found


def bands_of(result: Result) -> dict[str, Band]:
    """Return the band of every figure of a simulation that the estimate gives too.

    Examples
    --------
    >>> from sim import simulate
    >>> found = bands_of(simulate(Scenario()))["tpot_mean_s"]
    >>> found.low < found.value < found.high
    True
    """
    from sim.metrics import summary

    scenario, deployment = result.scenario, result.deployment
    middle = estimate(scenario, deployment, result.requests)
    figures, batches = summary(result), batches_of(result.requests)
    found = {}
    for name, (low, high) in model_bands(scenario, deployment, result.requests, middle).items():
        value = figures.get(name)
        if isinstance(value, int | float):
            chance = sampling_error(batches, name)
            band = _widened(float(value), low, high, chance)
            found[name] = band.below(_ceiling(name, float(value), result))
    return found


def _ceiling(name: str, value: float, result: Result) -> float:
    """Return what a figure cannot exceed: a share 1, a rate what was sent where loops are open."""
    if name in SHARES:
        return max(value, 1.0)
    if name not in RATES or result.requests.empty:
        return np.inf
    sent, last = result.requests["arrival_s"], float(result.requests["finish_s"].max())
    loop = getattr(result.scenario.workload.arrivals, "kind", "")
    if loop == "closed-loop" or not np.isfinite(last) or sent.max() <= sent.min():
        return np.inf
    return value * max(1.0, last / float(sent.max()))


def band_table(bands: dict[str, Band]) -> dict[str, dict[str, float]]:
    """Return the content of bands.json: figure -> p10, p50, p90 [SI]."""
    return {
        name: {
            key: float(f"{value:.6g}")
            for key, value in (("p10", band.low), ("p50", band.value), ("p90", band.high))
        }
        for name, band in sorted(bands.items())
    }


RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
SHARES = ("busy_share", "mfu", "mbu")


def _widened(value: float, low: float, high: float, chance: float) -> Band:
    down, up = (np.hypot(np.log(max(end, 1e-6)), chance) for end in (low, high))
    return Band(value, value * float(np.exp(-down)), value * float(np.exp(up)))


def with_seeds(
    value: float, ratio: tuple[float, float] | None, others: Sequence[float | None]
) -> Band:
    """Return a figure with its band.

    Parameters
    ----------
    value : float
        The figure.
    ratio : (float, float) or None
        From `model_bands`; None where the estimate does not give the figure.
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
    return _widened(value, low, high, noise)


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
