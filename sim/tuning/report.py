"""The verdict of a tuning: on the terminal, as files, as a page."""

from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from formats import atomic_write
from sim.sweeping.charts import response
from sim.sweeping.page import Figure, Page, write_page
from sim.toml import scenario_toml
from sim.tuning.flags import deployable
from sim.tuning.tuner import TuneResult

__all__ = ["show", "verdict", "write"]


def verdict(result: TuneResult) -> str:
    """Return the verdict in one sentence."""
    goal = result.objectives[0]
    best, default = result.best, result.default
    if best is default:
        return f"keep the default: nothing found is better in {goal.metric}"
    setting = ", ".join(f"{key} = {value}" for key, value in best.setting.items())
    sure = "" if best.low > 0 or best.high < 0 else " (not distinguishable from no gain)"
    text = (
        f"set {setting}: {goal.metric} {best.value:.4g} instead of {default.value:.4g}, "
        f"{best.gain:+.1%} (95 % interval {best.low:+.1%} .. {best.high:+.1%}){sure}"
    )
    if best.violation > 0:
        text += "; no setting meets all constraints, this one misses them least"
    return text


def summary(result: TuneResult, engine: str) -> dict[str, Any]:
    """Return everything of a verdict as plain data."""
    flags = deployable(result.scenario, engine)
    return {
        "schema_version": 1,
        "verdict": verdict(result),
        "setting": result.best.setting,
        "gain": result.best.gain,
        "gain_interval": [result.best.low, result.best.high],
        "constraints_violated": result.best.violation,
        "traded": {k: {"before": a, "after": b} for k, (a, b) in result.traded.items()},
        "importance": result.importance,
        "later_requests": result.unseen,
        "engine": flags.engine,
        "command": flags.line(),
        "no_known_option": flags.unknown,
    }


def show(result: TuneResult, engine: str, out: Path | None, as_json: bool) -> None:
    """Print the verdict."""
    import typer

    from sim.cli.output import print_json, print_table

    found = summary(result, engine)
    if as_json:
        print_json(found)
        return
    typer.echo(verdict(result) + "\n")
    rows = [[k, f"{a:.4g}", f"{b:.4g}", _change(a, b)] for k, (a, b) in result.traded.items()]
    print_table(["metric", "default", "best", "change"], rows)
    shares = [[k, f"{v:.0%}"] for k, v in result.importance.items()]
    print_table(["knob", "importance"], shares)
    seen = ", ".join(f"{k} {_number(v)}" for k, v in result.unseen.items())
    typer.echo(f"On later requests, not seen by the search: {seen}\n")
    typer.echo(f"{found['engine']}:\n  {found['command']}")
    for key in found["no_known_option"]:
        typer.echo(f"  no option known for {key}")
    if out is not None:
        names = "tune.html, tune.json, trials.csv, scenario.toml, flags.txt, values.yaml"
        typer.echo(f"\nResults in {out}: {names}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else ""


def write(result: TuneResult, engine: str, out: Path) -> None:
    """Write tune.json, trials.csv, scenario.toml, flags.txt, values.yaml and tune.html."""
    import json

    flags = deployable(result.scenario, engine)
    texts = {
        "tune.json": json.dumps(summary(result, engine), indent=2, default=str) + "\n",
        "trials.csv": result.trials.to_csv(index=False),
        "scenario.toml": scenario_toml(result.scenario),
        "flags.txt": flags.line() + "\n",
        "values.yaml": flags.values,
    }
    for name, text in texts.items():
        with atomic_write(out / name) as path:
            path.write_text(text, encoding="utf-8")
    page = Page("Tuning", verdict(result), figures=_charts(result))
    write_page(page, out / "tune.html")


def _charts(result: TuneResult) -> dict[str, Figure]:
    goal = result.objectives[0].metric
    done = result.trials[result.trials[goal].notna()]
    charts: dict[str, Figure] = {"history": Figure("By trial", goal, _history(done, goal))}
    for i, key in enumerate(result.best.setting):
        charts[f"knob{i}"] = Figure(f"By {key}", goal, response(done, key, goal, goal))
    return charts


def _history(trials: pd.DataFrame, goal: str) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(trials, title=f"{goal} by trial", width=520, height=240)
        .mark_circle(size=60, color="#0072B2")
        .encode(
            x=alt.X("trial:Q", title="trial"),
            y=alt.Y(f"{goal}:Q", title=goal, scale=alt.Scale(zero=False)),
        )
    )
    return chart
