"""Which requests each measured step computed, reconstructed from the engine's own rules.

The step log holds sums. First come, first served with running requests first (vLLM V1) leaves one
way to fill them: a prompt that was cut continues first, new prompts follow in order of arrival, the
last one may be cut; a prompt that is complete decodes one token in every later step. The sums of
the log check the result.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from validation.measured import MeasuredWorkload

__all__ = ["Batches", "is_whole", "reconstruct"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batches:
    """What each step of a workload held.

    Attributes
    ----------
    chunks : DataFrame
        One row per prompt chunk: step, request (rows of the workload's tables), tokens, past
        (tokens in the KV cache before it).
    squares : ndarray, shape (steps,)
        Sum of the squares of the contexts of decoding requests [token^2].
    first, last : ndarray, shape (requests,)
        Steps of a request's first and last prompt chunk.
    """

    chunks: pd.DataFrame
    squares: Floats
    first: Ints
    last: Ints


def reconstruct(workload: MeasuredWorkload) -> Batches:
    """Return which requests every step computed.

    Raises
    ------
    InputError
        The sums of the log contradict the rules: requests were preempted, reordered or aborted.

    Examples
    --------
    >>> from validation.measured import load_runs
    >>> batches = reconstruct(load_runs()["llama8b_bf16"]["static_b8_p512"])
    >>> batches.chunks[batches.chunks.step == 1].tokens.tolist()
    [512, 512, 512, 512, 512]
    """
    requests, steps = workload.requests, workload.steps
    where = f"{workload.run}/{workload.name}"
    if steps["n_preempted"].any():
        raise InputError("requests were preempted, so their order is not known", where)
    cached = requests["cached_tokens"].to_numpy()
    needed = requests["prompt_tokens"].to_numpy() - cached
    table = pd.DataFrame(
        _chunks(needed, steps, where), columns=["step", "request", "tokens"], dtype=np.int64
    )
    before = table.groupby("request")["tokens"].cumsum() - table["tokens"]
    table["past"] = before + cached[table["request"]]
    spans = table.groupby("request")["step"].agg(["min", "max"])
    first, last = spans["min"].to_numpy(np.int64), spans["max"].to_numpy(np.int64)
    return Batches(table, _squares(workload, last, where), first, last)


def is_whole(workload: MeasuredWorkload) -> bool:
    """Return whether the batches of a workload can be reconstructed."""
    try:
        reconstruct(workload)
    except InputError:
        return False
    return True


def _chunks(needed: Ints, steps: pd.DataFrame, where: str) -> list[tuple[int, int, int]]:
    """Return (step, request, tokens) of every prompt chunk."""
    queue = _Queue(needed)
    rows: list[tuple[int, int, int]] = []
    prefills = steps["n_prefill"].to_numpy()
    totals = steps["prefill_tokens"].to_numpy()
    for step in np.flatnonzero(prefills):
        chunks = queue.take(int(prefills[step]), int(totals[step]))
        if chunks is None:
            raise InputError(f"prompts of step {step} do not add up", where)
        rows += [(int(step), request, tokens) for request, tokens in chunks]
    if queue.head < len(needed):
        raise InputError(f"the step log ends before the prompt of request {queue.head}", where)
    return rows


class _Queue:
    """Prompts in order of arrival; the head may be partly computed."""

    def __init__(self, needed: Ints) -> None:
        self.left = needed.copy()
        self.head = 0

    def take(self, count: int, tokens: int) -> list[tuple[int, int]] | None:
        """Return (request, tokens) of the next `count` chunks of `tokens` in all, None if wrong."""
        chosen = self.left[self.head : self.head + count].copy()
        if len(chosen) < count:
            return None
        chosen[-1] = tokens - chosen[:-1].sum()
        if not 0 < chosen[-1] <= self.left[self.head + count - 1]:
            return None
        first = self.head
        self.left[first : first + count] -= chosen
        self.head += count if self.left[first + count - 1] == 0 else count - 1
        return [(first + i, int(c)) for i, c in enumerate(chosen)]


def _squares(workload: MeasuredWorkload, last: Ints, where: str) -> Floats:
    """Return the sum of squared contexts of every step, checked against count and sum."""
    requests, steps = workload.requests, workload.steps
    sums: Floats = np.zeros((3, len(steps)))
    prompts, outputs = requests["prompt_tokens"].to_numpy(), requests["output_tokens"].to_numpy()
    if (last + outputs > len(steps)).any():
        raise InputError("the step log ends before the last token", where)
    for prompt, output, step in zip(prompts, outputs, last, strict=True):
        place = slice(step + 1, step + output)
        context = prompt + np.arange(len(sums[0][place]), dtype=np.float64)
        sums[:, place] += np.stack([np.ones_like(context), context, context**2])
    if not (
        np.array_equal(sums[0], steps["n_decode"])
        and np.array_equal(sums[1], steps["decode_context"])
    ):
        raise InputError("decodes of the step log do not follow from the requests", where)
    squares: Floats = sums[2]
    return squares
