"""How a replica serves: policies as dataclasses, one decorator each, on one engine."""

from policies import batching, caching, memory, ordering, routing
from policies.base import ParameterInfo, Registry, registries

__all__ = [
    "ParameterInfo",
    "Registry",
    "batching",
    "caching",
    "memory",
    "ordering",
    "registries",
    "routing",
]
