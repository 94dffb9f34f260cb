"""Speculation: how often drafts are right, and how many tokens a decode brings."""

from sim.metrics.base import Observed, Value, metric

__all__ = ["draft_acceptance", "tokens_per_decode"]


@metric("draft_acceptance", "1", "drafted tokens that were accepted, of all", "throughput")
def draft_acceptance(seen: Observed) -> Value:
    """Return accepted over drafted tokens [1]."""
    totals = seen.result.totals
    drafted = float(totals["drafted"].sum())
    return float(totals["accepted"].sum()) / drafted if drafted else None


@metric("tokens_per_decode", "token", "output tokens of a decode with drafts", "throughput")
def tokens_per_decode(seen: Observed) -> Value:
    """Return output tokens per request and step that had drafts, over the whole run [token]."""
    totals = seen.result.totals
    decoded = float(totals["decoded"].sum())
    return 1.0 + float(totals["accepted"].sum()) / decoded if decoded else None
