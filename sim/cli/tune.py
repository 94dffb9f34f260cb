"""``roofcast tune``: find the settings to deploy, and write them as the engine's own flags."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.tuning import TuneResult

__all__ = ["tune"]


def tune(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (TOML) to tune.")],
    objective: Annotated[
        list[str],
        typer.Option(
            help="goodput, throughput, cost, energy, power or a metric; several = Pareto."
        ),
    ] = ["goodput"],  # noqa: B006 - Typer copies it
    constraint: Annotated[
        list[str], typer.Option(help="Such as 'ttft_p99<=0.5' (SI units); repeat it.")
    ] = [],  # noqa: B006 - Typer copies it
    space: Annotated[
        Path | None, typer.Option(help="Space file (TOML): knobs and their values.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, max=100_000, help="Trials.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    workload: Annotated[
        list[Path], typer.Option(help="Further scenario whose workload must be served too.")
    ] = [],  # noqa: B006 - Typer copies it
    worst: Annotated[bool, typer.Option(help="Judge by the worst workload, not the mean.")] = False,
    engine: Annotated[str, typer.Option(help="Flags of vllm, sglang or trtllm.")] = "vllm",
    storage: Annotated[
        str | None,
        typer.Option(help="Journal file or Optuna storage URL; default is in --out."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for tune.html, trials.csv, flags and values."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON only.")
    ] = False,
) -> None:
    """Search for the best setting; the same command goes on after an interrupt."""
    from sim.cli.output import progress_bar
    from sim.scenario import load_scenario
    from sim.tuning import load_space, parse_constraint, parse_objective
    from sim.tuning import tune as run
    from sim.tuning.report import show, write
    from sim.tuning.space import DEFAULT_SPACE

    goals = [parse_objective(text) for text in objective]
    limits = [parse_constraint(text) for text in constraint]
    knobs = load_space(space) if space else DEFAULT_SPACE
    place = storage or (out / "study.journal" if out else None)
    with progress_bar("tuning", as_json) as move:
        result: TuneResult = run(
            load_scenario(scenario),
            knobs,
            goals,
            limits,
            budget=budget,
            seed=seed,
            storage=place,
            workloads=[load_scenario(path) for path in workload],
            worst=worst,
            base=scenario.parent,
            progress=move,
        )
    if out is not None:
        write(result, engine, out)
    show(result, engine, out, as_json)
