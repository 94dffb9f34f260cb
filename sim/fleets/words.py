"""What a fleet is, in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.simulation import Result

__all__ = ["pool_words"]


def pool_words(result: "Result") -> str:
    """Return what each pool is: role, replicas at the start, accelerators, model."""
    names = result.fleet.pools if result.fleet else []
    made = dict(zip(names, result.deployments, strict=False))
    words = []
    for pool in result.scenario.pools:
        if pool.name in made:
            one = made[pool.name]
            role = "" if pool.role in ("both", pool.name) else f" ({pool.role})"
            ranks = one.parallel.accelerators
            each = one.spec.name if ranks == 1 else f"{ranks} x {one.spec.name}"
            words.append(f"{pool.name}{role}: {pool.replicas} x {each}, {one.model.name}")
    return "; ".join(words)
