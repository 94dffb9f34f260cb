"""The one place that decides how the inner loop is compiled."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled"]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile with numba and keep the machine code on disk for the next process.

    Set NUMBA_DISABLE_JIT=1 to step through the same code in a debugger.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
