"""An engine that is not warm loads kernels, and the load waits for the GPU."""

import numpy as np
import pandas as pd
import pytest

from sim.fleets.run import serve as serve_fleet
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.testing import serve, toy_knobs
from validation.measured import all_runs, load_runs
from validation.serving import workload_scenario

# one request decodes from the start; eight more come while its fourth step runs
NINE = pd.DataFrame(
    {
        "request": np.arange(9),
        "arrival_s": [0.0] + [3.5] * 8,
        "prompt_tokens": [4] + [2] * 8,
        "output_tokens": [9] + [2] * 8,
    }
)


def formed(**changes: float) -> list[float]:
    """Return when steps are formed, with steps of one second and no host."""
    replica = serve(NINE, toy_knobs(every_step=1, log_steps=1, **changes))
    return replica.rows["schedule_s"][: int(replica.state["n_rows"][0])].tolist()


def test_the_output_before_waits_for_a_step_that_loads():
    # a step is formed when the output of the one two before it is seen
    warm = formed(load_rows=64, warm_rows=64)
    assert warm == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert formed(load_rows=0, warm_rows=0) == warm
    # the sixth step is the first of nine rows: it ends at 6, and the fifth output is seen then
    assert formed(load_rows=64, warm_rows=8) == [0, 0, 1, 2, 3, 4, 6, 6, 7]
    # a row alone is new as well: the second step is formed when the first has ended
    assert formed(load_rows=64, warm_rows=0) == [0, 1, 1, 2, 3, 4, 6, 6, 7]
    # beyond the counts that load kernels of their own nothing waits
    assert formed(load_rows=8, warm_rows=8) == warm


@pytest.mark.parametrize("run", ["llama8b_fp8_more", "llama3b_bf16_fresh"])
def test_first_large_batches_come_out_together_as_measured(run):
    measured = all_runs()[run]
    workload = measured["static_b32_p512"]
    seen = np.sort(workload.requests["first_token_s"])

    def firsts(**changes: object) -> np.ndarray:
        scenario = workload_scenario(measured, workload, 0).changed(changes)
        return np.sort(simulate(scenario, workload.table()).requests["first_token_s"])

    # the second and the third step: 80 to 110 ms of GPU time each
    assert seen[-1] - seen[8] < 0.02
    cold, warm = firsts(), firsts(**{"engine.warm_requests": 512})
    assert cold[-1] - cold[8] < 0.02
    assert warm[-1] - warm[8] > 0.05
    assert abs(cold.mean() - seen.mean()) < 0.6 * abs(warm.mean() - seen.mean())


def test_what_ran_before_is_what_a_workload_finds_loaded():
    run = load_runs()["llama8b_fp8"]
    assert run.warm_requests("static_b1_p512") == 4  # the warm-up of validation/collect/serve.py
    assert run.warm_requests("static_b128_p512") == 32
    assert run.warm_requests("conv_r24") == 128


def test_a_replica_that_was_off_begins_cold():
    scenario = Scenario.model_validate(
        {
            "workload": {
                "arrivals": {"kind": "poisson", "rate_per_s": 12},
                "lengths": "azure-conv",
                "duration_s": 20,
            },
            "pools": [{"name": "all", "replicas": 2}],
            "failures": {"at": [[5.0, 0]], "mttr_s": 1.0},
            "cold_start": {"engine_s": 2.0},
            "run": {"seed": 5},
        }
    )
    table = simulate(scenario).requests[["request", "arrival_s", "prompt_tokens", "output_tokens"]]
    served = serve_fleet(scenario, table)
    loaded = [int(replica.state["loaded"][0]) for replica in served.replicas]
    assert loaded[1] == (1 << 62) - 1
    assert 0 < loaded[0] < 1 << 16
