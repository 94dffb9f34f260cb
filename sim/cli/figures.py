"""The figures of a simulation as tables on the terminal, in units that people read."""

from typing import TYPE_CHECKING, Any

import typer

from sim.cli.output import print_table

if TYPE_CHECKING:
    from sim.simulation import Result

__all__ = ["print_figures", "readable"]

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
COLUMNS = ("mean", "p50", "p90", "p95", "p99")
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def readable(value: float | None, unit: str) -> str:
    """Return a figure in a unit that people read.

    Examples
    --------
    >>> readable(0.0123, "s"), readable(4.2e6, "J"), readable(0.512, "1"), readable(None, "s")
    ('12.3 ms', '4.2 MJ', '51.2 %', '-')
    """
    if value is None:
        return "-"
    if unit == "s":
        return _seconds(value)
    if unit == "1":
        return f"{value * 100:.3g} %"
    if unit in ("J", "W", "byte", "FLOP/s", "byte/s"):
        scale, prefix = next((p for p in PREFIXES if abs(value) >= p[0]), (1.0, ""))
        return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.4g} s" if value < 1000 else f"{value:,.0f} s"
    return f"{value * 1e3:.3g} ms"


def print_figures(result: "Result", figures: dict[str, Any]) -> None:
    """Print what was simulated, its latencies, and its rates, use and energy."""
    hardware = result.scenario.hardware
    typer.echo(
        f"{figures['scenario']}: {figures['model']} on {hardware.replicas} x "
        f"{result.deployment.spec.name}, tp {hardware.tp}, pp {hardware.pp} "
        f"({figures['fidelity']} kernels)"
    )
    rows = [[name.upper(), *_row(figures, name)] for name in LATENCIES]
    print_table(["", *COLUMNS], rows)
    from sim.metrics import metrics

    shown = [name for name in KEY_FIGURES if name in figures]
    table = [[readable(figures[n], metrics[n].unit), metrics[n].description] for n in shown]
    print_table(["figure", "what"], table)


def _row(figures: dict[str, Any], name: str) -> list[str]:
    return [readable(figures.get(f"{name}_{column}_s"), "s") for column in COLUMNS]


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
    "preemptions",
    "energy_j",
    "energy_per_output_token_j",
    "power_mean_w",
)
