"""What one replica can do at best, from its step tables alone: the analytic bound of the search.

In steady state at r requests/s, a step of length t computes r P t prompt tokens and decodes
b = r O t sequences, one token each (P, O: mean prompt tokens to compute and output tokens of a
request). Choosing b gives the prompt tokens b P / O of the step, hence t, hence r = b / (O t).
Prompt work is spread evenly over all steps, memory is used in full, the clock is at its highest
and the host at its fastest, so a real replica does not do better.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.core.layout import StepTables
from sim.deployment import Deployment
from workloads.prefix_cache import infinite_hit_rate

__all__ = ["Bound", "Mix", "between", "decode_attention_s", "prefill_attention_s", "prefill_call_s"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
POINTS = 400


@dataclass(frozen=True)
class Mix:
    """Lengths of a sample of requests.

    Attributes
    ----------
    prompt, output : ndarray, shape (requests,)
        Tokens.
    cached_share : float
        Share of prompt tokens that an unlimited prefix cache holds [0..1].
    received : bool
        Prompts come with their KV cache: they take memory and no time.
    """

    prompt: Floats
    output: Floats
    cached_share: float
    received: bool = False

    @classmethod
    def of(cls, requests: pd.DataFrame, caching: bool) -> "Mix":
        """Return the lengths of a requests table."""
        shared = caching and {"hash_ids", "prefix_tokens"} & set(requests.columns)
        share = infinite_hit_rate(requests).tokens if shared else 0.0
        prompt = requests["prompt_tokens"].to_numpy(np.float64)
        return cls(prompt, requests["output_tokens"].to_numpy(np.float64), share)

    def scaled(self, prompt: float, output: float) -> "Mix":
        """Return the mix with prompts and outputs longer by these factors."""
        longer = np.maximum(self.prompt * prompt, 1.0), np.maximum(self.output * output, 1.0)
        return Mix(*longer, self.cached_share)

    def prompts(self) -> "Mix":
        """Return what prefill replicas do of it: prompts and one token each."""
        return replace(self, output=np.ones(self.output.size))

    def outputs(self) -> "Mix":
        """Return what decode replicas do of it: all tokens after the first."""
        more = self.output > 1
        if not more.any():
            more = np.ones(more.size, dtype=bool)
        rest = np.maximum(self.output[more] - 1.0, 1.0)
        return replace(self, prompt=self.prompt[more], output=rest, received=True)

    @property
    def decode_share(self) -> float:
        """Share of requests with more than one output token, above 0."""
        return max(float((self.output > 1).mean()), 1.0 / self.output.size)


def _on_grid(place: Floats, size: int) -> tuple[Ints, Floats]:
    low = np.clip(place.astype(np.int64), 0, size - 2)
    return low, np.maximum(place - low, 0.0)


def decode_attention_s(tables: StepTables, sequences: Floats, context: Floats) -> Floats:
    """Return attention seconds of decoding, linear between the tabulated points.

    Parameters
    ----------
    tables : StepTables
        Tables of a replica.
    sequences, context : ndarray
        Decoding sequences (any real number) and the mean context of each [token].
    """
    table = tables.decode_s
    i, u = _on_grid(np.minimum(sequences, table.shape[0] - 1.0), table.shape[0])
    place = (np.log2(np.maximum(context, 1.0)) - tables.bounds[0]) * tables.bounds[1]
    return _bilinear(table, i, u, *_on_grid(place, table.shape[1]))


def prefill_attention_s(tables: StepTables, chunk: Floats, past: Floats) -> Floats:
    """Return attention seconds that prompt chunks add over their past, linear on the log grid."""
    return _on_prompt_grid(tables, tables.prefill_s, chunk, past)


def prefill_call_s(tables: StepTables, chunk: Floats, past: Floats) -> Floats:
    """Return attention seconds of a call with such prompts besides what each of them adds."""
    return _on_prompt_grid(tables, tables.prefill_call_s, chunk, past)


def _on_prompt_grid(tables: StepTables, table: Floats, chunk: Floats, past: Floats) -> Floats:
    i, u = _on_grid(np.log2(np.maximum(chunk, 1.0)) * tables.bounds[3], table.shape[0])
    return _bilinear(table, i, u, *_on_grid(np.log2(past + 1.0) * tables.bounds[5], table.shape[1]))


def _bilinear(table: Floats, i: Ints, u: Floats, j: Ints, v: Floats) -> Floats:
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    return np.asarray(low * (1 - u) + high * u)


def between(table: Floats, at: Floats) -> Floats:
    """Return a table at real indices, linear between its entries."""
    return np.asarray(np.interp(at, np.arange(table.size), table))


@dataclass(frozen=True)
class Bound:
    """The curve of rate against step time that one replica cannot leave on the better side.

    Attributes
    ----------
    rates : ndarray, rising
        Requests served [request/s].
    step_s : ndarray
        Shortest mean step, and so the shortest mean time per output token, at each rate [s].
    floor_s : float
        One decode step of one sequence [s].
    prompt_s : float
        Shortest time to compute the shortest prompt of the mix [s].
    batch : int
        Sequences that decode at the end of the curve.
    limit : str
        What ends the curve: "memory", "sequences" or "time".
    """

    rates: Floats
    step_s: Floats
    floor_s: float
    prompt_s: float
    batch: int
    limit: str

    @property
    def most(self) -> float:
        """Highest rate at all [request/s]."""
        return float(self.rates[-1])

    def tpot_s(self, rate: float) -> float:
        """Return the shortest mean time per output token at a rate [s]; infinite beyond all."""
        if rate > self.most:
            return float("inf")
        return float(np.interp(rate, self.rates, self.step_s))

    def rate_at(self, tpot_s: float) -> float:
        """Return the highest rate at which the mean time per output token may be as asked."""
        allowed = self.rates[self.step_s <= tpot_s]
        return float(allowed[-1]) if allowed.size else 0.0

    @classmethod
    def of(cls, deployment: Deployment, mix: Mix) -> "Bound":
        """Return the bound of a replica under a mix of requests."""
        tables, knobs = deployment.tables, deployment.knobs[0]
        fast = 1.0 - float(knobs["full_clock_gain"])
        output = float(mix.output.mean())
        computed = 0.0 if mix.received else float(mix.prompt.mean()) * (1.0 - mix.cached_share)
        context = float((mix.output * (mix.prompt + mix.output / 2)).sum() / mix.output.sum())
        batch, limit = _batches(knobs, mix, computed / output)
        chunk = int(knobs["max_num_batched_tokens"])
        attention = 0.0 if mix.received else _prompt_attention_s(tables, mix, chunk)
        tokens = batch * (1.0 + computed / output)
        step = between(tables.linear_s, tokens) + batch / output * attention
        step = step + between(tables.head_s, np.minimum(batch, tables.head_s.size - 1.0))
        step = (step + decode_attention_s(tables, batch, np.full(batch.size, context))) * fast
        step = np.maximum(step, float(knobs["bookkeeping_s"]))
        rates = np.maximum.accumulate(batch / (output * step))
        shortest = np.full(1, mix.prompt.min() * (1.0 - mix.cached_share))
        return cls(
            rates,
            np.asarray(step),
            float(tables.linear_s[1] + tables.head_s[1] + tables.decode_s[1, 0]) * fast,
            float(between(tables.linear_s, shortest)[0]) * fast,
            int(np.ceil(batch[-1])),
            limit if rates[-1] > rates[-2] else "time",
        )


def _batches(knobs: np.void, mix: Mix, prompt_per_output: float) -> tuple[Floats, str]:
    """Return the batch sizes that memory and the engine's limits leave, and which one ends them."""
    pool = float(knobs["num_blocks"]) * float(knobs["block_size"])
    held = float((mix.output * (mix.prompt + mix.output / 2)).sum() / mix.output.sum())
    shared = 0.0 if mix.received else mix.cached_share
    private = held - shared * float(mix.prompt.mean())
    most = {
        "memory": pool / max(private, 1.0),
        "sequences": float(knobs["max_num_seqs"]),
        "time": float(knobs["max_num_batched_tokens"]) / (1.0 + prompt_per_output),
    }
    limit = min(most, key=lambda name: most[name])
    return np.geomspace(min(0.01, most[limit] / 2), most[limit], POINTS), limit


def _prompt_attention_s(tables: StepTables, mix: Mix, chunk: int) -> float:
    """Return the mean attention time of a prompt, computed in chunks of at most `chunk` [s]."""
    past = mix.prompt * mix.cached_share
    left = mix.prompt - past
    total = np.zeros(left.size)
    while (left > 0.5).any():
        now = np.minimum(left, chunk)
        part = prefill_attention_s(tables, np.maximum(now, 1.0), past)
        total += np.where(left > 0.5, part, 0.0)
        past, left = past + now, left - now
    return float(total.mean())
