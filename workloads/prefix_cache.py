"""How much of a load a prefix cache could serve: hit rates without limit and by capacity.

Blocks of 512 tokens, named by chained hashes. A request hits the leading run of its blocks that
are cached when it arrives; all its blocks then become the most recently used, the first one last.
One pass gives, for every block, the least cache that would have held it (its LRU depth), and from
these the hit rate at every capacity at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd

from workloads.requests import HASH_BLOCK_TOKENS, block_counts, split_rows

__all__ = ["HitRate", "hit_rate_curve", "infinite_hit_rate", "lru_depths", "with_hashes"]

Ints = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class HitRate:
    """Share of the prompt blocks, and of the prompt tokens, found in a cache."""

    blocks: float
    tokens: float


def infinite_hit_rate(table: pd.DataFrame) -> HitRate:
    """Return the hit rate of a prefix cache without limit.

    Parameters
    ----------
    table : pandas.DataFrame
        A requests table with hash_ids, or with session and prefix_tokens.

    Returns
    -------
    HitRate
        Over all prompts, the first use of every block being a miss.

    Examples
    --------
    >>> ids = [np.array([1, 2]), np.array([1, 3])]
    >>> t = pd.DataFrame({"prompt_tokens": [1024, 600], "hash_ids": ids})
    >>> infinite_hit_rate(t)
    HitRate(blocks=0.25, tokens=0.31527093596059114)
    """
    curve = hit_rate_curve(table, [NEVER - 1])
    return HitRate(float(curve["blocks_hit"].iloc[0]), float(curve["tokens_hit"].iloc[0]))


def hit_rate_curve(table: pd.DataFrame, capacities: Sequence[int]) -> pd.DataFrame:
    """Return the hit rate of an LRU prefix cache at each capacity.

    Parameters
    ----------
    table : pandas.DataFrame
        A requests table with hash_ids, or with session and prefix_tokens.
    capacities : sequence of int
        Blocks of 512 tokens.

    Returns
    -------
    pandas.DataFrame
        Columns capacity_blocks, blocks_hit, tokens_hit (shares from 0 to 1), one row per capacity.
    """
    depths, tokens = lru_depths(table)
    order = np.argsort(depths, kind="stable")
    held = np.searchsorted(depths[order], np.asarray(capacities, dtype=np.int64), side="right")
    cumulated = np.append(0, np.cumsum(tokens[order]))
    return pd.DataFrame(
        {
            "capacity_blocks": list(capacities),
            "blocks_hit": held / max(depths.size, 1),
            "tokens_hit": cumulated[held] / max(int(cumulated[-1]), 1),
        }
    )


def lru_depths(table: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return for every block of every prompt the least LRU capacity at which it hits.

    Returns
    -------
    depths : array of int64, shape (blocks,)
        Blocks of capacity; the largest int64 for a block that never hits.
    tokens : array of int64, shape (blocks,)
        Prompt tokens in that block: 512, or fewer in the last one.
    """
    rows = (table if "hash_ids" in table else with_hashes(table))["hash_ids"].to_list()
    counts = block_counts(table["prompt_tokens"])
    codes = np.asarray(pd.factorize(np.concatenate(rows))[0], dtype=np.int64)
    offsets = np.append(0, np.cumsum(counts))
    tokens = np.full(codes.size, HASH_BLOCK_TOKENS, dtype=np.int64)
    tokens[offsets[1:] - 1] = table["prompt_tokens"] - (counts - 1) * HASH_BLOCK_TOKENS
    return _depths(codes, offsets, int(codes.max()) + 1), tokens


def with_hashes(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that says by hash_ids what it said by session and prefix_tokens.

    Only whole 512-token blocks stay shared; a table without sharing gets unshared blocks.

    Examples
    --------
    >>> t = pd.DataFrame({"prompt_tokens": [600, 1100], "session": "a", "prefix_tokens": [0, 600]})
    >>> [ids.tolist() for ids in with_hashes(t)["hash_ids"]]
    [[0, 1], [0, 3, 4]]
    """
    counts = block_counts(table["prompt_tokens"])
    offsets = np.append(0, np.cumsum(counts))
    own = np.arange(offsets[-1], dtype=np.int64)
    if "prefix_tokens" in table:
        shared = table["prefix_tokens"].to_numpy(dtype=np.int64) // HASH_BLOCK_TOKENS
        numbers: Any = pd.Series(np.arange(len(table)))
        previous = numbers.groupby(table["session"].to_numpy()).shift(fill_value=-1).to_numpy()
        for row in np.flatnonzero(shared):
            start, origin = offsets[row], offsets[previous[row]]
            own[start : start + shared[row]] = own[origin : origin + shared[row]]
    kept = table.drop(columns=["prefix_tokens"], errors="ignore")
    return kept.assign(hash_ids=split_rows(own, counts).to_numpy())


@numba.njit(cache=True)
def _depths(blocks: Ints, offsets: Ints, distinct: int) -> Ints:
    """LRU depth of each block when its request arrives, never less than those before it.

    A Fenwick tree over the moments of use counts the blocks used since a given moment.
    """
    size = blocks.size
    tree = np.zeros(size + 1, np.int64)
    last = np.full(distinct, -1, np.int64)
    out = np.empty(size, np.int64)
    moment, live = 0, 0
    for row in range(offsets.size - 1):
        deepest = 0
        for i in range(offsets[row], offsets[row + 1]):
            used = last[blocks[i]]
            depth = np.iinfo(np.int64).max
            if used >= 0:
                depth = live + 1
                k = used + 1
                while k > 0:
                    depth -= tree[k]
                    k -= k & -k
            deepest = max(deepest, depth)
            out[i] = deepest
        for i in range(offsets[row + 1] - 1, offsets[row] - 1, -1):
            block = blocks[i]
            k = last[block] + 1
            live += k == 0
            while 0 < k <= size:
                tree[k] -= 1
                k += k & -k
            last[block] = moment
            moment += 1
            k = moment
            while k <= size:
                tree[k] += 1
                k += k & -k
    return out
