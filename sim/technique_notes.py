"""What a result says about the techniques in use: paths taken, answers, and where drafts end."""

from collections.abc import Iterator

import numpy as np

from sim.simulation import Result
from sim.speculation import break_even_batch

__all__ = ["technique_notes"]

BATCHES = 512  # batches up to which drafts are tried


def technique_notes(result: Result) -> list[str]:
    """Return one sentence for each path that the hardware takes, each technique, and speculation.

    Examples
    --------
    >>> import pandas as pd
    >>> from sim.scenario import Scenario
    >>> from sim.simulation import simulate
    >>> one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [64], "output_tokens": [8]})
    >>> technique_notes(simulate(Scenario(), one))
    []
    """
    deployment = result.deployment
    return [*deployment.notes, *deployment.quality, *_drafts(result)]


def _drafts(result: Result) -> Iterator[str]:
    drafting = result.deployment.drafting
    if drafting is None:
        return
    rules, totals = drafting.rules, result.totals
    context = _context(result)
    limit = break_even_batch(drafting.steps, context, BATCHES)
    ends = f"at every batch up to {BATCHES}" if limit is None else f"up to {limit} sequences"
    if limit == 0:
        ends = "at no batch"
    decoded = float(totals["decoded"].sum())
    brought = 1.0 + float(totals["accepted"].sum()) / decoded if decoded else 1.0
    yield (
        f"Speculation ({result.scenario.decoding['name']}): {rules.tokens} drafts gain {ends} at "
        f"{context:,.0f} tokens of context; a decode with drafts brought {brought:.2f} tokens."
    )


def _context(result: Result) -> float:
    """Return the mean context of a decoding request [token]."""
    steps = result.steps[result.steps["decode_requests"] > 0]
    if not len(steps):
        return float(result.requests["prompt_tokens"].mean())
    weight = steps["steps"] * steps["decode_requests"]
    each = steps["decode_context"] / steps["decode_requests"]
    return float(np.average(each, weights=weight))
