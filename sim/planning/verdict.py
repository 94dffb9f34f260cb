"""What limits a fleet, how far it is from that, and when a load can never be met."""

from dataclasses import dataclass

from sim.planning.demand import quarter_names
from sim.planning.fleets import Fleet
from sim.planning.planfile import PlanFile
from sim.planning.racks import rack_fault
from sim.planning.rated import Fault, Rating
from sim.planning.trial import Trial

__all__ = ["Verdict", "site_fault", "verdict"]

MEMORY_WAIT = 0.1  # share of time with the queue waiting for KV blocks that counts as memory-bound
LIMITS = {
    "memory": "KV memory is full",
    "sequences": "the engine's limit of sequences is reached",
    "time": "the accelerators are busy all the time",
    "prefill": "the prefill replicas are busy all the time",
    "link": "the link from prefill to decode replicas is busy all the time",
}

ONE, SEVERAL = ("serves", "it serves", "saturates"), ("serve", "they serve", "saturate")


@dataclass(frozen=True)
class Verdict:
    """Where a fleet stands at the peak of its plan.

    Attributes
    ----------
    limit : str
        What gives way first: ttft, tpot, e2e, memory or saturation.
    spare : float
        Part of the tightest objective that is left at the peak; NaN without objectives.
    rate_spare : float
        Growth of the peak that the fleet still serves within its objectives [1].
    saturation_per_s : float
        Rate at which the fleet without its spares has no time left [request/s].
    sentence : str
        All of this in words.
    """

    limit: str
    spare: float
    rate_spare: float
    saturation_per_s: float
    sentence: str


def verdict(rating: Rating, fleet: Fleet, file: PlanFile) -> Verdict:
    """Return what limits a fleet at the peak of the central world, in figures and words."""
    quarter = quarter_names(file.horizon)[rating.peak_quarter]
    count = int(fleet.replicas[0, rating.peak_quarter])
    trial, bench = rating.trial, rating.bench
    if trial is None or bench is None:
        keep = "keeps" if count == 1 else "keep"
        words = f"{units(rating, count)} {keep} every batch deadline in {quarter}"
        return Verdict("saturation", float("nan"), 0.0, 0.0, words)
    peak = float(rating.peak_rates.sum())
    most = rating.serves(count)
    saturation = bench.saturation * count
    limit, why = _limit(rating)
    tightest = trial.tightest
    stands = tightest.says() if tightest else "no objective is set"
    serve, they, saturate = ONE if count == 1 else SEVERAL
    words = (
        f"{units(rating, count)} {serve} the peak of {peak:.3g} requests/s in {quarter}: {stands}; "
        f"{they} up to {most:.3g} requests/s, where {why}, and {saturate} at "
        f"{saturation:.3g} requests/s"
    )
    spare = float("nan") if tightest is None else tightest.spare
    return Verdict(limit, spare, most / peak - 1.0, saturation, words)


def units(rating: Rating, count: int) -> str:
    """Return how many of what a plan counts: replicas, or units of several pools."""
    plural = "" if count == 1 else "s"
    made_of = rating.candidate.made_of
    if rating.candidate.parts:
        return f"{count} unit{plural} of {made_of}"
    return f"{count} replica{plural}"


def _limit(rating: Rating) -> tuple[str, str]:
    """Return what gives way beyond the capacity, as a word and in words."""
    above = rating.capacity.above if rating.capacity else None
    if above is None or above.met or above.tightest is None:
        kind = rating.bench.bound.limit if rating.bench else "time"
        return ("memory" if kind == "memory" else "saturation"), LIMITS[kind]
    if _waits_for_memory(above):
        return "memory", f"requests wait for KV memory and {above.tightest.says()}"
    return above.tightest.objective.removesuffix("_s"), above.tightest.says()


def _waits_for_memory(trial: Trial) -> bool:
    return trial.memory_wait > MEMORY_WAIT


def site_fault(rating: Rating, fleet: Fleet, file: PlanFile) -> Fault | None:
    """Return why supply, rack or site cannot carry a fleet in the central world, if so."""
    for own in fleet.machines:
        rack = rack_fault(own.candidate, file.site.rack)
        if rack is not None:
            return Fault("rack", rack, "choose a smaller node, a power cap, or another rack")
        chips = int(own.nodes[0].max()) * own.candidate.node_accelerators
        limit = own.candidate.offer.limit
        if limit is not None and chips > limit:
            asked = f"{chips} accelerators" + (
                f" ({own.candidate.accelerator})" * bool(fleet.kinds)
            )
            nodes = limit // own.candidate.node_accelerators
            return _never_met(rating, own, file, "supply", nodes, asked)
    cap, watts = file.site.power_limit_w, fleet.peak_watts()[0]
    if cap is not None and watts.max() > cap:
        share = cap / watts.max()
        own = fleet.machines[0]
        nodes = int(own.nodes[0].max() * share)
        return _never_met(rating, own, file, "power", nodes, f"{watts.max() / 1e3:.1f} kW")
    return None


def _never_met(
    rating: Rating, fleet: Fleet, file: PlanFile, limit: str, carried: int, asked: str
) -> Fault:
    """Say from when the load is never met, and at which rate what there may be saturates."""
    candidate, spares = fleet.candidate, file.service.spares
    nodes = max(carried - spares, 0)
    count = int(nodes * candidate.replicas_per_node)
    names = quarter_names(file.horizon)
    late = next((i for i, n in enumerate(fleet.nodes[0]) if n > nodes + spares), 0)
    given = {
        "supply": f"{candidate.offer.limit} can be had",
        "power": f"the site has {(file.site.power_limit_w or 0) / 1e3:.1f} kW",
    }[limit]
    one = count == 1
    fit, meet, saturate = (
        ("fits", "it meets", "saturates") if one else ("fit", "they meet", "saturate")
    )
    tail = f"{units(rating, count)} {fit} beside the spares"
    if rating.bench is not None:
        tail += (
            f": {meet} the objectives up to {rating.serves(count):.3g} requests/s and {saturate} "
            f"at {rating.bench.saturation * count:.3g}"
        )
    what = f"the load is never met from {names[late]} on: it takes {asked}, {given}; {tail}"
    repair = {
        "supply": "raise limit, or choose a faster accelerator",
        "power": "raise [site] power_limit_w, set power_cap_w, or choose a thriftier accelerator",
    }[limit]
    return Fault(limit, what, repair)
