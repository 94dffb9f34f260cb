"""How KV memory is handed out, and who gives it back when it runs out."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from policies.rules import MemoryRules, memory

__all__ = ["Paged"]

BlockSize = Annotated[int, Field(ge=1, le=256, description="tokens of a KV block [token]")]
Blocks = Annotated[
    int | None, Field(ge=1, le=1 << 30, description="blocks of the pool, none = what fits [block]")
]
Watermark = Annotated[float, Field(ge=0, lt=1, description="share kept free at admission [1]")]


@memory("paged")
@dataclass(frozen=True)
class Paged:
    """Blocks on demand (PagedAttention); the last admitted is recomputed. Use it by default."""

    block_size: BlockSize = 16
    kv_blocks: Blocks = None
    watermark: Watermark = 0.0

    def rules(self) -> MemoryRules:
        """Return the rules of the pool."""
        return MemoryRules(self.block_size, self.kv_blocks, self.watermark)
