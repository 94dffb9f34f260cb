"""Which KV blocks of earlier prompts are kept and found again."""

from dataclasses import dataclass

from policies.rules import CacheRules, caching

__all__ = ["NoCache", "PrefixLru"]


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
        return CacheRules(prefix=True)
