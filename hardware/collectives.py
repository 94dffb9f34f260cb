"""Arithmetic of collectives: hops, bytes on the wire, curves of time against size, topologies.

Pure functions and one dataclass; `hardware.interconnect` joins them to named links. `bytes` of
a collective is the whole buffer of one rank: the input of a reduction or exchange, the output
of a gather (the convention of nccl-tests). Ring, tree and switch forms: Thakur et al.,
"Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005; Klenk et al.,
"An in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from formats import InputError, did_you_mean

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "Curve",
    "Topology",
    "algorithm_seconds",
    "between_ranks",
    "check_operation",
    "hops",
    "torus_sides",
    "usable_share",
    "wire",
]

Floats = npt.NDArray[np.float64]
Topology = Literal["switch", "mesh", "torus", "bus", "network"]

OPERATIONS = {
    "all_reduce": "sum over all ranks, result on every rank, as NCCL chooses the algorithm",
    "custom_all_reduce": "the same by vLLM's own kernels inside a CUDA graph",
    "custom_all_reduce_eager": "the same called from Python: the host's dispatch is the floor",
    "all_gather": "every rank ends with the parts of all",
    "reduce_scatter": "sum over all ranks, each keeps its part",
    "all_to_all": "each rank sends a different part to every other",
    "send": "one rank to one other",
}
"""Operation -> what it does."""

REDUCTIONS = ("all_reduce", "custom_all_reduce", "custom_all_reduce_eager")
NODE = 8
"""Ranks up to which NCCL chains a tree rank by rank; beyond it branches."""


def check_operation(op: str) -> None:
    """Raise InputError unless `op` is a known operation."""
    if op not in OPERATIONS:
        repair = did_you_mean(op, OPERATIONS)
        raise InputError(f"no collective named {op!r}", "op", repair=repair)


def wire(op: str, ranks: int) -> float:
    """Return the bytes that each rank sends per byte of its buffer.

    Examples
    --------
    >>> wire("all_reduce", 8)
    1.75
    >>> wire("all_gather", 8)
    0.875
    """
    if op == "send":
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if op in REDUCTIONS else share


def hops(op: str, ranks: int) -> float:
    """Return the messages that wait for one another in a small collective.

    An all-reduce goes up and down a chain of up to 8 ranks, and a binary tree of such chains
    beyond; gathers and scatters go around a ring.

    Examples
    --------
    >>> hops("all_reduce", 8), hops("all_reduce", 32), hops("all_gather", 8), hops("send", 2)
    (14.0, 18.0, 7.0, 1.0)
    """
    if op == "send":
        return 1.0
    if op in REDUCTIONS:
        return 2 * (min(ranks, NODE) - 1 + max(0.0, float(np.log2(ranks / NODE))))
    return float(ranks - 1)


_Form = tuple[Callable[[int], float], Callable[[int], float]]

ALGORITHMS: dict[str, _Form] = {
    "ring": (lambda n: 2.0 * (n - 1), lambda n: 2 * (n - 1) / n),
    "tree": (lambda n: 2 * float(np.ceil(np.log2(n))), lambda n: 2.0),
    "nvls": (lambda n: 2.0, lambda n: (n + 1) / n),
    "one_shot": (lambda n: 1.0, lambda n: n - 1.0),
    "two_shot": (lambda n: 2.0, lambda n: 2 * (n - 1) / n),
}
"""All-reduce algorithm -> (hops, wire bytes per buffer byte), each of the number of ranks.

ring: reduce-scatter and all-gather around a ring. tree: a double binary tree, up and down.
nvls: the switch adds (multicast objects of NVSwitch 3 and later). one_shot: every rank reads
every buffer. two_shot: every rank adds its part of all buffers, then reads the others' parts.
"""


def algorithm_seconds(
    algorithm: str,
    nbytes: npt.ArrayLike,
    ranks: int,
    base_s: float,
    hop_s: float,
    bytes_per_s: float,
) -> Floats:
    """Return the time of an all-reduce by one algorithm: base + hops x hop + wire / rate [s].

    Parameters
    ----------
    algorithm : str
        A key of `ALGORITHMS`.
    nbytes : array_like
        Buffer of one rank [byte].
    ranks : int
        At least 2.
    base_s, hop_s : float
        Start of the operation, and each message that waits for another [s].
    bytes_per_s : float
        Attained rate of one rank and direction [byte/s].

    Examples
    --------
    >>> t = algorithm_seconds("ring", 8e6, 8, 4e-6, 1e-6, 350e9)
    >>> round(float(t) * 1e6, 2)
    58.0
    """
    if algorithm not in ALGORITHMS:
        hint = did_you_mean(algorithm, ALGORITHMS)
        raise InputError(f"no all-reduce algorithm {algorithm!r}", "algorithm", repair=hint)
    count, volume = ALGORITHMS[algorithm]
    fixed = base_s + hop_s * count(ranks)
    return fixed + volume(ranks) * np.asarray(nbytes, dtype=float) / bytes_per_s


@dataclass(frozen=True, slots=True)
class Curve:
    """Time of one operation at one number of ranks: a few straight pieces over the size.

    A piece is one algorithm and protocol of the library; ``start_bytes`` are the switches between
    them. A larger message never takes less time than a smaller one.

    Parameters
    ----------
    op : str
        A key of `OPERATIONS`.
    ranks : int
        Ranks that take part.
    start_bytes : ndarray
        Buffer at which each piece starts, the first 0 [byte].
    latency_s : ndarray
        Time of an empty message in each piece: start, hops, launch [s].
    seconds_per_byte : ndarray
        Inverse of the rate on the wire, per rank and direction; 0 on a plateau [s/byte].
    hop_s : float
        What one more hop adds [s]; used for more ranks than were measured.

    Examples
    --------
    >>> c = Curve("all_gather", 2, np.array([0.0, 1e6]), np.array([5e-6, 6e-6]),
    ...           np.array([0.0, 4e-12]), 1e-6)
    >>> [round(float(t) * 1e6, 1) for t in c.seconds([1e3, 1e6, 1e8])]
    [5.0, 8.0, 206.0]
    """

    op: str
    ranks: int
    start_bytes: Floats
    latency_s: Floats
    seconds_per_byte: Floats
    hop_s: float = 0.0

    def seconds(self, nbytes: npt.ArrayLike, ranks: int | None = None) -> Floats:
        """Return the time at each size, for other `ranks` by hops and wire bytes [s]."""
        size = np.asarray(nbytes, dtype=float)
        n = self.ranks if ranks is None else ranks
        piece = np.searchsorted(self.start_bytes, size, side="right") - 1
        per_byte = self.seconds_per_byte * wire(self.op, n)
        fixed = self.latency_s + self.hop_s * (hops(self.op, n) - hops(self.op, self.ranks))
        ends = fixed[:-1] + per_byte[:-1] * self.start_bytes[1:]
        floor = np.maximum.accumulate(np.concatenate([[0.0], ends]))
        return np.asarray(np.maximum(floor[piece], fixed[piece] + per_byte[piece] * size))


def between_ranks(curves: list[Curve], nbytes: Floats, ranks: int) -> Floats:
    """Return the time at any number of ranks from curves at a few [s].

    Between two measured numbers log time runs straight over log ranks; above the largest, hops
    and wire bytes are added to its curve.

    Parameters
    ----------
    curves : list of Curve
        One operation, ascending in ranks.
    nbytes : ndarray
        Buffer [byte].
    ranks : int
        At least 2.
    """
    measured = [c.ranks for c in curves]
    if ranks in measured:
        return curves[measured.index(ranks)].seconds(nbytes)
    if ranks > measured[-1] or ranks < measured[0]:
        return curves[-1 if ranks > measured[-1] else 0].seconds(nbytes, ranks)
    high = int(np.searchsorted(measured, ranks))
    weight = np.log(ranks / measured[high - 1]) / np.log(measured[high] / measured[high - 1])
    low_s, high_s = curves[high - 1].seconds(nbytes), curves[high].seconds(nbytes)
    return np.asarray(np.exp((1 - weight) * np.log(low_s) + weight * np.log(high_s)))


def torus_sides(ranks: int, dims: int) -> list[int]:
    """Return the sides of the most cubic slice of a torus that holds at least `ranks` chips.

    Examples
    --------
    >>> torus_sides(64, 3), torus_sides(8, 2), torus_sides(2, 3)
    ([4, 4, 4], [2, 4], [1, 1, 2])
    """
    sides = [1] * dims
    while np.prod(sides) < ranks:
        sides[int(np.argmin(sides[::-1]) * -1 - 1)] *= 2
    return sorted(sides)


def usable_share(
    topology: Topology, op: str, ranks: int, max_ranks: int, dims: int = 0, wrap: int = 0
) -> float:
    """Return the part of a rank's whole link bandwidth that an operation can use.

    A switch serves any peers at the full rate. In a full mesh each pair has its own link, so n
    ranks use n - 1 of them. In a torus a slice uses the axes it spans, an axis shorter than
    `wrap` is a line at half the rate of a ring, and an exchange of all with all also pays for the
    chips that its bytes pass (Austin et al., "How to Scale Your Model", 2025, section on TPUs).

    Examples
    --------
    >>> usable_share("mesh", "all_reduce", 2, 8)
    0.14285714285714285
    >>> usable_share("torus", "all_reduce", 64, 8960, dims=3, wrap=4)
    1.0
    """
    if topology == "mesh":
        return (1 if op == "send" else ranks - 1) / (max_ranks - 1)
    if topology != "torus":
        return 1.0
    if op == "send":
        return 1 / (2 * dims)
    sides = [side for side in torus_sides(ranks, dims) if side > 1]
    if op == "all_to_all":
        passed = max(side / (4 if side >= wrap else 3) for side in sides)
        return min(1.0, wire(op, ranks) / (passed * dims))
    return sum(1.0 if side >= wrap else 0.5 for side in sides) / dims
