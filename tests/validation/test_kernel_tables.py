"""Errors of calibrations fitted to NVIDIA's tables, and of accelerators left out."""

import pandas as pd
import pytest

from hardware.kernels import CALIBRATIONS
from validation import kernel_tables


@pytest.mark.slow
@pytest.mark.validation
def test_stored_errors_are_those_of_the_calibration(shared):
    stored = pd.read_csv(CALIBRATIONS / "a100-sxm.errors.csv.gz")
    again = kernel_tables.errors_of(shared / "silicon", "a100-sxm", ["gemm_bf16"])
    keys = ["family", "split", "method"]
    both = stored.merge(again, on=keys, suffixes=("", "_again"))
    assert len(both) == 8
    assert both["median"].to_numpy() == pytest.approx(both["median_again"].to_numpy(), rel=0.02)
