"""Serve a requests table on the pools of a scenario."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from policies.placement import placement
from sim.autoscaling import Scaler
from sim.core.draft_tables import NO_DRAFTS
from sim.core.layout import Records
from sim.deployment import Deployment, deploy
from sim.disaggregation import Disaggregation
from sim.drafts import give_luck
from sim.failures import Breaker
from sim.fleets.arrivals import ClosedLoop, Users, open_arrivals
from sim.fleets.fleet import Fleet, Process, Requests
from sim.fleets.outcome import Outcome
from sim.fleets.pool import Pool, pool_scenarios
from sim.fleets.shared_cache import SharedCache
from sim.intake import Intake
from sim.records import with_second_stages
from sim.replica import Replica
from sim.rules import adaptive_policy
from sim.scenario import Scenario
from sim.streams import stream, stream_seed

__all__ = ["Served", "serve"]

Progress = Callable[[float], None]
SLICE_S = 60.0  # progress is reported this often, in simulated time
FIRST_QUEUE = 256  # requests that a replica's queues hold at first


@dataclass
class Served:
    """What a fleet has done.

    Attributes
    ----------
    pools : list of Pool
        Pools with their deployments.
    replicas : list of Replica
        All replicas, by number.
    records : Records
        Rows of the requests: one each, second stages merged in.
    outcome : Outcome
        Who served what, events, hand-offs.
    """

    pools: list[Pool]
    replicas: list[Replica]
    records: Records
    outcome: Outcome


def serve(
    scenario: Scenario,
    table: pd.DataFrame,
    loop: ClosedLoop | None = None,
    progress: Progress | None = None,
    deployments: Mapping[str, Deployment] | None = None,
) -> Served:
    """Serve all requests of a checked table.

    Parameters
    ----------
    scenario : Scenario
        Pools, policies, what happens to them.
    table : DataFrame
        Requests.
    loop : ClosedLoop, optional
        Users that send them one after another.
    progress : callable, optional
        Told the share of requests that have ended [0..1].
    deployments : mapping, optional
        Ready-made deployments by name of pool ("all" without pools), in place of the scenario's.

    Raises
    ------
    InputError
        A pool does not fit, or nothing serves a class of traffic or a model.
    """
    pools = _pools(scenario, table, deployments or {})
    intake = Intake(scenario, table, pools[0].deployment)
    records = _records(intake.records, pools)
    intake.records = records
    give_luck(records, scenario, len(table))
    fleet = _fleet(scenario, table, pools, records)
    apart = _disaggregation(scenario, fleet)
    section = scenario.shared_cache
    cache = None if section is None else SharedCache(fleet, section)
    if loop is None and _at_once(scenario, fleet):
        _place_all(fleet)
    else:
        _start(scenario, fleet, apart, loop, progress, intake)
        fleet.env.run(None if np.isinf(fleet.horizon_s) else fleet.horizon_s)
    _finish(fleet, progress)
    if cache is not None:
        cache.book()
    whole = records if apart is None else apart.merged()
    return Served(pools, fleet.crew.replicas, whole, fleet.outcome)


def _pools(scenario: Scenario, table: pd.DataFrame, ready: Mapping[str, Deployment]) -> list[Pool]:
    """Return the pools, each deployed, with their speeds relative to the fastest."""
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max())
    pools = [
        Pool(section, own, ready.get(section.name) or deploy(own, longest), scenario.fleet)
        for section, own in pool_scenarios(scenario)
    ]
    fastest = max(pool.prompt_tokens_per_s for pool in pools)
    for pool in pools:
        pool.speed = pool.prompt_tokens_per_s / fastest
    return pools


def _records(records: Records, pools: list[Pool]) -> Records:
    """Return the records with rows for second stages where prompts are computed apart."""
    apart = any(pool.role == "prefill" for pool in pools)
    return with_second_stages(records) if apart else records


def _fleet(scenario: Scenario, table: pd.DataFrame, pools: list[Pool], records: Records) -> Fleet:
    horizon = np.inf if scenario.run.horizon_s is None else scenario.run.horizon_s
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max())

    def make(pool: Pool, place: int) -> Replica:
        made = pool.deployment
        seed = stream_seed(scenario.run.seed, f"host/{place}")
        policy = adaptive_policy(pool.scenario.policies)
        drafts = made.drafting.tables if made.drafting else NO_DRAFTS
        sizes = (FIRST_QUEUE, longest)
        return Replica(made.tables, made.knobs, records, seed, *sizes, policy, drafts)

    choices, which = _choices(table, pools)
    columns = Requests(
        table["arrival_s"].tolist(),
        table["prompt_tokens"].tolist(),
        _sessions(table),
        records.requests["priority"][: len(table)].tolist(),
        which,
    )
    rng = stream(scenario.run.seed, "routing")
    return Fleet(pools, choices, columns, records, rng, make, horizon)


def _sessions(table: pd.DataFrame) -> list[int]:
    """Return the conversations of the requests as numbers, -1 none."""
    if "session" not in table:
        return [-1] * len(table)
    names = table["session"].fillna("").astype(str)
    codes = pd.factorize(names)[0].astype(np.int64)
    return [-1 if name == "" else int(code) for name, code in zip(names, codes, strict=True)]


def _choices(table: pd.DataFrame, pools: list[Pool]) -> tuple[list[list[Pool]], list[int]]:
    """Return which pools serve each kind of request, and the kind of every request."""
    empty = pd.Series("", index=table.index)
    kinds = pd.DataFrame({name: table.get(name, empty) for name in ("class", "model")})
    kinds = kinds.fillna("").astype(str)
    codes, unique = pd.factorize(pd.MultiIndex.from_frame(kinds))
    choices = [_servers(pools, *kind) for kind in unique]
    return choices, codes.tolist()


def _servers(pools: list[Pool], traffic_class: str, model: str) -> list[Pool]:
    found = [pool for pool in pools if pool.serves(traffic_class, model)]
    roles = {pool.role for pool in found}
    if "both" in roles or {"prefill", "decode"} <= roles:
        return found
    lacks = "decode" if "prefill" in roles else "prefill" if "decode" in roles else "any"
    what = f"no {lacks} pool serves class {traffic_class!r} of model {model!r}"
    raise InputError(what, "[[pools]]", repair="add a pool, or its classes and models to one")


def _disaggregation(scenario: Scenario, fleet: Fleet) -> Disaggregation | None:
    if all(pool.role == "both" for pool in fleet.pools):
        return None
    policy = placement.make(scenario.policies.placement)
    return Disaggregation(fleet, scenario.hand_off, policy)


def _at_once(scenario: Scenario, fleet: Fleet) -> bool:
    """Return whether every request can be routed before anything is simulated."""
    changing = scenario.autoscaling, scenario.failures, scenario.shared_cache
    if any(part is not None for part in changing) or not all(pool.up for pool in fleet.pools):
        return False
    alone = all(len(pools) == 1 for pools in fleet.choices)
    return alone and not any(pool.router.looks for pool in fleet.pools)


def _place_all(fleet: Fleet) -> None:
    """Route every request at once: no router looks at the replicas."""
    kinds = np.array(fleet.requests.pool)
    placed = fleet.outcome.placed
    for pool in fleet.pools:
        mine = [k for k, pools in enumerate(fleet.choices) if pools[0] is pool]
        rows = np.flatnonzero(np.isin(kinds, mine))
        chosen = pool.router.assign(rows.size, len(pool.up), fleet.rng)
        placed[rows] = np.array(pool.up)[chosen]
    for place, replica in enumerate(fleet.crew.replicas):
        rows = np.flatnonzero(placed == place)
        if rows.size:
            replica.submit(rows)
            fleet.crew.renewed(place)  # its queues may have been made anew, longer


def _start(
    scenario: Scenario,
    fleet: Fleet,
    apart: Disaggregation | None,
    loop: ClosedLoop | None,
    progress: Progress | None,
    intake: Intake,
) -> None:
    """Start all processes of a fleet."""
    if loop is not None:
        users = Users(fleet, loop, intake.arrive)
        fleet.at_answer = users.answered
        users.start()
    else:
        fleet.env.process(open_arrivals(fleet))
    if loop is not None or apart is not None:
        fleet.crew.keep_done = True
        fleet.env.process(fleet.react(fleet.window_s()))
    if scenario.autoscaling is not None:
        _scale(scenario, fleet)
    if scenario.failures is not None:
        rng = stream(scenario.run.seed, "failures")
        Breaker(fleet, scenario.failures, scenario.cold_start, rng, apart).begin()
    if progress is not None:
        fleet.env.process(_report(fleet, progress))


def _scale(scenario: Scenario, fleet: Fleet) -> None:
    section = scenario.autoscaling
    names = {pool.section.name for pool in fleet.pools}
    if section is None:
        return
    for name in section.pools:
        if name not in names:
            raise InputError(f"no pool named {name!r}", "[autoscaling] pools", ", ".join(names))
    for pool in fleet.pools:
        if not section.pools or pool.section.name in section.pools:
            fleet.env.process(Scaler(fleet, pool, section, scenario.cold_start).run())


def _report(fleet: Fleet, progress: Progress) -> Process:
    while not fleet.finished():
        yield fleet.env.timeout(SLICE_S)
        progress(_share_ended(fleet))


def _share_ended(fleet: Fleet) -> float:
    count = len(fleet.outcome.placed)
    return float((fleet.records.requests["status"][:count] > 0).mean())


def _finish(fleet: Fleet, progress: Progress | None) -> None:
    """Run every replica that is on to the end, telling how far it is."""
    last = float(fleet.records.requests["arrival_s"].max())
    running: npt.NDArray[np.int64] = np.flatnonzero(fleet.on)
    until = fleet.now
    while progress is not None and until < min(last, fleet.horizon_s):
        until += SLICE_S
        fleet.crew.advance(running, min(until, fleet.horizon_s))
        progress(_share_ended(fleet))
    fleet.crew.advance(running, fleet.horizon_s)
    for replica in fleet.crew.replicas:
        replica.count_waits()
