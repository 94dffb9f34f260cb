"""Steady state of a deployment from its step tables alone: an answer in milliseconds.

A replica decodes b sequences on average; a request of the mix takes (O - 1) decode steps of
length d(b + 1) and adds m(b) seconds of prompt work to the steps of the others (O: mean output
tokens). In steady state at r requests/s the time per output token is d / (1 - r m), and by
Little's law b = r (O - 1) d / (1 - r m), hence

    r(b) = b / ((O - 1) d + b m).

One curve over b therefore holds every operating point; an arrival rate, or a number of users, is
looked up on it. A request that arrives finds b others (PASTA), so a step it takes part in has
b + 1. Preemption, cold caches and policies that hold requests back are left to the simulation.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sim.core.layout import SPREAD_STEP, StepTables
from sim.deployment import Deployment
from sim.planning.bound import Mix, between, decode_attention_s, prefill_attention_s, prefill_call_s

__all__ = [
    "Curve",
    "mean_context",
    "operating_curve",
    "prompt_step_s",
    "scaled",
    "scaled_steps",
]

Floats = npt.NDArray[np.float64]
POINTS = 240
FEWEST = 1e-3  # sequences at the left end of the curve
SAMPLE = 512  # prompts that stand for the mix where work depends on their length


@dataclass(frozen=True)
class Curve:
    """Every operating point of one replica, by the mean number of decoding sequences.

    Attributes
    ----------
    batch : ndarray, rising, shape (POINTS,)
        Decoding sequences b, mean over time.
    rate_per_s : ndarray
        Requests served r(b) [request/s].
    tpot_s : ndarray
        Time per output token [s].
    step_s : ndarray
        A decode step without prompts [s].
    prompt_s : ndarray
        Time that one request's prompt adds to the steps [s].
    limit : str
        What ends the curve: "memory" (KV blocks), "sequences" (max_num_seqs) or "tokens".
    """

    batch: Floats
    rate_per_s: Floats
    tpot_s: Floats
    step_s: Floats
    prompt_s: Floats
    limit: str

    @property
    def most_per_s(self) -> float:
        """Largest rate at all [request/s]."""
        return float(self.rate_per_s.max())

    def at(self, rate: float) -> float:
        """Return the batch at a rate [request/s]; the end of the curve beyond all rates."""
        rising = np.maximum.accumulate(self.rate_per_s)
        return float(np.interp(rate, rising, self.batch))

    def read(self, values: Floats, batch: float) -> float:
        """Return a column of the curve at a batch."""
        return float(np.interp(batch, self.batch, values))


def scaled(deployment: Deployment, linear: float, decode: float, prefill: float) -> Deployment:
    """Return a deployment whose kernels take longer by factors.

    Parameters
    ----------
    deployment : Deployment
        Step tables of a replica.
    linear, decode, prefill : float
        Factors on token-wise kernels, decode attention and prompt attention [1].
    """
    return _with_factors(deployment, linear, linear, decode, prefill)


def scaled_steps(deployment: Deployment, few: float, prompts: float) -> Deployment:
    """Return a deployment whose steps take longer by factors, by what they hold.

    Parameters
    ----------
    deployment : Deployment
        Step tables of a replica.
    few : float
        Factor on steps of no more tokens than the largest graph, those that only decode [1].
    prompts : float
        Factor on larger ones: their many tokens fill the matrix units and reach the power cap [1].
    """
    tokens = np.arange(deployment.tables.linear_s.size)
    by_tokens = np.where(tokens <= float(deployment.knobs["graph_tokens"][0]), few, prompts)
    return _with_factors(deployment, by_tokens, few, few, prompts)


def _with_factors(
    deployment: Deployment, linear: Floats | float, others: float, decode: float, prefill: float
) -> Deployment:
    """Return a deployment with factors on `linear_s`, other token-wise kernels and attention."""
    old = deployment.tables
    tables = old._replace(
        linear_s=old.linear_s * linear,
        shared_s=old.shared_s * others,
        head_s=old.head_s * others,
        decode_s=old.decode_s * decode,
        prefill_s=old.prefill_s * prefill,
        prefill_call_s=old.prefill_call_s * prefill,
    )
    return replace(deployment, tables=tables)


def _most(knobs: np.void, mix: Mix) -> tuple[float, str]:
    """Return the largest mean batch, and what limits it."""
    pool = float(knobs["num_blocks"]) * float(knobs["block_size"])
    private = mean_context(mix) - mix.cached_share * float(mix.prompt.mean())
    most = {
        "memory": pool / max(private, 1.0),
        "sequences": float(knobs["max_num_seqs"]),
        "tokens": float(knobs["max_num_batched_tokens"]),
    }
    limit = min(most, key=lambda name: most[name])
    return max(most[limit], 2 * FEWEST), limit


def mean_context(mix: Mix) -> float:
    """Return the mean context of a decoding sequence [token]."""
    return float((mix.output * (mix.prompt + mix.output / 2)).sum() / mix.output.sum())


def _spread(mix: Mix) -> float:
    """Return deviation over mean of the contexts of decoding sequences [1]."""
    mean = mean_context(mix)
    second = (mix.output * (mix.prompt + mix.output / 2) ** 2).sum() / mix.output.sum()
    return float(np.sqrt(max(second - mean**2, 0.0)) / max(mean, 1.0))


def _host_s(knobs: np.void, kind: str) -> float:
    """Return the mean host time to dispatch a step [s]."""
    level = (float(knobs["level_low"]) + float(knobs["level_high"])) / 2
    if kind == "graph":
        slow = 1.0 + float(knobs["graph_level_share"]) * (level - 1.0)
        return float(knobs["graph_dispatch_s"]) * slow
    return float(knobs[f"{kind}_dispatch_s"]) * level


def _linear_s(tables: StepTables, tokens: Floats) -> Floats:
    """Return the time of all that works token by token [s]."""
    shared = np.minimum(tokens, tables.shared_s.size - 1.0)
    return between(tables.linear_s, tokens) + between(tables.shared_s, shared)


def _uneven(tables: StepTables, batch: Floats, context: float, spread: float) -> Floats:
    """Return the relative extra of decode attention where contexts differ [1]."""
    table = tables.uneven
    row = np.clip(np.rint(batch).astype(int), 0, table.shape[0] - 1)
    place = round((np.log2(max(context, 1.0)) - tables.bounds[0]) * tables.bounds[1])
    column = int(np.clip(place, 0, table.shape[1] - 1))
    nodes = SPREAD_STEP * np.arange(table.shape[2])
    known, where = np.unique(row, return_inverse=True)
    extra = np.array([np.interp(spread, nodes, table[i, column]) for i in known])
    return np.asarray(np.where(batch > 1, extra[where], 0.0))


def _decode_step_s(deployment: Deployment, mix: Mix, batch: Floats) -> Floats:
    """Return the time of a step that decodes `batch` sequences only [s]."""
    tables, knobs = deployment.tables, deployment.knobs[0]
    context = mean_context(mix)
    attention = decode_attention_s(tables, batch, np.full(batch.size, context))
    gpu = (
        _linear_s(tables, batch)
        + between(tables.head_s, np.minimum(batch, tables.head_s.size - 1.0))
        + attention * (1.0 + _uneven(tables, batch, context, _spread(mix)))
    )
    small = batch <= float(knobs["graph_tokens"])
    dispatch = np.where(small, _host_s(knobs, "graph"), _host_s(knobs, "eager"))
    host = dispatch + float(knobs["visible_s"]) + float(knobs["bookkeeping_s"])
    return np.asarray(np.maximum(gpu, host + float(knobs["bookkeeping_per_request_s"]) * batch))


def prompt_step_s(deployment: Deployment, prompt: Floats, batch: Floats) -> Floats:
    """Return what each prompt adds to the steps that compute it, shape (batch, prompt) [s]."""
    tables, knobs = deployment.tables, deployment.knobs[0]
    chunk = float(knobs["max_num_batched_tokens"])
    left, past = prompt.copy(), np.zeros_like(prompt)
    total = np.zeros((batch.size, prompt.size), dtype=np.float64)
    while (left > 0.5).any():
        now = np.clip(left, 1.0, chunk)
        tokens = np.minimum(batch[:, None] + now, tables.linear_s.size - 1.0)
        alone = _linear_s(tables, batch)[:, None]
        part = _linear_s(tables, tokens) - alone
        part = part + prefill_attention_s(tables, now, past) + prefill_call_s(tables, now, past)
        small = tokens <= float(knobs["graph_tokens"])
        least = np.where(small, _host_s(knobs, "piecewise"), _host_s(knobs, "eager"))
        part = np.maximum(part + small * float(knobs["piecewise_gap_s"]), least - alone)
        total += np.where(left > 0.5, part, 0.0)
        past, left = past + now, left - now
    return np.asarray(total)


def operating_curve(deployment: Deployment, mix: Mix) -> Curve:
    """Return the operating points of one replica under a mix of requests.

    Parameters
    ----------
    deployment : Deployment
        Step tables and limits of a replica.
    mix : Mix
        Lengths of its requests.
    """
    most, limit = _most(deployment.knobs[0], mix)
    batch = np.geomspace(FEWEST, most, POINTS)
    seen = np.minimum(batch + 1.0, deployment.tables.linear_s.size - 1.0)
    step = _decode_step_s(deployment, mix, seen)
    prompt = _sample(mix) * (1.0 - mix.cached_share)
    coarse = np.geomspace(1.0, max(float(seen[-1]), 1.5), 12)
    added = np.interp(seen, coarse, prompt_step_s(deployment, prompt, coarse).mean(axis=1))
    more = max(float(mix.output.mean()) - 1.0, 1e-3)
    rate = batch / (more * step + batch * added)
    return Curve(batch, rate, batch / (rate * more), step, added, limit)


def _sample(mix: Mix) -> Floats:
    """Return prompts that stand for those of the mix, evenly over their ranks."""
    ranked: Floats = np.sort(mix.prompt)
    if ranked.size <= SAMPLE:
        return ranked
    return np.asarray(ranked[((np.arange(SAMPLE) + 0.5) / SAMPLE * ranked.size).astype(int)])
