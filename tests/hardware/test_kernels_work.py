"""Least work of kernels: closed forms, and no calibrated kernel takes less."""

import numpy as np
import pytest

from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from hardware.kernels_families import FAMILIES
from hardware.kernels_work import work

H200 = load_accelerator("h200-sxm")
SHAPES = {
    "gemm_bf16": (4096, 4096, 4096),
    "attention_decode": (64, 8192, 32, 8, 128),
    "attention_prefill": (4096, 4096, 1, 32, 8, 128),
    "attention_unfused": (4096, 32, 128),
    "moe_bf16": (4096, 8, 2, 4096, 14336),
    "elementwise_rms_norm_fused_add": (4096, 4096),
    "copy_cold": (1e9,),
    "h2d_pinned": (1e9,),
}


@pytest.mark.parametrize("name", SHAPES)
def test_no_kernel_is_faster_than_its_least_work(name):
    kernels = load_kernels(H200)
    compute, memory = work(name, FAMILIES[name].shape(*SHAPES[name]), kernels.chip)
    measured = kernels.time(name, *SHAPES[name])
    assert 0.1 < float(np.maximum(compute, memory) / measured) < 1.0


def test_decoding_reads_keys_and_values_and_computes_two_products():
    chip = load_kernels(H200).chip
    shape = FAMILIES["attention_decode"].shape(64, 8192, 32, 8, 128)
    compute, memory = work("attention_decode", shape, chip)
    assert float(memory) * 4.8e12 == pytest.approx(64 * 8192 * 8 * 128 * 4)
    assert float(compute) * chip.attention_peak == pytest.approx(4 * 64 * 8192 * 32 * 128)
