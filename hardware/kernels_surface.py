"""A residual tabulated over the running extents of one layout, so that a call costs little."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hardware.calibration_data import FamilyFit
from hardware.kernels_families import Family
from hardware.kernels_forms import Array
from hardware.kernels_residual import interpolate

__all__ = ["Surface", "make_surface"]

MOST_NODES = 64  # per running extent


@dataclass(frozen=True)
class Surface:
    """A residual on a grid of one layout's running extents."""

    family: Family
    nodes: list[Array]
    grid: Array

    def __call__(self, shape: Mapping[str, Array]) -> Array:
        """Return the log residual of shapes of this layout."""
        axes = enumerate(self.family.axes)
        at = [self.family.position(i, shape[name]) for i, name in axes]
        return interpolate(self.grid, self.nodes, at)


def make_surface(family: Family, fit: FamilyFit, layout: tuple[float, ...]) -> Surface | None:
    """Return the residual of a layout at the measured extents, None where there is none."""
    process = fit.process(family)
    if process is None:
        return None
    extents = [_nodes(fit.shapes[:, i]) for i in range(len(family.axes))]
    extents[0] = np.union1d(extents[0], family.breaks)
    mesh = np.meshgrid(*extents, indexing="ij")
    shape = family.shape(*mesh, *layout)
    grid = process.predict(family.matrix(shape)[0]).reshape(mesh[0].shape)
    positions = [family.position(i, values) for i, values in enumerate(extents)]
    return Surface(family, positions, grid)


def _nodes(values: Array) -> Array:
    """Return the measured extents of an axis, at most `MOST_NODES` of them, at least two."""
    found = np.unique(values)
    if len(found) == 1:
        found = np.append(found, found[0] * 2 if found[0] else 1.0)
    chosen = np.linspace(0, len(found) - 1, min(len(found), MOST_NODES)).round().astype(int)
    picked: Array = found[chosen]
    return picked
