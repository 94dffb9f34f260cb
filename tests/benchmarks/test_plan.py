"""Rating one candidate of a plan, against its simulations alone: `make bench`.

The ratio says what a plan adds to the engine loop: requests, deployments, judging.
"""

import time

import pytest

import sim.planning.trial
from sim.planning.load import Load
from sim.planning.planfile import PlanFile
from sim.planning.rated import rate
from sim.planning.supply import expand

FILE = PlanFile(
    traffic=[{"requests_per_s": 100, "workload": "chat"}],
    candidates=[{"accelerator": "h200-sxm", "weights": "fp8"}],
)


@pytest.mark.benchmark(group="plan")
def test_rating_a_candidate(benchmark, monkeypatch):
    candidate, load = expand(FILE.candidates, FILE.model)[0], Load.of(FILE)
    inside = []

    def timed(*args, **kwargs):
        result = simulate(*args, **kwargs)
        inside.append(result.wall_s)
        return result

    simulate = sim.planning.trial.simulate
    rate(candidate, load, FILE)  # compile and load
    monkeypatch.setattr(sim.planning.trial, "simulate", timed)
    start = time.process_time()
    benchmark.pedantic(rate, args=(candidate, load, FILE), rounds=1)
    benchmark.extra_info["CPU over trials"] = round((time.process_time() - start) / sum(inside), 2)
    benchmark.extra_info["trials"] = len(inside)
