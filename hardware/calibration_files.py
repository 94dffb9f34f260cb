"""Calibrations as files: TOML for people, and a compressed CSV of the residual's points."""

import gzip
import io
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from formats import InputError, atomic_write, did_you_mean, read_table, read_toml
from hardware.calibration_data import Calibration, FamilyFit
from hardware.kernels_families import FAMILIES
from hardware.kernels_forms import Array
from hardware.kernels_residual import Hyper

__all__ = ["load_calibration", "save_calibration"]

_COLUMNS = ("family", "extent", "log_residual", "weight")
_BAND = ("p10", "p50", "p90")


class _FamilyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    points: int = Field(ge=0, description="measured shapes")
    coefficients: dict[str, float] = Field(description="shares of peaks, or seconds (_s)")
    scales: list[float] = Field([], description="axis, layout, joint effect, noise [log time]")
    lengths: list[float] = Field([], description="per feature [doublings]")
    band: dict[Literal["p10", "p50", "p90"], float] = Field(
        {}, description="held-out log(measured / predicted)"
    )


class _CalibrationFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1]
    accelerator: str = Field(description="accelerator measured")
    source: str = Field(description="where the traces come from")
    date: str = Field(description="day measured")
    residuals: str = Field(description="file of residual points beside this one")
    launch: dict[Literal["eager_s", "graph_s"], float] = Field({}, description="per kernel [s]")
    families: dict[str, _FamilyFile]


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write ``<name>.toml`` and ``<name>.residuals.csv.gz``; the same bytes for the same fit.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    points = path.with_name(f"{path.stem}.residuals.csv.gz")
    with atomic_write(points) as temporary:
        text = _table(calibration).to_csv(index=False, float_format="%.8g", lineterminator="\n")
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    with atomic_write(path) as temporary:
        temporary.write_text(_toml(calibration, points.name), encoding="utf-8")


def _table(calibration: Calibration) -> pd.DataFrame:
    rows = [
        (name, " ".join(f"{v:g}" for v in shape), residual, weight)
        for name in calibration.names
        for shape, residual, weight in _family_points(calibration.families[name])
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _family_points(fit: FamilyFit) -> Iterator[tuple[list[float], float, float]]:
    weights = np.zeros_like(fit.log_residual) if fit.weights is None else fit.weights
    yield from zip(fit.shapes.tolist(), fit.log_residual.tolist(), weights.tolist(), strict=True)


def _toml(calibration: Calibration, points: str) -> str:
    lines = [
        "# Written by `roofcast calibrate`. Coefficients without _s are shares of the",
        "# accelerator's own peaks; those with _s are seconds. The residual is a Gaussian process",
        "# on log(measured / form) at the points of the file named below.",
        "schema_version = 1",
        *(f'{key} = "{getattr(calibration, key)}"' for key in ("accelerator", "source", "date")),
        f'residuals = "{points}"',
        "",
        "[launch]",
        *_pairs(calibration.launch),
    ]
    for name in calibration.names:
        lines += ["", *_family_lines(name, calibration.families[name])]
    return "\n".join(lines) + "\n"


def _family_lines(name: str, fit: FamilyFit) -> list[str]:
    lines = [f"[families.{name}]", f"points = {len(fit.log_residual)}"]
    if fit.hyper:
        lines.append(f"scales = [{', '.join(f'{v:.5g}' for v in fit.hyper.scales)}]")
        lines.append(f"lengths = [{', '.join(f'{v:.5g}' for v in fit.hyper.lengths)}]")
    if fit.band:
        lines.append(f"band = {{{', '.join(_pairs(fit.band))}}}")
    return [*lines, f"[families.{name}.coefficients]", *_pairs(fit.coefficients)]


def _pairs(values: Mapping[str, float]) -> list[str]:
    return [f"{key} = {value:.6g}" for key, value in values.items()]


@lru_cache(maxsize=16)
def load_calibration(path: Path) -> Calibration:
    """Read a calibration that `save_calibration` wrote.

    Raises
    ------
    InputError
        A file is missing or bad, or names an unknown family or coefficient.
    """
    head = read_toml(path, _CalibrationFile)
    table = read_table(path.with_name(head.residuals), _COLUMNS)
    parts = {str(name): part for name, part in table.groupby("family")}
    families = {
        name: _family(name, entry, parts.get(name), path) for name, entry in head.families.items()
    }
    launch = {str(key): value for key, value in head.launch.items()}
    return Calibration(head.accelerator, head.source, head.date, families, launch)


def _family(name: str, entry: _FamilyFile, points: pd.DataFrame | None, path: Path) -> FamilyFit:
    where = f"{path} [families.{name}]"
    if name not in FAMILIES:
        raise InputError("is not a known family", where, repair=did_you_mean(name, FAMILIES))
    family = FAMILIES[name]
    wrong = set(family.start) ^ (set(entry.coefficients) - set(family.optional))
    if wrong:
        allowed = ", ".join(family.start)
        raise InputError(f"coefficients {sorted(wrong)} do not match", where, allowed, "fit again")
    count = 0 if points is None else len(points)
    if count != entry.points:
        what = f"{count} residual points, {entry.points} expected"
        raise InputError(what, where, repair="fit again")
    shapes = _extents(points, len(family.extents), where)
    residual, weights = (_column(points, name) for name in ("log_residual", "weight"))
    hyper = None
    if entry.scales:
        one, two, both, noise = entry.scales
        axes = family.matrix(family.shape(*np.ones(len(family.extents))))[1]
        hyper = Hyper((one, two, both, noise), tuple(entry.lengths), axes)
    band = {str(key): value for key, value in entry.band.items()}
    return FamilyFit(entry.coefficients, shapes, residual, hyper, weights, band)


def _column(table: pd.DataFrame | None, name: str) -> Array:
    return np.empty(0) if table is None else table[name].to_numpy(dtype=float)


def _extents(table: pd.DataFrame | None, extents: int, where: str) -> Array:
    if table is None:
        return np.empty((0, extents))
    text = io.StringIO("\n".join(table["extent"].astype(str)))
    try:
        shapes = np.loadtxt(text, ndmin=2)
    except ValueError as e:
        raise InputError(f"bad residual point: {e}", where, repair="fit again") from None
    if shapes.shape[1] != extents:
        what = f"residual points have {shapes.shape[1]} extents, {extents} expected"
        raise InputError(what, where, repair="fit again")
    return shapes
