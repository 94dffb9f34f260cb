"""DeepSeek with prefill and decode apart, simulated beside measured configurations.

Rows of NVIDIA's ``silicon_e2e.csv`` (aiconfigurator, Apache-2.0; InferenceX) with mode ``disagg``
that say how many workers there were. The table is not part of this project; give its path. The
errors are reported without a limit: what the rows leave open (batching waits, speculation, hosts)
is not known. ``python -m validation.silicon_apart PATH`` keeps them as `STORED`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from sim.scenario import Scenario
from sim.simulation import simulate
from validation.foreign import read_foreign

__all__ = ["STORED", "compare", "judge", "main", "rows_of", "scenario_of", "stored"]

STORED = Path(__file__).parent / "data" / "silicon_apart.csv"
SYSTEMS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
FORMATS = {"nvfp4": "nvfp4", "fp8": "fp8_block", "fp8_block": "fp8_block"}
HOPPER = ("h100_sxm", "h200_sxm")
NEEDED = ("prefill_num_workers", "decode_num_workers", "mode", "concurrency", "system")
MOST_USERS = 128  # rows with more are left out: their runs are long
UTILISATION = 0.96  # of memory: less does not hold the 8-bit weights that ran on four GB200
WAVES = 4  # requests of a user
SEED = 0


def rows_of(path: Path) -> pd.DataFrame:
    """Return the rows that name their workers, with at most `MOST_USERS` users.

    Raises
    ------
    InputError
        The file is missing or lacks a column.
    """
    table = read_foreign(path, NEEDED)
    known = table["prefill_num_workers"].notna() & table["decode_num_workers"].notna()
    known &= (table["mode"] == "disagg") & (table["concurrency"] <= MOST_USERS)
    return table[known & table["system"].isin(SYSTEMS)].reset_index(drop=True)


def _pool(row: pd.Series, role: str) -> dict[str, object]:
    """Return a pool of workers: attention over tp x dp ranks, experts over the same."""
    return {
        "name": role,
        "role": role,
        "replicas": int(row[f"{role}_num_workers"]),
        "tp": int(row[f"{role}_tp_size"]),
        "pp": int(row[f"{role}_pp_size"]),
        "dp": int(row[f"{role}_attention_dp_size"]),
        "ep": int(row[f"{role}_moe_ep_size"]),
    }


def scenario_of(row: pd.Series) -> Scenario:
    """Return the scenario of one row."""
    users, chip = int(row["concurrency"]), "hopper" if row["system"] in HOPPER else "blackwell"
    profile = "sglang-0.5" if row["backend"] == "sglang" else f"trtllm-1.0-{chip}"
    return Scenario.model_validate(
        {
            "hardware": {"accelerator": SYSTEMS[row["system"]]},
            "model": {
                "name": "deepseek-r1",
                "weights": FORMATS[str(row["gemm_quant_mode"])],
                "kv": "fp8",
            },
            "engine": {"profile": profile, "memory_utilisation": UTILISATION},
            "pools": [_pool(row, "prefill"), _pool(row, "decode")],
            "workload": {
                "arrivals": {"kind": "closed-loop", "concurrency": users},
                "lengths": "azure-conv",
                "count": 1,
            },
            "policies": {"caching": {"name": "none"}},
            "run": {"step_log": False},
        }
    )


def _predict(row: pd.Series) -> tuple[float, float]:
    """Return (mean TTFT, mean TPOT) of a row [s], lengths uniform from 80 % of the nominal."""
    rng, count = np.random.default_rng(SEED), int(row["concurrency"]) * WAVES
    lengths = {
        name: rng.integers(int(row[key] * 0.8), int(row[key]) + 1, count)
        for name, key in (("prompt_tokens", "isl"), ("output_tokens", "osl"))
    }
    table = simulate(scenario_of(row), pd.DataFrame({"arrival_s": 0.0, **lengths})).requests
    ttft = table["first_token_s"] - table["arrival_s"]
    tpot = (table["finish_s"] - table["first_token_s"]) / (table["output_tokens"] - 1)
    return float(ttft.mean()), float(tpot.mean())


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with relative errors of TTFT and TPOT; `absent` says why one has none."""
    found = []
    for _, row in rows.iterrows():
        try:
            ttft, tpot = _predict(row)
        except InputError as e:
            found.append((np.nan, np.nan, str(e).split(";")[0]))
            continue
        measured = row["silicon_ttft_ms"] * 1e-3, row["silicon_tpot_ms"] * 1e-3
        found.append((ttft / measured[0] - 1.0, tpot / measured[1] - 1.0, ""))
    errors = pd.DataFrame(found, columns=["ttft", "tpot", "absent"], index=rows.index)
    return rows.join(errors)


def judge(compared: pd.DataFrame) -> pd.DataFrame:
    """Return rows, those without a prediction, and median errors by system and engine."""
    groups = compared.groupby(["system", "backend"])
    out = pd.DataFrame(
        {"rows": groups.size(), "absent": groups["tpot"].agg(lambda e: e.isna().sum())}
    )
    for name in ("tpot", "ttft"):
        out[f"{name}_bias"] = groups[name].median()
        out[f"{name}_median"] = groups[name].agg(lambda e: e.abs().median())
    return out.reset_index()


def stored() -> pd.DataFrame:
    """Return what was found when the table was last compared, as `judge` returns it."""
    return pd.read_csv(STORED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the rows, print and keep the errors by group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="silicon_e2e.csv or .csv.gz")
    given = parser.parse_args(arguments)
    try:
        rows = rows_of(given.path)
    except InputError as e:
        parser.error(str(e))
    compared = compare(rows)
    found = judge(compared)
    sys.stdout.write(found.round(3).to_string(index=False) + "\n")
    for reason in sorted(set(compared["absent"]) - {""}):
        sys.stdout.write(f"absent: {reason}\n")
    with atomic_write(STORED) as path:
        found.to_csv(path, index=False, float_format="%.4f")
    return 0


if __name__ == "__main__":
    sys.exit(main())
