"""Techniques as keys of a scenario: formats and their fallbacks, compression, kernels."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.kernels import Limits, load_kernels
from sim.cli.app import run
from sim.deployment import deploy
from sim.engines import engines
from sim.explain import Load, explain
from sim.launches import extra_dispatch_s, launches
from sim.scenario import Scenario
from sim.served import served_model
from sim.simulation import simulate
from sim.steptime import StepTimeModel
from sim.sweeping.grid import Grid, points
from sim.sweeping.keys import change, effective
from sim.technique_notes import technique_notes
from workloads.models import load_model

LLAMA = load_model("llama-3.1-8b")
ROWS = np.array([1.0, 32.0, 512.0])


def served(accelerator, **model):
    return served_model(Scenario(model=model), load_accelerator(accelerator))


def steps(**changes):
    kernels = load_kernels(load_accelerator("h200-sxm"))
    return StepTimeModel(kernels, LLAMA, engines.load("vllm-0.24").gpu, **changes)


def seconds(accelerator="h200-sxm", batch=32, **changes):
    """Return decode and prompt seconds of an explanation."""
    scenario = Scenario().changed({"hardware.accelerator": accelerator, **changes})
    found = explain(scenario, Load(batch, 1024, 2048)).phases
    return found.set_index("phase")["seconds"].to_dict()


@pytest.mark.parametrize(
    ("accelerator", "weights", "activations", "words"),
    [
        ("h200-sxm", "fp8", "fp8", None),
        ("h200-sxm", "w4a16", "bf16", None),
        ("h200-sxm", "fp32", "fp32", None),
        ("b200-sxm", "nvfp4", "nvfp4", None),
        ("h200-sxm", "nvfp4", "bf16", "w4a16"),
        ("a100-sxm", "fp8", "bf16", "w8a16"),
        ("h200-sxm", "fp6", "bf16", None),
        ("v100-sxm2", "bf16", "bf16", "fp16"),
        ("v100-sxm2", "tf32", "fp32", "run in fp32"),
    ],
)
def test_formats_run_where_there_are_units_and_else_on_a_path_that_is_named(
    accelerator, weights, activations, words
):
    found = served(accelerator, weights=weights)
    assert found.model.activations == activations
    assert any(words in note for note in found.notes) if words else not found.notes


@pytest.mark.parametrize(
    ("accelerator", "model", "words"),
    [
        ("v100-sxm2", {"weights": "int8"}, "cannot multiply int8"),
        ("a100-sxm", {"activations": "fp8"}, "cannot multiply fp8"),
        ("h200-sxm", {"weights": "fp64"}, "cannot multiply fp64"),
        ("v100-sxm2", {"techniques": {"sparsify": {"pattern": "2:4"}}}, "no 2:4 sparse units"),
        ("h200-sxm", {"techniques": {"sparsfy": {"pattern": "2:4"}}}, "sparsfy"),
        ("h200-sxm", {"weights": "fp9"}, "fp9"),
    ],
)
def test_what_the_hardware_has_no_way_to_run_is_an_error(accelerator, model, words):
    with pytest.raises(InputError, match=words):
        served(accelerator, **model)


def test_a_fallback_pays_for_widening_and_saves_the_bytes():
    packed, wide = (seconds("a100-sxm", 1, **{"model.weights": w}) for w in ("fp8", "bf16"))
    assert packed["decode"] < wide["decode"]
    assert packed["prefill"] > wide["prefill"]


def test_32_bits_move_twice_the_bytes_and_multiply_at_their_own_peak():
    wide = {"model.weights": "fp32", "model.kv": "fp32"}
    found = explain(Scenario().changed(wide), Load(32, 8192, 2048))
    half = explain(Scenario(), Load(32, 8192, 2048))
    assert found.plan.weights == pytest.approx(2 * half.plan.weights)
    assert found.kv_bytes_per_token == 2 * half.kv_bytes_per_token
    rows = [x.operators.set_index(["phase", "operator"])["seconds"] for x in (found, half)]
    ratio = rows[0] / rows[1]
    assert 1.7 < ratio["decode", "attention"] < 2.1
    assert ratio["prefill", "attention"] == pytest.approx(989.4 / 67, rel=0.3)
    assert ratio["prefill", "gate up"] > 8  # measured on an H200: 19.4 ms against 1.45 ms


def test_techniques_are_taken_in_order_and_say_what_they_do_to_answers():
    tables = {"prune_layers": {"drop": [30, 31]}, "sparsify": {"pattern": "2:4"}}
    found = served("h200-sxm", techniques=tables, weights="fp8")
    names = [label.split()[0] for label in found.model.techniques]
    assert names == ["prune_layers", "sparsify", "quantise"]
    assert found.model.layers == 30
    assert len(found.quality) == 3
    assert all("measure it" in words or "arXiv" in words for words in found.quality)


def test_a_student_is_served_in_its_teachers_place():
    found = served("h200-sxm", techniques={"distil": {"student": "llama-3.2-1b"}})
    assert found.model.layers == 16
    assert found.model.distilled_from == "Llama-3.1-8B"
    assert found.quality == ("distil: quality: measure it",)


def test_sparse_weights_run_at_their_measured_speed_not_at_twice():
    dense, sparse = (
        seconds(batch=1, **change)
        for change in ({}, {"model.techniques": {"sparsify": {"pattern": "2:4"}}})
    )
    assert 1.0 < dense["prefill"] / sparse["prefill"] < 1.6
    assert sparse["decode"] > dense["decode"]  # cuSPARSELt at 1 row: 82 us against 58 us


def test_sums_in_16_bits_let_larger_tiles_fit():
    wide = steps()
    narrow = replace(wide, model=LLAMA.model_copy(update={"accumulation": "fp16"}))
    assert narrow.products.chip.sum_bytes == 2.0
    assert (narrow.linear_s(ROWS) <= wide.linear_s(ROWS)).all()
    assert wide.products is wide.kernels


def test_launching_more_kernels_costs_the_host_more():
    eager = steps(fusion="none", fused_attention=False)
    more = launches(LLAMA, 1, "none", False) - launches(LLAMA)
    extra = extra_dispatch_s(eager)
    assert extra["eager_dispatch_s"] == pytest.approx(more * eager.kernels.launch(graph=False))
    assert extra["piecewise_dispatch_s"] == pytest.approx(32 * 6 * 1.1141e-5)
    assert extra_dispatch_s(steps()) == {"eager_dispatch_s": 0, "piecewise_dispatch_s": 0}


def test_without_launch_time_more_kernels_cost_the_host_nothing():
    eager = steps(fusion="none", fused_attention=False)
    known = eager.kernels.calibration
    free = replace(eager.kernels, calibration=replace(known, launch={"eager_s": 0, "graph_s": 0}))
    assert extra_dispatch_s(replace(eager, kernels=free))["eager_dispatch_s"] == 0


def test_kernels_of_a_step_by_hand():
    # qkv, o, gate_up, down and attention in 32 layers, lm_head; compiled: 65 norms, 32 x (rotary,
    # cache write, activation), 1 sampler
    assert launches(LLAMA) == 32 * 5 + 1 + 65 + 32 * 3 + 1


@pytest.mark.parametrize(
    "change",
    [
        {"kernels.fusion": "none"},
        {"kernels.attention": "unfused"},
        {"kernels.units": 33},
        {"kernels.sram_bytes": 4096},
        {"kernels.tiled": False},
    ],
)
def test_every_mechanism_of_the_kernels_moves_the_result(change):
    plain, changed = seconds(), seconds(**change)
    assert changed["decode"] > plain["decode"] * 1.001 or changed["prefill"] > plain["prefill"]


def test_the_section_of_kernels_reaches_the_deployment():
    table = {"kernels.fusion": "none", "engine.cuda_graphs": False}
    plain, eager = (deploy(Scenario().changed(c), 4096) for c in ({}, table))
    assert eager.tables.linear_s[32] > plain.tables.linear_s[32]
    assert eager.knobs["eager_dispatch_s"][0] > plain.knobs["eager_dispatch_s"][0]
    assert eager.knobs["graph_tokens"][0] == 0


def test_limits_of_the_scenario_are_those_of_the_kernels():
    assert Scenario().kernels.limits is None
    half = Scenario().changed({"kernels.units": 66, "kernels.tiled": False})
    assert half.kernels.limits == Limits(units=66, tiled=False)
    with pytest.raises(InputError, match="simd_bits = 128"):
        seconds(**{"kernels.simd_bits": 128})  # an H200 has matrix units


def test_narrower_vectors_slow_a_cpu_in_proportion():
    full, half = (
        seconds("xeon-8592", **{"kernels.simd_bits": bits})["prefill"] for bits in (512, 256)
    )
    assert half / full == pytest.approx(2, rel=0.15)


def test_drafts_are_explained_with_their_break_even_batch():
    scenario = Scenario().changed({"decoding.name": "draft-model", "decoding.acceptance": 0.6})
    found = explain(scenario, Load(8, 1024, 512))
    table = found.speculation.set_index("batch")["speed_up"]
    inside, outside = table[table.index <= found.break_even], table[table.index > found.break_even]
    assert (inside >= 1).all()
    assert outside.iloc[0] < 1
    assert explain(Scenario(), Load(8, 1024, 512)).speculation is None


def test_the_command_says_the_path_the_quality_and_the_drafts(capsys):
    keys = ["--accelerator", "a100-sxm", "--weights", "fp8", "--set", "decoding.name=eagle"]
    assert run(["explain", *keys]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "w8a16" in text
    assert "arXiv:2411.02355" in text
    assert "Speculation (eagle)" in text
    assert "Kernels of a decode step" in text


def test_a_result_says_the_path_the_answers_and_where_drafts_end():
    one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [64], "output_tokens": [200]})
    scenario = Scenario(hardware={"accelerator": "a100-sxm"}, model={"weights": "fp8"})
    result = simulate(scenario.changed({"decoding": {"name": "eagle", "acceptance": 1.0}}), one)
    path, answers, acceptance, drafts = technique_notes(result)
    assert "by position as stated, 1, 1, 1" in acceptance
    assert "w8a16" in path
    assert "arXiv:2411.02355" in answers
    assert "3 drafts gain" in drafts
    assert "brought 3.98 tokens" in drafts  # 199 tokens in 50 steps, the last one cut short
    assert technique_notes(simulate(Scenario(), one)) == []


def test_the_encoder_of_images_is_explained():
    found = explain(Scenario(model={"name": "llava-1.5-7b"}), Load(1, 512, 512)).operators
    row = found[found["phase"] == "image"].iloc[0]
    # ViT-L/14 at 336 pixels, 577 patches: 24 layers of 4 x 1024^2 + 2 x 1024 x 4096 products
    linear = 2 * 577 * 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert row["flops"] == pytest.approx(linear + 4 * 577**2 * 1024 * 24, rel=0.1)
    assert 0.05 < row["mfu"] < 1


def test_techniques_are_swept_by_dotted_keys():
    grid = Grid(
        keys={
            "decoding.name": ["none", "eagle"],
            "kernels.fusion": ["compiled", "none"],
            "model.techniques.prune_layers.drop": [[31]],
        }
    )
    rows = points(grid).to_dict("records")
    assert len(rows) == 4
    last = change(Scenario(), rows[-1])
    assert last.decoding["name"] == "eagle"
    assert last.kernels.fusion == "none"
    assert served_model(last, load_accelerator("h200-sxm")).model.layers == 31
    assert effective(last, "decoding.tokens") == 3
