"""Fit engine profiles to a part of NVIDIA's serving table, to be judged on the rest.

``python -m validation.fit_profiles PATH`` writes the profiles of engines that were not measured on
our own host. What a profile is fitted on stands in `PLANS` and, by group, in
`validation.silicon_e2e.FITTED`; `validation.silicon_e2e` judges every group.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from sim.engines import engines
from validation.fit_engine import Fitted, write_profile
from validation.silicon_e2e import dense_rows, each_row, predict, scenario_of

__all__ = ["PLANS", "Plan", "fit", "main"]

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What of a profile is fitted, on which rows.

    Attributes
    ----------
    profile : str
        Profile.
    system, backend : str
        Rows of the table.
    ranks : tuple of int
        Tensor ranks of the rows.
    keys : dict of str to (float, float, float)
        section.key -> first guess, least, most.
    ttft : bool
        Times to first token count beside times per token.
    only : dict of str to tuple of int
        Column -> values of the rows, where not all are taken.
    tied : dict of str to str
        section.key -> the fitted one that it equals.
    """

    profile: str
    system: str
    backend: str
    ranks: tuple[int, ...]
    keys: dict[str, tuple[float, float, float]]
    ttft: bool = False
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The rows, in words."""
        only = {"tp": self.ranks, **self.only}
        rows = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in only.items())
        return f"{self.system} {self.backend} of silicon_e2e.csv, {rows}"

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are fitted to."""
        mine = (table["system"] == self.system) & (table["backend"] == self.backend)
        for column, values in {"tp_size": self.ranks, **self.only}.items():
            mine &= table[column].isin(values)
        return table[mine]


SHARE = (0.8, 0.0, 1.0)
FACTOR = (1.0, 0.3, 3.0)
USERS = {"concurrency": (4, 16, 64)}
FUSED = {"gpu.elementwise": "gpu.elementwise_summed"}  # what one rank's fusions leave, as several
EAGER, PIECEWISE = (f"host.dispatch_per_layer.dense.{way}" for way in ("eager", "piecewise"))
FRONT = {"front.request": (3e-3, 0.1e-3, 2e-2), "front.output_token": (6e-5, 1e-5, 2e-4)}
PER_REQUEST = {"host.bookkeeping_per_request": (4e-5, 0.5e-5, 1e-4)}
PLANS = (
    Plan(
        "vllm-0.10-fused",
        "b200_sxm",
        "vllm",
        (2,),
        {
            "gpu.elementwise_summed": SHARE,
            "host.ingest": (0.01, 0.0, 0.5),
            "host.ingest_per_token": (1e-6, 0.0, 1e-4),
        },
        ttft=True,
        only=USERS,
    ),
    Plan(
        "trtllm-1.0-hopper",
        "h200_sxm",
        "trtllm",
        (2,),
        {"gpu.elementwise_summed": SHARE, "gpu.decode_attention_8bit": FACTOR},
        only=USERS,
        tied=FUSED,
    ),
    Plan(
        "trtllm-1.0-blackwell",
        "b200_sxm",
        "trtllm",
        (2,),
        {"gpu.elementwise_summed": SHARE, "gpu.decode_attention_8bit": FACTOR},
        only=USERS,
        tied=FUSED,
    ),
    Plan(
        "trtllm-1.0rc3-hopper",
        "h100_sxm",
        "trtllm",
        (1, 8),
        {
            "host.graph_dispatch": (1e-3, 1e-4, 3e-3),
            EAGER: (4e-4, 5e-5, 1e-3),
            **PER_REQUEST,
            **FRONT,
        },
        ttft=True,
        only={"isl": (1024,), "osl": (128, 512), "concurrency": (8, 32, 128)},
        tied={PIECEWISE: EAGER},
    ),
    Plan(
        "sglang-0.5",
        "h200_sxm",
        "sglang",
        (1, 8),
        {"gpu.products_8bit": (1.4, 0.3, 3.0), **PER_REQUEST, **FRONT},
        ttft=True,
        only={"isl": (1000, 2000), "osl": (100, 500, 1000)},
    ),
)


def _filled(plan: Plan, values: Vector) -> list[Fitted]:
    """Return the numbers of a profile, fitted and tied."""
    found = dict(zip(plan.keys, values, strict=True))
    found |= {place: found[other] for place, other in plan.tied.items()}
    basis = "least squares of the logarithms of predicted over measured"
    fitted = []
    for place, value in found.items():
        section, key = place.rsplit(".", 1)
        fitted.append(Fitted(section, key, float(value), basis))
    return fitted


def fit(plan: Plan, table: pd.DataFrame, pool: Executor) -> list[Fitted]:
    """Return the numbers at which predictions lie nearest to the rows of a plan."""
    rows, source = each_row(plan.rows(table)), engines.paths[plan.profile]
    low, high = (np.array([bounds[i] for bounds in plan.keys.values()]) for i in (1, 2))
    start = np.array([bounds[0] for bounds in plan.keys.values()])

    def errors(shares: Vector) -> Vector:
        with tempfile.TemporaryDirectory() as folder:
            trial = Path(folder) / "trial.toml"
            write_profile(source, trial, _filled(plan, low + shares * (high - low)), "trial")
            found = list(pool.map(_errors, repeat(plan), rows, repeat(trial)))
        return np.concatenate(found)

    best = least_squares(
        errors,
        (start - low) / (high - low),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=[0.1] * start.size,
        max_nfev=6,
    )
    return _filled(plan, low + best.x * (high - low))


def _errors(plan: Plan, row: pd.Series, trial: Path) -> Vector:
    """Return log(predicted / measured) of a row."""
    ttft, tpot = predict(row, scenario_of(row).changed({"engine.profile": str(trial)}))
    measured = [row["silicon_tpot_ms"] * 1e-3, row["silicon_ttft_ms"] * 1e-3]
    count = 2 if plan.ttft else 1
    ratio = np.array([tpot, ttft])[:count] / np.array(measured)[:count]
    return np.asarray(np.log(ratio))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the profiles, print and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="silicon_e2e.csv or .csv.gz")
    parser.add_argument("profiles", nargs="*", help="those to fit, none = all")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate")
    given = parser.parse_args(arguments)
    table = dense_rows(given.path)
    for plan in PLANS:
        if given.profiles and plan.profile not in given.profiles:
            continue
        with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
            found = fit(plan, table, pool)
        source = engines.paths[plan.profile]
        write_profile(source, source, found, plan.words, "validation.fit_profiles")
        numbers = ", ".join(f"{f.section}.{f.key} = {f.value:.4g}" for f in found)
        sys.stdout.write(f"{plan.profile}: {numbers}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
