"""Fit kernel forms and their residuals to traces."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hardware.calibration_data import Calibration, FamilyFit
from hardware.calibration_mixed import (
    MIXED,
    MIXED_PARTS,
    mixed_table,
    uneven_errors,
    uneven_table,
)
from hardware.kernels_families import FAMILIES, Family
from hardware.kernels_forms import Array, Chip, Coefficients
from hardware.kernels_residual import FIT_POINTS, condition, fit_hyper

__all__ = ["MOST_POINTS", "fit", "fit_coefficients", "fit_family", "thinned"]

PULL = 0.03  # weight of a coefficient's log distance from its start, against errors in log time
ROBUST = 0.05  # log error above which a point counts less
BOUNDS = {
    "sharpness": (1.0, 12.0),
    "balance": (1.0, 12.0),
    "memory": (0.05, 1.0),
    "empty": (0.05, 1.0),
    "exponential": (0.5, 1.0),
}
FEWEST_FOR_RESIDUAL = 4
MOST_POINTS = 1500
"""Shapes of a family that a fit takes; of more, so many are drawn at random (seed 0)."""
MANY, FEWER_POINTS = 1000, 250  # of more shapes than MANY, lengths are fitted on so many


def fit(
    traces: Mapping[str, pd.DataFrame], chip: Chip, accelerator: str, source: str, date: str
) -> Calibration:
    """Fit every family present in the traces.

    Parameters
    ----------
    traces : mapping
        As `hardware.calibration_traces.read_traces` returns them.
    chip : Chip
        The accelerator's own numbers, which the coefficients are shares of.
    """
    made = Calibration(accelerator, source, date, {}, _launch(traces.get("launch")))
    for name, family in FAMILIES.items():
        if name in traces and _possible(family, chip, made):
            table = thinned(traces[name])
            if name == MIXED:
                table = mixed_table(table, made, chip)
            more = None
            if name == "attention_decode" and len(uneven := uneven_table(traces)):
                more = uneven_errors(uneven, chip)
            fitted = fit_family(family, table, chip, made.start(family), more)
            made = replace(made, families={**made.families, name: fitted})
    return made


def thinned(table: pd.DataFrame) -> pd.DataFrame:
    """Return the shapes that a fit takes: all, or `MOST_POINTS` of them drawn at random.

    A residual through n shapes takes time with n^3, and is fitted anew for every group held out.

    Examples
    --------
    >>> len(thinned(pd.DataFrame({"m": range(9000)})))
    1500
    """
    if len(table) <= MOST_POINTS:
        return table
    return table.sample(MOST_POINTS, random_state=0).sort_index().reset_index(drop=True)


def _possible(family: Family, chip: Chip, made: Calibration) -> bool:
    parts = set(MIXED_PARTS) if family.name == MIXED else set()
    return family.precision in ("", *chip.peaks) and parts <= set(made.families)


def fit_family(
    family: Family,
    table: pd.DataFrame,
    chip: Chip,
    start: Coefficients,
    more: Callable[[Coefficients], Array] | None = None,
) -> FamilyFit:
    """Fit one family: coefficients of its form, then the residual process.

    `more` returns log errors of further measurements, which the coefficients are fitted to also.
    """
    shapes = table[list(family.extents)].to_numpy(dtype=float)
    seconds = table["s"].to_numpy(dtype=float)
    coefficients = fit_coefficients(family, shapes, seconds, chip, start, more)
    shape = family.shape(*shapes.T)
    left = np.log(seconds / family.form(shape, chip, coefficients))
    if len(left) < FEWEST_FOR_RESIDUAL or family.features is None:
        return FamilyFit(coefficients, shapes, left)
    x, axes = family.matrix(shape)
    points = FIT_POINTS if len(left) <= MANY else FEWER_POINTS
    hyper = fit_hyper(x, left - left.mean(), axes, points=points)
    return FamilyFit(coefficients, shapes, left, hyper, condition(hyper, x, left).weights)


def fit_coefficients(
    family: Family,
    shapes: Array,
    seconds: Array,
    chip: Chip,
    start: Coefficients,
    more: Callable[[Coefficients], Array] | None = None,
) -> dict[str, float]:
    """Fit a form's coefficients to measured seconds: robust least squares on log time.

    Each coefficient is pulled weakly to its start, so that few points move it little; those that
    only `more` can tell (`Family.uneven`) stay at their start without it.
    """
    kept = {} if more else {name: start.get(name, family.start[name]) for name in family.uneven}
    names = [name for name in family.start if name not in kept]
    first = np.log([start.get(name, family.start[name]) for name in names])
    shape, measured = family.shape(*shapes.T), np.log(seconds)

    def errors(logs: Array) -> Array:
        values = kept | dict(zip(names, np.exp(logs).tolist(), strict=True))
        left = np.log(family.form(shape, chip, values)) - measured
        further = [more(values)] if more else []
        return np.concatenate([left, *further, PULL * (logs - first)])

    low, high = np.log([BOUNDS.get(name, (1e-12, 1e6)) for name in names]).T
    inside = np.clip(first, low + 1e-3, high - 1e-3)
    found = least_squares(
        errors,
        inside,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST,
        diff_step=np.full(len(names), 1e-3),
    )
    fitted = kept | dict(zip(names, np.exp(found.x).tolist(), strict=True))
    return {name: fitted[name] for name in family.start}


def _launch(table: pd.DataFrame | None) -> dict[str, float]:
    """Return seconds per launch from the longest run of each case."""
    if table is None:
        return {}
    last = table.sort_values("kernels").groupby("case")["s"].last()
    names = {"eager_with_sync": "eager_s", "graph": "graph_s"}
    return {names[str(case)]: float(s) for case, s in last.items() if case in names}
