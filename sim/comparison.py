"""Compare scenarios on the same requests: paired differences with confidence intervals.

All scenarios of a comparison serve the same requests, replication by replication (common random
numbers), so the noise that they share drops out of the differences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from formats import InputError
from sim.metrics import by_group, metrics, summary
from sim.scenario import Scenario
from sim.simulation import Result, simulate, workload_requests
from workloads.named import WorkloadSpec

__all__ = ["COMPARED", "Comparison", "compare", "plain"]

Progress = Callable[[float], None]
# what the terminal and the page show first
COMPARED = (
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "itl_p99_s",
    "e2e_mean_s",
    "queue_p99_s",
    "finished",
    "rejected",
    "timed_out",
    "output_tokens_per_s",
    "slo_attainment",
    "goodput_per_s",
    "deadlines_met",
    "prefix_hit_tokens",
    "preemptions",
    "busy_share",
    "energy_per_output_token_j",
    "rent_per_million_tokens_usd",
    "prompt_price_share",
)


@dataclass(frozen=True)
class Comparison:
    """What a comparison returns.

    Attributes
    ----------
    scenarios : sequence of Scenario
        The first is the base of all differences.
    names : list of str
        Their titles, made unique.
    values : DataFrame
        One row per (scenario, replication): seed and every metric.
    differences : DataFrame
        One row per (scenario, metric): mean of base and scenario, difference, the limits of its
        confidence interval, and the same relative to the base.
    confidence : float
        Level of the intervals [0..1].
    results : list of Result
        The first replication of each scenario.
    """

    scenarios: Sequence[Scenario]
    names: list[str]
    values: pd.DataFrame
    differences: pd.DataFrame
    confidence: float
    results: list[Result]


def compare(
    scenarios: Sequence[Scenario],
    replications: int = 5,
    confidence: float = 0.95,
    base: Path = Path(),
    progress: Progress | None = None,
) -> Comparison:
    """Serve the same requests by every scenario and return how they differ.

    Parameters
    ----------
    scenarios : sequence of Scenario
        Two or more with the same workload; the first is the base. Mixes may have more classes
        after those that all share, which then get the same requests.
    replications : int
        Seeds, from that of the first scenario upwards; 2 or more.
    confidence : float
        Level of the intervals [0..1].
    base : Path
        Folder that relative paths of traces start from.
    progress : callable, optional
        Told the share that is done [0..1].

    Raises
    ------
    InputError
        Fewer than two scenarios or replications, or workloads that differ.

    Notes
    -----
    The interval of a difference is that of Student's t for the paired differences d_i of R
    replications: mean(d) +- t(1 - (1 - confidence) / 2, R - 1) * std(d) / sqrt(R).

    Examples
    --------
    >>> load = {"arrivals": {"kind": "poisson", "rate_per_s": 2}, "lengths": "azure-conv",
    ...         "duration_s": 10}
    >>> a = Scenario(name="a", workload=load)
    >>> b = a.changed({"name": "b", "policies.batching.max_num_batched_tokens": 512})
    >>> found = compare([a, b], replications=2)
    >>> int(found.differences.query("metric == 'finished'")["difference"].iloc[0])
    0
    """
    _check(scenarios, replications, confidence)
    names = _unique([s.name for s in scenarios])
    rows: list[dict[str, Any]] = []
    results: list[Result] = []
    for seed in range(scenarios[0].run.seed, scenarios[0].run.seed + replications):
        seeded = [scenario.changed({"run.seed": seed}) for scenario in scenarios]
        drawn = workload_requests(seeded[0], base)
        for name, scenario in zip(names, seeded, strict=True):
            same = scenario.workload == scenarios[0].workload
            asked = drawn if same else workload_requests(scenario, base)
            result = simulate(scenario, asked, base)
            figures = summary(result)
            rows.append({"scenario": name, "seed": seed} | _figures(figures))
            if len(results) < len(scenarios):
                results.append(result)
            if progress is not None:
                progress(len(rows) / (replications * len(scenarios)))
    values = pd.DataFrame(rows)
    differences = _differences(values, names, confidence)
    return Comparison(scenarios, names, values, differences, confidence, results)


def _check(scenarios: Sequence[Scenario], replications: int, confidence: float) -> None:
    if len(scenarios) < 2:
        raise InputError("there is one scenario", "compare", "2 or more", "name another file")
    if replications < 2:
        what = f"{replications} replication has no spread"
        raise InputError(what, "--replications", "2 or more")
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}", "--confidence", "between 0 and 1")
    for scenario in scenarios[1:]:
        if not _comparable(scenarios[0].workload, scenario.workload):
            raise InputError(
                f"[workload] of {scenario.name!r} is not that of {scenarios[0].name!r}",
                "compare",
                "the same requests for all, or a mix with more classes after the same ones",
                "make the [workload] sections equal",
            )


def _comparable(a: WorkloadSpec, b: WorkloadSpec) -> bool:
    """Return whether the same seed gives both the same requests, but for classes at the end."""
    if a == b:
        return True
    rest = [spec.model_copy(update={"mix": []}) for spec in (a, b)]
    shared = zip(a.mix, b.mix, strict=False)
    return bool(a.mix and b.mix) and rest[0] == rest[1] and all(x == y for x, y in shared)


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names, numbered where one stands twice.

    Examples
    --------
    >>> _unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [
        name if names[:i].count(name) == 0 else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]


def _figures(figures: dict[str, Any]) -> dict[str, float]:
    """Return every metric, and those of each class of traffic where there are several."""
    numbers = {m.name: figures[m.name] for m in by_group()}
    if len(figures["classes"]) > 1:
        for kind, own in figures["classes"].items():
            numbers |= {f"{kind}: {name}": value for name, value in own.items()}
    return {name: float(value) for name, value in numbers.items() if value is not None}


def plain(figure: str) -> str:
    """Return the metric of a figure, which may be that of one class of traffic.

    Examples
    --------
    >>> plain("batch: ttft_mean_s"), plain("ttft_mean_s")
    ('ttft_mean_s', 'ttft_mean_s')
    """
    return figure.rsplit(": ", 1)[-1]


def _differences(values: pd.DataFrame, names: list[str], confidence: float) -> pd.DataFrame:
    found = [str(name) for name in values.columns if name not in ("scenario", "seed")]
    by_name = {name: part.set_index("seed") for name, part in values.groupby("scenario")}
    rows = []
    for name in names[1:]:
        for column in found:
            paired = (by_name[names[0]][column], by_name[name][column])
            head = {"scenario": name, "metric": column, "unit": metrics[plain(column)].unit}
            rows.append(head | _row(*paired, confidence))
    return pd.DataFrame(rows)


def _row(
    base: "pd.Series[float]", other: "pd.Series[float]", confidence: float
) -> dict[str, float]:
    """Return means, difference and interval of one metric; NaN where it does not exist."""
    deltas = (other - base).dropna().to_numpy(np.float64)
    count = deltas.size
    mean = float(deltas.mean()) if count else np.nan
    half = np.nan
    if count > 1:
        spread = float(deltas.std(ddof=1)) / np.sqrt(count)
        half = float(stats.t.ppf(0.5 + confidence / 2, count - 1)) * spread
    scale = abs(float(base.mean())) if count else np.nan
    return {
        "base": float(base.mean()),
        "value": float(other.mean()),
        "difference": mean,
        "low": mean - half,
        "high": mean + half,
        "relative": mean / scale if scale else np.nan,
        "relative_low": (mean - half) / scale if scale else np.nan,
        "relative_high": (mean + half) / scale if scale else np.nan,
        "replications": count,
    }
