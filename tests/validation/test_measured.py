from pathlib import Path

import pandas as pd
import pytest

from formats import InputError
from sim.deployment import scenario_model
from validation.measured import H200, load_runs


@pytest.fixture(scope="module")
def runs():
    return load_runs()


def copy_data(target: Path) -> Path:
    for path in H200.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(H200)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return target


def test_thirty_workloads_of_four_engines(runs):
    counts = {name: len(run.workloads) for name, run in runs.items()}
    assert counts == {"llama8b_bf16": 14, "llama8b_small": 3, "llama8b_fp8": 6, "qwen30b_a3b": 7}
    kinds = [w.kind for run in runs.values() for w in run.workloads.values()]
    assert (kinds.count("open"), kinds.count("closed"), kinds.count("static")) == (7, 1, 22)


def test_every_generated_token_but_the_first_is_a_decode_of_some_step(runs):
    for run in runs.values():
        for w in run.workloads.values():
            decodes = (w.requests.output_tokens - 1).sum()
            assert decodes <= w.steps.n_decode.sum() <= decodes * 1.001 + 1, w.name


def test_every_prompt_token_that_was_not_cached_was_computed_once(runs):
    for run in runs.values():
        for w in run.workloads.values():
            computed = (w.requests.prompt_tokens - w.requests.cached_tokens).sum()
            assert w.steps.prefill_tokens.sum() == computed, w.name


def test_scenarios_name_the_formats_that_ran(runs):
    fp8 = scenario_model(runs["llama8b_fp8"].scenario)
    assert (fp8.weights, fp8.activations, fp8.kv) == ("fp8", "fp8", "fp8")
    bf16 = scenario_model(runs["llama8b_bf16"].scenario)
    assert (bf16.weights, bf16.kv) == ("bf16", "bf16")
    assert scenario_model(runs["qwen30b_a3b"].scenario).moe is not None
    assert runs["llama8b_small"].scenario.policies.memory["kv_blocks"] == 7000


def test_sessions_follow_the_requests(runs):
    turns = runs["llama8b_small"]["turns_a"]
    table = turns.table()
    assert (table.prefix_tokens <= table.prompt_tokens).all()
    assert (turns.requests.cached_tokens[table.prefix_tokens == 0] == 0).all()
    assert runs["llama8b_bf16"]["conv_r12"].sessions is None


def test_energy_is_the_integral_of_the_watts(runs):
    for w in (runs["llama8b_bf16"]["conv_r12"], runs["llama8b_small"]["turns_a"]):
        power = w.power[(w.power.t > 0) & (w.power.t < w.duration_s)]
        integral = (power.watts * power.t.diff()).sum()
        assert w.energy_j() == pytest.approx(integral, rel=0.03)


def test_compile_stalls_are_left_out(runs):
    qwen = runs["qwen30b_a3b"]
    w = qwen["conv_r10"]
    assert w.exclusions[0].reason.startswith("kernels of a new shape")
    kept = w.steps[w.judged_steps()]
    assert 1.54 < w.steps.t_output.diff().max() < 1.55
    assert not ((kept.t_output > 5.17) & (kept.t_schedule < 7.10)).any()
    assert 0.7 < w.judged_requests().mean() < 1.0
    assert not qwen["static_b32_p512"].judged_requests().any()
    assert qwen["static_b64_p1024"].judged_requests().all()


def test_unknown_names_are_helped(runs):
    with pytest.raises(InputError, match="did you mean 'conv_r12'"):
        runs["llama8b_bf16"]["conv_r122"]


def test_a_run_that_is_not_listed_is_refused(tmp_path):
    folder = copy_data(tmp_path)
    index = folder / "runs.toml"
    index.write_text(index.read_text().replace('"llama8b_fp8", ', ""))
    with pytest.raises(InputError, match="run 'llama8b_fp8' is not in runs"):
        load_runs(folder)


def test_a_missing_part_is_named(tmp_path):
    folder = copy_data(tmp_path)
    power = pd.read_csv(folder / "power.csv.gz")
    power[power.workload != "code_r8"].to_csv(folder / "power.csv.gz", index=False)
    with pytest.raises(InputError, match="'code_r8' of run 'llama8b_bf16' has no rows"):
        load_runs(folder)


def test_times_out_of_order_are_refused(tmp_path):
    folder = copy_data(tmp_path)
    requests = pd.read_csv(folder / "requests.csv.gz")
    requests.loc[3, "first_token_s"] = -1.0
    requests.to_csv(folder / "requests.csv.gz", index=False)
    with pytest.raises(InputError, match="has its first token before arrival"):
        load_runs(folder)


def test_an_empty_exclusion_is_refused(tmp_path):
    folder = copy_data(tmp_path)
    index = folder / "runs.toml"
    index.write_text(index.read_text().replace("end_s = 7.10", "end_s = 5.0"))
    with pytest.raises(InputError, match="before it starts"):
        load_runs(folder)
