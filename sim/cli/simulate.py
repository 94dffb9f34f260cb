"""``roofcast simulate``: run a scenario, print its figures, keep its tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from sim.simulation import Result

__all__ = ["simulate"]

HARDWARE, LOAD, POLICY, OUTPUT, RUN = "Hardware and model", "Load", "Policies", "Output", "Run"


def _option(panel: str, text: str, *names: str) -> Any:  # noqa: ANN401 - Typer's own type
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


def simulate(
    ctx: typer.Context,
    scenario: Annotated[
        Path | None,
        typer.Argument(help="Scenario file (TOML), see `roofcast new`; options go over it."),
    ] = None,
    accelerator: Annotated[str | None, _option(HARDWARE, "Accelerator id, or a .toml.")] = None,
    replicas: Annotated[int | None, _option(HARDWARE, "Independent engines.")] = None,
    tp: Annotated[int | None, _option(HARDWARE, "Tensor-parallel ranks.")] = None,
    pp: Annotated[int | None, _option(HARDWARE, "Pipeline stages.")] = None,
    power_cap: Annotated[float | None, _option(HARDWARE, "Watts per accelerator.")] = None,
    model: Annotated[
        str | None, _option(HARDWARE, "Model id, .toml, or a Hugging Face config.json.")
    ] = None,
    weights: Annotated[str | None, _option(HARDWARE, "Format of weights: bf16, fp8, ...")] = None,
    kv: Annotated[str | None, _option(HARDWARE, "Format of the KV cache.")] = None,
    engine: Annotated[str | None, _option(HARDWARE, "Engine profile id, or a .toml.")] = None,
    requests: Annotated[Path | None, _option(LOAD, "Request trace file.")] = None,
    trace_format: Annotated[
        str | None, _option(LOAD, "Its format, when it is not found by content.", "--format")
    ] = None,
    workload: Annotated[str | None, _option(LOAD, "Named workload.")] = None,
    rate: Annotated[float | None, _option(LOAD, "Poisson arrivals per second.")] = None,
    concurrency: Annotated[int | None, _option(LOAD, "Closed loop of that many users.")] = None,
    duration: Annotated[float | None, _option(LOAD, "Arrivals stop after seconds.")] = None,
    count: Annotated[int | None, _option(LOAD, "Requests at most.")] = None,
    lengths: Annotated[str | None, _option(LOAD, "Length distribution, or a .toml.")] = None,
    batching: Annotated[str | None, _option(POLICY, "Batching policy.")] = None,
    max_batched_tokens: Annotated[int | None, _option(POLICY, "Tokens of a step.")] = None,
    max_seqs: Annotated[int | None, _option(POLICY, "Sequences of a step.")] = None,
    ordering: Annotated[str | None, _option(POLICY, "Order of the queue.")] = None,
    memory: Annotated[str | None, _option(POLICY, "KV memory policy.")] = None,
    kv_blocks: Annotated[int | None, _option(POLICY, "KV blocks, none = what fits.")] = None,
    prefix_caching: Annotated[
        bool | None,
        _option(POLICY, "Keep prompts for later.", "--prefix-caching/--no-prefix-caching"),
    ] = None,
    routing: Annotated[str | None, _option(POLICY, "Choice of the replica.")] = None,
    plugin: Annotated[
        list[Path] | None, _option(POLICY, "Python file that registers policies.")
    ] = None,
    slo_ttft: Annotated[float | None, _option(RUN, "Objective of TTFT in seconds.")] = None,
    slo_tpot: Annotated[float | None, _option(RUN, "Objective of TPOT in seconds.")] = None,
    slo_e2e: Annotated[float | None, _option(RUN, "Objective of E2E in seconds.")] = None,
    check_slo: Annotated[
        bool, _option(RUN, "Exit with 1 when too few requests meet the objectives.", "--check-slo")
    ] = False,
    seed: Annotated[int | None, _option(RUN, "Seed of all random streams.")] = None,
    horizon: Annotated[float | None, _option(RUN, "Stop at this second.")] = None,
    warmup: Annotated[str | None, _option(RUN, "none, mser, or seconds left out.")] = None,
    settings: Annotated[
        list[str] | None, _option(RUN, "Any other key of the scenario: KEY=VALUE.", "--set")
    ] = None,
    name: Annotated[str | None, _option(OUTPUT, "Title of the report.")] = None,
    out: Annotated[Path | None, _option(OUTPUT, "Results folder.", "--out", "-o")] = None,
    every_step: Annotated[
        bool | None, _option(OUTPUT, "One row per step in steps.csv.", "--every-step")
    ] = None,
    trace: Annotated[
        bool | None, _option(OUTPUT, "Chrome trace, also of a big run.", "--trace/--no-trace")
    ] = None,
    report: Annotated[bool, _option(OUTPUT, "HTML report.", "--report/--no-report")] = True,
    as_json: Annotated[bool, _option(OUTPUT, "Print summary.json only.", "--json")] = False,
) -> None:
    """Simulate a deployment under a load: latency, throughput, use, energy."""
    from sim.cli.overrides import load_plugin, make_scenario
    from sim.results import check_target

    for path in plugin or []:
        load_plugin(path)
    chosen, base = make_scenario(scenario, ctx.params, settings or [])
    if check_slo:
        _check_objectives(chosen)
    if out is not None:
        check_target(out)
    result = _run(chosen, base)
    if out is not None:
        _write(result, out, report=report, trace=trace)
    _show(result, out, as_json, trace)
    if check_slo:
        _exit_when_missed(result)


def _check_objectives(chosen: "Scenario") -> None:
    """Refuse --check-slo where no class of traffic has an objective."""
    from formats import InputError
    from sim.objectives import given, objectives

    if not any(given(slo) for slo in objectives(chosen).values()):
        repair = "give --slo-ttft, --slo-tpot, --slo-e2e, or [slo] in the scenario"
        raise InputError("there is no objective to check", "--check-slo", repair=repair)


def _run(chosen: "Scenario", base: Path) -> "Result":
    from sim.cli.output import progress_bar
    from sim.simulation import simulate as run_simulation

    with progress_bar("simulating") as move:
        return run_simulation(chosen, base=base, progress=move)


def _write(result: "Result", out: Path, *, report: bool, trace: bool | None) -> None:
    from sim.cli.output import progress_bar
    from sim.results import write_results

    with progress_bar("writing"):
        write_results(result, out, report=report, trace=trace)


def _show(result: "Result", out: Path | None, as_json: bool, trace: bool | None) -> None:
    from sim.cli.figures import print_figures
    from sim.cli.output import print_json
    from sim.metrics import summary

    if as_json:
        print_json(summary(result))
        return
    print_figures(result, summary(result))
    if out is None:
        typer.echo("No files written; add --out DIR for tables, report and trace.")
    else:
        files = ", ".join(sorted(p.name for p in out.iterdir()))
        typer.echo(f"Results in {out}: {files}")
        if trace is None and "trace.json" not in files:
            typer.echo("No trace.json, which a run of this size gets on demand: --trace.")


def _exit_when_missed(result: "Result") -> None:
    from sim.cli.guard import MISSED
    from sim.metrics.rates import attainments

    missed = [a for a in attainments(result) if a.share < a.wanted]
    for a in missed:
        text = f"Objective of class {a.traffic_class!r} missed: {a.share:.2%} of its requests"
        typer.echo(f"{text} met it, {a.wanted:.2%} wanted.", err=True)
    if missed:
        raise typer.Exit(MISSED)
