"""Times of kernel families on one accelerator: form, and residual where it was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from formats import InputError
from hardware.calibration_data import Calibration, FamilyFit
from hardware.kernels_chip import Array, Chip
from hardware.kernels_families import FAMILIES, Family
from hardware.kernels_surface import Surface, make_surface

__all__ = ["Fidelity", "KernelTimes"]

Fidelity = Literal["measured", "datasheet"]


@dataclass(frozen=True)
class KernelTimes:
    """Times of kernel families on one accelerator; arrays in, seconds out.

    Parameters
    ----------
    chip : Chip
        The accelerator's numbers.
    calibration : Calibration
        Measured on this accelerator (fidelity "measured") or on another one ("datasheet").
    fidelity : str
        Which of the two.
    base : Calibration, optional
        Serves families that `calibration` lacks.
    """

    chip: Chip
    calibration: Calibration
    fidelity: Fidelity
    base: Calibration | None = None
    _surfaces: dict[tuple[str, tuple[float, ...]], Surface] = field(
        default_factory=dict, repr=False, compare=False
    )

    def fidelity_of(self, name: str) -> Fidelity:
        """Return whether a family rests on traces of this accelerator."""
        own = self.fidelity == "measured" and name in self.calibration.families
        return "measured" if own else "datasheet"

    def residuals(self, name: str) -> Mapping[str, float]:
        """Return P10, P50 and P90 of held-out log(measured / predicted) of a family.

        From layouts held out where measured, from accelerators left out where carried over.
        """
        return self._fit(name).band

    def time(self, name: str, *extents: ArrayLike) -> Array:
        """Return the time of any family's kernel, extents in the order of the family [s]."""
        return self._time(name, FAMILIES[name].shape(*extents))

    def _time(self, name: str, shape: Mapping[str, Array]) -> Array:
        family = FAMILIES[name]
        if family.precision and family.precision not in self.chip.peaks:
            known = ", ".join(self.chip.peaks)
            what = f"this chip has no {family.precision} peak, which {name} needs"
            raise InputError(what, allowed=known, repair="choose another type")
        formed = family.form(shape, self.chip, self._fit(name).coefficients)
        surface = self._surface(family, tuple(float(shape[part]) for part in family.layout))
        return formed if surface is None else formed * np.exp(surface(shape))

    def _fit(self, name: str) -> FamilyFit:
        """Return the family's fit, or its nearest relative's."""
        sources = [self.calibration, *([self.base] if self.base else [])]
        wanted = name
        while wanted:
            for source in sources:
                if wanted in source.families:
                    return source.families[wanted]
            wanted = FAMILIES[wanted].parent
        return FamilyFit(FAMILIES[name].start, np.empty((0, 0)), np.empty(0))

    def _surface(self, family: Family, layout: tuple[float, ...]) -> Surface | None:
        if self.fidelity_of(family.name) == "datasheet":
            return None
        key = (family.name, layout)
        if key not in self._surfaces:
            made = make_surface(family, self.calibration.families[family.name], layout)
            if made is None:
                return None
            self._surfaces[key] = made
        return self._surfaces[key]
