"""The analytic bound of a unit of several pools, and the ratio of prefill to decode it favours.

Prefill and decode apart: the unit serves the least of what its prefill replicas compute, its
decode replicas decode, and the ports between them carry; a decode step holds no prompt tokens.
Two kinds behind one router: at any step time the unit serves the sum of what all replicas serve.
"""

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np
import numpy.typing as npt

from sim.deployment import Deployment
from sim.disaggregation import hand_off_s
from sim.planning.bound import Bound, Mix
from sim.planning.supply import Candidate, Part
from workloads.counts import kv_bytes_per_token

__all__ = ["best_counts", "link_rate", "unit_bound"]

Floats = npt.NDArray[np.float64]
MOST = 8  # replicas of a unit that the choice of a ratio goes up to


def unit_bound(candidate: Candidate, made: Mapping[str, Deployment], mix: Mix) -> Bound:
    """Return the bound of a replica, or of a unit of several pools.

    Parameters
    ----------
    candidate : Candidate
        What a unit is made of.
    made : mapping of str to Deployment
        Of its pools, by name; of the replica alone without parts.
    mix : Mix
        Lengths.
    """
    if not candidate.parts:
        return Bound.of(next(iter(made.values())), mix)
    if candidate.mode == "mixed":
        return _side_by_side(
            [Bound.of(made[part.name], mix) for part in candidate.parts],
            [part.count for part in candidate.parts],
        )
    prefill, decode = candidate.parts
    most = {
        "prefill": prefill.count * Bound.of(made[prefill.name], mix.prompts()).most,
        "link": link_rate(candidate, made, mix),
    }
    return _in_line(Bound.of(made[decode.name], mix.outputs()), decode, most, made, mix)


def link_rate(candidate: Candidate, made: Mapping[str, Deployment], mix: Mix) -> float:
    """Return the hand-offs that the ports of a unit carry at most [request/s].

    The ports of a replica send or take one cache at a time, with the accelerators of the narrower
    side.
    """
    ranks = min(part.design.accelerators for part in candidate.parts)
    each = kv_bytes_per_token(made[candidate.parts[0].name].model)
    seconds = hand_off_s(float(mix.prompt.mean()), each, ranks, candidate.offer.link)
    return min(part.count for part in candidate.parts) / (mix.decode_share * seconds)


def _in_line(
    decode: Bound, part: Part, most: dict[str, float], made: Mapping[str, Deployment], mix: Mix
) -> Bound:
    """Return the decode replicas' curve, cut where prompts or the link end it."""
    rates = decode.rates * part.count / mix.decode_share
    limit = min(most, key=lambda name: most[name])
    end = most[limit]
    kept = rates < end
    if kept.all():
        limit, end = decode.limit, float(rates[-1])
    at = np.append(rates[kept], end)
    steps = np.interp(at, rates, decode.step_s)
    first = Bound.of(made["prefill"], mix.prompts())
    count = int(np.ceil(part.count * decode.batch * min(end / rates[-1], 1.0)))
    return Bound(at, np.asarray(steps), decode.floor_s, first.prompt_s, max(count, 1), limit)


def _side_by_side(bounds: Sequence[Bound], replicas: Sequence[int]) -> Bound:
    """Return the curve of pools that share their requests as suits best."""
    steps = np.unique(np.concatenate([b.step_s for b in bounds]))
    rates = np.zeros(steps.size)
    for bound, count in zip(bounds, replicas, strict=True):
        longest = np.maximum.accumulate(bound.step_s)
        rates += count * np.interp(steps, longest, bound.rates, left=0.0)
    rising = np.concatenate([[True], np.diff(np.maximum.accumulate(rates)) > 0])
    largest = max(range(len(bounds)), key=lambda i: replicas[i] * bounds[i].most)
    return Bound(
        np.maximum.accumulate(rates)[rising],
        steps[rising],
        min(b.floor_s for b in bounds),
        min(b.prompt_s for b in bounds),
        sum(n * b.batch for n, b in zip(replicas, bounds, strict=True)),
        bounds[largest].limit,
    )


def best_counts(
    candidate: Candidate,
    made: Mapping[str, Deployment],
    mix: Mix,
    tpot_s: float,
    hourly: Sequence[float],
    peak: float,
) -> tuple[int, int]:
    """Return the replicas of prefill and decode with which, by the bound, a peak costs least rent.

    Parameters
    ----------
    candidate, made, mix
        See `unit_bound`; the candidate's own counts do not matter.
    tpot_s : float
        Tightest objective on the time per output token [s].
    hourly : sequence of float
        Rent of an accelerator of each pool [money/h].
    peak : float
        Requests to serve at once, in whole units [request/s].
    """
    prefill, decode = candidate.parts
    rent = [p.design.accelerators * h for p, h in zip(candidate.parts, hourly, strict=True)]
    each = Bound.of(made[prefill.name], mix.prompts()).most
    other = Bound.of(made[decode.name], mix.outputs()).rate_at(tpot_s) / mix.decode_share
    one = candidate.with_counts((1, 1))
    link = link_rate(one, made, mix)

    def rent_of(pair: tuple[int, int]) -> tuple[float, float]:
        served = min(pair[0] * each, pair[1] * other, min(pair) * link)
        units = np.ceil(peak / served) if served > 0 else np.inf
        hour = pair[0] * rent[0] + pair[1] * rent[1]
        return float(units * hour), hour

    pairs = [(p, total - p) for total in range(2, MOST + 1) for p in range(1, total)]
    return min((pair for pair in pairs if gcd(*pair) == 1), key=rent_of)
