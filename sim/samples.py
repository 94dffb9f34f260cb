"""Several samples of one prompt: each is a request, and all but the first find its KV blocks."""

import numpy as np
import pandas as pd

from formats import InputError

__all__ = ["check_features", "with_samples"]

REFUSED = {
    "lora_adapters": "LoRA adapters are not modelled: no kernel that mixes adapters in a batch "
    "was measured",
    "structured_output": "structured output is not modelled: the host time of grammar masks was "
    "not measured",
}


def check_features(lora_adapters: int, structured_output: bool) -> None:
    """Refuse what the engine model does not cover, with the reason.

    Raises
    ------
    InputError
        A feature is asked for that would silently be free.
    """
    asked = {"lora_adapters": lora_adapters > 0, "structured_output": structured_output}
    for name, wanted in asked.items():
        if wanted:
            raise InputError(REFUSED[name], f"[engine] {name}", repair="leave it out")


def with_samples(table: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Return a table with every request as `samples` requests of the same prompt.

    As vLLM does it: the samples arrive together as requests of their own and share the prompt's
    KV blocks through the prefix cache (each computes the whole prompt where caching is off).

    Parameters
    ----------
    table : DataFrame
        A requests table.
    samples : int
        Answers to each prompt (n of the OpenAI API).

    Examples
    --------
    >>> one = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [64], "output_tokens": [8]})
    >>> with_samples(one, 2)[["session", "prefix_tokens"]].values.tolist()
    [['sample-0', 0], ['sample-0', 64]]
    """
    if samples == 1:
        return table
    rows = np.repeat(np.arange(len(table)), samples)
    first = np.tile(np.arange(samples), len(table)) == 0
    out = table.iloc[rows].reset_index(drop=True)
    if "request" in out:
        numbers = np.tile(np.arange(samples), len(table)).astype(str)
        out["request"] = out["request"].astype(str) + "/" + numbers
    if "hash_ids" in out:
        return out
    own = pd.Series([f"sample-{row}" for row in rows])
    session = out["session"] if "session" in out else pd.Series([""] * len(out))
    shared = out["prefix_tokens"].to_numpy() if "prefix_tokens" in out else np.zeros(len(out), int)
    return out.assign(
        session=session.where(session != "", own),
        prefix_tokens=np.where(first, shared, out["prompt_tokens"]),
    )
