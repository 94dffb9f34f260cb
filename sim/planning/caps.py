"""What a power limit costs: watts, throughput and objectives of a replica at each limit."""

import pandas as pd

from sim.planning.rating import Bench
from sim.planning.trial import Trial

__all__ = ["COLUMNS", "cap_curve"]

COLUMNS = ["share", "cap_w", "watts", "saturation_per_s", "joules_per_request", "spare", "met"]


def cap_curve(bench: Bench, rate: float, replicas: int) -> pd.DataFrame:
    """Return what power limits do to a replica at the plan's peak.

    Parameters
    ----------
    bench : Bench
        Candidate under test.
    rate : float
        Requests offered to each replica [request/s].
    replicas : int
        Simulated together.

    Returns
    -------
    DataFrame
        One row per limit, from the highest: `share` of the TDP and `cap_w` per accelerator [W],
        `watts` of a replica at the peak [W], `saturation_per_s` of a replica [request/s], energy
        per request at the peak [J], `spare` of the tightest objective and whether all are met.
    """
    spec = bench.deployment.spec
    own = bench.candidate.power_cap_w or spec.tdp_w
    least = float(bench.deployment.knobs["idle_w"][0])
    shares = [1.0, *(s for s in bench.search.caps if least < s * spec.tdp_w < own)]
    rows = [_row(bench, rate, replicas, share) for share in sorted(set(shares), reverse=True)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(bench: Bench, rate: float, replicas: int, share: float) -> list[float | bool]:
    tdp = bench.deployment.spec.tdp_w
    if share == 1.0:
        cap = bench.candidate.power_cap_w or tdp
        trial, most = bench.trial(rate, replicas), bench.saturation
    else:
        cap = share * tdp
        trial, most = bench.trial(rate, replicas, cap), _saturation(bench, cap)
    return [cap / tdp, cap, trial.watts, most, trial.watts / rate, _spare(trial), trial.met]


def _saturation(bench: Bench, cap_w: float) -> float:
    return bench.saturation_of(bench.scenario.changed({"hardware.power_cap_w": cap_w}))


def _spare(trial: Trial) -> float:
    return float("nan") if trial.tightest is None else trial.tightest.spare
