"""The page of a result: figures, charts, every metric, and what they rest on."""

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from formats import Quantity
from hardware.kernels import load_kernels
from sim import charts
from sim.cache_curve import cache_curve
from sim.charts_cache import cache_chart
from sim.exploring.bands import Band, bands_of
from sim.fleets.words import pool_words
from sim.metrics import Observed, by_group, measure
from sim.metrics.devices import peak_flops_per_s, peak_precision
from sim.metrics.rates import limits as limits_of
from sim.metrics.waits import WAITS
from sim.page import Card, Chart, Figure, Page, details_html, frame_html, list_html
from sim.simulation import Result
from sim.technique_notes import technique_notes
from sim.toml import scenario_toml
from sim.units import readable

__all__ = ["report_html"]

CARDS = (
    ("ttft_p99_s", "TTFT p99"),
    ("tpot_mean_s", "TPOT mean"),
    ("e2e_p50_s", "E2E p50"),
    ("output_tokens_per_s", "output tokens"),
    ("requests_per_s", "requests"),
    ("slo_attainment", "met the objectives"),
    ("busy_share", "busy"),
    ("mfu", "MFU"),
    ("mbu", "MBU"),
    ("energy_per_output_token_j", "per output token"),
    ("power_mean_w", "mean power"),
)
FROM_STEPS = ("tokens", "queue", "kv", "power", "temperature", "roofline")
Floats = npt.NDArray[np.float64]
Figures = dict[str, float | int | None]


def report_html(result: Result, bands: Mapping[str, Band] | None = None) -> str:
    """Return the page as text.

    Parameters
    ----------
    result : Result
        A simulation.
    bands : mapping, optional
        Its bands, where they are known already.
    """
    seen = Observed.of(result)
    figures = measure(seen)
    numbers = frame_html(("number", "value", "kind", "source"), _number_rows(result))
    scenario = f'<div class="scroll"><pre>{html.escape(scenario_toml(result.scenario))}</pre></div>'
    rests = list_html(_assumptions(result), escape=False)
    rests += details_html("Numbers of accelerator and engine, with kind and source", numbers)
    rests += details_html("Scenario", scenario)
    return Page(
        result.scenario.name,
        _subtitle(result),
        _cards(figures, bands or bands_of(result)),
        _charts(seen, figures),
        {
            "All metrics": frame_html(("metric", "value", "what it is"), _metric_rows(figures)),
            "What the figures rest on": rests,
        },
    ).text()


def _subtitle(result: Result) -> str:
    hardware, deployment = result.scenario.hardware, result.deployment
    if result.scenario.pools:
        return pool_words(result)
    ranks = [f"{n} {getattr(hardware, n)}" for n in ("tp", "pp", "dp", "ep")]
    ranks = [text for text in ranks if not text.endswith(" 1")]
    parallel = f" ({', '.join(ranks)})" if ranks else ""
    plural = "s" if hardware.replicas > 1 else ""
    return (
        f"{deployment.model.name} on {hardware.accelerators} x {deployment.spec.name}, "
        f"{hardware.replicas} replica{plural}{parallel}, {deployment.profile.name}"
    )


def _cards(figures: Figures, bands: Mapping[str, Band]) -> dict[str, Card]:
    from sim.metrics import metrics

    return {
        label: Card(
            readable(figures[name], metrics[name].unit),
            metrics[name].description,
            _span(bands.get(name), metrics[name].unit),
        )
        for name, label in CARDS
        if figures[name] is not None
    }


def _span(band: Band | None, unit: str) -> str:
    """Return P10 and P90 under a figure, nothing where they are not known."""
    if band is None:
        return ""
    return f"P10 .. P90: {readable(band.low, unit)} .. {readable(band.high, unit)}"


Makers = dict[str, tuple[tuple[str, str], Callable[[], Chart]]]


def _charts(seen: Observed, figures: Figures) -> dict[str, Figure]:
    """Return the charts that have something to show, by id."""
    every = {**_latency_charts(seen), **_time_charts(seen), **_cause_charts(seen, figures)}
    hidden = () if seen.logged else FROM_STEPS
    if seen.result.asked is None:
        hidden = (*hidden, "cache")
    return {
        key: Figure(*words, make()) for key, (words, make) in every.items() if key not in hidden
    }


def _latency_charts(seen: Observed) -> Makers:
    requests = seen.requests
    limits = {what: _one(values) for what, values in limits_of(seen).items()}
    titles = {
        "ttft": "Time to first token",
        "tpot": "Time per output token",
        "e2e": "End-to-end latency",
    }
    below = "Share of requests below each value"
    return {
        f"cdf_{what}": (
            (
                title,
                f"{below}; the dashed rule is the objective." if limits.get(what) else f"{below}.",
            ),
            lambda what=what: charts.latency_cdf(requests, what, limits.get(what)),  # type: ignore[misc]
        )
        for what, title in titles.items()
    }


def _one(values: Floats) -> float | None:
    """Return the objective that all requests have, None where they differ."""
    finite = np.unique(values[np.isfinite(values)])
    return float(finite[0]) if finite.size == 1 else None


def _time_charts(seen: Observed) -> Makers:
    steps, end = seen.result.steps, seen.window.end_s
    idle, blocks = seen.knobs("idle_w"), seen.knobs("num_blocks")
    return {
        "tokens": (
            ("Tokens over time", "Prompt and output tokens computed per second."),
            lambda: charts.token_rates(steps, end),
        ),
        "queue": (
            ("Batch and queue", "Requests that run and that wait, over all replicas."),
            lambda: charts.queue(steps, end),
        ),
        "kv": (
            ("KV memory", "Share of KV blocks that requests hold, mean of replicas."),
            lambda: charts.kv_use(steps, blocks, end),
        ),
        "power": (
            ("Power", "Watts of all accelerators."),
            lambda: charts.power(steps, idle, seen.ranks, end),
        ),
        "temperature": (
            ("Temperature", "The hottest accelerator."),
            lambda: charts.temperature(steps),
        ),
    }


def _cause_charts(seen: Observed, figures: Figures) -> Makers:
    shares = {name: float(figures[f"wait_{name}_share"] or 0.0) for name in WAITS}
    joules = [float(figures[f"energy_{k}_j"] or 0.0) for k in ("prefill", "decode", "idle")]
    bandwidth = seen.result.deployment.spec.memory_bytes_per_s
    return {
        "waits": (
            ("Where requests spend their time", "Waits by cause; service is what is left."),
            lambda: charts.wait_split(shares),
        ),
        "energy": (
            ("What the energy was for", "Prompts, outputs, and accelerators that wait."),
            lambda: charts.energy_split(*joules),
        ),
        "roofline": (
            ("Roofline", "Steps under the roof of one accelerator (dashed)."),
            lambda: charts.roofline(seen.result.steps, peak_flops_per_s(seen), bandwidth),
        ),
        "cache": (
            (
                "Prefix cache by size",
                "Hit rate of an LRU cache of each size, in one pass; dashed: the KV pool.",
            ),
            lambda: cache_chart(cache_curve(seen.result), _pool_bytes(seen.result)),  # type: ignore[arg-type]
        ),
        "gantt": (
            ("First requests", "Each bar is a request: waiting, prefill, decoding."),
            lambda: charts.request_gantt(seen.requests),
        ),
    }


def _pool_bytes(result: Result) -> float:
    made = result.deployment
    return made.plan.block * float(made.knobs["num_blocks"][0]) * made.parallel.accelerators


def _metric_rows(figures: Figures) -> str:
    rows, group = [], ""
    for m in by_group():
        if m.group != group:
            group = m.group
            rows.append(f'<tr class="group"><th colspan="3">{group}</th></tr>')
        value = html.escape(readable(figures[m.name], m.unit))
        rows.append(
            f"<tr><td><code>{m.name}</code></td><td class=num>{value}</td>"
            f"<td>{html.escape(m.description)}</td></tr>"
        )
    return "\n".join(rows)


def _assumptions(result: Result) -> Iterable[str]:
    """Yield, as HTML, what the figures rest on."""
    deployment, scenario = result.deployment, result.scenario
    plan, gb = deployment.plan, 1e9
    yield (
        f"Kernel times of {html.escape(deployment.spec.name)}: <b>{deployment.fidelity}</b>. "
        + _fidelity_words(deployment.fidelity)
    )
    yield from _bands(result)
    yield (
        f"Memory of one accelerator: {plan.usable / gb:.1f} GB usable = weights "
        f"{plan.weights / gb:.2f} GB, activations {plan.activations / gb:.2f} GB, workspaces "
        f"{plan.reserved / gb:.2f} GB, room for {plan.blocks:,} KV blocks; the pool has "
        f"{int(deployment.knobs['num_blocks'][0]):,}."
    )
    precision = peak_precision(deployment.spec, deployment.model)
    peak = deployment.spec.peak(precision)
    yield f"MFU refers to the dense {precision} peak, {peak / 1e12:,.0f} TFLOP/s per accelerator."
    yield from map(html.escape, technique_notes(result))
    yield f"Warm-up rule: {scenario.run.warmup}; seed {scenario.run.seed}."
    yield f"Host and engine: {html.escape(deployment.profile.name)}, {html.escape(_note(result))}."


def _note(result: Result) -> str:
    return result.deployment.profile.note or "no note"


def _fidelity_words(fidelity: str) -> str:
    if fidelity == "measured":
        return "Its coefficients were fitted on kernels timed on this accelerator."
    return (
        "No kernel of it was timed: forms and coefficients are carried over from measured "
        "accelerators and scaled by its datasheet, so expect a wider error."
    )


def _bands(result: Result) -> Iterable[str]:
    """Yield the error band of the kernels that carry most of the work."""
    kernels = load_kernels(result.deployment.spec)
    for name, words in (
        ("gemm_bf16", "matrix products (bf16)"),
        ("attention_decode", "decode attention"),
        ("attention_prefill", "prompt attention"),
    ):
        band = kernels.residuals(name)
        if band:
            low, high = (f"{band[q] * 100:+.1f} %" for q in ("p10", "p90"))
            yield f"Error of {words} on shapes held out, P10 to P90: {low} to {high}."


def _number_rows(result: Result) -> str:
    """Return rows of the numbers of accelerator and engine with their kind and source."""
    deployment = result.deployment
    rows = [*_quantities(deployment.spec), *_quantities(deployment.profile)]
    return "\n".join(
        f"<tr><td><code>{html.escape(key)}</code></td><td class=num>{readable(q.value, q.unit)}"
        f'</td><td><span class="kind {q.kind}">{q.kind}</span></td>'
        f"<td>{html.escape(q.source)}</td></tr>"
        for key, q in rows
    )


def _quantities(model: Any, path: str = "") -> Iterable[tuple[str, Quantity]]:  # noqa: ANN401
    """Yield every quantity inside a pydantic model with its dotted key."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        key = f"{path}.{name}" if path else name
        if isinstance(value, Quantity):
            yield key, value
        elif hasattr(type(value), "model_fields"):
            yield from _quantities(value, key)
