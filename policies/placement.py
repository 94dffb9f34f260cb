"""Where the prompt of a request is computed when prefill and decode replicas are apart."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from policies.base import Registry
from policies.routing import RoutedRequest

__all__ = ["Apart", "ByLength", "Placement", "placement"]


class Placement(Protocol):
    """A placement policy."""

    def apart(self, request: RoutedRequest) -> bool:
        """Return whether a prefill replica computes the prompt."""


placement: Registry[Placement] = Registry("placement")


@placement("disaggregated")
@dataclass(frozen=True)
class Apart:
    """Every prompt on a prefill replica. Use it to keep decoding free of prompts."""

    def apart(self, request: RoutedRequest) -> bool:
        """Return True."""
        return True


@placement("long-prompts-apart")
@dataclass(frozen=True)
class ByLength:
    """Short prompts where they decode, long ones apart. Use it where hand-offs cost more.

    The conditional disaggregation of NVIDIA Dynamo's router.
    """

    local_tokens: Annotated[
        int, Field(ge=0, le=1 << 27, description="longest prompt computed in place [token]")
    ] = 512

    def apart(self, request: RoutedRequest) -> bool:
        """Return whether the prompt is longer than what is computed in place."""
        return request.prompt_tokens > self.local_tokens
