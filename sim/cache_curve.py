"""Hit rate against cache size: of every size at once, from one pass over the requests.

The reuse distance of a block is how many other blocks were used since its last use; a least
recently used cache hits exactly the blocks whose distance is below its size (Mattson et al.,
"Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).
"""

import numpy as np
import pandas as pd

from sim.simulation import Result
from workloads.prefix_cache import hit_rate_curve
from workloads.requests import HASH_BLOCK_TOKENS, block_counts

__all__ = ["cache_curve"]

POINTS = 60
SHARED = ("hash_ids", "prefix_tokens")


def cache_curve(result: Result) -> pd.DataFrame | None:
    """Return the hit rate of a least recently used prefix cache by its size.

    Parameters
    ----------
    result : Result
        A simulation of requests that may share prompts.

    Returns
    -------
    DataFrame or None
        Columns capacity_blocks (of 512 tokens), capacity_tokens, capacity_bytes (KV cache of all
        ranks), blocks_hit and tokens_hit [0..1]; None where no prompt shares anything.

    Examples
    --------
    >>> from sim import Scenario, simulate
    >>> chats = pd.DataFrame({"arrival_s": [0.0, 5.0], "prompt_tokens": [1024, 2048],
    ...     "output_tokens": 8, "session": "a", "prefix_tokens": [0, 1024]})
    >>> curve = cache_curve(simulate(Scenario(), chats))
    >>> float(curve["tokens_hit"].iloc[-1])  # 1,024 of 3,072 tokens are asked again
    0.333333
    """
    table = result.asked
    if table is None or not any(name in table for name in SHARED):
        return None
    most = int(block_counts(table["prompt_tokens"]).sum())
    capacities = np.unique(np.geomspace(1, max(most, 1), POINTS).round().astype(np.int64))
    curve = hit_rate_curve(table, capacities.tolist())
    tokens = curve["capacity_blocks"] * HASH_BLOCK_TOKENS
    made = result.deployment
    token_bytes = made.plan.block / float(made.knobs["block_size"][0]) * made.parallel.accelerators
    curve.insert(1, "capacity_tokens", tokens)
    curve.insert(2, "capacity_bytes", tokens * token_bytes)
    return curve.round({"capacity_bytes": 0, "blocks_hit": 6, "tokens_hit": 6})
