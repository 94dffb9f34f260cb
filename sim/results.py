"""The results folder: tables, summary, scenario, report and trace, written whole or not at all."""

import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from formats import InputError
from sim.cache_curve import cache_curve
from sim.chrome_trace import chrome_trace
from sim.exploring.bands import band_table, bands_of
from sim.metrics import summary
from sim.simulation import Result
from sim.toml import scenario_toml

__all__ = ["RESULT_FILES", "SCHEMA_VERSION", "write_results"]

SCHEMA_VERSION = 1
TRACE_ROWS = 100_000  # a trace of more requests and step rows is written on demand only
TABLES = ("requests.csv", "steps.csv")
RESULT_FILES = (
    *TABLES,
    "summary.json",
    "bands.json",
    "run.json",
    "scenario.toml",
    "report.html",
    "trace.json",
)
DECIMALS = {"_s": 9, "_j": 6, "_w": 3, "_c": 4}  # by the unit at the end of a column's name
VERSIONS_OF = ("roofcast", "numpy", "pandas", "numba", "simpy")


def write_results(
    result: Result,
    folder: Path,
    *,
    report: bool = True,
    trace: bool | None = None,
    extra: Mapping[str, str] | None = None,
) -> Path:
    """Write a results folder: under a temporary name first, renamed when it is whole.

    Parameters
    ----------
    result : Result
        A simulation.
    folder : Path
        Where to. An earlier results folder of this name is replaced; anything else is left alone.
    report : bool
        Write report.html.
    trace : bool, optional
        Write trace.json; None = when the tables have at most 100,000 rows together.
    extra : mapping, optional
        Name -> text of further files.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        The folder holds something else, or cannot be written.
    """
    check_target(folder)
    texts = dict(extra or {})
    texts["summary.json"] = json_text(summary(result))
    curve = cache_curve(result)
    if curve is not None:
        texts["cache.csv"] = curve.to_csv(index=False, lineterminator="\n")
    bands = bands_of(result)
    texts["bands.json"] = json_text(band_table(bands))
    texts["scenario.toml"] = scenario_toml(result.scenario)
    rows = len(result.requests) + len(result.steps)
    with _whole_folder(folder) as new:
        _write_table(result.requests, new / "requests.csv")
        _write_table(result.steps, new / "steps.csv")
        if trace or (trace is None and rows <= TRACE_ROWS):
            texts["trace.json"] = json.dumps(chrome_trace(result), separators=(",", ":"))
        if report:
            from sim.report import report_html  # charts take a second to import

            texts["report.html"] = report_html(result, bands)
        texts["run.json"] = json_text(_run_info(result, folder, [*texts, *TABLES]))
        for name, text in texts.items():
            (new / name).write_text(text, encoding="utf-8", newline="\n")
    return folder


def json_text(data: Mapping[str, Any]) -> str:
    """Return indented JSON; the same text for the same data."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _run_info(result: Result, folder: Path, files: list[str]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "roofcast": "result",
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu_s": result.wall_s,
        "folder": str(folder.resolve()),
        "command": sys.argv,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in VERSIONS_OF},
        "files": sorted({*files, "run.json"}),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, rounded by unit so that the text is the same in every process."""
    rounded = {
        name: np.round(table[name].to_numpy(), _decimals(str(name))) + 0.0
        for name in table.columns
        if table[name].dtype.kind == "f"
    }
    table.assign(**rounded).to_csv(path, index=False, lineterminator="\n")


def _decimals(name: str) -> int:
    return DECIMALS.get(name[-2:], 0 if name in ("flops", "bytes") else 6)


def check_target(folder: Path) -> None:
    """Refuse a results folder that holds anything but an earlier result.

    Raises
    ------
    InputError
        `folder` is a file, or has files that a result does not have.
    """
    if folder.resolve() == Path.cwd():
        what = "is the current folder, which cannot be replaced"
        raise InputError(what, str(folder), repair="name a folder inside it")
    if folder.is_file():
        raise InputError("is a file, not a folder", str(folder), repair="choose another name")
    if not folder.is_dir():
        return
    try:
        found = {p.name for p in folder.iterdir()}
    except OSError as e:
        raise InputError(f"cannot be read: {e.strerror}", str(folder)) from None
    strange = sorted(found - _files_of(folder)) if found else []
    if strange:
        what = f"holds {strange[0]!r}, which is not part of a roofcast result"
        raise InputError(what, str(folder), repair="choose another folder with --out, or empty it")


def _files_of(folder: Path) -> set[str]:
    """Return the files that the folder's own run.json claims."""
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return {*info["files"]} if info["roofcast"] == "result" else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder` that takes its place when the block ends well."""
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        what = f"cannot be written: {e.strerror}"
        raise InputError(what, str(folder), repair="choose another folder with --out") from None
    try:
        yield new
        new.chmod(0o755)
        _swap(new, folder)
    except OSError as e:
        what = f"cannot be written: {e.strerror or e}"
        raise InputError(what, str(folder), repair="free some space, or choose another") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`; put the old one back when that fails."""
    if not folder.exists():
        new.rename(folder)
        return
    away = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    folder.rename(away / "old")
    try:
        new.rename(folder)
    except BaseException:
        (away / "old").rename(folder)
        raise
    finally:
        shutil.rmtree(away, ignore_errors=True)
