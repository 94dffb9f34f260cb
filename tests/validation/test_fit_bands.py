"""Bands: the fit finds the width of known errors, and kept coverage is what was promised."""

import numpy as np
import pandas as pd
import pytest

from sim.exploring.engine_error import GROUPS, UNMEASURED, engine_error
from validation.fit_bands import best_share, half_width, judged, widths_of
from validation.kept import band_coverage
from validation.kernel_bands import kernel_coverage


def made(count=400, sigma=0.1, kernels=0.0, seed=0):
    """Runs whose log errors are normal; `kernels` of the spread is known from kernels."""
    errors = np.random.default_rng(seed).normal(0, np.hypot(sigma, kernels / 1.2816), count)
    return pd.DataFrame(
        {
            "case": [f"c{i}" for i in range(count)],
            "group": [f"g{i // 4}" for i in range(count)],
            "figure": "tpot_mean_s",
            "predicted": 1.0,
            "measured": np.exp(errors),
            "low_log": kernels,
            "high_log": kernels,
            "chance": 0.0,
        }
    )


def test_width_of_normal_errors_is_their_ninth_decile():
    assert half_width(made(), 1.0) == pytest.approx(1.2816 * 0.1, rel=0.1)


def test_what_kernels_explain_is_not_counted_twice():
    rows = made(kernels=0.2)
    assert half_width(rows, 1.0) == pytest.approx(1.2816 * 0.1, rel=0.35)
    assert half_width(rows, 0.0) == pytest.approx(np.hypot(0.2, 1.2816 * 0.1), rel=0.1)


def test_bands_judged_by_turns_hold_eighty_percent():
    table = judged(made(1000), 1.0)
    row = table.iloc[0]
    assert row["cases"] == 1000
    assert row["coverage"] == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / 1000))
    assert row["half_width"] / row["median_error"] == pytest.approx(1.9, abs=0.2)


def test_kinds_that_were_not_measured_take_the_widest():
    widths = widths_of(made(), 1.0)
    assert set(widths) == set(GROUPS)
    assert len(set(widths.values())) == 1


def test_the_share_of_kernels_whose_bands_are_narrowest_is_kept():
    loose = made(kernels=1.0).assign(measured=np.exp(np.random.default_rng(1).normal(0, 0.02, 400)))
    assert best_share([loose]) == pytest.approx(0.1)


@pytest.mark.parametrize("figure", ["ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "power_mean_w"])
def test_what_is_known_of_fewer_things_is_never_surer(figure):
    own, other, sheet, kind = (
        engine_error(level, chip, figure)
        for level, chip in (
            ("own", "gpu"),
            ("other", "gpu"),
            ("datasheet", "gpu"),
            ("datasheet", "tpu"),
        )
    )
    assert own <= other <= sheet
    assert kind == UNMEASURED * sheet


def test_kept_coverage_is_what_was_promised():
    """80 % bands hold 70 .. 90 % of at least 100 cases of every family that has as many."""
    table = band_coverage()
    held = table["coverage"] * table["cases"]
    families = pd.DataFrame({"held": held, "cases": table["cases"]}).groupby(table["family"]).sum()
    large = families[families["cases"] >= 100]
    assert {"own", "kernels", "other"} <= set(large.index)
    assert (large["held"] / large["cases"]).between(0.7, 0.9).all()


@pytest.mark.slow
@pytest.mark.validation
def test_kernel_bands_hold(shared):
    table = kernel_coverage(shared / "silicon", ["a100-sxm"])
    share = (table["coverage"] * table["cases"]).sum() / table["cases"].sum()
    assert table["cases"].sum() > 1000
    assert 0.7 <= share <= 0.9
