"""Calibrations fitted to NVIDIA's tables: smoothing, held-out layouts, committed files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hardware import fit_silicon
from hardware.calibration_data import FamilyFit
from hardware.calibration_files import load_calibration
from hardware.catalog import load_accelerator
from hardware.kernels import CALIBRATIONS, POOLED, chip_of, load_kernels
from hardware.kernels_families import FAMILIES
from hardware.silicon import SYSTEMS
from hardware.silicon_fit import smooth
from hardware.silicon_rows import training_rows

TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "silicon"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="NVIDIA's tables are not at hand")
GEMM = FAMILIES["gemm_bf16"]
OURS = [fit_silicon.calibration_name(a) for a in SYSTEMS]


def shapes_of(ns, ks):
    return np.array([(m, n, k) for n in ns for k in ks for m in 2.0 ** np.arange(0, 12)])


def bump(shapes):
    """Make a smooth log residual: a bump over m and a slope over n."""
    m, n, _ = np.log2(shapes).T
    return 0.2 * np.exp(-((m - 6) ** 2) / 8) + 0.05 * (n - 11)


def test_smooth_residual_reaches_layouts_never_seen():
    seen = shapes_of(2.0 ** np.arange(9, 15), [512.0, 2048.0, 8192.0])
    noise = np.random.default_rng(1).normal(0, 0.02, len(seen))
    fit = smooth(GEMM, GEMM.start, seen, bump(seen) + noise)
    new = shapes_of([3000.0, 5000.0], [700.0, 7000.0])
    error = fit_silicon.residual(GEMM, fit, new) - bump(new)
    assert np.abs(error).max() < 0.05
    stored = fit_silicon.residual(GEMM, fit, fit.shapes)
    assert stored == pytest.approx(fit.log_residual, abs=1e-6)


def test_noise_gets_no_residual():
    seen = shapes_of(2.0 ** np.arange(9, 13), [512.0, 2048.0, 8192.0])
    noise = np.random.default_rng(2).normal(0, 0.1, len(seen))
    fit = smooth(GEMM, GEMM.start, seen, noise)
    assert np.abs(fit_silicon.residual(GEMM, fit, seen)).max() < 0.06


def test_every_fifth_layout_is_held_out():
    rows = pd.DataFrame(shapes_of([128, 256, 512, 1024, 2048], [128]), columns=["m", "n", "k"])
    out = fit_silicon.is_held_out(GEMM, rows)
    assert set(rows.loc[out, "n"]) == {512}
    assert out.sum() == 12


def test_stacked_chips_are_timed_row_by_row():
    chips = [chip_of(load_accelerator(a)) for a in ("a100-sxm", "b200-sxm")]
    shapes = shapes_of([4096.0], [4096.0])
    stacked = fit_silicon._stack(chips, [len(shapes)] * 2, "bf16")
    both = GEMM.form(GEMM.shape(*np.tile(shapes, (2, 1)).T), stacked, GEMM.start)
    parts = [GEMM.form(GEMM.shape(*shapes.T), c, GEMM.start) for c in chips]
    assert both == pytest.approx(np.concatenate(parts))


@pytest.mark.parametrize("name", OURS)
def test_committed_calibrations(name):
    calibration = load_calibration(CALIBRATIONS / f"{name}.toml")
    assert {"gemm_bf16", "attention_decode", "attention_prefill", "moe_bf16"} <= set(
        calibration.names
    )
    assert "Apache-2.0" in calibration.source
    for fit in calibration.families.values():
        assert fit.band["p10"] < fit.band["p50"] < fit.band["p90"]
        assert abs(fit.band["p50"]) < 0.1
    for end in (".toml", ".residuals.csv.gz"):
        assert (CALIBRATIONS / f"{name}{end}").stat().st_size < 200_000


def test_pooled_coefficients_have_no_residual():
    calibration = load_calibration(CALIBRATIONS / f"{POOLED}.toml")
    assert "gemm_bf16" in calibration.names
    assert all(fit.hyper is None for fit in calibration.families.values())


def test_kernel_model_grows_with_work():
    spec = load_accelerator("h100-sxm").model_copy(update={"calibration": "h100-sxm"})
    kernels = load_kernels(spec)
    seconds = kernels.gemm(2.0 ** np.arange(0, 14), 4096, 4096, "bf16")
    assert seconds[-1] > 20 * seconds[0]
    assert kernels.fidelity_of("gemm_bf16") == "measured"


@pytest.mark.parametrize("accelerator", [a for a in SYSTEMS if a != "h200-sxm"])
def test_accelerators_use_their_calibration(accelerator):
    kernels = load_kernels(load_accelerator(accelerator))
    assert kernels.fidelity == "measured"
    q = np.array([64, 512, 2048, 8192])
    for past in (0, 1000, 30000):
        chunk = kernels.attention_prefill(q, past, 32, 8, 128)
        assert np.all(np.diff(chunk) > 0)
        assert np.all((chunk > 2e-6) & (chunk < 1))
    decode = kernels.attention_decode([1, 16, 128], 2048, 32, 8, 128)
    assert np.all(np.diff(decode) > 0)
    assert np.all(np.isfinite(kernels.moe([1, 64, 4096], 128, 8, 2048, 768)))


@needs_tables
def test_prefill_meets_measured_rows():
    kernels = load_kernels(load_accelerator("h100-sxm"))
    rows = training_rows(TABLES, "h100-sxm", kernels.chip)["attention_prefill"].table
    rows = rows[(rows["heads"] == 32) & (rows["kv_heads"] == 8) & (rows["head_dim"] == 128)]
    ours = kernels.attention_prefill(
        rows["q"], rows["past"], 32, 8, 128, sequences=rows["batch"].to_numpy()
    )
    assert np.median(np.abs(ours / rows["s"] - 1)) < 0.12


@needs_tables
def test_warm_rows_are_left_out():
    rows = {a: training_rows(TABLES, a, chip_of(load_accelerator(a))) for a in ("l40s", "h200-sxm")}
    reason = "warm cache: faster than memory allows"
    assert rows["l40s"]["gemm_bf16"].dropped[reason] > 1000
    assert rows["h200-sxm"]["gemm_bf16"].dropped.get(reason, 0) == 0
    chip = chip_of(load_accelerator("l40s"))
    table = rows["l40s"]["attention_decode"].table
    moved = 4 * table["batch"] * table["context"] * table["kv_heads"] * table["head_dim"]
    assert (moved / table["s"]).max() < chip.memory


@needs_tables
@pytest.mark.parametrize("accelerator", ["a100-sxm", "h100-sxm", "l40s"])
def test_held_out_layouts(accelerator):
    table = fit_silicon.error_table(TABLES, [accelerator]).set_index("family")
    assert table.loc["gemm_bf16", "median"] < 0.10
    assert table.loc["attention_decode", "median"] < 0.10
    assert table.loc["attention_prefill", "median"] < 0.12
    assert table["median"].median() < 0.08


@needs_tables
def test_kernel_model_meets_measured_rows():
    """Through the public path, at a layout that no fit saw."""
    spec = load_accelerator("b200-sxm").model_copy(update={"calibration": "b200-sxm"})
    kernels = load_kernels(spec)
    rows = training_rows(TABLES, "b200-sxm", kernels.chip)["gemm_bf16"].table
    rows = rows[fit_silicon.is_held_out(GEMM, rows)]
    errors = []
    for _, part in list(rows.groupby(["n", "k"]))[::6]:
        n, k = int(part["n"].iloc[0]), int(part["k"].iloc[0])
        errors += list(np.abs(kernels.gemm(part["m"], n, k, "bf16") / part["s"] - 1))
    assert np.median(errors) < 0.10


@needs_tables
@pytest.mark.slow
def test_accelerators_left_out():
    table = fit_silicon.leave_one_out(TABLES)
    gemm = table[table["family"] == "gemm_bf16"]
    assert len(gemm) == len(SYSTEMS)
    assert gemm["median"].max() < 0.20
    assert gemm["median"].median() < 0.12


def test_fit_without_residual_is_its_form():
    chip = chip_of(load_accelerator("h100-sxm"))
    shapes = shapes_of([4096.0], [4096.0])
    fit = FamilyFit(GEMM.start, np.empty((0, 3)), np.empty(0))
    formed = GEMM.form(GEMM.shape(*shapes.T), chip, GEMM.start)
    assert fit_silicon.predict(GEMM, replace(fit), chip, shapes) == pytest.approx(formed)
