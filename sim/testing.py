"""A small engine for tests: step tables and knobs of round numbers, and one call that serves.

Public, so that the author of a policy can trace it by hand: with the defaults every engine step
takes one second, whatever is in it, and the host takes no time at all.

>>> import pandas as pd
>>> one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [8], "output_tokens": [3]})
>>> replica = serve(one, toy_knobs())
>>> replica.records.requests[["first_token_s", "finish_s"]].tolist()
[(1.0, 3.0)]
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from policies.ordering import FirstComeFirstServed
from policies.rules import AdaptiveBatching, Ordering
from sim.core.layout import SPREADS, Records, StepTables
from sim.deployment import Deployment, deploy
from sim.records import to_records
from sim.replica import Replica
from sim.scenario import Scenario

__all__ = [
    "busy_knobs",
    "busy_tables",
    "default_deployment",
    "serve",
    "toy_knobs",
    "toy_tables",
]

CONTEXTS, CHUNKS = 18, 18  # octaves of the attention grids

# What a test decides: batching, memory, caching. Everything else comes from a real deployment.
POLICY = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 256,
    "max_num_partial_prefills": 1,
    "block_size": 4,
    "num_blocks": 1 << 20,
    "watermark_blocks": 0,
    "caching": 0,
    "swap_blocks": 0,
    "graph_tokens": 32,
}
# The same hardware without limits, and a host whose level never changes.
QUIET = {"graph_tokens": 1 << 20, "cap_w": 1e9, "level_mean_s": 1e30, "level_high": 1.0}


@lru_cache(maxsize=1)
def default_deployment() -> Deployment:
    """Return a replica of the default scenario."""
    return deploy(Scenario(), longest=4096)


@lru_cache(maxsize=1)
def _real() -> tuple[npt.NDArray[np.void], tuple[str, ...]]:
    """Return the knobs of the default deployment, and the names of its host times."""
    knobs = default_deployment().knobs
    slower = deploy(Scenario().changed({"engine.host_slowness": 2.0}), longest=4096).knobs
    names = knobs.dtype.names or ()
    return knobs, tuple(name for name in names if knobs[name] != slower[name])


def toy_knobs(**changes: float) -> npt.NDArray[np.void]:
    """Return parameters of the engine loop without host times, with any field changed.

    Examples
    --------
    >>> int(toy_knobs(num_blocks=7)["num_blocks"][0])
    7
    """
    return busy_knobs(**(dict.fromkeys(_real()[1], 0.0) | QUIET | changes))


def busy_knobs(**changes: float) -> npt.NDArray[np.void]:
    """Return the same with the host times, random host levels and power cap of an H200."""
    knobs = _real()[0].copy()
    for name, value in (POLICY | changes).items():
        knobs[name] = value
    return knobs


def toy_tables(
    step_s: float = 1.0,
    token_s: float = 0.0,
    decode_s: float = 0.0,
    prefill_s: float = 0.0,
    tokens: int = 256,
    seqs: int = 64,
) -> StepTables:
    """Return the step tables of a simple accelerator.

    Parameters
    ----------
    step_s, token_s : float
        Seconds of a step and of each of its tokens [s].
    decode_s, prefill_s : float
        Seconds per context token of a decode, and per query-key pair of a prompt chunk [s].
    tokens, seqs : int
        Largest step.
    """
    count = np.arange(tokens + 1.0)
    linear = np.where(count > 0, step_s + token_s * count, 0.0)
    contexts, chunks = np.exp2(np.arange(CONTEXTS)), np.exp2(np.arange(CHUNKS))
    pairs = chunks[:, None] * (contexts[None, :] - 1.0 + (chunks[:, None] + 1.0) / 2.0)
    return StepTables(
        linear_s=linear,
        head_s=np.zeros(seqs + 1),
        decode_s=decode_s * np.arange(seqs + 1.0)[:, None] * contexts[None, :],
        prefill_s=prefill_s * pairs,
        prefill_call_s=np.zeros(pairs.shape),
        uneven=np.zeros((seqs + 1, CONTEXTS, SPREADS)),
        bounds=np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
        linear_bytes=np.full(tokens + 1, 1e9),
        compute_share=np.minimum(1.0, count / tokens),
        counts=np.array([1e9, 1e8, 1e5, 1e5, 1e8]),
    )


def busy_tables(tokens: int = 256, seqs: int = 64) -> StepTables:
    """Return step tables whose every term matters: tokens, contexts, spread, prompts."""
    tables = toy_tables(4e-3, 2e-5, 1e-7, 1e-9, tokens, seqs)
    uneven = np.broadcast_to(0.03 * np.arange(SPREADS), tables.uneven.shape).copy()
    return tables._replace(uneven=uneven, head_s=1e-4 + 1e-6 * np.arange(seqs + 1.0))


def serve(
    table: pd.DataFrame,
    knobs: npt.NDArray[np.void],
    tables: StepTables | None = None,
    *,
    ordering: Ordering | None = None,
    policy: AdaptiveBatching | None = None,
    seed: int = 0,
    slices: Sequence[float] = (),
    prepare: Callable[[Records], None] | None = None,
    records: Records | None = None,
) -> Replica:
    """Serve a requests table on one replica.

    Parameters
    ----------
    table : DataFrame
        See `workloads.requests`; may be empty.
    knobs : ndarray of KNOBS, shape (1,)
        See `toy_knobs`.
    tables : StepTables, optional
        See `toy_tables`.
    ordering : Ordering, optional
        By default first come, first served.
    policy : AdaptiveBatching, optional
        Sets the limits of the steps on the way.
    seed : int
        Of the host's random level.
    slices : sequence of float
        Times at which the replica is advanced on the way to the end [s].
    prepare : callable, optional
        Told the records before anything is submitted.
    records : Records, optional
        Ready-made records of the table, in place of those that `ordering` gives.

    Returns
    -------
    Replica
        Run to its end.
    """
    records = records or to_records(table, ordering or FirstComeFirstServed())
    if prepare is not None:
        prepare(records)
    knobs = knobs.copy()
    knobs["interactive"] = policy is not None
    longest = int((table["prompt_tokens"] + table["output_tokens"]).max()) if len(table) else 1
    made = toy_tables() if tables is None else tables
    replica = Replica(made, knobs, records, seed, len(table), longest, policy)
    replica.submit(np.arange(len(table)))
    for until in sorted(slices):
        replica.advance(until)
    replica.advance()
    return replica
