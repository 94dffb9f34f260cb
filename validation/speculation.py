"""Speculation: runs of a real engine with prompt lookup, and the same requests simulated.

How often drafts were found and accepted is read from the run and stated in the scenario
(`by_position`); what is judged is the time of steps that verify them at the real batch, and what
comes of it for a client.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from sim.scenario import Scenario, load_scenario
from sim.simulation import simulate

__all__ = ["COLUMNS", "measured_chances", "speculation_errors", "speculation_rows"]

DATA = Path(__file__).parent / "data" / "h200-speculation"
SCENARIO = Path(__file__).parent / "data" / "h200-fresh" / "scenarios" / "llama8b_bf16.toml"
COLUMNS = ("run", "workload", "figure", "measured", "predicted", "error")
ASKED = ["arrival_s", "prompt_tokens", "output_tokens"]
TOKENS = 4  # drafted at most in these runs


def measured_chances(accepted: "pd.Series[int]", decodes: float) -> list[float]:
    """Return the chance of each position, given those before, over all decodes of a run.

    Parameters
    ----------
    accepted : Series
        Accepted tokens of every decode that had drafts.
    decodes : float
        Decodes, those for which lookup found nothing included.

    Examples
    --------
    >>> measured_chances(pd.Series([0, 1, 4, 4]), decodes=5.0)[:2]
    [0.6, 0.6666666666666666]
    """
    reached = [decodes, *(float((accepted >= k).sum()) for k in range(1, TOKENS + 1))]
    pairs = zip(reached[1:], reached[:-1], strict=True)
    return [now / before if before else 0.0 for now, before in pairs]


def speculation_errors(seeds: int = 5) -> pd.DataFrame:
    """Return predicted beside measured figures of every workload.

    Parameters
    ----------
    seeds : int
        Simulations per workload; figures are means over them.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`: tpot_mean_s, e2e_mean_s, and step_s, the median time from one decode
        step to the next [s].
    """
    tables = [pd.read_csv(DATA / f"{name}.csv.gz") for name in ("requests", "drafts", "steps")]
    requests, drafts, steps = tables
    base = load_scenario(SCENARIO)
    rows = []
    for key, table in requests.groupby(["run", "workload"], sort=False):
        own, log = (t[(t["run"] == key[0]) & (t["workload"] == key[1])] for t in (drafts, steps))
        decodes = float(log.loc[log["n_prefill"] == 0, "n_decode"].sum())
        chances = measured_chances(own["accepted"], max(decodes, float(len(own))))
        scenario = base.changed(
            {"decoding": {"name": "prompt-lookup", "tokens": TOKENS, "by_position": chances}}
        )
        found = {**_clients(table), "step_s": _step_s(log["t_schedule"], log["n_prefill"])}
        predicted = _predicted(scenario, table, seeds)
        rows += [
            (*key, name, value, predicted[name], predicted[name] / value - 1)
            for name, value in found.items()
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _clients(table: pd.DataFrame) -> dict[str, float]:
    """Return mean seconds per output token and end to end."""
    more = table[table["output_tokens"] > 1]
    each = (more["finish_s"] - more["first_token_s"]) / (more["output_tokens"] - 1)
    e2e = (table["finish_s"] - table["arrival_s"]).mean()
    return {"tpot_mean_s": float(each.mean()), "e2e_mean_s": float(e2e)}


def _step_s(start: "pd.Series[float]", prompts: "pd.Series[int]") -> float:
    """Return the median time from a step that only decodes to the next step [s]."""
    gaps = start.diff().shift(-1)
    return float(gaps[prompts == 0].median())


def _predicted(scenario: Scenario, table: pd.DataFrame, seeds: int) -> dict[str, float]:
    asked = table[ASKED].sort_values("arrival_s").reset_index(drop=True)
    runs = []
    for seed in range(seeds):
        result = simulate(scenario.changed({"run.seed": seed, "run.every_step": True}), asked)
        log = result.steps
        step = _step_s(log["schedule_s"], log["prefill_requests"])
        runs.append({**_clients(result.requests), "step_s": step})
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def speculation_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in the form of all validation cases."""
    if table.empty:
        return table
    rows = table.assign(
        family="speculation",
        case=table["run"] + "/" + table["workload"],
        unit="s",
        low=np.nan,
        high=np.nan,
        limit=np.nan,
        fitted="no",
        source="validation/data/h200-speculation: own measurements",
        licence="Apache-2.0",
    )
    return rows.drop(columns=["run", "workload"])
