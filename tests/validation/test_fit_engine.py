import tomllib

import numpy as np
import pandas as pd
import pytest

from sim.engines import engines
from validation.fit_engine import Fitted, _levels, _line, fit, training, write_profile
from validation.measured import load_runs


@pytest.fixture(scope="module")
def fitted():
    return {f"{f.section}.{f.key}": f.value for f in fit(training(load_runs()))}


def test_training_leaves_whole_workloads_and_halves_unseen():
    chosen = {f"{w.run}/{w.name}": w for w in training(load_runs())}
    assert "llama8b_bf16/conv_r24" not in chosen
    assert "llama8b_small/turns_a" not in chosen
    assert "llama8b_bf16/closed_c64_p1024_o256" not in chosen
    half = chosen["llama8b_fp8/conv_r24"]
    assert half.steps.t_output[half.judged_steps()].max() <= half.duration_s / 2


def test_fit_stays_near_what_was_read_off_by_other_means(fitted):
    assert 1.5e-3 <= fitted["host.ingest"] <= 2.0e-3
    assert fitted["host.bookkeeping"] == pytest.approx(0.25e-3, rel=0.1)
    assert fitted["host.bookkeeping_per_request"] == pytest.approx(22e-6, rel=0.1)
    assert 16e-3 <= fitted["host.dispatch_per_layer.dense.eager"] * 32 <= 19e-3
    assert 2.0 <= fitted["host.level_high"] <= 2.8
    dense, moe = (fitted[f"host.dispatch_per_layer.{k}.eager"] for k in ("dense", "moe"))
    assert 1.2 <= moe / dense <= 2.5


def test_levels_of_a_made_up_host_come_back():
    rng = np.random.default_rng(1)
    changes = np.cumsum(rng.exponential(2.0, 400))
    levels = rng.uniform(1.0, 2.4, 401)
    start = np.sort(rng.uniform(0.0, 700.0, 3000))
    noise = 1.0 + 0.17 * rng.uniform(-1.0, 1.0, start.size)
    seconds = 17e-3 * levels[np.searchsorted(changes, start)] * noise
    table = pd.DataFrame({"dispatch_s": seconds, "start_s": start, "source": "made"})
    base, high, jitter, stay = _levels(table)
    assert base == pytest.approx(17e-3, rel=0.06)
    assert high == pytest.approx(2.4, rel=0.1)
    assert jitter == pytest.approx(0.17, rel=0.2)
    assert stay == pytest.approx(2.0, rel=0.3)


def test_a_line_through_medians_ignores_outliers():
    x = np.arange(200.0)
    y = 1.0 + 0.5 * x
    y[::17] += 1000.0
    first, slope = _line(x, y)
    assert first == pytest.approx(1.0, abs=0.5)
    assert slope == pytest.approx(0.5, rel=0.01)


def test_profile_keeps_everything_but_the_fitted_numbers(tmp_path):
    source = engines.paths["vllm-0.24"]
    target = tmp_path / "other.toml"
    new = [
        Fitted("host", "ingest", 0.5, "one wait"),
        Fitted("host.dispatch_per_layer.moe", "eager", 0.25, "two dispatches"),
        Fitted("host", "nonsense", 1.0, "nothing"),
    ]
    write_profile(source, target, new, "made-up data")
    old, changed = tomllib.loads(source.read_text()), tomllib.loads(target.read_text())
    assert changed["host"]["ingest"]["value"] == 0.5
    assert changed["host"]["ingest"]["kind"] == "fitted"
    assert changed["host"]["ingest"]["source"] == "validation.fit_engine on made-up data: one wait"
    assert changed["host"]["dispatch_per_layer"]["moe"]["eager"]["value"] == 0.25
    assert (
        changed["host"]["dispatch_per_layer"]["dense"] == old["host"]["dispatch_per_layer"]["dense"]
    )
    assert changed["gpu"] == old["gpu"]
    assert engines.load(str(target)).host.ingest.value == 0.5
