"""Fit the clock under the power cap on GPU times of prompts: ``python -m validation.fit_clock``.

Prompts want more watts than the cap allows: for the first tens of milliseconds they run at the
full clock, then at one that meets the cap. Kernel tables were taken in between. Logged steps go
through the step model (`validation.clocked`), and four numbers are fitted so that prompt steps, and
half seconds with prompts, take as long as they did on the machine that the kernel tables come from.
Of that machine the fit sees the workloads that `validation.fit_engine` trains on; prints the errors
of the others and of two other machines, then writes power model and profile.
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
from validation.fit_engine import PROFILE, Fitted, training, write_profile
from validation.host import prompt_gpu_times
from validation.measured import MeasuredWorkload, earlier_runs, load_runs
from validation.steps import window_bounds

__all__ = ["Clock", "fit_clock", "main"]

BASE, UNSEEN = "base", "base, unseen"
MACHINES = {
    BASE: ("llama8b_bf16", "llama8b_small"),
    "second": ("llama8b_3000_more", "qwen32b_more"),
    "third": ("llama8b_bf16_more", "qwen14b_more"),
}
BINS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
FEWEST = 4  # steps of a bin that counts
WINDOWS = ("window", "hot window")
HOT = 400e12  # prompt FLOP/s of a hot half second
START = (0.08, 0.15, 0.04, 1.0)  # window [s], gains at full clock and at the cap, gap [10 us]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    """Prompt steps with known GPU times, and half seconds, of one workload."""

    machine: str
    run: str
    deployment: Deployment
    workload: MeasuredWorkload
    logged: LoggedSteps
    times: pd.DataFrame
    windows: tuple[Ints, Ints]

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
        )["seconds"].to_numpy()
        output, total = self.workload.steps["t_output"].to_numpy(), np.cumsum(found)
        first, last = self.windows
        spans = (total[last] - total[first]) / (output[last] - output[first])
        steps = found[self.times["step"]] / self.times["seconds"].to_numpy()
        what = [*pd.cut(self.times["tokens"], BINS).astype(str), *self._window_kinds()]
        error = np.concatenate([steps, spans]) - 1.0
        return pd.DataFrame(
            {"machine": self.machine, "run": self.run, "what": what, "error": error}
        )

    def _window_kinds(self) -> list[str]:
        first, last = self.windows
        output = self.workload.steps["t_output"].to_numpy()
        tokens = np.cumsum(self.logged.prefill_tokens)
        rate = (tokens[last] - tokens[first]) / (output[last] - output[first])
        return [WINDOWS[int(r * self.deployment.tables.counts[0] > HOT)] for r in rate]


def samples() -> list[_Sample]:
    """Return every workload of the machines' bf16 runs that shows GPU times of prompts."""
    runs, out = earlier_runs(), []
    seen = {(w.run, w.name) for w in training(load_runs())}
    for machine, names in MACHINES.items():
        for run in (runs[name] for name in names):
            deployment = deploy(run.scenario, 1 << 15)
            for w in run.workloads.values():
                times = prompt_gpu_times(w)
                times = times[times["tokens"] > BINS[0]]
                if len(times) and is_whole(w):
                    logged = logged_steps(deployment.tables, w)
                    bounds = window_bounds(w)
                    known = machine != BASE or (run.name, w.name) in seen
                    place = machine if known else UNSEEN
                    out.append(_Sample(place, run.name, deployment, w, logged, times, bounds))
    return out


def judge(chosen: list[_Sample], clock: Clock) -> pd.Series:
    """Return the error of every machine: half that of steps, plus the bias of half seconds.

    Of steps the mean over runs and bins of tokens of mean |error|. Of half seconds, hot ones
    (mostly prompts) and others apart, the mean over runs of the size of the median error: near
    saturation queues multiply a bias, while scatter evens out.
    """
    rows = pd.concat([sample.errors(clock) for sample in chosen], ignore_index=True)
    rows["size"] = rows["error"].abs()
    groups = rows.groupby(["machine", "run", "what"])
    kept = groups.size() >= FEWEST
    windows = kept.index.get_level_values("what").isin(WINDOWS)
    bias = groups["error"].median().abs()[kept & windows].groupby("machine").mean()
    steps = groups["size"].mean()[kept & ~windows].groupby("machine").mean()
    return 0.5 * steps + bias


def fit_clock(chosen: list[_Sample]) -> Clock:
    """Return the clock with the least mean error over the machines of the samples."""

    def misfit(values: Floats) -> float:
        return float(judge(chosen, Clock.of(values)).mean())

    found = minimize(misfit, START, method="Nelder-Mead", options={"maxiter": 400, "xatol": 1e-3})
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
    """Fit on the machine of the kernel tables, print the errors of all, and write."""
    chosen = samples()
    clock = fit_clock([s for s in chosen if s.machine == BASE])
    sys.stdout.write(f"{clock}\n{judge(chosen, clock).round(4).to_string()}\n")
    write(clock, "training workloads of the H200 that the kernel tables come from")
    return 0


if __name__ == "__main__":
    sys.exit(main())
