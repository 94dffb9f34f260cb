"""What the loop looks up for speculation."""

from typing import NamedTuple

import numpy as np

from sim.core.layout import Floats, Integers

__all__ = ["NO_DRAFTS", "DraftTables"]


class DraftTables(NamedTuple):
    """Lengths, chances and times of drafts; fields of `sim.core.layout.Lanes` of the same names.

    Attributes
    ----------
    draft_lengths : (max_seqs + 1,)
        Tokens to draft by running requests [token].
    draft_chances : (levels, tokens)
        Chance of each position by the level of a request [1].
    draft_s : (max_seqs + 1, contexts)
        One drafted token of each sequence (heads: of all heads) [s].
    verify_s : (max_seqs + 1, contexts)
        Attention of all verified tokens beyond that of plain decoding [s].
    draft_prompt_s : (max_tokens + 1,)
        Prompt tokens through what drafts [s].
    """

    draft_lengths: Integers
    draft_chances: Floats
    draft_s: Floats
    verify_s: Floats
    draft_prompt_s: Floats


NO_DRAFTS = DraftTables(np.zeros(1, np.int64), *(np.zeros(1) for _ in range(4)))
