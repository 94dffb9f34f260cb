"""What serving costs: rent of the accelerators, and prompts priced as caches are sold."""

import numpy as np

from formats import InputError
from hardware.costs import cost
from sim.metrics.base import Observed, Value, metric

__all__ = ["prompt_price_share", "rent_per_million_tokens_usd"]


def _rent_per_hour(seen: Observed) -> float | None:
    """Return the rent of an accelerator [USD/h]; None without a price, or with several kinds."""
    if seen.result.scenario.pools:
        return None
    name = seen.result.scenario.hardware.accelerator.removesuffix(".toml").rsplit("/", 1)[-1]
    try:
        return cost(f"rent.{name}").value
    except InputError:
        return None


@metric(
    "rent_per_million_tokens_usd",
    "USD",
    "rent of the accelerators over prompt and output tokens of finished requests, per million",
    "run",
)
def rent_per_million_tokens_usd(seen: Observed) -> Value:
    """Return rent x accelerator-hours / tokens x 10^6; None without a price of the accelerator."""
    rent, done = _rent_per_hour(seen), seen.finished
    tokens = float((done["prompt_tokens"] + done["emitted_tokens"]).sum())
    if rent is None or tokens == 0:
        return None
    return rent * seen.accelerator_s / 3600.0 / tokens * 1e6


@metric(
    "prompt_price_share",
    "1",
    "price of prompts against their list price, by write premium and read discount of the cache",
    "cache",
)
def prompt_price_share(seen: Observed) -> Value:
    """Return (computed x (1 + premium) + cached x (1 - discount)) / prompt tokens [1].

    As API vendors bill prompt caching. None unless the caching policy has such prices.
    """
    rules = seen.result.deployment.policies
    if rules is None or not (rules.cache.write_premium or rules.cache.read_discount):
        return None
    admitted = np.isfinite(seen.column("admitted_s"))
    prompts = float(seen.column("prompt_tokens")[admitted].sum())
    cached = float(seen.column("cached_tokens")[admitted].sum())
    if prompts == 0:
        return None
    price = (prompts - cached) * (1.0 + rules.cache.write_premium)
    return (price + cached * (1.0 - rules.cache.read_discount)) / prompts
