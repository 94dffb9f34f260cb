"""The one place that decides how the inner loop is compiled."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

__all__ = ["PLAIN", "compiled", "record_type"]

PLAIN = os.environ.get("ROOFCAST_PLAIN", "0") != "0"
"""The loop runs as plain Python: some hundred times slower, but a debugger sees it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _cache_folder() -> Path:
    """Return a folder for machine code that belongs to exactly this source.

    numba looks only at the file of the outermost function, so a change of a callee in another
    file would go unseen: the folder carries a digest of the whole package.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for root in (home / "roofcast", Path(tempfile.gettempdir()) / f"roofcast-{os.getuid()}"):
        folder = root / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="roofcast-"))


if not os.environ.get("NUMBA_CACHE_DIR"):
    setattr(numba.config, "CACHE_DIR", str(_cache_folder()))  # noqa: B010 - untyped module


def compiled(function: Function) -> Function:
    """Compile with numba and keep the machine code on disk for the next process.

    Set ROOFCAST_PLAIN=1 to step through the same code in a debugger, or to see which lines ran;
    numbers wrap around and divide by zero there as they do here.
    """
    if PLAIN:
        return np.errstate(all="ignore")(function)
    return cast("Function", numba.njit(cache=True, error_model="numpy")(function))


def record_type(fields: Any) -> np.dtype[Any]:  # noqa: ANN401 - what numpy takes
    """Return a structured type whose records have their fields as attributes, compiled or not."""
    made = np.dtype(fields)
    return np.dtype((np.record, made)) if PLAIN else made
