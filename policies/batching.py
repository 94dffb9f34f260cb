"""How a step is filled with prompts and decodes."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from policies.rules import BatchRules, batching

__all__ = ["ChunkedPrefill"]

Seqs = Annotated[int, Field(ge=1, le=65536, description="sequences of a step at most [sequence]")]
Tokens = Annotated[int, Field(ge=1, le=1 << 20, description="tokens of a step at most [token]")]
Threshold = Annotated[
    int,
    Field(ge=0, le=1 << 20, description="prompt tokens of one request per step, 0 = all [token]"),
]
Partials = Annotated[int, Field(ge=1, le=1024, description="cut prompts per step [request]")]


@batching("chunked-prefill")
@dataclass(frozen=True)
class ChunkedPrefill:
    """Decode first, fill up with prompt chunks (vLLM V1, Sarathi). Use it by default."""

    max_num_seqs: Seqs = 512
    max_num_batched_tokens: Tokens = 8192
    long_prefill_token_threshold: Threshold = 0
    max_num_partial_prefills: Partials = 1

    def rules(self) -> BatchRules:
        """Return the rules of every step."""
        return BatchRules(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_num_partial_prefills=self.max_num_partial_prefills,
        )
