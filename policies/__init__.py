"""How a replica serves: policies as dataclasses, one decorator each, on one engine."""

from policies import (
    admission,
    autoscaling,
    batching,
    caching,
    memory,
    ordering,
    placement,
    reuse,
    routing,
    speculation,
)
from policies.base import ParameterInfo, Registry, registries

__all__ = [
    "ParameterInfo",
    "Registry",
    "admission",
    "autoscaling",
    "batching",
    "caching",
    "memory",
    "ordering",
    "placement",
    "registries",
    "reuse",
    "routing",
    "speculation",
]
