"""Coefficients of measured accelerators on one that was not measured."""

from dataclasses import replace

import pandas as pd
import pytest

from hardware import fit_silicon
from hardware.catalog import load_accelerator
from hardware.kernels import carried, load_kernels
from hardware.kernels_carry import adapted, at_pace, generation, pace_of
from hardware.silicon import SYSTEMS


def test_the_reference_takes_coefficients_as_they_are():
    pace = pace_of(load_accelerator("h200-sxm"))
    assert (pace.latency, pace.unit) == pytest.approx((1.0, 1.0))


def test_latencies_follow_the_clock_and_nothing_else_does():
    spec = load_accelerator("a100-sxm")
    plain = carried(generation(spec)).families["attention_decode"].coefficients
    there = adapted(carried(generation(spec)), spec).families["attention_decode"].coefficients
    assert there["launch_s"] / plain["launch_s"] == pytest.approx(1.98 / 1.41)
    assert there["unit"] / plain["unit"] == pytest.approx((108 * 1.41 / 2.039) / (132 * 1.98 / 4.8))
    assert there["memory"] == plain["memory"]


def test_attention_and_experts_take_their_own_generation_products_do_not():
    hopper, blackwell, others = (carried(g).families for g in ("wgmma", "tcgen05", ""))
    assert hopper["gemm_bf16"] is not None
    assert hopper["gemm_bf16"].coefficients == blackwell["gemm_bf16"].coefficients
    for name in ("attention_decode", "moe_fp8"):
        assert hopper[name].coefficients != blackwell[name].coefficients
        assert hopper[name].band["p90"] < others[name].band["p90"]


def test_a_slower_clock_never_makes_a_small_kernel_faster():
    spec = load_accelerator("h20").model_copy(update={"calibration": None})
    clock = spec.on_chip.clock_hz.model_copy(update={"value": spec.clock_hz / 2})
    slow = spec.model_copy(update={"on_chip": spec.on_chip.model_copy(update={"clock_hz": clock})})
    for call in (
        lambda k: k.gemm(1, 4096, 4096, "bf16"),
        lambda k: k.attention_decode(1, 512, 32, 8, 128),
        lambda k: k.moe(1, 128, 8, 2048, 768),
    ):
        assert float(call(load_kernels(slow))) > float(call(load_kernels(spec)))


def test_kept_errors_of_accelerators_left_out():
    table = pd.read_csv(fit_silicon.TRANSFER)
    used = table[table["used"]]
    assert set(used["accelerator"]) == set(SYSTEMS)
    wide = used.pivot(index="accelerator", columns="family", values="median")
    assert wide[["gemm_bf16", "attention_decode"]].max().max() < 0.15
    datacentre = [a for a in SYSTEMS if a not in ("l40s", "rtx-pro-6000")]
    assert wide.loc[datacentre, ["attention_prefill", "gemm_fp8"]].max().max() < 0.15
    assert wide[["attention_prefill", "gemm_fp8"]].max().max() < 0.20
    everyone = table[table["donors"] == "all"].groupby("family")["median"].mean()
    alike = used.groupby("family")["median"].mean()
    assert (
        alike[["attention_decode", "moe_fp8"]] < everyone[["attention_decode", "moe_fp8"]]
    ).all()


@pytest.mark.slow
@pytest.mark.validation
def test_kept_errors_are_computed_again(shared):
    kept = pd.read_csv(fit_silicon.TRANSFER)
    again = fit_silicon.leave_one_out(shared / "silicon", ["moe_w4a16"])
    both = kept.merge(again, on=["accelerator", "family", "donors"], suffixes=("", "_again"))
    assert len(both) == len(again) == 14
    assert both["median"].to_numpy() == pytest.approx(both["median_again"].to_numpy(), rel=0.02)


def test_numbers_of_rows_stack():
    found = at_pace({"launch_s": 2.0, "unit": 1.0}, replace(pace_of(load_accelerator("b200-sxm"))))
    assert found["launch_s"] == pytest.approx(2 * 1.98 / 1.965, rel=1e-3)
