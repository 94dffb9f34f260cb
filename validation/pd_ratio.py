"""Which split of eight GPUs into prefill and decode workers wins, simulated beside measured runs.

The table is dstack's benchmark of openai/gpt-oss-120b in SGLang on eight H200 (workers of two
tensor ranks, Apache-2.0). It is not part of this project; give its path. A load is a number of
users with prompts and outputs of some length; a split wins by tokens per second, prompts and
outputs together. ``python -m validation.pd_ratio PATH`` keeps what was found as `STORED`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import simulate
from validation.foreign import read_foreign

__all__ = [
    "LEAD",
    "LOAD",
    "RATE",
    "STORED",
    "compare",
    "compare_load",
    "main",
    "scenario_of",
    "stored",
    "winners",
]

STORED = Path(__file__).parent / "data" / "pd_ratio.csv"
LOAD = ["isl", "osl", "conc"]
NEEDED = ("prefill", "decode", *LOAD, "num_prompts", "total_output_tokens", "completed")
RATE = "total_token_throughput"
LEAD = 0.10  # of the best split over the next one, above which a load is judged
GPUS, RANKS = 8, 2


def scenario_of(prefill: int, decode: int, users: int) -> Scenario:
    """Return the scenario of a split: workers of two ranks, KV caches over each GPU's NIC."""
    hardware = {"accelerator": "h200-sxm", "tp": RANKS}
    pools = [
        {"name": "prefill", "role": "prefill", "replicas": prefill},
        {"name": "decode", "role": "decode", "replicas": decode},
    ]
    return Scenario.model_validate(
        {
            "hardware": hardware,
            "model": {"name": "gpt-oss-120b"},
            "engine": {"profile": "sglang-0.5"},
            "pools": pools,
            "workload": {
                "arrivals": {"kind": "closed-loop", "concurrency": users},
                "lengths": "azure-conv",
                "count": 1,
            },
            "policies": {"routing": {"name": "round-robin"}, "caching": {"name": "none"}},
            "run": {"step_log": False},
        }
    )


def _requests(load: pd.DataFrame) -> pd.DataFrame:
    """Return the requests of a load: outputs uniform with the mean that all its runs had."""
    mean = float(load["total_output_tokens"].sum() / load["completed"].sum())
    count, rng = int(load["num_prompts"].max()), np.random.default_rng(0)
    outputs = rng.integers(1, max(round(2 * mean), 2), count)
    prompt = int(load["isl"].iloc[0])
    return pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": prompt, "output_tokens": outputs})


def compare(path: Path) -> pd.DataFrame:
    """Return measured and predicted tokens per second of every load and split on all GPUs.

    Raises
    ------
    InputError
        The file is missing or lacks a column.
    """
    table = read_foreign(path, (*NEEDED, RATE))
    table = table[RANKS * (table["prefill"] + table["decode"]) == GPUS]
    parts = [compare_load(load) for _, load in table.groupby(LOAD)]
    return pd.concat(parts, ignore_index=True)


def compare_load(load: pd.DataFrame) -> pd.DataFrame:
    """Return the splits of one load, each simulated on the same requests."""
    requests, users = _requests(load), int(load["conc"].iloc[0])
    splits = load.groupby(["prefill", "decode"], as_index=False)[[*LOAD, RATE]].mean()
    found = [
        float(summary(simulate(scenario_of(int(p), int(d), users), requests))["total_tokens_per_s"])
        for p, d in zip(splits["prefill"], splits["decode"], strict=True)
    ]
    names = splits["prefill"].astype(str) + "p" + splits["decode"].astype(str) + "d"
    table = splits[LOAD].astype(int).assign(split=names)
    return table.assign(measured=splits[RATE], predicted=found)


def winners(compared: pd.DataFrame) -> pd.DataFrame:
    """Return of every load the best split measured and predicted, and the measured lead.

    Returns
    -------
    DataFrame
        isl, osl, conc, measured, predicted (splits), lead (of the measured one [1]), judged (the
        lead exceeds `LEAD`), right.
    """
    rows = []
    for key, load in compared.groupby(LOAD):
        order = load.sort_values("measured", ascending=False)
        first, second = order["measured"].iloc[:2]
        best = load["split"].iloc[int(load["predicted"].to_numpy().argmax())]
        rows.append((*key, order["split"].iloc[0], best, first / second - 1.0))
    out = pd.DataFrame(rows, columns=[*LOAD, "measured", "predicted", "lead"])
    return out.assign(judged=out["lead"] > LEAD, right=out["measured"] == out["predicted"])


def stored() -> pd.DataFrame:
    """Return what was found when the table was last compared, as `compare` returns it."""
    return pd.read_csv(STORED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all loads, print winners, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="dstack_pd_ratio_h200_gptoss120b.csv")
    try:
        compared = compare(parser.parse_args(arguments).path)
    except InputError as e:
        parser.error(str(e))
    found = winners(compared)
    judged = found[found["judged"]]
    sys.stdout.write(found.round(3).to_string(index=False) + "\n")
    sys.stdout.write(f"right in {int(judged['right'].sum())} of {len(judged)} judged loads\n")
    with atomic_write(STORED) as path:
        compared.to_csv(path, index=False, float_format="%.6g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
