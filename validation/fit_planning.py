"""How far the capacity in a plan may lie from the truth: measured over simulated speed.

``python -m validation.fit_planning --published silicon_e2e.csv.gz`` writes
``sim/planning/data/model_error.toml``: P10 and P90 of the factor on a replica's capacity.

- measured: runs on accelerators with kernel traces of their own, those workloads that nothing was
  fitted on; factor = simulated over measured mean time per output token.
- datasheet: Llama-3.1-70B at a fixed concurrency as others measured it, on accelerators without
  traces here (NVIDIA's `silicon_sample.csv` of aiconfigurator, Apache-2.0); factor = measured
  over simulated output tokens/s. Engines of other makers are in it, so it holds their difference
  to the default engine too.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write
from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from sim.planning.model_error import BANDS
from sim.scenario import Scenario
from sim.simulation import simulate
from validation.fit_engine import training
from validation.measured import earlier_runs, load_runs

__all__ = ["PublishedLoad", "band", "measured_factors", "published_loads"]

COLUMNS = (
    "id",
    "model_path",
    "mode",
    "system",
    "backend",
    "precision",
    "tp_size",
    "isl",
    "osl",
    "concurrency",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
MODEL = "meta-llama/Llama-3.1-70B"
WEIGHTS = {"fp4": "nvfp4", "fp8": "fp8"}
ROUNDS = 3  # requests per user; those of the middle round count


@dataclass(frozen=True)
class PublishedLoad:
    """Equal requests at a fixed concurrency on one tensor-parallel replica.

    Attributes
    ----------
    name, backend : str
        Row of the table and serving engine.
    accelerator, weights : str
        Accelerator id and format of the weights.
    tp, prompt, output, concurrency : int
        Ranks, tokens of a request, requests in flight.
    ttft_s, tpot_s : float
        Measured means [s].
    """

    name: str
    backend: str
    accelerator: str
    weights: str
    tp: int
    prompt: int
    output: int
    concurrency: int
    ttft_s: float
    tpot_s: float

    @property
    def output_rate(self) -> float:
        """Measured output tokens/s of the replica: by Little's law from the means."""
        stay = self.ttft_s + (self.output - 1) * self.tpot_s
        return self.concurrency * self.output / stay

    def scenario(self) -> Scenario:
        """Return the same load on the default engine."""
        lengths = {
            "prompt": {"kind": "constant", "tokens": self.prompt},
            "output": {"kind": "constant", "tokens": self.output},
        }
        loop = {"kind": "closed-loop", "concurrency": self.concurrency}
        count = max(ROUNDS * self.concurrency, 12)
        return Scenario(
            hardware={"accelerator": self.accelerator, "tp": self.tp},
            model={"name": "llama-3.1-70b", "weights": self.weights, "kv": "fp8"},
            workload={"arrivals": loop, "lengths": lengths, "count": count},
            policies={"caching": {"name": "none"}},
        )

    def simulated_output_rate(self) -> float:
        """Return output tokens/s of the replica as simulated, from its middle requests.

        Raises
        ------
        InputError
            The model does not fit.
        """
        requests = simulate(self.scenario()).requests
        stay = (requests["finish_s"] - requests["arrival_s"]).to_numpy(np.float64)
        first = min(self.concurrency, len(stay) // 3)
        middle = stay[first : max(2 * self.concurrency, first + 4)]
        return self.concurrency * self.output / float(middle.mean())


def published_loads(path: Path) -> list[PublishedLoad]:
    """Return the rows of Llama-3.1-70B with prompts and outputs on the same replica.

    Raises
    ------
    InputError
        The table has no such rows.
    """
    table = pd.read_csv(path, usecols=list(COLUMNS))
    rows = table[(table["model_path"] == MODEL) & (table["mode"] == "agg")].sort_values("id")
    if rows.empty:
        raise InputError(f"no rows of {MODEL}", str(path), repair="name silicon_e2e.csv.gz")
    return [_load({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")]


def _load(row: dict[str, object]) -> PublishedLoad:
    whole = [int(float(str(row[k]))) for k in ("tp_size", "isl", "osl", "concurrency")]
    times = [float(str(row[k])) / 1e3 for k in ("silicon_ttft_ms", "silicon_tpot_ms")]
    accelerator = str(row["system"]).replace("_", "-")
    words = str(row["id"]), str(row["backend"]), accelerator, WEIGHTS[str(row["precision"])]
    return PublishedLoad(*words, *whole, *times)


def measured_factors() -> list[float]:
    """Return simulated over measured mean TPOT of our own workloads that nothing was fitted on.

    Loads count, open or closed, without stretches that no judgement may use.
    """
    used = {(w.run, w.name) for w in training(load_runs())}
    factors = []
    for run in earlier_runs().values():
        for workload in run.workloads.values():
            unseen = (run.name, workload.name) not in used and not workload.exclusions
            if unseen and workload.kind != "static":
                found = simulate(run.scenario, workload.table()).requests
                factors.append(_tpot(found) / _tpot(workload.requests))
    return factors


def _tpot(requests: pd.DataFrame) -> float:
    several = requests[requests["output_tokens"] > 1]
    spans = several["finish_s"] - several["first_token_s"]
    return float((spans / (several["output_tokens"] - 1)).mean())


def datasheet_factors(loads: Iterable[PublishedLoad]) -> list[float]:
    """Return measured over simulated output rates on accelerators without traces of their own."""
    factors = []
    for load in loads:
        if load_kernels(load_accelerator(load.accelerator)).fidelity == "measured":
            continue
        try:
            factors.append(load.output_rate / load.simulated_output_rate())
        except InputError:
            continue  # published with more memory than ours has beside the activations
    return factors


def band(factors: list[float]) -> tuple[float, float]:
    """Return P10 and P90 of factors, at most and at least 1.

    Examples
    --------
    >>> band([0.9, 1.0, 1.0, 1.1, 1.2])
    (0.94, 1.16)
    """
    low, high = np.percentile(factors, [10, 90])
    return round(min(float(low), 1.0), 4), round(max(float(high), 1.0), 4)


def _section(name: str, limits: tuple[float, float], source: str) -> str:
    lines = [f"[{name}]"]
    for key, value in zip(("p10", "p90"), limits, strict=True):
        lines.append(
            f'{key} = {{ value = {value}, unit = "1", kind = "fitted", source = "{source}" }}'
        )
    return "\n".join(lines)


def main() -> int:
    """Fit both bands and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--published", type=Path, required=True, help="silicon_e2e.csv.gz")
    path = parser.parse_args().published
    own, others = measured_factors(), datasheet_factors(published_loads(path))
    date = datetime.now(UTC).date()
    text = "\n\n".join(
        [
            f"# Made by `python -m validation.fit_planning` on {date}.\nschema_version = 1",
            _section(
                "measured", band(own), f"{len(own)} H200 workloads that nothing was fitted on"
            ),
            _section(
                "datasheet",
                band(others),
                f"{len(others)} published runs of Llama-3.1-70B (aiconfigurator, Apache-2.0)",
            ),
        ]
    )
    with atomic_write(BANDS) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
