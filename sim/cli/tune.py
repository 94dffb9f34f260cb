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
            help="goodput, throughput, cost, energy, power or a metric; several = Pareto front."
        ),
    ] = ["goodput"],  # noqa: B006 - Typer copies it
    constraint: Annotated[
        list[str], typer.Option(help="Such as 'ttft_p99<=0.5' (SI units); repeat it.")
    ] = [],  # noqa: B006 - Typer copies it
    space: Annotated[
        Path | None, typer.Option(help="Space file (TOML): knobs and their values.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, max=100_000, help="Settings to try.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    workload: Annotated[
        list[Path], typer.Option(help="Further scenario whose workload must be served too.")
    ] = [],  # noqa: B006 - Typer copies it
    worst: Annotated[bool, typer.Option(help="Judge by the worst workload, not the mean.")] = False,
    train_share: Annotated[
        float, typer.Option(help="Share of the time that the search sees; the rest is held back.")
    ] = 0.7,
    engine: Annotated[
        str, typer.Option(help="Print flags of vllm, sglang, trtllm or triton.")
    ] = "vllm",
    storage: Annotated[
        str | None,
        typer.Option(help="Journal file, or Optuna storage URL that several machines share."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of the results and the study; default out/tune-SCENARIO."
        ),
    ] = None,
    plugin: Annotated[list[Path], typer.Option(help="Python file that registers policies.")] = [],  # noqa: B006 - Typer copies it
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON only.")
    ] = False,
) -> None:
    """Search for the best setting; the same command goes on after an interrupt."""
    from sim.cli.output import progress_bar
    from sim.cli.overrides import load_plugin
    from sim.scenario import load_scenario
    from sim.tuning import load_space, parse_constraint, parse_objective
    from sim.tuning import tune as run
    from sim.tuning.flags import check_engine
    from sim.tuning.report import show, write
    from sim.tuning.space import DEFAULT_SPACE

    check_engine(engine)
    for path in plugin:
        load_plugin(path)
    folder = out or Path("out") / f"tune-{scenario.stem}"
    with progress_bar("tuning", as_json) as move:
        result: TuneResult = run(
            load_scenario(scenario),
            load_space(space) if space else DEFAULT_SPACE,
            [parse_objective(text) for text in objective],
            [parse_constraint(text) for text in constraint],
            budget=budget,
            seed=seed,
            storage=storage or folder / "study.journal",
            workloads=[(load_scenario(path), path.parent) for path in workload],
            worst=worst,
            train_share=train_share,
            base=scenario.parent,
            progress=move,
        )
    write(result, engine, folder)
    show(result, engine, folder, as_json)
