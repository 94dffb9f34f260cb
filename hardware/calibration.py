"""Calibrations: fit kernel traces, judge the fit on shapes held out, keep it."""

from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_files import load_calibration, save_calibration
from hardware.calibration_fit import fit, fit_coefficients, fit_family
from hardware.calibration_judge import residual_table

__all__ = [
    "Calibration",
    "FamilyFit",
    "fit",
    "fit_coefficients",
    "fit_family",
    "load_calibration",
    "residual_table",
    "save_calibration",
]
