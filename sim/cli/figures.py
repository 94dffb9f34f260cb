"""The figures of a simulation as tables on the terminal, in units that people read."""

from typing import TYPE_CHECKING, Any

import typer

from sim.cli.output import print_table

if TYPE_CHECKING:
    from sim.exploring.bands import Band
    from sim.simulation import Result

__all__ = ["print_figures"]

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
COLUMNS = ("mean", "p50", "p90", "p95", "p99")


def print_figures(result: "Result", figures: dict[str, Any]) -> None:
    """Print what was simulated, its latencies, and its rates, use and energy."""
    from sim.fleets.words import pool_words

    scenario, hardware = result.scenario, result.scenario.hardware
    where = pool_words(result) or (
        f"{figures['model']} on {hardware.replicas} x {result.deployment.spec.name}, "
        f"tp {hardware.tp}, pp {hardware.pp}"
    )
    typer.echo(f"{figures['scenario']}: {where} ({figures['fidelity']} kernels)")
    from sim.exploring.bands import bands_of
    from sim.metrics import metrics
    from sim.units import readable

    bands = bands_of(result)
    rows = [
        [name.upper(), *_row(figures, name), _span(bands.get(f"{name}_mean_s"), "s")]
        for name in LATENCIES
    ]
    print_table(["", *COLUMNS, "mean, P10 .. P90"], rows)
    changing = scenario.failures is not None or scenario.autoscaling is not None
    wanted = KEY_FIGURES + (FLEET_FIGURES if changing else ())
    shown = [name for name in wanted if name in figures]
    shown = [n for n in shown if n not in OPTIONAL or figures[n] is not None]
    table = [
        [n, readable(figures[n], unit), _span(bands.get(n), unit), about.split(";")[0]]
        for n, unit, about in ((n, metrics[n].unit, metrics[n].description) for n in shown)
    ]
    print_table(["metric", "value", "P10 .. P90", "what it is"], table)
    from sim.technique_notes import technique_notes

    for note in technique_notes(result):
        typer.echo(note)


def _span(band: "Band | None", unit: str) -> str:
    from sim.units import readable

    if band is None:
        return ""
    return f"{readable(band.low, unit)} .. {readable(band.high, unit)}"


def _row(figures: dict[str, Any], name: str) -> list[str]:
    from sim.units import readable

    return [readable(figures.get(f"{name}_{column}_s"), "s") for column in COLUMNS]


OPTIONAL = ("draft_acceptance", "tokens_per_decode")  # left out where there is nothing to say
FLEET_FIGURES = (
    "accelerators_mean",
    "replicas_up_mean",
    "availability",
    "degraded_s",
    "slo_attainment_degraded",
    "retries",
)
KEY_FIGURES = (
    "requests",
    "finished",
    "unfinished",
    "rejected",
    "requests_per_s",
    "output_tokens_per_s",
    "effective_output_tokens_per_s",
    "slo_attainment",
    "goodput_per_s",
    "busy_share",
    "mfu",
    "mbu",
    "kv_used_max",
    "prefix_hit_tokens",
    "draft_acceptance",
    "tokens_per_decode",
    "preemptions",
    "energy_j",
    "energy_per_output_token_j",
    "power_mean_w",
)
