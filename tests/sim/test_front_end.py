"""The process between clients and engine: one queue of requests that come and tokens that leave."""

import numpy as np
import pandas as pd
import pytest

from sim.engines import engines
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.testing import serve, toy_knobs


def requests(arrivals, outputs, prompt=8):
    count = len(arrivals)
    return pd.DataFrame(
        {"arrival_s": arrivals, "prompt_tokens": [prompt] * count, "output_tokens": outputs}
    )


def times(replica, name):
    return replica.records.requests[name].tolist()


def test_a_request_and_its_tokens_go_through_one_after_another():
    """Steps of 1 s, 0.5 s per request, 2 s per token: taken in at 0.5, steps end at 1.5, 2.5, 3.5;
    tokens are sent from 1.5 to 3.5, to 5.5, to 7.5."""
    knobs = toy_knobs(front_request_s=0.5, front_token_s=2.0)
    one = serve(requests([0.0], [3]), knobs)
    assert times(one, "first_token_s") == [3.5]
    assert times(one, "finish_s") == [7.5]
    assert times(one, "last_token_s") == [3.5]  # the engine's own times do not wait
    gaps = one.lanes.gaps
    assert gaps.sum() == gaps.max() == 2  # two gaps of 2 s


def test_work_on_a_prompt_goes_by_its_tokens():
    knobs = toy_knobs(front_request_s=0.5, front_prompt_s=0.25)
    one = serve(requests([1.0], [1]), knobs)
    assert times(one, "first_token_s") == [1.0 + 0.5 + 8 * 0.25 + 1.0]


def test_requests_are_taken_in_one_after_another():
    knobs = toy_knobs(front_request_s=0.75)
    three = serve(requests([0.0, 0.0, 0.0], [1, 1, 1]), knobs)
    assert times(three, "admitted_s") == pytest.approx([0.75, 1.75, 2.75])


def test_a_request_waits_for_the_tokens_before_it():
    """The first request's tokens keep the front end until 3 x 5 s after its first step."""
    knobs = toy_knobs(front_request_s=0.5, front_token_s=5.0)
    two = serve(requests([0.0, 4.0], [3, 1]), knobs)
    assert times(two, "finish_s")[0] == 0.5 + 1.0 + 15.0
    assert times(two, "admitted_s")[1] == 16.5 + 0.5


def test_one_that_keeps_up_changes_nothing():
    table = requests(np.arange(40) * 0.5, [7] * 40)
    plain, fronted = serve(table, toy_knobs()), serve(table, toy_knobs(front_token_s=1e-12))
    for name in ("admitted_s", "first_token_s", "finish_s"):
        assert times(fronted, name) == pytest.approx(times(plain, name), abs=1e-8)


FRONT = """
[front]
request = { value = 1e-3, unit = "s/request", kind = "assumption", source = "this test" }
prompt_token = { value = 0.0, unit = "s/token", kind = "assumption", source = "this test" }
output_token = { value = 1e-4, unit = "s/token", kind = "assumption", source = "this test" }

[gpu]
"""


def test_a_closed_loop_gets_no_more_tokens_than_the_front_end_sends(tmp_path):
    """256 users: the engine could give 256 tokens every 8 ms, the front end sends 10 per ms."""
    path = tmp_path / "slow-front.toml"
    text = engines.paths["vllm-0.24"].read_text(encoding="utf-8")
    path.write_text(text.replace("[gpu]\n", FRONT, 1), encoding="utf-8")
    loop = {
        "workload.arrivals": {"kind": "closed-loop", "concurrency": 256},
        "workload.count": 1,
    }
    count, output = 768, 200
    table = requests(np.zeros(count), [output] * count, prompt=64)

    def rate(**changes):
        done = simulate(Scenario().changed(loop | changes), table).requests
        assert done["output_tokens"].sum() == count * output
        return count * output / float(done["finish_s"].max())

    assert rate() > 15e3
    slow = rate(**{"engine.profile": str(path)})
    most = output / (output * 1e-4 + 1e-3)  # all work on a request, and on its tokens
    assert 0.9 * most < slow < most


def test_a_profile_without_one_has_none():
    assert engines.load("vllm-0.24").front is None
    assert engines.load("vllm-0.24").collectives is None
