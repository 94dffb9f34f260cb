import numpy as np
import pandas as pd
import pytest

from formats import InputError
from validation.batches import reconstruct
from validation.measured import MeasuredWorkload, load_runs

COLUMNS = ["n_prefill", "prefill_tokens", "n_decode", "decode_context", "n_preempted"]


def workload(requests, steps):
    """Requests as (prompt, output, cached); steps as rows of COLUMNS."""
    table = pd.DataFrame(requests, columns=["prompt_tokens", "output_tokens", "cached_tokens"])
    log = pd.DataFrame(steps, columns=COLUMNS)
    return MeasuredWorkload("run", "made", table, log, pd.DataFrame())


# budget 100: 60 and the first 40 of 70; the other 30 beside a decode; then both decode
TWO = [(60, 3, 0), (70, 2, 0)]
LOG = [(2, 100, 0, 0, 0), (1, 30, 1, 60, 0), (0, 0, 2, 61 + 70, 0)]


def test_a_prompt_that_was_cut_continues_first():
    batches = reconstruct(workload(TWO, LOG))
    assert batches.chunks.to_numpy().tolist() == [[0, 0, 60, 0], [0, 1, 40, 0], [1, 1, 30, 40]]
    assert batches.squares.tolist() == [0.0, 60.0**2, 61.0**2 + 70.0**2]
    assert batches.first.tolist() == [0, 0]
    assert batches.last.tolist() == [0, 1]


def test_cached_tokens_are_past_not_work():
    batches = reconstruct(workload([(64, 1, 48)], [(1, 16, 0, 0, 0)]))
    assert batches.chunks.to_numpy().tolist() == [[0, 0, 16, 48]]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ([(2, 140, 0, 0, 0), *LOG[1:]], "prompts of step 0 do not add up"),
        ([LOG[0], (1, 30, 1, 61, 0), LOG[2]], "decodes of the step log do not follow"),
        ([LOG[0], (1, 30, 1, 60, 1), LOG[2]], "requests were preempted"),
        (LOG[:1], "ends before the prompt of request 1"),
        (LOG[:2], "ends before the last token"),
        ([(3, 100, 0, 0, 0), *LOG[1:]], "prompts of step 0 do not add up"),
    ],
)
def test_logs_that_contradict_the_rules_are_refused(log, message):
    with pytest.raises(InputError, match=message):
        reconstruct(workload(TWO, log))


def test_every_measured_workload_follows_the_rules():
    for run in load_runs().values():
        for w in run.workloads.values():
            batches = reconstruct(w)
            chunks = batches.chunks
            pairs = chunks.tokens * (chunks.past + (chunks.tokens + 1) / 2)
            summed = np.bincount(chunks.step, weights=pairs, minlength=len(w.steps))
            assert summed == pytest.approx(w.steps.prefill_attn.to_numpy(), rel=1e-9)
            assert (batches.first <= batches.last).all()
