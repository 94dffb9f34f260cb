"""How KV memory is handed out, and who gives it back when it runs out."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from policies.rules import MemoryRules, memory

__all__ = ["VICTIMS", "Contiguous", "Paged"]

VICTIMS = ("last-admitted", "lowest-priority", "shortest-progress")
BlockSize = Annotated[int, Field(ge=1, le=256, description="tokens of a KV block [token]")]
Blocks = Annotated[
    int | None, Field(ge=1, le=1 << 30, description="blocks of the pool, none = what fits [block]")
]
Watermark = Annotated[float, Field(ge=0, lt=1, description="share kept free at admission [1]")]
Victim = Annotated[
    Literal["last-admitted", "lowest-priority", "shortest-progress"],
    Field(description="who is preempted first"),
]
Preemption = Annotated[
    Literal["recompute", "swap"], Field(description="what becomes of a preempted KV cache")
]
SwapBytes = Annotated[
    float, Field(ge=0, le=1e15, description="host memory for swapped KV caches [byte]")
]
Reservation = Annotated[
    int, Field(ge=0, le=1 << 27, description="tokens per request, 0 = the longest served [token]")
]
OutputReservation = Annotated[
    int, Field(ge=0, le=1 << 27, description="prompt + so many instead, 0 = max_tokens [token]")
]


@memory("paged")
@dataclass(frozen=True)
class Paged:
    """Blocks on demand (PagedAttention), preemption when they run out. Use it by default."""

    block_size: BlockSize = 16
    kv_blocks: Blocks = None
    watermark: Watermark = 0.0
    victim: Victim = "last-admitted"
    preemption: Preemption = "recompute"
    swap_bytes: SwapBytes = 4 * 2.0**30

    def rules(self) -> MemoryRules:
        """Return the rules of the pool."""
        return MemoryRules(
            self.block_size,
            self.kv_blocks,
            self.watermark,
            victim=VICTIMS.index(self.victim),
            swap_bytes=self.swap_bytes if self.preemption == "swap" else 0.0,
        )


@memory("contiguous")
@dataclass(frozen=True)
class Contiguous:
    """One run of memory per request at its maximum length. Use it to see what paging brings."""

    max_tokens: Reservation = 0
    max_output_tokens: OutputReservation = 0
    block_size: BlockSize = 16
    kv_blocks: Blocks = None

    def rules(self) -> MemoryRules:
        """Return the rules of the pool."""
        return MemoryRules(
            self.block_size,
            self.kv_blocks,
            contiguous=True,
            reserve_tokens=self.max_output_tokens or self.max_tokens,
            reserve_beside_prompt=self.max_output_tokens > 0,
        )
