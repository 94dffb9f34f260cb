"""Fleets: closed forms of queues through the router, what routing brings, what is conserved."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from sim import Scenario, simulate
from sim.deployment import deploy
from sim.fleets.arrivals import ClosedLoop
from sim.fleets.pool import Pool
from sim.fleets.run import serve
from sim.metrics import summary
from sim.metrics.rates import attainments
from sim.testing import toy_knobs, toy_tables
from validation.queueing import md1, mg1_ps, mm1, mmc

COOL = {"throttle_per_k": 0.0}
MEAN = 200  # tokens of a service


@pytest.fixture(scope="module")
def real():
    return deploy(Scenario(), 4096)


def toy(real, step_s=0.0, token_s=1e-3, tokens=8192, seqs=1, **knobs):
    """Return a deployment whose only time is that of steps and tokens."""
    made = toy_knobs(max_num_seqs=seqs, max_num_batched_tokens=tokens, **COOL, **knobs)
    tables = toy_tables(step_s, token_s, tokens=tokens, seqs=max(seqs, 2))
    return dataclasses.replace(real, tables=tables, knobs=made)


def poisson(rng, rate, prompts, outputs):
    arrivals = np.cumsum(rng.exponential(1.0 / rate, len(prompts)))
    return pd.DataFrame({"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": outputs})


def fleet(replicas=1, routing="random", seed=0, **changes):
    base = {"hardware.replicas": replicas, "policies.routing": {"name": routing}, "run.seed": seed}
    return Scenario().changed(base | changes)


def responses(served, skip=0.2):
    rows = served.records.requests
    assert (rows["status"] == 1).all()
    return (rows["finish_s"] - rows["arrival_s"])[int(skip * len(rows)) :]


def sigmas(means, expected):
    """Return how many standard errors the mean of replications is off."""
    means = np.array(means)
    return (means.mean() - expected) / (means.std(ddof=1) / np.sqrt(means.size))


def mean_of(real, case, replications=8, requests=6000):
    """Return mean responses of replications of (prompts, outputs, rate, deployment, scenario)."""
    found = []
    for seed in range(replications):
        rng = np.random.default_rng([seed, 5])
        prompts, outputs, rate, made, scenario = case(rng, requests, seed)
        table = poisson(rng, rate, prompts, outputs)
        found.append(responses(serve(scenario, table, deployments={"all": made})).mean())
    return found


def exponential(rng, count):
    return np.maximum(np.rint(rng.exponential(MEAN, count)), 1).astype(int)


SERVICE_S = MEAN * 1e-3


@pytest.mark.parametrize(("replicas", "load"), [(4, 0.7), (2, 0.5)])
def test_poisson_split_at_random_over_replicas_is_m_m_1_on_each(real, replicas, load):
    rate = load / SERVICE_S

    def case(rng, count, seed):
        ones = np.ones(count, int)
        return exponential(rng, count), ones, replicas * rate, toy(real), fleet(replicas, seed=seed)

    expected = mm1(rate, SERVICE_S).response_s
    assert abs(sigmas(mean_of(real, case), expected)) < 3


def test_constant_service_behind_a_random_router_is_m_d_1(real):
    rate = 0.8 / SERVICE_S

    def case(rng, count, seed):
        ones = np.ones(count, int)
        return MEAN * ones, ones, 3 * rate, toy(real), fleet(3, seed=seed)

    assert abs(sigmas(mean_of(real, case), md1(rate, SERVICE_S).response_s)) < 3


def test_a_shared_server_behind_a_random_router_is_m_g_1_ps(real):
    service = MEAN * 1e-4

    def case(rng, count, seed):
        made = toy(real, token_s=1e-4, seqs=256)
        ones = np.ones(count, int)
        outputs = rng.geometric(1.0 / MEAN, count)
        return ones, outputs, 2 * 0.6 / service, made, fleet(2, seed=seed)

    expected = mg1_ps(0.6 / service, service).response_s
    assert abs(sigmas(mean_of(real, case), expected)) < 3


def test_one_queue_before_c_servers_is_erlang_c(real):
    step, servers = 1e-4, 4
    service = (MEAN + 1.0) * step  # its slot is free one step after the last token
    rate = 0.8 * servers / service

    def case(rng, count, seed):
        made = toy(real, step_s=step, token_s=0.0, seqs=servers)
        outputs = rng.geometric(1.0 / MEAN, count)
        scenario = fleet(1, "least-outstanding", seed)
        return np.ones(count, int), outputs, rate, made, scenario

    expected = mmc(rate, service, servers).response_s
    assert abs(sigmas(mean_of(real, case), expected)) < 3


def test_requests_seen_in_the_fleet_are_rate_times_response(real):
    """Little's law: the number seen at Poisson instants against arrivals x response."""
    off = []
    for seed in range(8):
        rng = np.random.default_rng([seed, 6])
        count, rate = 6000, 3 * 0.7 / SERVICE_S
        table = poisson(rng, rate, exponential(rng, count), np.ones(count, int))
        scenario = fleet(3, "least-outstanding", seed)
        rows = serve(scenario, table, deployments={"all": toy(real)}).records.requests
        start, end = np.quantile(rows["arrival_s"], [0.2, 0.9])
        looks = np.sort(rng.uniform(start, end, 20_000))
        inside = np.searchsorted(rows["arrival_s"], looks) - np.searchsorted(
            np.sort(rows["finish_s"]), looks
        )
        kept = (rows["arrival_s"] >= start) & (rows["arrival_s"] < end)
        seen_rate = kept.sum() / (end - start)
        response = (rows["finish_s"] - rows["arrival_s"])[kept].mean()
        off.append(inside.mean() - seen_rate * response)
    off = np.array(off)
    assert abs(off.mean()) < 3 * off.std(ddof=1) / np.sqrt(off.size)


def turn_wait_s(rate, service_s, replicas):
    """Return the mean wait of E(n)/M/1: what each of n replicas sees when taken in turn."""
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(200):  # sigma = A*(mu (1 - sigma)), bisected
        sigma = (low + high) / 2
        transform = (replicas * rate / (replicas * rate + (1 - sigma) / service_s)) ** replicas
        low, high = (sigma, high) if transform > sigma else (low, sigma)
    return low * service_s / (1 - low)


@pytest.fixture(scope="module")
def waits(real):
    """Return mean waits of four replicas at load 0.8, router -> one per replication."""
    found = {name: [] for name in ("least-outstanding", "round-robin", "random")}
    for seed in range(10):
        rng = np.random.default_rng([seed, 7])
        count = 8000
        prompts = exponential(rng, count)
        table = poisson(rng, 4 * 0.8 / SERVICE_S, prompts, np.ones(count, int))
        for name, means in found.items():
            served = serve(fleet(4, name, seed), table, deployments={"all": toy(real)})
            means.append((responses(served, 0.0) - prompts * 1e-3)[800:].mean())
    return {name: np.array(means) for name, means in found.items()}


@pytest.mark.parametrize(
    ("better", "worse"), [("least-outstanding", "round-robin"), ("round-robin", "random")]
)
def test_on_uneven_work_least_outstanding_beats_round_robin_beats_random(waits, better, worse):
    """Paired differences of mean waits: the 95 % interval lies above zero."""
    gain = waits[worse] - waits[better]
    half = 2.262 * gain.std(ddof=1) / np.sqrt(gain.size)  # Student's t with 9 degrees of freedom
    assert gain.mean() - half > 0


def test_waits_of_the_blind_routers_are_those_of_their_queues(waits):
    rate = 0.8 / SERVICE_S
    assert abs(sigmas(waits["random"], mm1(rate, SERVICE_S).wait_s)) < 3
    assert abs(sigmas(waits["round-robin"], turn_wait_s(rate, SERVICE_S, 4))) < 3


def test_joining_the_shortest_queue_lies_between_one_queue_and_turns(waits):
    pooled = mmc(4 * 0.8 / SERVICE_S, SERVICE_S, 4).wait_s
    assert pooled < waits["least-outstanding"].mean() < turn_wait_s(0.8 / SERVICE_S, SERVICE_S, 4)


@pytest.mark.parametrize("replicas", [3, 8])
def test_a_router_sees_every_request_until_its_last_token(real, replicas, monkeypatch):
    """Engines run one step ahead of the clock; what ends with that step is still there."""
    seen = []
    read = Pool.read

    def watched(self, crew, now):
        read(self, crew, now)
        seen.append((now, self._view.outstanding.tolist()))

    monkeypatch.setattr(Pool, "read", watched)
    rng = np.random.default_rng(11)
    count = 300
    table = poisson(rng, replicas * 0.8 / SERVICE_S, exponential(rng, count), np.ones(count, int))
    scenario = fleet(replicas, "least-outstanding")
    served = serve(scenario, table, deployments={"all": toy(real)})
    rows, placed = served.records.requests, served.outcome.placed
    assert len(seen) == count
    for i, (now, outstanding) in enumerate(seen):
        there = placed[:i][rows["finish_s"][:i] > now]
        assert outstanding == np.bincount(there, minlength=replicas).tolist()


def test_stale_loads_make_routers_herd(real):
    waits = {}
    for refresh, count_sent in ((0.0, True), (2.0, True), (2.0, False)):
        found = []
        for seed in range(6):
            rng = np.random.default_rng([seed, 8])
            table = poisson(rng, 8 * 0.6 / SERVICE_S, exponential(rng, 3000), np.ones(3000, int))
            changes = {"fleet.load_refresh_s": refresh, "fleet.count_sent": count_sent}
            scenario = fleet(8, "least-outstanding", seed, **changes)
            found.append(responses(serve(scenario, table, deployments={"all": toy(real)})).mean())
        waits[refresh, count_sent] = np.array(found)
    fresh, counted, blind = waits.values()
    assert (blind - counted).min() > 0
    assert (counted - fresh).mean() > 0


def turns(rng, sessions=60, depth=6, popular=0):
    """Return conversations whose prompts repeat the one before, and a hot prefix of `popular`."""
    rows = []
    for session in range(sessions):
        time, tokens = rng.uniform(0.0, 60.0), int(rng.integers(300, 900))
        for turn in range(depth):
            shared = 0 if turn == 0 else tokens
            tokens = shared + int(rng.integers(200, 500)) if turn else tokens
            rows.append((time, tokens, 20, f"s{session}", shared))
            time += rng.uniform(4.0, 10.0)
    names = ["arrival_s", "prompt_tokens", "output_tokens", "session", "prefix_tokens"]
    return pd.DataFrame(rows, columns=names).sort_values("arrival_s", ignore_index=True)


def hit_share(result):
    table = result.requests
    return float(table["cached_tokens"].sum() / table["prompt_tokens"].sum())


def test_cache_aware_and_affine_routing_raise_the_hit_rate():
    gains = {"cache-aware": [], "session-affinity": []}
    for seed in range(4):
        table = turns(np.random.default_rng([seed, 9]))
        plain = hit_share(simulate(fleet(4, "least-outstanding", seed), table))
        for name, found in gains.items():
            found.append(hit_share(simulate(fleet(4, name, seed), table)) - plain)
    for found in gains.values():
        gain = np.array(found)
        assert gain.mean() - 2 * gain.std(ddof=1) / np.sqrt(gain.size) > 0.1


def hot(rng, count=400):
    """Return requests that share one long prefix, the first of them well before the others."""
    return pd.DataFrame(
        {
            "arrival_s": np.append(0.0, 2.0 + np.cumsum(rng.exponential(0.01, count - 1))),
            "prompt_tokens": np.full(count, 2048),
            "output_tokens": rng.integers(100, 300, count),
            "hash_ids": [[1, 2, 3, 1000 + i] for i in range(count)],
        }
    )


def test_the_load_guard_stops_the_hot_spot():
    most = {True: [], False: []}
    for seed in range(4):
        table = hot(np.random.default_rng([seed, 10]))
        for guard, found in most.items():
            routing = {"name": "cache-aware", "guard": guard}
            result = simulate(fleet(4, seed=seed).changed({"policies.routing": routing}), table)
            found.append(result.requests["replica"].value_counts(normalize=True).max())
    guarded, open_ = np.array(most[True]), np.array(most[False])
    assert open_.min() > 0.9
    assert guarded.mean() + 2 * guarded.std(ddof=1) / 2 < 0.4


def test_the_order_of_pools_and_the_worker_do_not_matter_for_a_seed():
    table = turns(np.random.default_rng(3), sessions=20)
    one, two = (simulate(fleet(5, "power-of-choices", 4), table) for _ in range(2))
    pd.testing.assert_frame_equal(one.requests, two.requests)
    pd.testing.assert_frame_equal(one.steps, two.steps)


def test_counting_without_advancing_gives_the_table_of_advancing_each_time(monkeypatch):
    """A replica that cannot end a request is left alone; nothing may change by that."""
    from sim.fleets.crew import Crew

    table = turns(np.random.default_rng(5), sessions=40)
    lazy = simulate(fleet(6, "least-outstanding"), table)
    whole = Crew.advance
    monkeypatch.setattr(
        Crew, "advance", lambda self, places, until, exact=True: whole(self, places, until)
    )
    pd.testing.assert_frame_equal(
        lazy.requests, simulate(fleet(6, "least-outstanding"), table).requests
    )


def test_users_of_a_closed_loop_keep_their_number_on_several_replicas(real):
    count, users = 400, 12
    table = pd.DataFrame(
        {"arrival_s": 0.0, "prompt_tokens": np.arange(count) % 37 + 20, "output_tokens": 1},
        index=range(count),
    )
    loop = ClosedLoop(users, np.zeros(count))
    made = toy(real, client_s=0.001, ingest_s=0.001)
    rows = serve(fleet(3, "least-outstanding"), table, loop, deployments={"all": made})
    rows = rows.records.requests
    assert (rows["status"] == 1).all()
    times = np.sort(rows["finish_s"])[: count - users]
    inside = [
        ((rows["arrival_s"] <= t) & (rows["finish_s"] > t)).sum() for t in times[users::17] + 1e-9
    ]
    assert set(inside) == {users}


def test_classes_and_models_go_to_the_pools_that_serve_them(real):
    rng = np.random.default_rng(0)
    table = poisson(rng, 20.0, exponential(rng, 300), np.ones(300, int))
    table["class"] = rng.choice(["chat", "batch"], 300)
    pools = (
        {"name": "fast", "replicas": 2, "classes": ("chat",)},
        {"name": "slow", "replicas": 1, "classes": ("batch",)},
    )
    scenario = Scenario().changed({"pools": pools})
    made = {"fast": toy(real), "slow": toy(real, token_s=4e-3)}
    served = serve(scenario, table, deployments=made)
    placed = served.outcome.placed
    assert set(placed[table["class"] == "chat"]) == {0, 1}
    assert set(placed[table["class"] == "batch"]) == {2}
    assert served.outcome.pools == ["fast", "fast", "slow"]


def test_a_class_that_no_pool_serves_is_refused(real):
    table = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]})
    scenario = Scenario().changed({"pools": ({"name": "chat", "classes": ("chat",)},)})
    with pytest.raises(InputError, match="no any pool serves class ''"):
        serve(scenario, table.assign(), deployments={"chat": toy(real)})


def test_mixed_pools_near_saturation_share_load_by_speed(real):
    """Two replicas of four times the speed do 40 of the 50 requests/s that the fleet can do."""
    rng = np.random.default_rng(1)
    table = poisson(rng, 49.0, np.full(3000, MEAN), np.ones(3000, int))
    pools = tuple({"name": name, "replicas": 2} for name in ("new", "old"))
    scenario = Scenario().changed(
        {"pools": pools, "policies.routing": {"name": "least-outstanding"}}
    )
    made = {"new": toy(real, token_s=2.5e-4), "old": toy(real)}
    served = serve(scenario, table, deployments=made)
    new = (served.outcome.placed < 2).mean()
    assert new == pytest.approx(40 / 49, abs=0.02)
    assert responses(served).mean() < 2.0


def test_classes_on_shared_or_own_pools_are_held_to_their_own_objectives(real):
    """Two classes with limits of their own; attainments by hand from the table."""
    rng = np.random.default_rng(3)
    table = poisson(rng, 8.0, exponential(rng, 400), np.full(400, 20))
    table["class"] = rng.choice(["chat", "batch"], 400)
    slo = {"classes": {"chat": {"ttft_s": 0.25}, "batch": {"e2e_s": 2.0, "percentile": 50.0}}}
    pools = ({"name": "own", "classes": ("chat",)}, {"name": "rest"})
    for changes in ({"hardware.replicas": 2}, {"pools": pools}):
        result = simulate(Scenario().changed({"slo": slo, **changes}), table)
        rows = result.requests
        ttft, e2e = (rows[n] - rows["arrival_s"] for n in ("first_token_s", "finish_s"))
        expected = {
            "chat": ((ttft <= 0.25)[rows["class"] == "chat"].mean(), 0.99),
            "batch": ((e2e <= 2.0)[rows["class"] == "batch"].mean(), 0.50),
        }
        found = {a.traffic_class: (a.share, a.wanted) for a in attainments(result)}
        for name, pair in expected.items():
            assert found[name] == pytest.approx(pair)
        classes = summary(result)["classes"]
        assert classes["chat"]["slo_attainment"] == pytest.approx(expected["chat"][0])


def test_two_models_go_to_their_own_accelerators():
    table = pd.DataFrame(
        {
            "arrival_s": np.arange(40) * 0.2,
            "prompt_tokens": 500,
            "output_tokens": 30,
            "model": ["small", "large"] * 20,
        }
    )
    pools = (
        {"name": "a", "model": "llama-3.2-1b", "accelerator": "l40s", "models": ("small",)},
        {"name": "b", "model": "llama-3.1-70b", "tp": 2, "models": ("large",)},
    )
    result = simulate(Scenario().changed({"pools": pools}), table)
    assert (result.requests["status"] == "finished").all()
    assert (result.requests["replica"] == (table["model"] == "large").astype(int)).all()
    assert summary(result)["model"] == "Llama-3.2-1B + Llama-3.1-70B"
    assert summary(result)["accelerators"] == 3


def test_the_scenario_of_the_manual_runs():
    text = (Path(__file__).parents[2] / "docs" / "fleets.md").read_text()
    data = tomllib.loads(text.split("```toml\n")[1].split("```")[0])
    result = simulate(Scenario.model_validate(data))
    assert (result.requests["status"] == "finished").all()
    assert summary(result)["availability"] < 1.0
    assert result.fleet.event_table()["event"].eq("fail").sum() == 1


def paired(real, better, worse, case, replications=8):
    """Return mean gains of one router over another on the same requests, one per replication."""
    gains = []
    for seed in range(replications):
        table = case(np.random.default_rng([seed, 12]))
        means = []
        for name in (better, worse):
            served = serve(fleet(6, name, seed), table, deployments={"all": toy(real)})
            means.append(responses(served).mean())
        gains.append(means[1] - means[0])
    return np.array(gains)


def lower(gains):
    """Return the lower end of the 95 % interval of the mean (Student's t, 7 degrees)."""
    return gains.mean() - 2.365 * gains.std(ddof=1) / np.sqrt(gains.size)


def uneven(rng, count=3000):
    """Requests of which one in ten is thirty times as long as the others."""
    prompts = rng.choice([50, 1550], count, p=[0.9, 0.1])
    return poisson(rng, 6 * 0.7 / SERVICE_S, prompts, np.ones(count, int))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("power-of-choices", "random"),
        ("least-outstanding", "power-of-choices"),
        ("shortest-ttft", "least-outstanding"),
    ],
)
def test_what_a_router_knows_shortens_waits(real, better, worse):
    """Nothing, two queues, all queues, and the work in them."""
    assert lower(paired(real, better, worse, uneven)) > 0
