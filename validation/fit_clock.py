"""Fit the clock under the power cap on GPU times of prompts: ``python -m validation.fit_clock``.

Prompts want more watts than the cap allows: for the first tens of milliseconds they run at the
full clock, then at one that meets the cap. Kernel tables were taken in between. The logged steps of
three machines go through the step model (`validation.clocked`), and four numbers are fitted so that
prompt steps take as long as they did, every machine counting the same. Prints the error of each
machine with numbers fitted on the other two, then writes power model and engine profile.
"""

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize

import hardware.power
from sim.deployment import Deployment, deploy
from sim.engines import engines
from validation.batches import is_whole
from validation.clocked import LoggedSteps, logged_steps, replay_clock
from validation.fit_engine import PROFILE, Fitted, write_profile
from validation.host import prompt_gpu_times
from validation.measured import MeasuredWorkload, all_runs
from validation.steps import window_rows

__all__ = ["Clock", "fit_clock", "main"]

MACHINES = {
    "base": ("llama8b_bf16", "llama8b_small"),
    "second": ("llama8b_3000_more", "qwen32b_more"),
    "third": ("llama8b_bf16_more", "qwen14b_more"),
}
BINS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
FEWEST = 4  # steps of a bin that counts
WINDOW = "window"
START = (0.08, 0.15, 0.04, 1.0)  # window [s], gains at full clock and at the cap, gap [10 us]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """The fitted numbers.

    Attributes
    ----------
    window_s : float
        Time constant of the power average that is held under the cap [s].
    full_clock_gain, capped_gain : float
        Time saved against the kernel tables at the full clock, and at the cap [1].
    gap_s : float
        GPU time lost between the graph pieces of a step, per layer [s].
    """

    window_s: float
    full_clock_gain: float
    capped_gain: float
    gap_s: float

    @classmethod
    def of(cls, values: Floats) -> "Clock":
        """Return the clock of a vector scaled as `START`."""
        window, full, capped, gap = (float(v) for v in np.abs(values))
        return cls(window, full, capped, gap * 1e-5)


@dataclass(frozen=True)
class _Sample:
    """Prompt steps of one workload with known GPU times."""

    machine: str
    run: str
    deployment: Deployment
    workload: MeasuredWorkload
    logged: LoggedSteps
    times: pd.DataFrame

    def errors(self, clock: Clock) -> pd.DataFrame:
        """Return machine, run, what (tokens of a step, or window) and error of each."""
        found = replay_clock(
            self.deployment,
            self.workload,
            self.logged,
            window_s=clock.window_s,
            full_clock_gain=clock.full_clock_gain,
            capped_gain=clock.capped_gain,
            piecewise_gap_s=clock.gap_s * self.deployment.model.layers,
        )["seconds"]
        predicted = found.to_numpy()[self.times["step"]]
        place = pd.cut(self.times["tokens"], BINS).astype(str)
        steps = pd.DataFrame({"what": place, "error": predicted / self.times["seconds"] - 1.0})
        rows = window_rows(self.workload, pd.DataFrame({"gpu_s": found, "step_s": found}))
        error = rows["gpu_s"] / rows["measured_s"] - 1.0
        windows = pd.DataFrame({"what": WINDOW, "error": error})
        both = pd.concat([steps, windows], ignore_index=True)
        return both.assign(machine=self.machine, run=self.run)


def samples() -> list[_Sample]:
    """Return every workload of the machines' bf16 runs that shows GPU times of prompts."""
    runs, out = all_runs(), []
    for machine, names in MACHINES.items():
        for run in (runs[name] for name in names):
            deployment = deploy(run.scenario, 1 << 15)
            for w in run.workloads.values():
                times = prompt_gpu_times(w)
                times = times[times["tokens"] > BINS[0]]
                if len(times) and is_whole(w):
                    logged = logged_steps(deployment.tables, w)
                    out.append(_Sample(machine, run.name, deployment, w, logged, times))
    return out


def judge(chosen: list[_Sample], clock: Clock) -> pd.Series:
    """Return the error of every machine: half that of steps, half that of windows.

    Of steps the mean over runs and bins of tokens of mean |error|; of windows the mean over runs
    of the median |error| (a few wait for the host).
    """
    rows = pd.concat([sample.errors(clock) for sample in chosen], ignore_index=True)
    rows["size"] = rows["error"].abs()
    groups = rows.groupby(["machine", "run", "what"])["size"]
    kept = groups.size() >= FEWEST
    middle = groups.median()[kept].xs(WINDOW, level="what").groupby("machine").mean()
    steps = groups.mean()[kept].drop(WINDOW, level="what").groupby("machine").mean()
    return 0.5 * (steps + middle)


def fit_clock(chosen: list[_Sample]) -> Clock:
    """Return the clock with the least error, every machine counting the same."""

    def misfit(values: Floats) -> float:
        return float(judge(chosen, Clock.of(values)).mean())

    found = minimize(misfit, START, method="Nelder-Mead", options={"maxiter": 120, "xatol": 1e-3})
    return Clock.of(found.x)


def write(clock: Clock, words: str) -> None:
    """Write the clock into the power model and the engine profile."""
    power = [
        Fitted("", "window", clock.window_s, "prompt steps"),
        Fitted("", "full_clock_gain", clock.full_clock_gain, "prompt steps at the full clock"),
        Fitted("", "capped_gain", clock.capped_gain, "prompt steps at the cap"),
    ]
    gap = [Fitted("gpu", "piecewise_gap_per_layer", clock.gap_s, "prompt steps up to a graph")]
    for path, fitted in ((hardware.power.SHARES, power), (engines.paths[PROFILE], gap)):
        write_profile(path, path, fitted, words, "validation.fit_clock")


def main() -> int:
    """Fit, print the error of every machine when left out, and write."""
    chosen = samples()
    for left in MACHINES:
        others = fit_clock([s for s in chosen if s.machine != left])
        error = judge([s for s in chosen if s.machine == left], others).iloc[0]
        sys.stdout.write(f"{left} left out: mean |error| {error:.1%} with {others}\n")
    clock = fit_clock(chosen)
    sys.stdout.write(f"all: {clock}\n{judge(chosen, clock).round(4).to_string()}\n")
    write(clock, "prompt steps of three H200 machines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
