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
        One row per limit, from the highest: `share` of the TDP and `cap_w` per accelerator (of the
        first pool) [W],
        `watts` of a replica at the peak [W], `saturation_per_s` of a replica [request/s], energy
        per request at the peak [J], `spare` of the tightest objective and whether all are met.
    """
    made = bench.deployments.values()
    full = min((bench.candidate.power_cap_w or d.spec.tdp_w) / d.spec.tdp_w for d in made)
    least = max(float(d.knobs["idle_w"][0]) / d.spec.tdp_w for d in made)
    shares = [s for s in sorted(set(bench.search.caps), reverse=True) if least < s < full]
    rows = [
        _row(bench, rate, replicas, full, None),
        *(_row(bench, rate, replicas, s, s) for s in shares),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    bench: Bench, rate: float, replicas: int, share: float, limit: float | None
) -> list[float | bool]:
    trial = bench.trial(rate, replicas, limit)
    most = bench.saturation if limit is None else bench.saturation_at(limit)
    cap = share * bench.deployment.spec.tdp_w
    return [share, cap, trial.watts, most, trial.watts / rate, _spare(trial), trial.met]


def _spare(trial: Trial) -> float:
    return float("nan") if trial.tightest is None else trial.tightest.spare
