"""Prefill and decode apart, and a KV pool that replicas share: what moves, when, at what cost."""

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware.interconnect import send_s
from sim import Scenario, simulate
from sim.disaggregation import hand_off_s
from workloads.counts import kv_bytes_per_token

LINK = "infiniband-ndr"


def requests(count=60, rate=6.0, prompt=4000, output=60, seed=0):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    return pd.DataFrame({"arrival_s": arrivals, "prompt_tokens": prompt, "output_tokens": output})


def apart(prefill=1, decode=1, link=LINK, layerwise=True, **more):
    pools = [
        {"name": "p", "role": "prefill", "replicas": prefill, **more.pop("p", {})},
        {"name": "d", "role": "decode", "replicas": decode, **more.pop("d", {})},
    ]
    hand_off = {"link": link, "layerwise": layerwise}
    return Scenario.model_validate({"pools": pools, "hand_off": hand_off, **more})


@pytest.fixture(scope="module")
def served():
    return simulate(apart(), requests())


def test_every_request_ends_on_a_decode_replica_after_one_hand_off(served):
    table, moved = served.requests, served.fleet.hand_off_table()
    assert (table["status"] == "finished").all()
    assert (table["emitted_tokens"] == table["output_tokens"]).all()
    assert set(table["replica"]) == {1}
    assert sorted(moved["request"]) == table.index.tolist()


def test_a_hand_off_has_the_bytes_of_its_prompt_and_takes_what_the_link_says(served):
    moved = served.fleet.hand_off_table()
    each = kv_bytes_per_token(served.deployment.model)
    assert moved["bytes"].to_numpy() == pytest.approx(4000 * each)
    took = moved["arrived_s"] - moved["started_s"]
    assert (took > hand_off_s(4000, each, 1, LINK) - 1e-9).all()


def test_hand_offs_on_one_port_go_one_after_another():
    """With a slow link the caches queue: their times on the port do not overlap."""
    moved = simulate(apart(link="ethernet-tcp-25g"), requests(rate=50.0)).fleet.hand_off_table()
    moved = moved.sort_values("started_s")
    assert (moved["started_s"].iloc[1:].to_numpy() >= moved["arrived_s"].iloc[:-1] - 1e-9).all()
    waited = moved["started_s"] - moved["prompt_done_s"]
    assert waited.max() > 5 * (moved["arrived_s"] - moved["started_s"]).min()


def test_more_decode_replicas_do_not_widen_the_port_of_one_prefill_replica():
    slow = requests(rate=50.0)
    one, four = (
        simulate(apart(decode=n, link="ethernet-tcp-25g"), slow).fleet.hand_off_table()
        for n in (1, 4)
    )
    assert four["arrived_s"].max() == pytest.approx(one["arrived_s"].max(), rel=0.05)


def test_layers_sent_early_leave_the_last_one():
    """One request alone: what shows of the transfer is a layer, else all of it."""
    alone = requests(1)
    early, late = (simulate(apart(layerwise=on), alone) for on in (True, False))
    each = kv_bytes_per_token(early.deployment.model)
    whole = hand_off_s(4000, each, 1, LINK)
    shown = [r.fleet.hand_off_table().eval("arrived_s - prompt_done_s")[0] for r in (early, late)]
    assert shown[0] == pytest.approx(whole / early.deployment.model.layers)
    assert shown[1] == pytest.approx(whole)
    first = [r.requests["first_token_s"][0] for r in (early, late)]
    assert first[0] == first[1]
    assert early.requests["finish_s"][0] < late.requests["finish_s"][0]


def test_a_full_decode_replica_holds_caches_back():
    """Room for two requests at a time: the others wait on the prefill side, none is lost."""
    memory = {"memory": {"name": "paged", "kv_blocks": 520}}
    load = requests(count=24, rate=20.0, output=200)
    tight = simulate(apart(d=memory), load)
    free = simulate(apart(), load)
    assert (tight.requests["status"] == "finished").all()
    steps = tight.steps[tight.steps["replica"] == 1]
    assert steps["free_blocks"].min() >= 0
    assert steps["running"].max() <= 2
    held = [r.fleet.hand_off_table().eval("started_s - prompt_done_s").max() for r in (tight, free)]
    assert held[0] > 10 * max(held[1], 0.1)


def test_what_waits_for_a_hand_off_keeps_its_blocks_on_the_prefill_replica():
    """The prefill replica runs out of blocks when its caches cannot leave."""
    small = {"memory": {"name": "paged", "kv_blocks": 800}}
    tight = {"memory": {"name": "paged", "kv_blocks": 270}}
    load = requests(count=16, rate=20.0, output=200)
    result = simulate(apart(p=small, d=tight), load)
    assert (result.requests["status"] == "finished").all()
    first = np.sort(result.requests["first_token_s"])
    # three caches of 251 blocks fill it: the fourth prompt waits for the first to leave
    assert first[3] - first[2] > 10 * (first[2] - first[1])


def test_pools_may_differ_in_accelerator_ranks_and_count():
    scenario = apart(
        prefill=2,
        decode=1,
        p={"accelerator": "h100-sxm", "tp": 2},
        d={"accelerator": "h200-sxm", "tp": 4},
    )
    result = simulate(scenario, requests())
    assert (result.requests["status"] == "finished").all()
    assert [made.parallel.tp for made in result.deployments] == [2, 2, 4]
    moved = result.fleet.hand_off_table().eval("arrived_s - started_s").min()
    each = kv_bytes_per_token(result.deployment.model)
    assert moved == pytest.approx(hand_off_s(4000, each, 2, LINK), rel=0.2)  # the fewer ranks send


def test_disaggregation_keeps_tokens_even_while_prompts_are_computed():
    """The reason for it: time between tokens of a mixed replica jumps with every prompt."""
    load = requests(count=120, rate=8.0, prompt=8000, output=150)
    mixed = simulate(Scenario.model_validate({"hardware": {"replicas": 2}}), load)
    split = simulate(apart(), load)

    def tpot(result):
        table = result.requests
        return (table["finish_s"] - table["first_token_s"]) / (table["output_tokens"] - 1)

    assert tpot(split).quantile(0.9) < tpot(mixed).quantile(0.9)


def test_short_prompts_may_stay():
    load = requests(count=40)
    load.loc[::2, "prompt_tokens"] = 100
    local = {"name": "long-prompts-apart", "local_tokens": 512}
    result = simulate(apart(policies={"placement": local}), load)
    assert sorted(result.fleet.hand_off_table()["request"]) == load.index[1::2].tolist()
    assert (result.requests["status"] == "finished").all()


def test_a_prefill_pool_alone_is_refused():
    pools = [{"name": "p", "role": "prefill"}]
    with pytest.raises(InputError, match="no decode pool"):
        simulate(Scenario.model_validate({"pools": pools}), requests(2))


def test_a_dead_prefill_replica_loses_its_caches_not_its_requests():
    failures = {"at": [[2.0, 0]], "mttr_s": 1.0, "detection_s": 0.1}
    cold = {"engine_s": 1.0, "cached": True}
    scenario = apart(prefill=2, link="ethernet-tcp-10g", failures=failures, cold_start=cold)
    result = simulate(scenario, requests(count=80, rate=20.0))
    table = result.requests
    assert (table["status"] == "finished").all()
    assert (table["emitted_tokens"] == table["output_tokens"]).all()
    assert table["retries"].sum() > 0


# A KV pool of all replicas


def conversations(sessions=30, turns=5, seed=1):
    rng, rows = np.random.default_rng(seed), []
    for session in range(sessions):
        time, tokens = rng.uniform(0.0, 20.0), 2000
        for turn in range(turns):
            rows.append((time, tokens, 20, f"s{session}", tokens - 1000 if turn else 0))
            tokens += 1000
            time += rng.uniform(3.0, 6.0)
    names = ["arrival_s", "prompt_tokens", "output_tokens", "session", "prefix_tokens"]
    return pd.DataFrame(rows, columns=names).sort_values("arrival_s", ignore_index=True)


def shared(link="infiniband-ndr", capacity=1e12, **more):
    data = {"hardware": {"replicas": 4}, "shared_cache": {"link": link, "bytes": capacity}}
    return Scenario.model_validate(data | more)


def hits(result):
    table = result.requests
    return table["cached_tokens"].sum() / table["prompt_tokens"].sum()


def test_a_shared_pool_gives_blind_routing_the_hits_of_one_replica():
    load = conversations()
    own = Scenario.model_validate({"hardware": {"replicas": 4}})
    alone, pooled = hits(simulate(own, load)), hits(simulate(shared(), load))
    possible = load["prefix_tokens"].sum() / load["prompt_tokens"].sum()
    assert alone < 0.6 * possible
    assert pooled > 0.9 * possible


def test_a_fetch_costs_its_bytes_on_the_link_before_the_first_token():
    result = simulate(shared(), conversations())
    fetches = pd.DataFrame(result.fleet.fetches, columns=["request", "tokens", "took_s"])
    assert len(fetches)
    each = kv_bytes_per_token(result.deployment.model)
    expected = [float(send_s(n * each, LINK, 1.0)) for n in fetches["tokens"]]
    assert fetches["took_s"].to_numpy() == pytest.approx(expected)
    table = result.requests.loc[fetches["request"]]
    waited = (table["admitted_s"] - table["arrival_s"]).to_numpy()
    assert (waited > fetches["took_s"]).all()
    assert (table["cached_tokens"].to_numpy() >= fetches["tokens"].to_numpy() - 16).all()


def test_what_is_slower_to_fetch_than_to_compute_is_computed():
    assert not simulate(shared("ethernet-tcp-10g"), conversations()).fleet.fetches


def test_a_small_pool_forgets():
    each = kv_bytes_per_token(simulate(shared(), conversations(2, 2)).deployment.model)
    large, small = (
        hits(simulate(shared(capacity=tokens * each), conversations())) for tokens in (4e5, 2e4)
    )
    assert small < large
