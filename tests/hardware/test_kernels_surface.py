"""A residual tabulated over the running extents of one layout."""

import numpy as np

from hardware.calibration_data import FamilyFit
from hardware.kernels_families import FAMILIES
from hardware.kernels_residual import Hyper
from hardware.kernels_surface import make_surface


def test_prompts_with_nothing_cached_have_a_residual():
    family = FAMILIES["attention_prefill"]
    q = np.array([64.0, 256.0, 1024.0])
    shapes = np.stack([q, 0 * q, 0 * q + 1, 0 * q + 32, 0 * q + 8, 0 * q + 128], axis=1)
    axes = family.matrix(family.shape(*shapes.T))
    hyper = Hyper((1.0, 1.0, 1.0, 0.1), (2.0,) * axes[0].shape[1], axes[1])
    fit = FamilyFit({}, shapes, np.full(3, 0.2), hyper, np.zeros(3))
    surface = make_surface(family, fit, (32.0, 8.0, 128.0))
    shape = family.shape(512, 0, 1, 32, 8, 128)
    assert surface is not None
    assert np.isclose(surface(shape), 0.2)
