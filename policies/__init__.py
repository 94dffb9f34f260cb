"""How a replica serves: policies as dataclasses, one decorator each, on one engine."""

from policies import (
    autoscaling,
    batching,
    caching,
    memory,
    ordering,
    placement,
    routing,
    speculation,
)
from policies.base import ParameterInfo, Registry, registries

__all__ = [
    "ParameterInfo",
    "Registry",
    "autoscaling",
    "batching",
    "caching",
    "memory",
    "ordering",
    "placement",
    "registries",
    "routing",
    "speculation",
]
