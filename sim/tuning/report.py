"""What a tuning leaves: the terminal's tables, a folder of files, a page."""

import html
import json
from pathlib import Path

from formats import atomic_write
from sim.page import Figure, Page, table_html, write_page
from sim.sweeping import report as sweeping
from sim.sweeping.charts import TRADES, trade
from sim.toml import scenario_toml
from sim.tuning import charts
from sim.tuning.finalists import percent, signed
from sim.tuning.flags import ENGINES, Flags, deployable
from sim.tuning.tuner import TuneResult, moved
from sim.tuning.verdict import changes, figure, setting_text, summary, verdict

__all__ = ["show", "tune_page", "write"]

MOST_ROWS, MOST_KNOBS = 60, 6
SIMILAR = 1e-12
FILES = {"command.sh": "Command", "values.yaml": "Kubernetes values"}


def show(result: TuneResult, engine: str, out: Path, as_json: bool) -> None:
    """Print the verdict, tables and the engine's flags; or the verdict as JSON only."""
    import typer

    from sim.cli.output import print_json, print_table

    flags = deployable(result.scenario, engine)
    if as_json:
        print_json({**summary(result), "deploy": flags.facts()})
        return
    typer.echo(verdict(result) + "\n")
    print_table(["metric", "as it is", "best", "change"], _change_rows(result))
    print_table(["finalist", "gain, seen", "gain, later", "constraints"], _finalist_rows(result))
    for name, shares in result.importance.items():
        rows = [[key, percent(share, 0)] for key, share in shares.items()]
        if rows:
            print_table([f"knob, for {name}", "importance"], rows)
    typer.echo(flags.text())
    typer.echo(f"\nResults in {out}: tune.html, tune.json, trials.csv, scenario.toml, deploy/")


def _change_rows(result: TuneResult) -> list[list[str]]:
    return [
        [
            c.metric,
            figure(c.metric, c.before),
            figure(c.metric, c.after),
            _percent(c.before, c.after),
        ]
        for c in changes(result)
    ]


def _percent(before: float, after: float) -> str:
    if abs(before) < SIMILAR:
        return ""
    return signed((after - before) / abs(before))


def _finalist_rows(result: TuneResult) -> list[list[str]]:
    rows = []
    for found in result.finalists:
        later = found.later
        parts = (found.seen, later) if later is not None else (found.seen,)
        missed = sum(part.violation for part in parts)
        gains = ["-" if p is None or p.gain is None else str(p.gain) for p in (found.seen, later)]
        held = "hold" if missed == 0 else f"missed by {percent(missed, 0)}"
        rows.append([setting_text(moved(found.setting, result.start)), *gains, held])
    return rows


def write(result: TuneResult, engine: str, out: Path) -> None:
    """Write tune.json, trials.csv, scenario.toml, tune.html and what each engine needs.

    Parameters
    ----------
    result : TuneResult
        A tuning.
    engine : str
        The engine whose flags come first.
    out : Path
        A folder.
    """
    flags = {name: deployable(result.scenario, name) for name in _first(engine)}
    content = summary(result) | {"deploy": flags[engine].facts()}
    texts = {
        "tune.json": json.dumps(content, indent=2, default=str) + "\n",
        "trials.csv": result.trials.to_csv(index=False),
        "scenario.toml": scenario_toml(result.scenario),
    }
    for name, found in flags.items():
        texts |= {f"deploy/{name}/{file}": body for file, body in found.files().items()}
    for name, body in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out / name) as path:
            path.write_text(body, encoding="utf-8")
    write_page(tune_page(result, flags), out / "tune.html")


def _first(engine: str) -> list[str]:
    return [engine, *(name for name in ENGINES if name != engine)]


def tune_page(result: TuneResult, flags: dict[str, Flags]) -> Page:
    """Return the page of a tuning.

    Parameters
    ----------
    result : TuneResult
        A tuning.
    flags : dict
        Engine -> flags, in the order of the page.
    """
    sections = {
        "Before and after": table_html(
            ["metric", "as it is", "best", "change"], _change_rows(result)
        ),
        "Finalists": _basis(result)
        + table_html(
            ["setting", "gain, seen", "gain, later", "constraints"], _finalist_rows(result)
        ),
        "Deploy": "".join(_flags(found, i == 0) for i, found in enumerate(flags.values())),
        "Settings tried": _trials(result),
    }
    title = f"Tuning of {result.scenario.name}"
    return Page(title, verdict(result), _cards(result), _figures(result), sections)


def _basis(result: TuneResult) -> str:
    kind = "new draws of the requests" if result.drawn else "consecutive windows of the trace"
    loads = ", ".join(result.workloads)
    judged = "by the worst of them" if result.worst else "by their mean"
    also = f" Workloads: {loads}; judged {judged}." if len(result.workloads) > 1 else ""
    words = (
        f"Each on {result.repeats} {kind}, the same for all; intervals are of the paired "
        f"differences, widened for the number of finalists.{also}"
    )
    return f'<p class="sub">{html.escape(words)}</p>'


def _cards(result: TuneResult) -> dict[str, str]:
    cards = {}
    for objective in result.objectives:
        name = objective.metric
        gain = result.best.seen.gains[name]
        short = charts.label(name)
        cards[short] = figure(name, result.best.seen.figures.get(name))
        cards[f"gain in {short}"] = "-" if gain is None else signed(gain.mean)
        later = result.best.later and result.best.later.gains[name]
        if later:
            cards[f"{short}, later requests"] = signed(later.mean)
    stopped = int((result.trials["state"] == "stopped early").sum())
    return cards | {
        "settings tried": str(len(result.trials)),
        "stopped after a short run": str(stopped),
    }


def _figures(result: TuneResult) -> dict[str, Figure]:
    goal = result.objectives[0].metric
    words = "The line is the best so far; settings stopped after a short run are left out."
    found = {"history": Figure("Progress", words, charts.history(result))}
    front = charts.front(result)
    if front is not None:
        found["front"] = Figure(
            "Pareto front", "No other setting beats those on the line in both.", front
        )
    gains = charts.gains(result)
    if gains is not None:
        words = "Rules are confidence intervals; one that crosses zero may be chance."
        found["gains"] = Figure("Gain of the finalists", words, gains)
    bars = charts.importance(result)
    if bars is not None:
        words = "Share of the variation of ranks that a knob alone explains."
        found["importance"] = Figure("Which knobs matter", words, bars)
    return found | _trades(result) | _responses(result, goal)


def _trades(result: TuneResult) -> dict[str, Figure]:
    good = result.trials[result.trials["state"] == "complete"]
    moved = [k for k in result.knobs if good[k].astype(str).nunique() > 1]
    found = {}
    for kind, (title, *_) in TRADES.items():
        chart = trade(good, kind, moved) if len(good) else None
        if chart is not None:
            words = "A dot is a setting; no other beats those on the dashed line in both."
            found[kind] = Figure(title, words, chart)
    return found


def _responses(result: TuneResult, goal: str) -> dict[str, Figure]:
    good = result.trials[result.trials[goal].notna() & (result.trials["state"] != "stopped early")]
    order = [*result.importance.get(goal, {}), *result.knobs]
    moved = [k for k in dict.fromkeys(order) if good[k].astype(str).nunique() > 1]
    words = "A dot is a setting; the line is the best at each value."
    return {
        f"knob{i}": Figure(f"By {key}", words, charts.by_knob(result, key))
        for i, key in enumerate(moved[:MOST_KNOBS])
    }


def _flags(found: Flags, opened: bool) -> str:
    body = "".join(_file(FILES.get(name, name), text) for name, text in found.files().items())
    state = " open" if opened else ""
    return f"<details{state}><summary>{html.escape(found.engine)}</summary>{body}</details>"


def _file(name: str, content: str) -> str:
    block = f'<div class="scroll"><pre>{html.escape(content)}</pre></div>'
    return f"<p>{html.escape(name)}</p>{block}"


def _trials(result: TuneResult) -> str:
    names = [*(o.metric for o in result.objectives), *(c.metric for c in result.constraints)]
    columns = ["trial", "state", *result.knobs, *dict.fromkeys(names)]
    table = result.trials.reindex(columns=columns)
    goal = result.objectives[0]
    up = goal.direction == "minimize"
    order = table.assign(bad=table["state"] != "complete").sort_values(
        ["bad", goal.metric], ascending=[True, up]
    )
    rows = [
        [sweeping.text(row[c]) for c in columns] for row in order.head(MOST_ROWS).to_dict("records")
    ]
    more = len(table) - MOST_ROWS
    note = f"<p>{more} more are in trials.csv.</p>" if more > 0 else ""
    return table_html(columns, rows) + note
