"""What NVIDIA's rows hold beside a kernel, and the softmax that limits attention."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hardware.calibration_files import load_calibration
from hardware.calibration_fit import MOST_POINTS, fit_coefficients, thinned
from hardware.catalog import load_accelerator
from hardware.fit_silicon import LEFT_OUT
from hardware.kernels import CALIBRATIONS, chip_of
from hardware.kernels_families import FAMILIES
from hardware.silicon import SYSTEMS
from hardware.silicon_forms import as_measured, product_alone

H200 = chip_of(load_accelerator("h200-sxm"))
FP8, PREFILL = FAMILIES["gemm_fp8"], FAMILIES["attention_prefill"]
COEFFICIENTS = {**FP8.start, "row_s": 2e-6, "element_s": 1e-9}


def shapes(m, n, k):
    return FP8.shape(*(np.array(v, float) for v in (m, n, k)))


def test_quantisation_adds_a_row_time_per_wave_and_nothing_for_columns():
    at_once = 4 * H200.units
    for n in (1024, 65536):
        s = shapes([1, at_once, 4 * at_once], [n] * 3, [4096] * 3)
        extra = as_measured(FP8).form(s, H200, COEFFICIENTS) - FP8.form(s, H200, COEFFICIENTS)
        row = 2e-6 + 4096e-9
        assert extra == pytest.approx([row, row, 4 * row])


def test_quantisation_of_many_long_rows_is_bound_by_memory():
    fast = {**COEFFICIENTS, "row_s": 0.0, "element_s": 0.0, "memory": 0.8}
    s = shapes([32768], [1024], [8192])
    extra = as_measured(FP8).form(s, H200, fast) - FP8.form(s, H200, fast)
    assert extra == pytest.approx([3 * 32768 * 8192 / (4.8e12 * 0.8)])


def test_a_joint_fit_tells_product_and_quantisation_apart():
    mesh = np.meshgrid(2.0 ** np.arange(4, 15), [1024, 4096, 16384], [1024, 4096, 16384])
    s = FP8.shape(*(axis.ravel() for axis in mesh))
    family = as_measured(FP8)
    truth = {**family.start, "matrix": 0.6, "row_s": 3e-6, "element_s": 6e-10}
    seconds = family.form(s, H200, truth)
    rows = np.stack([s[name] for name in FP8.extents], axis=1)
    found = fit_coefficients(family, rows, seconds, H200, family.start)
    assert found["element_s"] == pytest.approx(6e-10, rel=0.05)
    assert found["matrix"] == pytest.approx(0.6, rel=0.05)
    assert set(product_alone(found)) == set(FP8.start)


def test_softmax_limits_attention_of_small_heads_and_less_on_blackwell_ultra():
    start = {**as_measured(PREFILL).start, "exponential": 1.0}
    old, ultra = (chip_of(load_accelerator(a)) for a in ("b200-sxm", "b300-sxm"))
    per_unit = [c.exponentials / c.units / 1.965e9 for c in (old, ultra)]
    assert per_unit == pytest.approx([16, 32])
    small, large = (
        PREFILL.shape(*(np.array([v]) for v in (16384.0, 0.0, 4.0, 32.0, 8.0, d)))
        for d in (64.0, 256.0)
    )
    slower = [
        float((PREFILL.form(s, old, start) / PREFILL.form(s, old, PREFILL.start))[0])
        for s in (small, large)
    ]
    share = (1 / old.exponentials) / (4 * 64 / (old.attention_peak * start["matrix"]))
    assert slower[0] == pytest.approx((1 + share**3) ** (1 / 3), rel=0.02)
    assert 1.0 < slower[1] < 1.02 < slower[0]
    assert PREFILL.form(small, ultra, start) < PREFILL.form(small, old, start)
    unknown = replace(old, exponentials=0.0)
    assert PREFILL.form(small, unknown, start) == PREFILL.form(small, unknown, PREFILL.start)


@pytest.mark.parametrize("accelerator", SYSTEMS)
def test_coefficients_of_an_accelerator_left_out_are_the_others(accelerator):
    left = load_calibration(LEFT_OUT / f"{accelerator}.toml")
    everyone = load_calibration(CALIBRATIONS / "pooled.toml")
    assert {"gemm_bf16", "attention_decode", "attention_prefill", "moe_bf16"} <= set(left.families)
    assert all(fit.hyper is None for fit in left.families.values())
    mine, pooled = (c.families["gemm_bf16"].coefficients for c in (left, everyone))
    assert mine["matrix"] != pytest.approx(pooled["matrix"], rel=1e-4)
    assert mine["matrix"] == pytest.approx(pooled["matrix"], rel=0.1)


def test_elementwise_kernels_of_an_h200_left_out_are_where_a_fit_starts():
    family = FAMILIES["elementwise_rms_norm_fused_add"]
    left = load_calibration(LEFT_OUT / "h200-sxm.toml").families[family.name]
    assert left.coefficients == pytest.approx(dict(family.start))


def test_large_tables_are_thinned_and_small_ones_kept():
    table = pd.DataFrame({"m": np.arange(3 * MOST_POINTS)})
    some = thinned(table)
    assert len(some) == MOST_POINTS == some["m"].nunique()
    assert some["m"].is_monotonic_increasing
    assert abs(some["m"].mean() / table["m"].mean() - 1) < 0.03
    assert len(thinned(table.head(10))) == 10
