"""Tiling, vector width, waves and launches: by hand, and that each moves the time."""

from dataclasses import replace

import numpy as np
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.kernels import Limits, chip_of, load_kernels, widened
from hardware.kernels_attention import unfused_bytes
from hardware.kernels_chip import Chip
from hardware.kernels_forms import GEMM_TYPES, gemm
from hardware.kernels_tiling import attention_rows, tiled_traffic, tiles_that_fit

H200, XEON = load_accelerator("h200-sxm"), load_accelerator("xeon-8592")
SIDE = np.array(1024.0)
TOY = Chip(100, 1e12, 1e6, 1e10, {"bf16": 1e14}, sram_bytes=65536.0)
PLAIN = {
    "matrix": 1.0,
    "cache": 1e3,
    "memory": 1.0,
    "tile_s": 1e-6,
    "split_s": 1.0,
    "launch_s": 5e-6,
    "sharpness": 50.0,
}


def times(limits=None, spec=H200):
    kernels = load_kernels(spec, limits)
    return np.array([float(kernels.gemm(m, 4096, 4096, "bf16")) for m in (1, 256, 4096)])


@pytest.mark.parametrize(
    ("on_chip", "each"),
    [
        (4 * 1024**2, 1),  # all sums fit: each operand moves once
        (4 * 512**2, 2),  # 2 x 2 tiles of 512: each operand twice
        (4 * 128**2, 8),  # 8 x 8 tiles of 128
        (4, 1024),  # one sum: a row and a column are read for every output
    ],
)
def test_a_tiled_product_reads_each_operand_once_per_row_or_column_of_tiles(on_chip, each):
    moved = float(tiled_traffic(SIDE, SIDE, SIDE, on_chip))
    assert moved == 2 * 1024**2 * (2 * each + 1)  # both operands, and the output once


def test_few_rows_get_wide_tiles():
    # 4 rows, sums for 4 x 256 outputs: the 4 columns of tiles read the input 4 times
    moved = float(tiled_traffic(np.array(4.0), SIDE, SIDE, 4 * 4 * 256))
    assert moved == 2 * (4 * 1024 * 4 + 1024 * 1024 + 4 * 1024)


def test_sums_in_16_bits_need_half_the_memory():
    assert tiled_traffic(SIDE, SIDE, SIDE, 2 * 128**2, sums=2.0) == tiled_traffic(
        SIDE, SIDE, SIDE, 4 * 128**2
    )


def test_tiles_that_fit_by_hand():
    # a slice of 64 along k of both operands, 2 bytes each: (64 + 64) x 64 x 2 = 16 KiB
    kind = GEMM_TYPES["bf16"]
    assert tiles_that_fit(replace(TOY, sram_bytes=16384.0), kind) == ((64, 64),)
    assert tiles_that_fit(replace(TOY, sram_bytes=16383.0), kind) == ((32, 64),)
    assert attention_rows(replace(TOY, sram_bytes=48e3), np.array(128.0)) == 32


def test_less_sram_never_speeds_a_product_up_and_slows_it_in_the_end():
    sizes = [228e3, 32e3, 8e3, 1e3, 64.0]
    found = np.array([times(Limits(sram_bytes=size)) for size in sizes])
    assert (np.diff(found[:, 1:], axis=0) >= -1e-12).all()
    assert (found[-1, 1:] > 10 * found[0, 1:]).all()
    assert found[-1, 0] == pytest.approx(found[0, 0], rel=0.1)  # one row: no weight is used twice


def test_without_tiling_every_product_fetches_both_factors():
    assert (times(Limits(tiled=False))[1:] > 10 * times()[1:]).all()


def test_less_sram_makes_prompt_attention_load_keys_more_often():
    def seconds(size):
        kernels = load_kernels(H200, Limits(sram_bytes=size))
        return float(kernels.attention_prefill(4096, 0, 32, 8, 128))

    assert seconds(2e3) > 1.2 * seconds(228e3)


def test_waves_by_hand():
    # 100 units, 100 tiles of 128 x 256 in one wave; with one column more it is 802 tiles of
    # 64 x 64 in 9 waves, which beat two waves of the larger ones
    shape = {"m": np.array(128.0), "n": np.array([25600.0, 25601.0]), "k": np.array(4096.0)}
    chip = replace(TOY, memory=1e15, sram_bytes=50e3)  # memory never binds; larger tiles fit
    one, two = gemm(shape, chip, PLAIN, GEMM_TYPES["bf16"])
    tile = 2 * 128 * 256 * 4096 / (1e14 / 100)
    assert one == pytest.approx(5e-6 + 1e-6 + tile, rel=1e-6)
    assert two == pytest.approx(5e-6 + 9 * (1e-6 + tile / 8), rel=1e-6)


def test_half_the_units_take_twice_as_long_where_compute_binds():
    assert times(Limits(units=66))[2] == pytest.approx(2 * times()[2], rel=0.1)
    assert times(Limits(units=66))[0] == pytest.approx(times()[0], rel=0.3)  # memory binds
    with pytest.raises(InputError, match="units = 133"):
        times(Limits(units=133))


def test_vector_width_scales_the_peak_of_a_cpu_and_not_its_memory():
    full, half, quarter = (times(Limits(simd_bits=b), XEON) for b in (512, 256, 128))
    assert half[2] / full[2] == pytest.approx(2, rel=0.1)
    assert quarter[2] / full[2] == pytest.approx(4, rel=0.15)
    assert half[0] / full[0] < 1.5
    with pytest.raises(InputError, match="simd_bits = 1024"):
        times(Limits(simd_bits=1024), XEON)


def test_launches_cost_what_was_measured_and_nothing_when_taken_away():
    kernels = load_kernels(H200)
    assert 1e-6 < kernels.launch() < 2e-6 < kernels.launch(graph=False) < 2e-5
    fitted = kernels._fit("elementwise_rotary").coefficients
    assert 1e-6 < fitted["launch_s"] < float(kernels.elementwise("rotary", 1, 4096))


def test_unfused_attention_moves_scores_and_copies_of_keys_and_values():
    names = ("batch", "context", "heads", "kv_heads", "head_dim")
    shape = {n: np.array(float(v)) for n, v in zip(names, (2, 1000, 32, 8, 128), strict=True)}
    cached = 2 * 1000 * 8 * 128 * 2 * 2
    assert unfused_bytes(shape, 1) == cached * (1 + 2 * 4) + 8 * 2 * 2 * 32 * 1000
    grouped = {**shape, "kv_heads": np.array(32.0)}
    assert unfused_bytes(grouped, 1) == cached * 4 + 8 * 2 * 2 * 32 * 1000


def test_fused_attention_saves_more_the_longer_the_prompt():
    kernels = load_kernels(H200)
    q = np.array([512.0, 2048, 8192])
    gain = kernels.attention_unfused(q, 32, 128) / kernels.attention_prefill(q, 0, 32, 8, 128)
    assert (np.diff(gain) > 0).all()
    assert gain[-1] > 5  # measured at 8192 tokens: docs of the traces


def test_wider_elements_are_a_chip_with_half_the_memory():
    wide = widened(chip_of(H200), "fp32")
    assert wide.memory == chip_of(H200).memory / 2
    assert wide.attention_peak == 67e12
    assert not wide.pads_rows
