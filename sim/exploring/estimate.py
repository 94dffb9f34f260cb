"""What a deployment does, without simulating it: an answer in milliseconds.

Operating points lie on the curve of `sim.exploring.curve`; `sim.exploring.buildup` says where on it
a run of finite length is at each time, and how long prompts wait for each other.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.deployment import Deployment
from sim.exploring.buildup import BuildUp, build_up, prompt_ends, steady
from sim.exploring.curve import Curve, mean_context, operating_curve, prompt_step_s
from sim.metrics.devices import peak_precision
from sim.objectives import given, objectives
from sim.planning.bound import Mix, between
from sim.scenario import Scenario
from workloads.named import closed_loop

__all__ = ["Estimate", "estimate"]

Floats = npt.NDArray[np.float64]
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Estimate:
    """Figures of a deployment, named as in summary.json; SI units, power of all accelerators.

    Attributes
    ----------
    figures : dict of str to float
        The figures that steady state gives.
    curve : Curve
        Operating points of one replica.
    batch : float
        Decoding sequences of one replica where it operates.
    rate_per_s : float
        Requests that one replica serves [request/s].
    load : float
        Offered over largest rate [1]; 1 for users that wait for answers.
    full_load_w : float
        Power of all accelerators at the largest rate [W].
    """

    figures: dict[str, float]
    curve: Curve
    batch: float
    rate_per_s: float
    load: float
    full_load_w: float


def estimate(
    scenario: Scenario, deployment: Deployment, requests: pd.DataFrame, endless: bool = False
) -> Estimate:
    """Return what a deployment does over a run.

    Parameters
    ----------
    scenario : Scenario
        What is deployed and asked.
    deployment : Deployment
        One replica of it.
    requests : DataFrame
        The requests table of its workload.
    endless : bool
        Take the steady state that the run would come to if it went on, in place of its own path.

    Examples
    --------
    >>> from sim.deployment import deploy
    >>> from sim.simulation import workload_requests
    >>> scenario = Scenario()
    >>> table = workload_requests(scenario)
    >>> found = estimate(scenario, deploy(scenario, 16384), table)
    >>> 0.003 < found.figures["tpot_mean_s"] < 0.01
    True
    """
    mix = Mix.of(requests, bool(deployment.knobs["caching"][0]))
    curve = operating_curve(deployment, mix)
    offered = _offered(scenario, requests, curve, mix)
    rate = min(offered, curve.most_per_s)
    path = _path(scenario, requests, curve, offered)
    if endless:
        path = steady(curve, curve.at(rate))
    batch = path.mean(_span_s(requests))
    latency, e2e = _latencies(scenario, deployment, curve, mix, requests, path)
    figures = latency | _rates(scenario, deployment, curve, mix, rate, batch)
    figures |= _of_run(figures, scenario, deployment, requests, e2e)
    most = curve.most_per_s
    full = _rates(scenario, deployment, curve, mix, most, curve.at(most))["power_mean_w"]
    return Estimate(figures, curve, batch, rate, offered / most, full)


def _of_run(
    figures: dict[str, float],
    scenario: Scenario,
    deployment: Deployment,
    requests: pd.DataFrame,
    e2e: Floats,
) -> dict[str, float]:
    """Return means over the whole run: it goes on until the last request has its answer."""
    arrivals = requests["arrival_s"].to_numpy(np.float64)
    if closed_loop(scenario.workload) is not None or arrivals.max() <= 0:
        return {}
    sent = len(requests) / max((arrivals + e2e).max(), 1e-9)
    share = min(float(sent) / max(figures["requests_per_s"], 1e-12), 1.0)
    names = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "busy_share")
    found = {name: figures[name] * share for name in (*names, "mfu", "mbu", "running_mean")}
    idle = float(deployment.knobs["idle_w"][0]) * scenario.hardware.accelerators
    found["power_mean_w"] = idle + (figures["power_mean_w"] - idle) * share
    tokens = max(found["output_tokens_per_s"], 1e-12)
    return found | {"energy_per_output_token_j": found["power_mean_w"] / tokens}


def _offered(scenario: Scenario, requests: pd.DataFrame, curve: Curve, mix: Mix) -> float:
    """Return the requests that are sent to one replica [request/s]."""
    replicas = scenario.hardware.replicas
    loop = closed_loop(scenario.workload)
    if loop is not None:
        stay = curve.prompt_s + curve.step_s + float(mix.output.mean()) * curve.tpot_s
        users = np.maximum.accumulate(curve.rate_per_s * (loop.think_s + stay))
        batch = np.interp(loop.concurrency / replicas, users, curve.batch)
        return float(np.interp(batch, curve.batch, curve.rate_per_s))
    span = float(requests["arrival_s"].max())
    sent = len(requests) / replicas
    return sent / span if span > 0 and sent > 1 else curve.most_per_s * 1e3


def _span_s(requests: pd.DataFrame) -> float:
    return float(requests["arrival_s"].max())


def _path(scenario: Scenario, requests: pd.DataFrame, curve: Curve, offered: float) -> BuildUp:
    """Return how the batch of a replica goes over the run."""
    if closed_loop(scenario.workload) is not None or _span_s(requests) <= 0:
        return steady(curve, curve.at(min(offered, curve.most_per_s)))
    return build_up(curve, offered, _span_s(requests))


def _arrivals(scenario: Scenario, requests: pd.DataFrame, curve: Curve, path: BuildUp) -> Floats:
    """Return when requests arrive [s]; those of waiting users as a Poisson stream of their rate."""
    if closed_loop(scenario.workload) is None:
        return requests["arrival_s"].to_numpy(np.float64)
    rate = curve.read(curve.rate_per_s, path.mean(1.0)) * scenario.hardware.replicas
    spread = (np.arange(len(requests)) * GOLDEN) % 1.0
    return np.asarray(np.cumsum(-np.log1p(-np.minimum(spread, 0.999))) / rate)


def _latencies(
    scenario: Scenario,
    deployment: Deployment,
    curve: Curve,
    mix: Mix,
    requests: pd.DataFrame,
    path: BuildUp,
) -> tuple[dict[str, float], Floats]:
    """Return means and percentiles of TTFT, TPOT and E2E, and E2E of every request [s]."""
    arrival = _arrivals(scenario, requests, curve, path)
    wait = path.wait_s(arrival)
    ttft = wait + _first_s(scenario, deployment, curve, mix, path, arrival + wait)
    more = np.maximum(mix.output - 1.0, 0.0)
    early = np.interp(path.at(arrival + ttft), curve.batch, curve.tpot_s)
    middle = arrival + ttft + more * early / 2.0
    batch = path.at(middle)
    busy, alone = (np.interp(batch, curve.batch, c) for c in (curve.tpot_s, curve.step_s))
    over = max(path.over_s, float((arrival + ttft).max()))  # steps only decode from then on
    tpot = np.where(middle > over, alone, busy)
    e2e = ttft + more * tpot
    several = tpot[more > 0] if (more > 0).any() else tpot
    found = {"tpot_mean_s": float(several.mean()), "tpot_p50_s": float(np.median(several))}
    for name, values in (("ttft", ttft), ("e2e", e2e)):
        found[f"{name}_mean_s"] = float(values.mean())
        for q in (50, 90, 95, 99):
            found[f"{name}_p{q}_s"] = float(np.percentile(values, q))
    return found | _attainment(scenario, ttft, tpot, e2e), e2e


def _first_s(
    scenario: Scenario,
    deployment: Deployment,
    curve: Curve,
    mix: Mix,
    path: BuildUp,
    arrival: Floats,
) -> Floats:
    """Return the time from admission to the first token of each request [s]."""
    knobs, replicas = deployment.knobs[0], scenario.hardware.replicas
    batch = path.at(arrival)
    step = np.interp(batch, curve.batch, curve.step_s)
    first = (np.arange(arrival.size) * GOLDEN) % 1.0
    busy = 1.0 - np.exp(-batch)
    ingest = float(knobs["ingest_s"]) + float(knobs["ingest_per_token_s"]) * mix.prompt
    # the step that runs, and the one that is dispatched behind it
    formed = np.where(
        first < busy, step * (1.0 + first / np.maximum(busy, 1e-9)), float(knobs["gather_s"])
    )
    ready = arrival + ingest + formed
    own = _own_prompt_s(deployment, mix, float(batch.mean()))
    ends = np.empty(arrival.size)
    for one in range(replicas):
        mine = np.arange(one, arrival.size, replicas)
        mine = mine[np.argsort(ready[mine], kind="stable")]
        chunk = float(knobs["max_num_batched_tokens"])
        ends[mine] = prompt_ends(ready[mine], own[mine], step[mine], mix.prompt[mine], chunk)
    return np.asarray(ends - arrival + float(knobs["visible_s"]) + float(knobs["client_s"]))


def _own_prompt_s(deployment: Deployment, mix: Mix, batch: float) -> Floats:
    """Return the time of each request's own prompt [s]."""
    sample = np.unique(np.percentile(mix.prompt, np.linspace(0, 100, 64)))
    at = np.array([min(batch + 1.0, deployment.tables.linear_s.size - 1.0)])
    times = prompt_step_s(deployment, np.maximum(sample * (1 - mix.cached_share), 1.0), at)[0]
    return np.asarray(np.interp(mix.prompt, sample, times))


def _attainment(scenario: Scenario, ttft: Floats, tpot: Floats, e2e: Floats) -> dict[str, float]:
    """Return the share of requests that meet the objectives, nothing without objectives."""
    limits = given(next(iter(objectives(scenario).values())))
    if not limits:
        return {}
    met = np.ones(ttft.size, dtype=bool)
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        met &= values <= limits.get(name, np.inf)
    return {"slo_attainment": float(met.mean())}


def _rates(
    scenario: Scenario, deployment: Deployment, curve: Curve, mix: Mix, rate: float, batch: float
) -> dict[str, float]:
    """Return throughput, use of the hardware and power."""
    hardware = scenario.hardware
    tables, spec = deployment.tables, deployment.spec
    output, computed = float(mix.output.mean()), mix.prompt.mean() * (1 - mix.cached_share)
    tpot = curve.read(curve.tpot_s, batch)
    decoding = 1.0 - float(np.exp(-batch))
    steps_per_s = decoding / tpot
    each = max(rate * (output - 1.0) / max(steps_per_s, 1e-12), 1.0)
    pairs = float((mix.prompt**2).mean()) / 2 * (1 - mix.cached_share) + output * mean_context(mix)
    linear = rate * ((computed + output) * tables.counts[0] + output * tables.counts[1])
    flops = linear + rate * pairs * tables.counts[2]
    weights = steps_per_s * float(between(tables.linear_bytes, np.array([each]))[0])
    kv = rate * (output * mean_context(mix) + computed) * tables.counts[3]
    busy = min(decoding + (1 - decoding) * rate * curve.read(curve.prompt_s, batch), 1.0)
    watts = _watts(deployment.knobs[0], busy, linear, flops, weights, kv)
    peak = spec.peak(peak_precision(spec, deployment.model))
    tokens = rate * output * hardware.replicas
    power = watts * hardware.accelerators
    return {
        "requests_per_s": rate * hardware.replicas,
        "output_tokens_per_s": tokens,
        "total_tokens_per_s": tokens + rate * float(mix.prompt.mean()) * hardware.replicas,
        "busy_share": busy,
        "mfu": float(flops / peak),
        "mbu": float((weights + kv) / spec.memory_bytes_per_s),
        "running_mean": batch,
        "power_mean_w": power,
        "energy_per_output_token_j": power / max(tokens, 1e-12),
    }


def _watts(
    knobs: np.void, busy: float, linear: float, flops: float, weights: float, kv: float
) -> float:
    """Return mean watts of one accelerator; rates per second of FLOPs and bytes."""
    joules = float(knobs["j_per_flop"]) * (
        linear * float(knobs["flop_scale"]) + max(flops - linear, 0.0)
    )
    joules += float(knobs["j_per_weight_byte"]) * weights + float(knobs["j_per_kv_byte"]) * kv
    wanted = busy * float(knobs["base_w"]) + (1 - busy) * float(knobs["idle_w"]) + joules
    most = busy * float(knobs["cap_w"]) + (1 - busy) * float(knobs["idle_w"])
    return float(min(wanted, most))
