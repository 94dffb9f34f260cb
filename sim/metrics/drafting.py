"""Speculation: how often drafts are right, and how many tokens a decode brings."""

from sim.metrics.base import Observed, Value, metric
from sim.metrics.reuse import total

__all__ = ["draft_acceptance", "tokens_per_decode"]


@metric("draft_acceptance", "1", "drafted tokens that were accepted, of all", "throughput")
def draft_acceptance(seen: Observed) -> Value:
    """Return accepted over drafted tokens [1]."""
    drafted = total(seen, "drafted")
    return total(seen, "accepted") / drafted if drafted else None


@metric("tokens_per_decode", "token", "output tokens of a decode with drafts", "throughput")
def tokens_per_decode(seen: Observed) -> Value:
    """Return output tokens per request and step that had drafts, over the whole run [token]."""
    decoded = total(seen, "decoded")
    return 1.0 + total(seen, "accepted") / decoded if decoded else None
