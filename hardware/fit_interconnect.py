"""Fits curves of collectives to NVIDIA's tables and judges them on sizes they did not see.

    python -m hardware.fit_interconnect TABLES          # fit, write data/links/fitted, print errors
    python -m hardware.fit_interconnect TABLES --check  # print errors of the committed coefficients

Every third power of two of the buffer is kept out of the fit. A curve is cut into straight pieces
by dynamic programming: least absolute log residual plus a penalty per piece, chosen by leaving
out one training size at a time. Reductions are fitted to half precision alone, because a switch
does not add int8; gathers and exchanges to both precisions.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import isotonic_regression, nnls

from formats import atomic_write
from hardware import collectives
from hardware.collectives import Curve, Floats
from hardware.interconnect import collective_s
from hardware.links import links, load_link
from hardware.silicon import TABLES_SOURCE, read_collectives

__all__ = ["carried_table", "fit_link", "held_out_table", "is_held_out", "ranks_table", "samples"]

FITTED = Path(__file__).parent / "data" / "links" / "fitted"
PENALTIES = (0.1, 0.2, 0.4)
TIES = ("lower", "upper")
SWITCHES = {"custom_all_reduce": 8 * 2**20, "custom_all_reduce_eager": 8 * 2**20}
"""Known switch: vLLM's custom all-reduce takes buffers below 8 MiB (its default max_size)."""

Piece = tuple[float, float, float, float]
"""First and last size [byte], latency [s], seconds per wire byte of one piece."""


def is_held_out(nbytes: Floats) -> npt.NDArray[np.bool_]:
    """Return which sizes the fit does not see: exponents of two that leave 1 when divided by 3.

    Examples
    --------
    >>> is_held_out(np.array([512.0, 1024.0, 2048.0, 8192.0])).tolist()
    [False, True, False, True]
    """
    return np.asarray(np.round(np.log2(nbytes)).astype(int) % 3 == 1)


def samples(tables: Path, accelerator: str) -> pd.DataFrame:
    """Return measured collectives: columns op, ranks, bytes, s; mean over precisions."""
    table = read_collectives(tables, accelerator).table
    reduced = table["op"].isin([*collectives.REDUCTIONS, "reduce_scatter"])
    table = table[~(reduced & (table["dtype"] == "int8"))]
    mean = table.groupby(["op", "ranks", "bytes"])["us"].mean().reset_index()
    return mean.assign(s=mean["us"] * 1e-6).drop(columns="us")


def _line(size: Floats, seconds: Floats) -> tuple[float, float]:
    """Fit latency and seconds per byte, neither negative, to relative errors."""
    scale = np.array([seconds.min(), seconds.max() / size.max()])
    rows = np.column_stack([1 / seconds, size / seconds]) * scale
    fitted, _ = nnls(rows, np.ones(len(size)))
    return float(fitted[0] * scale[0]), float(fitted[1] * scale[1])


def _misfit(size: Floats, seconds: Floats, piece: tuple[float, float]) -> float:
    return float(np.abs(np.log((piece[0] + piece[1] * size) / seconds)).sum())


def _cut(size: Floats, seconds: Floats, penalty: float, least: int = 2) -> list[Piece]:
    """Cut ascending samples into straight pieces of at least `least` sizes each."""
    count = len(size)
    best: list[tuple[float, int, tuple[float, float]]] = [(0.0, 0, (0.0, 0.0))]
    for end in range(1, count + 1):
        options = []
        for start in range(max(0, end - least) + 1):
            if end - start < min(least, count) or not np.isfinite(best[start][0]):
                continue
            line = _line(size[start:end], seconds[start:end])
            misfit = _misfit(size[start:end], seconds[start:end], line)
            options.append((best[start][0] + misfit + penalty, start, line))
        best.append(min(options, default=(np.inf, 0, (0.0, 0.0))))
    pieces: list[Piece] = []
    end = count
    while end:
        _, start, line = best[end]
        pieces.insert(0, (size[start], size[end - 1], *line))
        end = start
    return pieces


def _switch(low: Piece, high: Piece, tie: str) -> float:
    """Return the size at which one piece hands over: where they cross, else the middle."""
    first, last = low[1], high[0]
    slope = low[3] - high[3]
    crossing = (high[2] - low[2]) / slope if slope else np.inf
    if first < crossing < last:
        return float(crossing)
    middle = float(np.sqrt(first * last))
    return 1.001 * middle if tie == "lower" else middle


def _curve(op: str, ranks: int, size: Floats, seconds: Floats, how: tuple[float, str]) -> Curve:
    """Fit one curve; a larger message is held not to be faster before the fit."""
    smooth = np.exp(isotonic_regression(np.log(seconds)).x)
    known = SWITCHES.get(op, np.inf)
    parts = [size < known, size >= known]
    pieces = [p for part in parts if part.any() for p in _cut(size[part], smooth[part], how[0])]
    starts = [0.0]
    for low, high in pairwise(pieces):
        here = low[1] < known <= high[0]
        starts.append(known if here else _switch(low, high, how[1]))
    lines = np.array([p[2:] for p in pieces])
    per_byte = lines[:, 1] / collectives.wire(op, ranks)
    return Curve(op, ranks, np.array(starts), lines[:, 0], per_byte)


def _groups(table: pd.DataFrame) -> Iterable[tuple[str, int, Floats, Floats]]:
    for _, part in table.groupby(["op", "ranks"]):
        ordered = part.sort_values("bytes")
        op, ranks = str(ordered["op"].iloc[0]), int(ordered["ranks"].iloc[0])
        yield op, ranks, ordered["bytes"].to_numpy(float), ordered["s"].to_numpy(float)


def choose(tables: Sequence[pd.DataFrame]) -> tuple[float, str]:
    """Choose penalty and tie rule: least median error of training sizes left out one by one."""
    scores: dict[tuple[float, str], float] = {}
    for how in product(PENALTIES, TIES):
        errors = [e for t in tables for g in _groups(t) for e in _left_out(*g, how)]
        scores[how] = float(np.median(errors) + np.quantile(errors, 0.9))
    return min(scores, key=lambda how: scores[how])


def _left_out(op: str, ranks: int, size: Floats, seconds: Floats, how: tuple[float, str]) -> Floats:
    seen = np.flatnonzero(~is_held_out(size))
    errors = []
    for i in range(1, len(seen) - 1):
        rest = np.delete(seen, i)
        curve = _curve(op, ranks, size[rest], seconds[rest], how)
        errors.append(abs(float(curve.seconds(size[seen[i]])) / seconds[seen[i]] - 1))
    return np.array(errors)


def _hop(curves: Sequence[Curve]) -> float:
    """Fit the time of one more hop to the plateaus of small messages [s]."""
    count = np.array([collectives.hops(c.op, c.ranks) for c in curves])
    plateau = np.array([float(c.seconds(1024.0)) for c in curves])
    if len(curves) < 2:
        return 0.0
    return max(0.0, float(np.polyfit(count, plateau, 1)[0]))


def fit_link(table: pd.DataFrame, how: tuple[float, str]) -> list[Curve]:
    """Fit every curve of one link to the sizes that are not held out.

    Parameters
    ----------
    table : pandas.DataFrame
        From `samples`.
    how : tuple
        Penalty per piece and tie rule, from `choose`.

    Returns
    -------
    list of Curve
        Without hops; ascending in operation and ranks.
    """
    fitted = []
    for op, ranks, size, seconds in _groups(table):
        seen = ~is_held_out(size)
        fitted.append(_curve(op, ranks, size[seen], seconds[seen], how))
    return fitted


def _shares(table: pd.DataFrame, bytes_per_s: float) -> tuple[float, float | None]:
    """Return attained shares of the largest ring gather and of in-switch sums, if faster."""
    size = float(table.loc[table["op"] == "all_gather", "bytes"].max())
    largest = table[table["bytes"] == size].set_index(["op", "ranks"])["s"]
    ranks = int(table["ranks"].max())
    ring = collectives.wire("all_gather", ranks) * size / largest["all_gather", ranks]
    whole = size / largest["all_reduce", ranks]
    in_switch = collectives.wire("all_reduce", ranks) * whole > 1.1 * ring
    nvls = collectives.ALGORITHMS["nvls"][1](ranks) * whole
    return ring / bytes_per_s, nvls / bytes_per_s if in_switch else None


def _predict(name: str, table: pd.DataFrame) -> Floats:
    seconds = np.zeros(len(table))
    for op in table["op"].unique():
        here = (table["op"] == op).to_numpy()
        part = table[here]
        seconds[here] = collective_s(op, part["bytes"].to_numpy(), part["ranks"].to_numpy(), name)
    return seconds


def held_out_table(tables: Path) -> pd.DataFrame:
    """Judge the committed coefficients on the sizes that they were not fitted to.

    Parameters
    ----------
    tables : Path
        Folder of NVIDIA's Parquet files.

    Returns
    -------
    pandas.DataFrame
        Columns link, op, cases, median, p90 (absolute relative error), p10, p50, p90_ratio
        (measured over predicted).
    """
    rows = []
    for name in _measured():
        table = samples(tables, load_link(name).accelerators[0])
        table = table[is_held_out(table["bytes"].to_numpy(float))].reset_index(drop=True)
        ratio = table["s"] / _predict(name, table)
        for op, part in ratio.groupby(table["op"]):
            rows.append({"link": name, "op": op, **_errors(part.to_numpy())})
    return pd.DataFrame(rows)


def _errors(ratio: Floats) -> dict[str, float]:
    """Return how measured over predicted spreads, and the absolute relative errors."""
    error = np.abs(1 / ratio - 1)
    low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
    return {
        "cases": len(ratio),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "p10_ratio": float(low),
        "p50_ratio": float(middle),
        "p90_ratio": float(high),
    }


def _measured() -> list[str]:
    return [name for name in links if load_link(name).fitted]


def carried_table(tables: Path) -> pd.DataFrame:
    """Judge carrying over: predict each measured link from other generations of its kind.

    Returns
    -------
    pandas.DataFrame
        Columns link, op, cases, median, p90, p10_ratio, p50_ratio, p90_ratio.
    """
    rows = []
    for name in _measured():
        link = load_link(name)
        own = link.bytes_per_s.value
        kin = [load_link(n) for n in _measured() if load_link(n).topology == link.topology]
        donors = tuple(k.fitted for k in kin if k.bytes_per_s.value != own)
        stand_in = link.model_copy(update={"fitted": "", "carried_from": donors})
        table = samples(tables, link.accelerators[0])
        for op, part in table.groupby("op"):
            seconds = collective_s(str(op), part["bytes"], part["ranks"], stand_in)
            rows.append({"link": name, "op": op, **_errors(part["s"].to_numpy() / seconds)})
    return pd.DataFrame(rows)


def ranks_table(tables: Path) -> pd.DataFrame:
    """Judge numbers of ranks never measured: 4 from 2 and 8, and 8 from 2 and 4.

    Returns
    -------
    pandas.DataFrame
        Columns link, op, ranks, cases, median, p90, p10_ratio, p50_ratio, p90_ratio.
    """
    rows = []
    for name in _measured():
        table = samples(tables, load_link(name).accelerators[0])
        for op, part in table.groupby("op"):
            curves = fit_link(part, (PENALTIES[0], TIES[0]))
            for left, ranks in ((1, 4), (2, 8)):
                rest = [c for i, c in enumerate(curves) if i != left]
                here = part[part["ranks"] == ranks]
                if len(curves) != 3 or here.empty:
                    continue
                rest = [_with_hop(c, _hop(rest)) for c in rest]
                seconds = collectives.between_ranks(rest, here["bytes"].to_numpy(float), ranks)
                errors = _errors(here["s"].to_numpy() / seconds)
                rows.append({"link": name, "op": op, "ranks": ranks, **errors})
    return pd.DataFrame(rows)


def _with_hop(curve: Curve, hop_s: float) -> Curve:
    parts = (curve.start_bytes, curve.latency_s, curve.seconds_per_byte)
    return Curve(curve.op, curve.ranks, *parts, hop_s=hop_s)


def _number(value: float) -> str:
    return f"{value:.4g}" if value else "0.0"


def _list(values: Iterable[float]) -> str:
    return "[" + ", ".join(_number(v) for v in values) + "]"


def _band(errors: dict[str, float]) -> str:
    names = (("p10", "p10_ratio"), ("p50", "p50_ratio"), ("p90", "p90_ratio"))
    return "{" + ", ".join(f"{short} = {errors[long]:.4f}" for short, long in names) + "}"


def _toml(table: pd.DataFrame, curves: list[Curve], bytes_per_s: float) -> str:
    """Return the file of coefficients of one link."""
    ring, nvls = _shares(table, bytes_per_s)
    out = [
        "schema_version = 1",
        'kind = "fitted"',
        f'source = "{TABLES_SOURCE}; nccl_perf and custom_allreduce_perf"',
        'held_out = "buffers of 2^e byte with e mod 3 = 1"',
        f"largest_bytes = {_number(table['bytes'].max())}",
        f"ring_share = {ring:.4f}",
        *([f"nvls_share = {nvls:.4f}"] if nvls else []),
    ]
    tested = table[is_held_out(table["bytes"].to_numpy(float))]
    by_op = {op: [c for c in curves if c.op == op] for op in sorted({c.op for c in curves})}
    out += ["", "[hop_s]", *(f"{op} = {_number(_hop(of))}" for op, of in by_op.items())]
    out += ["", "[band]"]
    for op, of in by_op.items():
        out.append(f"{op} = {_band(_errors(np.concatenate([_ratio(c, tested) for c in of])))}")
    for curve in curves:
        out += ["", *_curve_lines(curve, _errors(_ratio(curve, tested)))]
    return "\n".join(out) + "\n"


def _ratio(curve: Curve, tested: pd.DataFrame) -> Floats:
    here = tested[(tested["op"] == curve.op) & (tested["ranks"] == curve.ranks)]
    return here["s"].to_numpy() / curve.seconds(here["bytes"].to_numpy(float))


def _curve_lines(curve: Curve, errors: dict[str, float]) -> list[str]:
    return [
        "[[curves]]",
        f'op = "{curve.op}"',
        f"ranks = {curve.ranks}",
        f"start_bytes = [{', '.join(f'{b:.8g}' for b in curve.start_bytes)}]",
        f"latency_s = {_list(curve.latency_s)}",
        f"seconds_per_byte = {_list(curve.seconds_per_byte)}",
        f"held_out = {errors['cases']}",
        f"median_error = {errors['median']:.4f}",
        f"p90_error = {errors['p90']:.4f}",
    ]


def _write_carried(tables: Path) -> None:
    """Write how well links predict other generations: per operation, and over all of a kind."""
    table = carried_table(tables)
    bus = table["link"].map(lambda n: load_link(n).topology == "bus")
    rows = [(op, part) for op, part in table[~bus].groupby("op")]
    rows += [("switch", table[~bus]), ("bus", table[bus])]
    source = f"{TABLES_SOURCE}; each link predicted from other generations of its kind"
    out = ["schema_version = 1", 'kind = "fitted"', f'source = "{source}"', "", "[band]"]
    for name, part in rows:
        spread = {
            "p10_ratio": part["p10_ratio"].min(),
            "p50_ratio": part["p50_ratio"].median(),
            "p90_ratio": part["p90_ratio"].max(),
        }
        out.append(f"{name} = {_band(spread)}")
    with atomic_write(FITTED / "carried" / "carried.toml") as temporary:
        temporary.write_text("\n".join(out) + "\n", encoding="utf-8")


def _write(tables: Path) -> None:
    found = {name: samples(tables, load_link(name).accelerators[0]) for name in _measured()}
    how = choose(list(found.values()))
    sys.stdout.write(f"penalty {how[0]}, tie to the {how[1]} piece\n")
    for name, table in found.items():
        text = _toml(table, fit_link(table, how), load_link(name).bytes_per_s.value)
        with atomic_write(FITTED / f"{name}.toml") as temporary:
            temporary.write_text(text, encoding="utf-8")
    _write_carried(tables)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit or check, print the tables; return 1 if a median error is above 10 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, help="folder of NVIDIA's Parquet tables")
    parser.add_argument("--check", action="store_true", help="judge only, write nothing")
    given = parser.parse_args(arguments)
    if not given.check:
        _write(given.tables)
    judged = held_out_table(given.tables)
    for title, table in (
        ("held-out sizes", judged),
        ("carried over from other generations", carried_table(given.tables)),
        ("numbers of ranks not measured", ranks_table(given.tables)),
    ):
        sys.stdout.write(f"\n{title}\n{table.round(3).to_string(index=False)}\n")
    return int((judged["median"] > 0.1).any())


if __name__ == "__main__":
    raise SystemExit(main())
