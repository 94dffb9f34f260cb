"""How fast another machine's host is: ``python -m validation.fit_machine FOLDER``.

An engine profile holds the host times of one machine. One number, the ratio of dispatch times,
carries them over to another; it is read off the first half of every workload of a folder of
measured runs (`validation.measured`) and written into its ``runs.toml``. Latencies are not looked
at, so that the errors of the workloads stay a judgement.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from formats import InputError, atomic_write, read_text
from sim.deployment import deploy
from validation.fit_engine import GRAPH_TOKENS, first_half
from validation.host import dispatches
from validation.measured import H200_MORE, MeasuredRun, load_runs

__all__ = ["host_slowness", "main"]

FEWEST = 20
LONGEST = 1024  # any request length will do: only host times are read


def host_slowness(runs: Sequence[MeasuredRun]) -> float:
    """Return the median of measured over profile dispatch time of prompt steps [1].

    Raises
    ------
    InputError
        The logs show too few dispatches.
    """
    ratios = np.concatenate([_ratios(run) for run in runs])
    if len(ratios) < FEWEST:
        what = f"the step logs show {len(ratios)} dispatches of prompt steps"
        raise InputError(what, allowed=f"{FEWEST} or more", repair="measure longer")
    return float(np.median(ratios))


def _ratios(run: MeasuredRun) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return dispatch times over those of the profile at its mean level."""
    knobs = deploy(run.scenario.changed({"engine.host_slowness": 1.0}), LONGEST).knobs[0]
    level = 0.5 * (knobs["level_low"] + knobs["level_high"])
    parts = [dispatches(first_half(w)) for w in run.workloads.values()]
    table = pd.concat([p for p in parts if len(p)] or parts[:1])
    eager = (table["tokens"] > GRAPH_TOKENS).to_numpy()
    usual = np.where(eager, knobs["eager_dispatch_s"], knobs["piecewise_dispatch_s"]) * level
    return np.asarray(table["dispatch_s"].to_numpy() / usual, dtype=np.float64)


def main(folder: Path = H200_MORE) -> int:
    """Fit and write the number of a folder of runs."""
    found = host_slowness(list(load_runs(folder).values()))
    index = folder / "runs.toml"
    text = re.sub(r"(?m)^host_slowness = .*$", f"host_slowness = {found:.3f}", read_text(index))
    with atomic_write(index) as path:
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"host_slowness = {found:.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
