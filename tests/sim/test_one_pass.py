"""Encoders and operator lists in the engine: whole prompts, one output, no cache."""

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from sim.deployment import deploy
from sim.explain import Load, explain
from sim.one_pass import operator_steps
from sim.scenario import Scenario
from sim.simulation import simulate
from workloads.models import load_model
from workloads.operators import load_operators
from workloads.precision import precision

KERNELS = load_kernels(load_accelerator("h200-sxm"))
SAMPLES = np.array([1.0, 8.0, 64.0, 512.0])


def asked(prompt, count=50, output=1):
    arrival = np.arange(count) * 1e-4
    return pd.DataFrame({"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output})


@pytest.mark.parametrize(("name", "prompt"), [("bert-base", 300), ("resnet-50", 4)])
def test_requests_are_answered_in_one_pass_and_batched(name, prompt):
    result = simulate(Scenario(model={"name": name}), asked(prompt, output=40))
    assert (result.requests["status"] == "finished").all()
    assert result.totals["generated"][0] == 50
    assert result.steps["decode_requests"].sum() == 0
    assert result.steps["prefill_tokens"].sum() == 50 * prompt
    assert result.steps["prefill_requests"].max() > 5
    assert (result.steps["prefill_tokens"] % prompt == 0).all()  # no prompt is cut


def test_a_prompt_that_does_not_fit_a_step_is_refused():
    scenario = Scenario(model={"name": "bert-base"}).changed(
        {"policies.batching.max_num_batched_tokens": 256}
    )
    with pytest.raises(InputError, match="does not fit one step"):
        deploy(scenario, 301)


def test_what_stands_for_an_operator_list_has_its_size():
    for name in ("resnet-50", "mobilenet-v2", "vit-b-16", "dlrm-mlperf"):
        spec, found = load_model(name), load_operators(name)
        plan = deploy(Scenario(model={"name": name}), 64).plan
        assert spec.operators == name
        element = precision(found.dtype).bytes
        assert plan.weights == pytest.approx(found.parameters * element, rel=0.02)


def test_a_batch_costs_less_than_its_samples_one_by_one():
    for name in ("resnet-50", "vit-b-16", "dlrm-mlperf"):
        seconds = operator_steps(KERNELS, load_model(name)).step_s(SAMPLES)
        assert (np.diff(seconds) >= 0).all()
        assert (np.diff(SAMPLES / seconds) > -0.05 * (SAMPLES / seconds)[1:]).all()


def test_no_operator_is_faster_than_its_roof():
    steps = operator_steps(KERNELS, load_model("resnet-50"))
    for op in steps.operators.operators:
        seconds = steps.operator_s(op, np.array([256.0]))[0]
        roof = max(op.flops * 256 / 989.4e12, float(op.bytes(256, 2.0)) / 4.8e12) * op.count
        assert seconds > 0.95 * roof, op.name


def test_a_network_of_eight_gigaflop_runs_at_a_plausible_rate():
    # MLPerf inference v4.0, offline, fp16 on an H100 class GPU: tens of thousands of images/s
    seconds = operator_steps(KERNELS, load_model("resnet-50")).step_s(np.array([256.0]))[0]
    assert 2e4 < 256 / seconds < 6e4


def test_operators_are_explained_one_by_one():
    found = explain(Scenario(model={"name": "resnet-50"}), Load(1, 1, 256))
    total = load_operators("resnet-50").flops * 256
    assert found.operators["flops"].sum() == pytest.approx(total)
    assert {"conv1", "maxpool"} <= set(found.operators["operator"])


def test_eight_bits_speed_a_network_up():
    wide, narrow = (
        operator_steps(KERNELS, load_model("resnet-50").model_copy(update=changes)).step_s(SAMPLES)
        for changes in ({}, {"weights": "fp8", "activations": "fp8"})
    )
    assert narrow[-1] < 0.9 * wide[-1]
