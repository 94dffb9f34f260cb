"""The verdict of a tuning in words and as plain data: what to set, what it gains, what it costs."""

from dataclasses import dataclass
from typing import Any

from sim.metrics import metrics
from sim.sweeping.task import COST
from sim.tuning.finalists import Finalist, Measured, percent
from sim.tuning.tuner import TuneResult, moved
from sim.units import readable

__all__ = ["Change", "changes", "figure", "setting_text", "summary", "verdict"]

LESS, MORE = "minimize", "maximize"
# metrics that a verdict looks at beside the objectives, with their better direction
WATCHED = {
    "goodput_per_s": MORE,
    "slo_attainment": MORE,
    "output_tokens_per_s": MORE,
    "ttft_p50_s": LESS,
    "ttft_p99_s": LESS,
    "tpot_mean_s": LESS,
    "tpot_p99_s": LESS,
    "e2e_mean_s": LESS,
    "energy_per_output_token_j": LESS,
    "power_mean_w": LESS,
    COST: LESS,
    "preemptions": LESS,
}
WORTH_SAYING = 0.01  # relative change
MOST_TRADES = 3


@dataclass(frozen=True)
class Change:
    """One metric before and after, over all repeats and workloads.

    Attributes
    ----------
    metric : str
        Its name.
    before, after : float
        With the scenario as it is, and with the best setting.
    better : float
        Relative improvement; below 0 it got worse.
    """

    metric: str
    before: float
    after: float
    better: float


def changes(result: TuneResult) -> list[Change]:
    """Return watched metrics before and after."""
    wanted = {o.metric: o.direction for o in result.objectives} | WATCHED
    wanted |= {c.metric: LESS if c.sign == "<=" else MORE for c in result.constraints}
    found = []
    for name, direction in wanted.items():
        before = result.default.seen.figures.get(name)
        after = result.best.seen.figures.get(name)
        if before is not None and after is not None:
            sign = 1.0 if direction == MORE else -1.0
            better = sign * (after - before) / abs(before) if before else sign * (after - before)
            found.append(Change(name, before, after, better))
    return found


def figure(name: str, value: float | None) -> str:
    """Return a metric's value for people, with its unit.

    Examples
    --------
    >>> figure("ttft_p99_s", 0.25), figure("usd_per_million_output_tokens", 0.4218)
    ('250 ms', '0.422 USD/Mtoken')
    """
    return readable(value, "USD/Mtoken" if name == COST else metrics[name].unit)


def setting_text(setting: dict[str, Any]) -> str:
    """Return a setting in a line."""
    return ", ".join(f"{key} = {value}" for key, value in setting.items()) or "as it is"


def verdict(result: TuneResult) -> str:
    """Return the verdict: what to set, its gain, how sure it is, what it trades away."""
    if result.best is result.default:
        return _keep(result)
    change = setting_text(moved(result.best.setting, result.start))
    parts = [f"Set {change}.", *_gains(result), _limits(result)]
    worse = sorted(_worse(result))
    if worse:
        listed = "; ".join(text for _, text in worse[:MOST_TRADES])
        parts.append(f"It trades away {listed}.")
    return " ".join(part for part in parts if part)


def _gains(result: TuneResult) -> list[str]:
    parts = []
    for objective in result.objectives:
        name = objective.metric
        before, after = (
            figure(name, f.seen.figures.get(name)) for f in (result.default, result.best)
        )
        gain = result.best.seen.gains[name]
        change = f"{gain}" if gain is not None else "no gain can be said"
        parts.append(f"{name}: {after} instead of {before}, {change}{_later(result, name)}.")
    return parts


def _later(result: TuneResult, name: str) -> str:
    later = result.best.later
    gain = None if later is None else later.gains[name]
    if gain is None:
        return "; no later requests were held back" if later is None else ""
    return f"; on later requests that the search did not see {gain}"


def _limits(result: TuneResult) -> str:
    if result.best.seen.violation > 0:
        return "No setting meets all constraints; this one misses them least."
    later = result.best.later
    if later is not None and later.violation > 0:
        return f"Careful: on later requests it misses constraints by {percent(later.violation, 0)}."
    if result.default.seen.violation > 0:
        return "It meets all constraints, which the scenario as it is does not."
    return "All constraints hold, on later requests too." if result.constraints and later else ""


def _worse(result: TuneResult) -> list[tuple[float, str]]:
    aims = {o.metric for o in result.objectives}
    return [
        (c.better, f"{c.metric} ({figure(c.metric, c.before)} to {figure(c.metric, c.after)})")
        for c in changes(result)
        if c.better < -WORTH_SAYING and c.metric not in aims
    ]


def _keep(result: TuneResult) -> str:
    """Return why the scenario stays as it is."""
    text = "Keep the scenario as it is: "
    if not result.finalists:
        return text + "no other setting can run."
    first = result.finalists[0]
    other = f"the best other setting ({setting_text(moved(first.setting, result.start))})"
    if first.seen.violation > result.default.seen.violation:
        return f"{text}{other} misses constraints."
    gain = first.seen.gain
    change = "has no value to compare" if gain is None else f"gains {gain}"
    aims = ", ".join(o.metric for o in result.objectives)
    misses = result.default.seen.violation > 0
    end = "; neither meets all constraints." if misses else "."
    return f"{text}{other} {change} in {aims}{end}"


def summary(result: TuneResult) -> dict[str, Any]:
    """Return a verdict as plain data."""
    return {
        "schema_version": 1,
        "verdict": verdict(result),
        "study": result.study,
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in result.objectives],
        "constraints": [str(c) for c in result.constraints],
        "workloads": result.workloads,
        "judged_by": "worst workload" if result.worst else "mean of workloads",
        "settings_tried": len(result.trials),
        "repeats": result.repeats,
        "repeats_are": "new draws" if result.drawn else "windows of the trace",
        "best": _finalist(result.best, result),
        "default": _finalist(result.default, result),
        "finalists": [_finalist(f, result) for f in result.finalists],
        "importance": result.importance,
        "changes": [
            {"metric": c.metric, "before": c.before, "after": c.after, "better": c.better}
            for c in changes(result)
        ],
    }


def _finalist(found: Finalist, result: TuneResult) -> dict[str, Any]:
    return {
        "setting": found.setting,
        "seen": _measured(found.seen, result),
        "later": None if found.later is None else _measured(found.later, result),
    }


def _measured(found: Measured, result: TuneResult) -> dict[str, Any]:
    names = [o.metric for o in result.objectives] + [c.metric for c in result.constraints]
    return {
        "violation": found.violation,
        "figures": {name: found.figures.get(name) for name in names},
        "gains": {
            name: gain and {"mean": gain.mean, "low": gain.low, "high": gain.high}
            for name, gain in found.gains.items()
        },
    }
