"""Time of a collective by (operation, bytes, ranks, link), inside a node and over several.

See `hardware.links` for what a link is and where its numbers come from, and
`hardware.collectives` for the arithmetic.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from formats import InputError
from hardware import collectives
from hardware.collectives import Floats, algorithm_seconds
from hardware.links import (
    SUBSTITUTE,
    Link,
    coefficients,
    curves_of,
    link_for,
    load_link,
    make_link,
)

__all__ = [
    "Link",
    "all_reduce_s",
    "collective_s",
    "exposed_s",
    "hierarchical_s",
    "link_for",
    "load_link",
    "make_link",
    "send_s",
]


def collective_s(
    op: str, nbytes: npt.ArrayLike, ranks: npt.ArrayLike, link: Link | str, imbalance: float = 1.0
) -> Floats:
    """Return the time of a collective inside one domain [s].

    Parameters
    ----------
    op : str
        all_reduce (NCCL), custom_all_reduce (vLLM's own kernels in a CUDA graph; where a link has
        none, or for more ranks than were measured, NCCL), custom_all_reduce_eager, all_gather,
        reduce_scatter, all_to_all, send.
    nbytes : array_like
        Whole buffer of one rank: the input of a reduction or exchange, the output of a gather,
        the message of a send [byte]; at least 0.
    ranks : array_like
        Ranks that take part, 1 .. the link's domain; one rank takes no time.
    link : Link or str
        A link, or its name.
    imbalance : float
        Bytes of the busiest rank over the mean, at least 1; for uneven exchanges (experts).

    Returns
    -------
    ndarray
        Seconds, in the broadcast shape of `nbytes` and `ranks`.

    Raises
    ------
    InputError
        Unknown operation or link, negative bytes, or ranks outside the domain.

    Examples
    --------
    >>> t = collective_s("custom_all_reduce", [16384, 1048576], 8, "nvlink4-h200")
    >>> bool(4e-6 < t[0] < 8e-6 < t[1] < 2e-5)
    True
    """
    collectives.check_operation(op)
    link = load_link(link) if isinstance(link, str) else link
    size, count = np.broadcast_arrays(np.asarray(nbytes, dtype=float), np.asarray(ranks))
    _check(size, count, link, imbalance)
    seconds = np.zeros(size.shape)
    for n in np.unique(count):
        here = (count == n) & (size > 0)
        if n > 1 and here.any():
            seconds[here] = _ORIGINS[link.fidelity](op, size[here] * imbalance, int(n), link)
    return seconds


def _check(size: Floats, count: npt.NDArray[np.int64], link: Link, imbalance: float) -> None:
    if size.size and not np.min(size) >= 0:
        raise InputError(f"bytes = {np.min(size):g}", "nbytes", "0 or more")
    if not imbalance >= 1:
        raise InputError(f"imbalance = {imbalance:g}", "imbalance", "1 or more (busiest over mean)")
    if count.size and (np.min(count) < 1 or np.max(count) > link.ranks):
        what = f"{int(np.max(count))} ranks on {link.name}"
        repair = "join several nodes with hierarchical_s"
        raise InputError(what, "ranks", f"1 .. {link.ranks}", repair)


def _measured(op: str, size: Floats, ranks: int, link: Link) -> Floats:
    return _by_curves(op, size, ranks, link.fitted)


def _by_curves(op: str, size: Floats, ranks: int, name: str) -> Floats:
    """Return the time by a measured link's curves, or by those of the operation standing in.

    A send is half of an exchange between two ranks: each of them sends half of its buffer.
    """
    if op == "send":
        return _by_curves("all_to_all", 2 * size, 2, name)
    curves = curves_of(name)
    known = curves.get(op)
    if known is None or (op != "all_reduce" and op in SUBSTITUTE and ranks > known[-1].ranks):
        return _by_curves(SUBSTITUTE[op], size, ranks, name)
    return collectives.between_ranks(known, size, ranks)


def _carried_over(op: str, size: Floats, ranks: int, link: Link) -> Floats:
    """Geometric mean over donors, each at the bytes that take as long on its own bandwidth."""
    share = collectives.usable_share(
        link.topology, op, ranks, link.ranks, link.dims, link.wrap or 1
    )
    logs = []
    for name in link.carried_from:
        scale = load_link(name).bytes_per_s.value / (link.bytes_per_s.value * share)
        logs.append(np.log(_by_curves(op, size * scale, ranks, load_link(name).fitted)))
    return np.asarray(np.exp(np.mean(logs, axis=0)))


def _analytic(op: str, size: Floats, ranks: int, link: Link) -> Floats:
    """Fastest over protocols and, for an all-reduce, over ring and tree."""
    times = []
    for p in link.protocols.values():
        rate = p.share.value * link.bytes_per_s.value
        base, hop = p.base_s.value, p.hop_s.value
        if op in collectives.REDUCTIONS:
            forms = ("ring", "tree")
            times += [algorithm_seconds(f, size, ranks, base, hop, rate) for f in forms]
        else:
            waits = 1.0 if op == "all_to_all" else collectives.hops(op, ranks)
            times.append(base + waits * hop + collectives.wire(op, ranks) * size / rate)
    return np.asarray(np.min(times, axis=0))


_Origin = Callable[[str, Floats, int, Link], Floats]
_ORIGINS: dict[str, _Origin] = {
    "measured": _measured,
    "carried": _carried_over,
    "analytic": _analytic,
}


def all_reduce_s(algorithm: str, nbytes: npt.ArrayLike, ranks: int, link: Link | str) -> Floats:
    """Return the time of an all-reduce if the library were held to one algorithm [s].

    Start and hop come from the link's fitted small all-reduces, the rate from its fitted shares
    of the bandwidth (ring: large gathers; nvls: large sums of all ranks in the switch).

    Parameters
    ----------
    algorithm : {"ring", "tree", "nvls", "one_shot", "two_shot"}
        See `collectives.ALGORITHMS`.
    nbytes : array_like
        Buffer of one rank [byte].
    ranks : int
        2 .. the link's domain.
    link : Link or str
        A measured link, or one carried from measured ones.

    Examples
    --------
    >>> big = [float(all_reduce_s(a, 1e9, 8, "nvlink4-h200")) for a in ("nvls", "ring")]
    >>> big[0] < big[1]
    True
    """
    link = load_link(link) if isinstance(link, str) else link
    if link.fidelity == "analytic":
        raise InputError(f"{link.name} has no measured kin", "link", repair="use collective_s")
    fit = coefficients(link.fitted or load_link(link.carried_from[0]).fitted)
    name = link.fitted or load_link(link.carried_from[0]).fitted
    if algorithm == "nvls" and fit.nvls_share is None:
        raise InputError(f"the switch of {link.name} does not add", "algorithm", "ring, tree")
    share = fit.nvls_share if algorithm == "nvls" and fit.nvls_share else fit.ring_share
    first = curves_of(name)["all_reduce"][0]
    hop = fit.hop_s["all_reduce"]
    base = max(0.0, float(first.latency_s[0]) - hop * collectives.hops("all_reduce", first.ranks))
    rate = share * link.bytes_per_s.value
    return algorithm_seconds(algorithm, nbytes, ranks, base, hop, rate)


def send_s(nbytes: npt.ArrayLike, link: Link | str, ports: float = 1.0) -> Floats:
    """Return the time of one message between two ranks: a pipeline stage, a KV hand-off [s].

    Parameters
    ----------
    nbytes : array_like
        Message [byte].
    link : Link or str
        A link, or its name.
    ports : float
        Links or NICs that share the message, above 0; below 1 where ranks share one.

    Examples
    --------
    >>> round(float(send_s(1e9, "infiniband-ndr")) * 1e3, 1)
    21.3
    """
    if not ports > 0:
        raise InputError(f"ports = {ports:g}", "ports", "above 0")
    return collective_s("send", np.asarray(nbytes, dtype=float) / ports, 2, link)


def hierarchical_s(
    op: str,
    nbytes: npt.ArrayLike,
    ranks_per_node: int,
    nodes: int,
    inside: Link | str,
    between: Link | str,
    ports: float = 1.0,
    imbalance: float = 1.0,
) -> Floats:
    """Return the time of a collective over several nodes [s].

    All-reduce: reduce-scatter inside, all-reduce of each part between nodes, all-gather inside.
    Gather and scatter: between nodes, then (before) inside. Exchange: what stays inside and what
    leaves move at the same time, the slower counts.

    Parameters
    ----------
    op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
        Custom all-reduces do not leave a node.
    nbytes : array_like
        Whole buffer of one rank, as in `collective_s` [byte].
    ranks_per_node, nodes : int
        At least 1 each.
    inside, between : Link or str
        Link of the ranks of one node, and of one rank to its peers on other nodes.
    ports : float
        NICs per rank, above 0; 0.5 where two ranks share one.
    imbalance : float
        As in `collective_s`, for an exchange.

    Examples
    --------
    >>> one = hierarchical_s("all_reduce", 1e8, 8, 1, "nvlink4-h200", "infiniband-ndr")
    >>> two = hierarchical_s("all_reduce", 1e8, 8, 2, "nvlink4-h200", "infiniband-ndr")
    >>> bool(one < two)
    True
    """
    size = np.asarray(nbytes, dtype=float)
    if nodes == 1:
        return collective_s(op, size, ranks_per_node, inside, imbalance)
    if op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        raise InputError(f"{op} over {nodes} nodes", "op", "all_reduce, all_gather, ...")
    if op == "all_to_all":
        near = collective_s(op, size / nodes, ranks_per_node, inside, imbalance)
        return np.maximum(near, collective_s(op, size / ports, nodes, between, imbalance))
    far = collective_s(op, size / (ranks_per_node * ports), nodes, between)
    steps = ("reduce_scatter", "all_gather") if op == "all_reduce" else (op,)
    return far + sum(collective_s(step, size, ranks_per_node, inside) for step in steps)


def exposed_s(
    seconds: npt.ArrayLike, compute_s: npt.ArrayLike = np.inf, overlap: float = 0.0
) -> Floats:
    """Return the part of a communication that computation does not hide [s].

    Parameters
    ----------
    seconds : array_like
        Time of the communication [s].
    compute_s : array_like
        Work that can run at the same time [s]; no more than that is hidden.
    overlap : float
        Fraction that is scheduled beside computation, 0 .. 1.

    Examples
    --------
    >>> float(exposed_s(10.0, 3.0, overlap=0.5))
    7.0
    """
    if not 0 <= overlap <= 1:
        raise InputError(f"overlap = {overlap:g}", "overlap", "0 .. 1")
    whole = np.asarray(seconds, dtype=float)
    hidden = np.minimum(overlap * whole, np.asarray(compute_s, dtype=float))
    return np.asarray(whole - hidden)
