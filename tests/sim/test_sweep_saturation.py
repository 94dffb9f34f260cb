"""The saturation curve against a queue whose capacity is known, and against itself."""

import json

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from sim import Scenario, simulate
from sim.cli import run
from sim.sweeping import Saturation, saturation_curve

# One request at a time, all alike: a queue with one server and nearly constant service.
SERVER = {
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 0.5},
        "lengths": {
            "prompt": {"kind": "constant", "tokens": 512},
            "output": {"kind": "constant", "tokens": 100},
        },
        "duration_s": 600,
    },
    "policies": {
        "batching": {"name": "chunked-prefill", "max_num_seqs": 1},
        "caching": {"name": "none"},
    },
}
LIMIT_S = 3.0


@pytest.fixture(scope="module")
def server():
    return Scenario.model_validate(SERVER)


@pytest.fixture(scope="module")
def service_s(server):
    """Seconds per request when the server is never idle: a burst of 300, first to last."""
    burst = pd.DataFrame({"arrival_s": np.zeros(300), "prompt_tokens": 512, "output_tokens": 100})
    done = simulate(server, burst).requests["finish_s"].sort_values().to_numpy()
    return (done[-1] - done[49]) / 250


@pytest.fixture(scope="module")
def curve(server):
    return saturation_curve(server.changed({"slo.e2e_s": LIMIT_S, "slo.percentile": 95.0}))


def test_knee_is_the_capacity_of_the_server(curve, service_s):
    assert curve.saturated
    assert curve.knee_per_s == pytest.approx(1 / service_s, rel=0.02)


def test_knee_does_not_depend_on_where_the_search_starts(server, curve):
    for scale in (0.1, 12.0):
        other = saturation_curve(server.changed({"workload.rate_scale": scale}))
        assert other.good_per_s is None
        assert other.knee_per_s == pytest.approx(curve.knee_per_s, rel=0.02)
        assert other.offered_per_s == pytest.approx(0.5 * scale, rel=0.2)


def test_few_simulations_are_enough(curve):
    assert 8 <= len(curve.table) <= 14


def test_good_rate_is_enclosed_and_near_that_of_the_theory(curve, service_s):
    """M/D/1: 95 % of the sojourn times are below the limit up to a load that follows from the
    distribution of the wait (F. Crommelin, 1932), here by simulating the recursion of Lindley."""
    table = curve.table
    met = table["slo_attainment"] >= 0.95
    good = table["offered_per_s"] <= curve.good_per_s
    assert met[good].all()
    above = table[~good]
    assert above["slo_attainment"].iloc[0] < 0.95
    assert above["offered_per_s"].iloc[0] <= 1.12 * curve.good_per_s

    rng, rates = np.random.default_rng(1), np.linspace(0.3, 0.99, 70) / service_s
    shares = []
    for rate in rates:
        gaps = rng.exponential(1 / rate, 20_000)
        steps = np.cumsum(service_s - gaps)
        wait = steps - np.minimum.accumulate(np.minimum(steps, 0.0))
        shares.append(np.mean(wait + service_s <= LIMIT_S))
    theory = rates[np.flatnonzero(np.array(shares) >= 0.95)[-1]]
    assert curve.good_per_s == pytest.approx(theory, rel=0.1)


def test_curve_is_monotone_where_theory_says_so(curve):
    table = curve.table
    assert table["offered_per_s"].is_monotonic_increasing
    below = table[table["offered_per_s"] < 0.9 * curve.knee_per_s]
    assert below["ttft_mean_s"].is_monotonic_increasing
    assert table["slo_attainment"].iloc[0] == 1.0
    assert table["slo_attainment"].iloc[-1] < 0.5
    served = below["steady_served_per_s"] / below["steady_offered_per_s"]
    assert (np.abs(served - 1) < 0.05).all()  # all that comes is served
    over = table[table["offered_per_s"] > 1.1 * curve.knee_per_s]
    assert np.allclose(over["steady_served_per_s"], curve.knee_per_s, rtol=0.03)  # and no more


def test_distance_and_words():
    roomy = Saturation(pd.DataFrame(), 25.0, 13.6, 2.0)
    assert roomy.distance == pytest.approx(6.8)
    assert roomy.sentence() == (
        "Saturates at 25 requests/s. Objectives hold up to 13.6 requests/s, "
        "6.8 x the offered 2 requests/s."
    )
    free = Saturation(pd.DataFrame(), 25.0, None, 50.0)
    assert free.sentence() == "Saturates at 25 requests/s, 0.5 x the offered 50 requests/s."
    never = Saturation(pd.DataFrame(), 25.0, 0.0, 2.0)
    assert never.sentence().endswith("Objectives do not hold at any rate tried.")
    brief = Saturation(pd.DataFrame(), 25.0, None, 5.0, slow_s=9.0)
    assert "a request takes 9 s there, so simulate longer" in brief.sentence()


def test_objectives_that_never_hold(server):
    found = saturation_curve(server.changed({"slo.ttft_s": 1e-4, "workload.duration_s": 60}))
    assert found.good_per_s == 0.0


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"arrivals": {"kind": "closed-loop", "concurrency": 4}, "count": 20}, "closed loop"),
        ({"arrivals": {"kind": "burst"}, "count": 20}, "all requests come at once"),
    ],
)
def test_a_workload_without_a_rate_is_refused(workload, words):
    scenario = Scenario(workload={**workload, "lengths": "azure-conv"})
    with pytest.raises(InputError, match=words):
        saturation_curve(scenario)


def test_command_says_it_and_resumes(tmp_path, capsys, monkeypatch):
    (tmp_path / "s.toml").write_text(
        'name = "short"\n[workload]\narrivals = { kind = "poisson", rate_per_s = 4 }\n'
        'lengths = "azure-conv"\nduration_s = 20\n[slo]\nttft_s = 0.2\n'
    )
    arguments = ["sweep", str(tmp_path / "s.toml"), "--rate", "auto", "--out", str(tmp_path / "o")]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "Saturates at" in out
    assert "x the offered" in out
    facts = json.loads((tmp_path / "o" / "saturation.json").read_text())
    assert facts["verdict"] in out
    page = (tmp_path / "o" / "sweep.html").read_text()
    assert "Served and good requests" in page
    monkeypatch.setattr("sim.sweeping.run.run_task", lambda _: pytest.fail("ran again"))
    assert run([*arguments, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["knee_per_s"] == facts["knee_per_s"]
    assert [p["rate_scale"] for p in again["points"]] == sorted(
        p["rate_scale"] for p in again["points"]
    )
