"""Work that need not be done again: whole answers, and outputs of encoders."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from policies.base import Registry

__all__ = [
    "AnswerRules",
    "Answers",
    "CachedEncoder",
    "Encoder",
    "EncoderRules",
    "EveryImage",
    "HitRate",
    "NoAnswers",
    "NoEncoder",
    "answers",
    "encoder",
]

Share = Annotated[float, Field(ge=0, le=1, description="requests whose whole answer is known [1]")]
Lookup = Annotated[float, Field(ge=0, le=10, description="time to look an answer up [s]")]
Capacity = Annotated[
    float, Field(ge=0, le=1e15, description="memory for encoder outputs, least recent out [byte]")
]
Items = Annotated[
    int, Field(ge=1, le=10**9, description="different images or documents asked about [1]")
]
Zipf = Annotated[
    float, Field(ge=0, le=10, description="use falls as rank to the minus this; 0 is equal [1]")
]
Flops = Annotated[
    float,
    Field(ge=0, le=1e15, description="encoder FLOPs per token, 0 = the model's own [FLOP/token]"),
]


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """Reuse of whole answers.

    Parameters
    ----------
    hit_share : float
        Share of requests whose answer is known [0..1].
    lookup_s : float
        Time of such an answer at the engine's door [s].
    """

    hit_share: float = 0.0
    lookup_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EncoderRules:
    """Work of an encoder in front of the language model.

    Parameters
    ----------
    encodes : bool
        Image tokens cost encoder time on the accelerator.
    cache_bytes : float
        Memory for outputs, 0 = each is computed anew [byte].
    items, zipf : int, float
        Different inputs, and the skew of their use.
    flops_per_token : float
        Encoder FLOPs per token that it yields, 0 = those of the model's vision encoder.
    """

    encodes: bool = False
    cache_bytes: float = 0.0
    items: int = 1
    zipf: float = 0.0
    flops_per_token: float = 0.0


class Answers(Protocol):
    """A policy of known answers."""

    def rules(self) -> AnswerRules:
        """Return its rules."""


class Encoder(Protocol):
    """A policy of encoder work."""

    def rules(self) -> EncoderRules:
        """Return its rules."""


answers: Registry[Answers] = Registry("answers")
encoder: Registry[Encoder] = Registry("encoder")


@answers("none")
@dataclass(frozen=True)
class NoAnswers:
    """Compute every answer. Use it unless equal questions get equal answers."""

    def rules(self) -> AnswerRules:
        """Return its rules."""
        return AnswerRules()


@answers("hit-rate")
@dataclass(frozen=True)
class HitRate:
    """A share of requests is answered from memory. Use it for a semantic or exact answer cache."""

    hit_share: Share = 0.2
    lookup_s: Lookup = 0.01

    def rules(self) -> AnswerRules:
        """Return its rules."""
        return AnswerRules(self.hit_share, self.lookup_s)


@encoder("none")
@dataclass(frozen=True)
class NoEncoder:
    """Image tokens count as text. Use it when encoders run elsewhere."""

    def rules(self) -> EncoderRules:
        """Return its rules."""
        return EncoderRules()


@encoder("every-image")
@dataclass(frozen=True)
class EveryImage:
    """Encode every input on the accelerator. Use it when images do not come twice."""

    flops_per_token: Flops = 0.0

    def rules(self) -> EncoderRules:
        """Return its rules."""
        return EncoderRules(encodes=True, flops_per_token=self.flops_per_token)


@encoder("cached")
@dataclass(frozen=True)
class CachedEncoder:
    """Keep encoder outputs, least recently used out. Use it for images or documents that recur."""

    cache_bytes: Capacity = 8e9
    items: Items = 1000
    zipf: Zipf = 1.0
    flops_per_token: Flops = 0.0

    def rules(self) -> EncoderRules:
        """Return its rules."""
        return EncoderRules(True, self.cache_bytes, self.items, self.zipf, self.flops_per_token)
