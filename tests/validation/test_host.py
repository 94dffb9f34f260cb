"""A made-up engine log whose host times are known must give them back."""

import numpy as np
import pandas as pd
import pytest

from validation.host import bookkeeping, client_delays, dispatches, idle_arrivals
from validation.measured import Exclusion, MeasuredWorkload

DECODE, DISPATCH, GRAPH, LEAD, BOOK = 5e-3, 20e-3, 3e-3, 2e-3, 0.4e-3
INGEST, CLIENT = 1.5e-3, 1.2e-3
PROMPT_GPU = 12e-3  # shorter than its dispatch: the GPU waits for the host


def engine(prompts_at=(0, 40), steps=80):
    """Return the log of one long request, and of a second prompt among its decodes."""
    gpu, schedule, output, formed = 0.0, [], [], 0.0
    for i in range(steps):
        prompt = i in prompts_at
        host, lead = (DISPATCH, LEAD) if prompt else (GRAPH, LEAD)
        work = PROMPT_GPU if prompt else DECODE
        schedule.append(formed)
        dispatched = formed + host
        if i:
            output.append(max(gpu, dispatched))
            formed = output[-1] + BOOK
        else:
            formed = dispatched
        gpu = max(max(gpu, schedule[-1] + lead) + work, dispatched if prompt else 0.0)
    return np.array(schedule), np.array([*output, gpu])


def workload(exclusions=()):
    schedule, output = engine()
    steps = pd.DataFrame({"t_schedule": schedule, "t_output": output, "n_preempted": 0})
    steps["n_prefill"] = [int(i in (0, 40)) for i in range(80)]
    steps["prefill_tokens"] = steps["n_prefill"] * 1000
    steps["n_decode"] = [0, *[1] * 79]
    steps["decode_context"] = [0, *range(1000, 1079)]
    steps["n_running"] = 1
    first, second = output[0] + CLIENT, output[40] + CLIENT
    requests = pd.DataFrame(
        {
            "arrival_s": [schedule[0] - INGEST, schedule[40] - INGEST],
            "first_token_s": [first, second],
            "finish_s": [output[-1] + CLIENT, second],
            "prompt_tokens": 1000,
            "output_tokens": [80, 1],
            "cached_tokens": 0,
        }
    )
    return MeasuredWorkload("run", "made", requests, steps, pd.DataFrame(), None, exclusions)


def test_dispatch_of_prompts_on_an_idle_and_on_a_busy_engine():
    found = dispatches(workload())
    assert found.tokens.tolist() == [1000, 1001]
    assert found.dispatch_s.to_numpy() == pytest.approx([DISPATCH, DISPATCH])


def test_dispatch_and_lead_of_the_decode_behind_a_prompt():
    found = dispatches(workload()).iloc[1]
    assert found.graph_s == pytest.approx(GRAPH)
    assert found.lead_s == pytest.approx(LEAD)


def test_bookkeeping_is_output_to_next_schedule():
    found = bookkeeping(workload())
    assert len(found) > 60
    assert found.seconds.to_numpy() == pytest.approx(np.full(len(found), BOOK))


def test_clients_and_idle_arrivals():
    assert client_delays(workload()).seconds.to_numpy() == pytest.approx([CLIENT, CLIENT])
    alone = idle_arrivals(workload())
    assert alone.seconds.to_numpy() == pytest.approx([INGEST])


def test_excluded_steps_show_nothing():
    gap = Exclusion(run="run", workload="made", start_s=0.1, end_s=0.4, reason="a made-up stall")
    assert len(dispatches(workload((gap,)))) == 1
