"""Which KV blocks of earlier prompts are kept and found again."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from policies.rules import CacheRules, caching

__all__ = ["CostAware", "NoCache", "PrefixLfu", "PrefixLru", "PrefixTtl", "Tiered"]

Ttl = Annotated[float, Field(gt=0, le=1e9, description="time to live after the last use [s]")]
Bytes = Annotated[float, Field(ge=0, le=1e18, description="capacity of the tier, 0 = none [byte]")]
Rate = Annotated[float, Field(gt=0, le=1e14, description="rate of a fetch [byte/s]")]
LinkRate = Annotated[
    float | None,
    Field(gt=0, le=1e14, description="rate of a fetch, none = the measured host link [byte/s]"),
]
Latency = Annotated[float, Field(ge=0, le=10, description="time before the first byte [s]")]
Premium = Annotated[
    float, Field(ge=0, le=10, description="above the list price of a prompt token kept [1]")
]
Discount = Annotated[
    float, Field(ge=0, le=1, description="off the list price of a prompt token found [1]")
]
Always = Annotated[
    bool, Field(description="fetch all that is there; false: only what computing takes longer for")
]
Beside = Annotated[
    bool, Field(description="fetch layer by layer beside the step; false: before it")
]


@caching("none")
@dataclass(frozen=True)
class NoCache:
    """Compute every prompt in full. Use it to see what caching brings."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules(prefix=False)


@caching("prefix-lru")
@dataclass(frozen=True)
class PrefixLru:
    """Hash chain of full blocks, least recently used out first (vLLM). Use it by default."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules()


@caching("prefix-lfu")
@dataclass(frozen=True)
class PrefixLfu:
    """Least often used out first. Use it when few prefixes are asked for again and again."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules(eviction=1)


@caching("prefix-ttl")
@dataclass(frozen=True)
class PrefixTtl:
    """Hits live for a time after their last use. Use it for caches sold by time, as APIs do.

    The default prices are those of Anthropic's five-minute cache (documentation of prompt caching:
    writes at 1.25 times, reads at 0.1 times the price of input tokens); one hour is sold at a
    write premium of 1.
    """

    ttl_s: Ttl = 300.0
    write_premium: Premium = 0.25
    read_discount: Discount = 0.9

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules(
            ttl_s=self.ttl_s, write_premium=self.write_premium, read_discount=self.read_discount
        )


@caching("cost-aware")
@dataclass(frozen=True)
class CostAware:
    """Least recompute time x uses out first. Use it for prompts of very different lengths."""

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules(eviction=2)


@caching("tiered")
@dataclass(frozen=True)
class Tiered:
    """What leaves the pool goes to host memory, then SSD. Use it for long sessions with pauses."""

    dram_bytes: Bytes = 256e9
    ssd_bytes: Bytes = 0.0
    dram_bytes_per_s: LinkRate = None
    ssd_bytes_per_s: Rate = 5e9
    dram_latency_s: Latency = 1e-5
    ssd_latency_s: Latency = 1e-4
    fetch_always: Always = False
    fetch_beside: Beside = True

    def rules(self) -> CacheRules:
        """Return the rules of the cache."""
        return CacheRules(
            dram_bytes=self.dram_bytes,
            ssd_bytes=self.ssd_bytes,
            dram_bytes_per_s=self.dram_bytes_per_s,
            ssd_bytes_per_s=self.ssd_bytes_per_s,
            dram_latency_s=self.dram_latency_s,
            ssd_latency_s=self.ssd_latency_s,
            fetch_always=self.fetch_always,
            fetch_beside=self.fetch_beside,
        )
