"""Arrays by address: what the loop works on, as records of pointers.

Handing a tuple of arrays to a function costs two atomic reference counts and seven words per array
and call, more than most functions here take themselves. The loop gets one record per tuple
instead, which holds the addresses of its arrays; `ints`, `floats`, `grid` and `ranks` turn an
address into an array at no cost. The caller keeps the arrays alive and in place meanwhile, and
nothing checks an index.
"""

import ctypes
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_untracked
from numba.extending import intrinsic

from sim.core.jit import PLAIN, record_type
from sim.core.layout import BlockPool, Lanes, Tiers

__all__ = ["floats", "grid", "ints", "lanes_at", "pool_at", "ranks", "tiers_at"]

BOUNDLESS = 1 << 40  # entries that an array by address claims to have
FARTHEST = 1 << 30  # entries that it claims as plain Python, where numpy counts its bytes
RANKS = 5  # columns of BlockPool.rank

POOL_AT = record_type(
    [(name, "i8") for name in BlockPool._fields]
    + [("blocks", "i8"), ("index_size", "i8"), ("ranked", "i8"), ("evicted_size", "i8")]
)
TIERS_AT = record_type([(name, POOL_AT) for name in Tiers._fields])
LANES_AT = record_type(
    [(name, "i8") for name in Lanes._fields]
    + [("width", "i8"), ("inbox_size", "i8"), ("waiting_size", "i8"), ("done_size", "i8")]
)


def _addresses(arrays: NamedTuple, dtype: np.dtype[Any]) -> npt.NDArray[np.void]:
    record = np.zeros(1, dtype)
    for name, array in arrays._asdict().items():
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} must be contiguous")
        record[name] = array.ctypes.data
    return record


def lanes_at(lanes: Lanes) -> npt.NDArray[np.void]:
    """Return the addresses of a replica's lists, shape (1,)."""
    record = _addresses(lanes, LANES_AT)
    record["width"] = lanes.blocks.shape[1]
    for name in ("inbox", "waiting", "done"):
        record[f"{name}_size"] = getattr(lanes, name).size
    return record


def pool_at(pool: BlockPool) -> npt.NDArray[np.void]:
    """Return the addresses of a block pool, and its sizes, shape (1,)."""
    record = _addresses(pool, POOL_AT)
    record["blocks"] = pool.references.size
    record["index_size"] = pool.index_key.size
    record["ranked"] = pool.rank.shape[0] > 1
    record["evicted_size"] = pool.evicted.size
    return record


def tiers_at(tiers: Tiers) -> npt.NDArray[np.void]:
    """Return the addresses of the lower tiers, shape (1,)."""
    record = np.zeros(1, TIERS_AT)
    for name, pool in tiers._asdict().items():
        record[name] = pool_at(pool)
    return record


def _array(element: Any, width: int) -> Any:  # noqa: ANN401 - numba's own types
    """Return the code generator of an array at an address, with rows of `width` where not 0."""
    kind = types.Array(element, 2 if width else 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        made = context.make_array(kind)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(element))
        columns = context.get_constant(types.intp, width)
        if len(arguments) > 1:
            columns = arguments[1]
        one = context.get_constant(types.intp, size)
        rows = context.get_constant(types.intp, BOUNDLESS)
        shape, strides = [rows], [one]
        if width:
            shape, strides = [rows, columns], [builder.mul(columns, one), one]
        made.data = builder.inttoptr(arguments[0], made.data.type)
        made.itemsize, made.nitems = one, rows
        made.shape = cgutils.pack_array(builder, shape)
        made.strides = cgutils.pack_array(builder, strides)
        made.meminfo = cgutils.get_null_value(made.meminfo.type)
        made.parent = cgutils.get_null_value(made.parent.type)
        value = made._getvalue()
        return impl_ret_untracked(context, builder, signature.return_type, value)

    return kind, generate


@intrinsic
def _ints(_: Any, address: Any) -> Any:  # noqa: ANN401
    kind, generate = _array(types.int64, 0)
    return kind(address), generate


@intrinsic
def _floats(_: Any, address: Any) -> Any:  # noqa: ANN401
    kind, generate = _array(types.float64, 0)
    return kind(address), generate


@intrinsic
def _grid(_: Any, address: Any, width: Any) -> Any:  # noqa: ANN401
    kind, generate = _array(types.int64, 1)
    return kind(address, width), generate


@intrinsic
def _ranks(_: Any, address: Any) -> Any:  # noqa: ANN401
    kind, generate = _array(types.float64, RANKS)
    return kind(address), generate


def _plain(kind: type, width: int = 0) -> Any:  # noqa: ANN401
    """Return what makes an array at an address where nothing is compiled."""

    def at(address: int, columns: int = width) -> npt.NDArray[Any]:
        shape = (FARTHEST // max(columns, 1), columns) if columns else (FARTHEST,)
        memory = cast("Any", (ctypes.c_char * (8 * FARTHEST)).from_address(int(address)))
        return np.ndarray(shape, kind, memory)

    return at


ints = cast("Any", _plain(np.int64) if PLAIN else _ints)
floats = cast("Any", _plain(np.float64) if PLAIN else _floats)
grid = cast("Any", _plain(np.int64) if PLAIN else _grid)
ranks = cast("Any", _plain(np.float64, RANKS) if PLAIN else _ranks)
