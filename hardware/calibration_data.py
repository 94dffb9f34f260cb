"""What a calibration holds: per kernel family the form's coefficients and the residual's points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hardware.kernels_families import Family
from hardware.kernels_forms import Array, Chip, Coefficients, Shape
from hardware.kernels_residual import Hyper, Process

__all__ = ["Calibration", "FamilyFit"]


@dataclass(frozen=True)
class FamilyFit:
    """Coefficients of one family's form, and the residual left by it.

    Parameters
    ----------
    coefficients : mapping
        Of the form.
    shapes : array (N, extents)
        Measured shapes, in the order of the family's extents.
    log_residual : array (N,)
        Log of measured over form time there.
    hyper : Hyper or None
        Of the residual process; None where there is none.
    weights : array (N,) or None
        Of the residual process, one per shape.
    band : mapping
        Quantiles P10, P50, P90 of held-out log(measured / predicted), empty before judging.
    """

    coefficients: Coefficients
    shapes: Array
    log_residual: Array
    hyper: Hyper | None = None
    weights: Array | None = None
    band: Mapping[str, float] = field(default_factory=dict)

    def process(self, family: Family) -> Process | None:
        """Return the residual process, or None."""
        if self.hyper is None or self.weights is None:
            return None
        x, _ = family.matrix(family.shape(*self.shapes.T))
        return Process(self.hyper, x, self.weights, float(self.log_residual.mean()))

    def predict(self, family: Family, chip: Chip, shape: Shape) -> Array:
        """Return the time of shapes, form and residual at each one exactly [s]."""
        formed = family.form(shape, chip, self.coefficients)
        process = self.process(family)
        if process is None:
            return formed
        return formed * np.exp(process.predict(family.matrix(shape)[0]).reshape(formed.shape))


@dataclass(frozen=True)
class Calibration:
    """Fits of the families measured on one accelerator.

    Parameters
    ----------
    accelerator : str
        Name of the accelerator measured.
    source, date : str
        Where the traces come from and when they were taken.
    families : mapping
        Family name -> fit.
    launch : mapping
        Seconds per kernel launch: ``eager_s``, ``graph_s``.
    """

    accelerator: str
    source: str
    date: str
    families: Mapping[str, FamilyFit]
    launch: Mapping[str, float]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Families present, sorted."""
        return tuple(sorted(self.families))

    def start(self, family: Family) -> Coefficients:
        """Return the coefficients that a fit of a family starts from: its parent's, if fitted."""
        parent = self.families.get(family.parent)
        same = parent is not None and set(parent.coefficients) == set(family.start)
        return parent.coefficients if parent and same else family.start
