"""``roofcast explain``: FLOPs, bytes, roofs and memory of one step, operator by operator."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.explain import Explanation

__all__ = ["explain"]

WHAT, SIZE, OUTPUT = "Hardware and model", "Sizes of the steps", "Output"


def _option(panel: str, text: str, *names: str) -> Any:  # noqa: ANN401 - Typer's own type
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


def explain(
    ctx: typer.Context,
    scenario: Annotated[
        Path | None, typer.Argument(help="Scenario file (TOML); options go over it.")
    ] = None,
    accelerator: Annotated[str | None, _option(WHAT, "Accelerator id, or a .toml.")] = None,
    model: Annotated[str | None, _option(WHAT, "Model id, .toml, or a config.json.")] = None,
    weights: Annotated[str | None, _option(WHAT, "Format of weights: bf16, fp8, ...")] = None,
    kv: Annotated[str | None, _option(WHAT, "Format of the KV cache.")] = None,
    tp: Annotated[int | None, _option(WHAT, "Tensor-parallel ranks.")] = None,
    pp: Annotated[int | None, _option(WHAT, "Pipeline stages.")] = None,
    engine: Annotated[str | None, _option(WHAT, "Engine profile id, or a .toml.")] = None,
    settings: Annotated[
        list[str] | None, _option(WHAT, "Any other key of the scenario: KEY=VALUE.", "--set")
    ] = None,
    batch: Annotated[int, typer.Option(help="Decoding sequences.", rich_help_panel=SIZE)] = 32,
    context: Annotated[int, typer.Option(help="Tokens of each.", rich_help_panel=SIZE)] = 1024,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.", rich_help_panel=SIZE)] = 2048,
    against: Annotated[
        list[str] | None, _option(OUTPUT, 'Beside a model, or "teacher".', "--against")
    ] = None,
    waterfall: Annotated[
        bool, _option(OUTPUT, "From naive to optimised, --batch at a time.", "--waterfall")
    ] = False,
    out: Annotated[Path | None, _option(OUTPUT, "Page with a chart.", "--out", "-o")] = None,
    as_json: Annotated[bool, _option(OUTPUT, "Print JSON only.", "--json")] = False,
) -> None:
    """Explain one step: FLOPs, bytes, bounds, MFU and MBU by operator; and what memory holds."""
    from sim.cli.overrides import make_scenario
    from sim.cli.waterfall import show_beside, show_waterfall
    from sim.explain import Load
    from sim.explain import explain as explained

    names = ("accelerator", "model", "weights", "kv", "tp", "pp", "engine")
    options = {name: ctx.params[name] for name in names}
    chosen, base = make_scenario(scenario, options, settings or [])
    if against:
        show_beside(chosen, base, against, Load(batch, context, prompt), as_json)
        return
    if waterfall:
        show_waterfall(chosen, base, Load(batch, context, prompt).batch, out, as_json)
        return
    found = explained(chosen, Load(batch, context, prompt))
    if out is not None:
        _write(found, out)
    if as_json:
        _print_json(found)
    else:
        _print(found)
        if out is not None:
            typer.echo(f"Roofline in {out}")


def _write(found: "Explanation", out: Path) -> None:
    from formats import atomic_write
    from sim.explain_page import explanation_html

    with atomic_write(out) as temporary:
        temporary.write_text(explanation_html(found), encoding="utf-8")


def _print_json(found: "Explanation") -> None:
    import json

    from sim.cli.output import print_json

    tables = {"operators": found.operators, "phases": found.phases, "largest": found.largest()}
    data = {name: json.loads(t.to_json(orient="records")) for name, t in tables.items()}
    plan = found.plan
    memory = {
        "usable_bytes": plan.usable,
        "weight_bytes": plan.weights,
        "activation_bytes": plan.activations,
        "reserved_bytes": plan.reserved,
        "kv_bytes": max(plan.kv, 0.0),
        "kv_bytes_per_token": found.kv_bytes_per_token,
    }
    names = {"model": found.model.name, "accelerator": found.spec.name}
    said = {"notes": found.notes, "quality": found.quality, "launches": found.launches}
    drafts = found.speculation
    rows = [] if drafts is None else json.loads(drafts.to_json(orient="records"))
    said |= {"speculation": rows, "break_even_batch": found.break_even}
    print_json({**names, **data, "memory": memory, **said})


def _print_launches(found: "Explanation") -> None:
    eager, graph = found.launch_s
    typer.echo(
        f"Kernels of a decode step: {found.launches}; launched one by one {eager * 1e3:.2f} ms "
        f"of the host, in a graph {graph * 1e3:.2f} ms"
    )


def _print_drafts(found: "Explanation") -> None:
    from sim.cli.output import print_table

    if found.speculation is None:
        return
    rows = [
        [
            str(row["batch"]),
            str(row["drafted"]),
            f"{row['tokens']:.2f}",
            f"{row['step_s'] * 1e3:.2f}",
            f"{row['plain_s'] * 1e3:.2f}",
            f"{row['speed_up']:.2f}",
        ]
        for row in found.speculation.to_dict("records")
    ]
    name, limit = found.scenario.decoding["name"], found.break_even
    ends = "at every batch" if limit is None else f"up to {limit} sequences"
    columns = ["batch", "drafted", "tokens/step", "step [ms]", "without [ms]", "speed-up"]
    title = f"Speculation ({name}) at {found.load.context} tokens: all drafts gain {ends}"
    print_table(columns, rows, title)


COLUMNS = ("phase", "operator", "GFLOP", "GB", "ms", "FLOP/byte", "ridge", "bound", "MFU", "MBU")


def _row(row: dict[Any, Any]) -> list[str]:
    """Return one line of the table; a ridge belongs to an operator, not to a phase."""
    intensity = row["intensity"]
    return [
        str(row["phase"]),
        str(row.get("operator", "all")),
        f"{row['flops'] / 1e9:.4g}",
        f"{row['bytes'] / 1e9:.4g}",
        f"{row['seconds'] * 1e3:.4g}",
        "" if isnan(intensity) else f"{intensity:.4g}",
        f"{row['ridge']:.4g}" if "ridge" in row else "",
        str(row["bound"]),
        f"{row['mfu']:.1%}",
        f"{row['mbu']:.1%}",
    ]


def _print(found: "Explanation") -> None:
    from sim.cli.output import print_table

    load, plan = found.load, found.plan
    title = f"{found.model.name} on {found.spec.name}: decode {load.batch} x {load.context} tokens"
    records = [*found.operators.to_dict("records"), *found.phases.to_dict("records")]
    print_table(list(COLUMNS), [_row(r) for r in records], f"{title}, prompt of {load.prompt}")
    parts = {
        "weights": plan.weights,
        "activations": plan.activations,
        "workspaces": plan.reserved,
        "KV cache": max(plan.kv, 0.0),
        "usable": plan.usable,
    }
    memory = [[name, f"{size / 1e9:.2f}"] for name, size in parts.items()]
    print_table(["memory of one accelerator", "GB"], memory)
    typer.echo(f"KV cache: {found.kv_bytes_per_token / 1024:.1f} KiB per token")
    _print_launches(found)
    _print_drafts(found)
    for note in (*found.notes, *found.quality):
        typer.echo(note)
    fits = [[row["context"], row["sequences"]] for row in found.largest().to_dict("records")]
    print_table(["context [token]", "sequences that fit"], fits)
