"""Speculative decoding: who drafts, how many tokens, and how often drafts are right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from formats import InputError
from policies.base import Registry

__all__ = [
    "DraftModel",
    "Eagle",
    "Length",
    "Lookahead",
    "MultiTokenPrediction",
    "NoSpeculation",
    "ParallelHeads",
    "PromptLookup",
    "Source",
    "Speculation",
    "SpeculationRules",
    "expected_tokens",
    "positions",
    "speculation",
]

Source = Literal["none", "model", "layers", "heads", "free"]
Length = Literal["fixed", "batch", "best", "adaptive"]
Tokens = Annotated[int, Field(ge=1, le=16, description="tokens drafted at most per step [token]")]
Share = Annotated[float, Field(ge=0, le=1, description="chance that a draft is accepted [1]")]
ByPosition = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...],
    Field(description="chance per position, given those before; empty = acceptance for all [1]"),
]
Concentration = Annotated[
    float,
    Field(ge=0, le=1e6, description="of a request's own rate, Beta; 0 = the same for all [1]"),
]
Limit = Annotated[int, Field(ge=1, le=65536, description="length batch: no drafts above [request]")]
HOW = "fixed, none above a batch, best for the batch by step times, or adaptive per request"
Lengths = Annotated[Length, Field(description=HOW)]


@dataclass(frozen=True, slots=True)
class SpeculationRules:
    """What the engine does at every decode step.

    Parameters
    ----------
    source : {"none", "model", "layers", "heads", "free"}
        Another model, added layers run one after the other, heads side by side, or nothing to run.
    tokens : int
        Tokens drafted at most for a request in a step.
    acceptance : tuple of float, `tokens` long
        Chance that a position is accepted when those before it were.
    concentration : float
        Spread of requests' own rates: Beta(c a, c (1 - a)); 0 = none.
    length : {"fixed", "batch", "best", "adaptive"}
        How many are drafted.
    largest_batch : int
        Length "batch": no drafts with more running requests.
    model : str
        Source "model": who drafts.
    layers : int
        Source "layers": layers of the target's kind that draft one token.
    candidates : int
        Tokens verified per request in place of the drafted ones (trees, n-gram pools); 0 = those.
    """

    source: Source = "none"
    tokens: int = 0
    acceptance: tuple[float, ...] = ()
    concentration: float = 0.0
    length: Length = "fixed"
    largest_batch: int = 32
    model: str = ""
    layers: int = 0
    candidates: int = 0

    def verified(self, drafted: int) -> int:
        """Return the tokens that the target computes for a request with so many drafts [token]."""
        return 1 + (max(self.candidates, drafted) if drafted else 0)


class Speculation(Protocol):
    """A way to speculate."""

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""


speculation: Registry[Speculation] = Registry("speculation")


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Return the mean tokens of a step that verifies one draft per entry of `acceptance`.

    The accepted run and the target's own next token: 1 + a1 + a1 a2 + ...; with the same chance a
    for g drafts (1 - a^(g+1)) / (1 - a) (Leviathan et al., arXiv:2211.17192, equation 1).

    Examples
    --------
    >>> round(expected_tokens([0.8] * 4), 4), round((1 - 0.8**5) / (1 - 0.8), 4)
    (3.3616, 3.3616)
    """
    total, run = 1.0, 1.0
    for chance in acceptance:
        run *= chance
        total += run
    return total


def positions(tokens: int, acceptance: float, by_position: Sequence[float]) -> tuple[float, ...]:
    """Return the chance of each of `tokens` positions; the last one given holds on.

    Examples
    --------
    >>> positions(3, 0.7, ()), positions(3, 0.7, (0.9, 0.8))
    ((0.7, 0.7, 0.7), (0.9, 0.8, 0.8))
    """
    given = tuple(by_position) or (acceptance,)
    if len(given) > tokens:
        what = f"{len(given)} chances for {tokens} drafted tokens"
        raise InputError(what, "[decoding] by_position", f"{tokens} or fewer")
    return (*given, *[given[-1]] * (tokens - len(given)))


@speculation("none")
@dataclass(frozen=True)
class NoSpeculation:
    """One token per request and step. Use it at large batches."""

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        return SpeculationRules()


@speculation("draft-model")
@dataclass(frozen=True)
class DraftModel:
    """A small model of the same vocabulary drafts. Use it when one is at hand; it has a KV cache.

    The default rate is an assumption: measure yours.
    """

    model: Annotated[str, Field(min_length=1, description="who drafts, by name or file")] = (
        "llama-3.2-1b"
    )
    tokens: Tokens = 4
    acceptance: Share = 0.7
    by_position: ByPosition = ()
    concentration: Concentration = 0.0
    length: Lengths = "fixed"
    largest_batch: Limit = 32

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        return SpeculationRules(
            source="model",
            tokens=self.tokens,
            acceptance=positions(self.tokens, self.acceptance, self.by_position),
            concentration=self.concentration,
            length=self.length,
            largest_batch=self.largest_batch,
            model=self.model,
        )


@speculation("eagle")
@dataclass(frozen=True)
class Eagle:
    """Layers on top of the target draft in turn (EAGLE, MTP). Use it when heads were trained.

    The default rate is an assumption in the range of EAGLE (arXiv:2401.15077, table 2).
    """

    tokens: Tokens = 3
    acceptance: Share = 0.75
    by_position: ByPosition = ()
    concentration: Concentration = 0.0
    layers: Annotated[int, Field(ge=1, le=8, description="layers that draft [layer]")] = 1
    length: Lengths = "fixed"
    largest_batch: Limit = 32

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        return SpeculationRules(
            source="layers",
            tokens=self.tokens,
            acceptance=positions(self.tokens, self.acceptance, self.by_position),
            concentration=self.concentration,
            length=self.length,
            largest_batch=self.largest_batch,
            layers=self.layers,
        )


@speculation("mtp")
@dataclass(frozen=True)
class MultiTokenPrediction(Eagle):
    """The model's own multi-token modules draft. Use it with models trained so (DeepSeek-V3).

    85 to 90 % of second tokens are accepted (DeepSeek-V3 report, arXiv:2412.19437, section 5.4.3).
    """

    tokens: Tokens = 1
    acceptance: Share = 0.85


@speculation("medusa")
@dataclass(frozen=True)
class ParallelHeads:
    """Heads on the last state draft side by side, a tree is verified. Use it for small batches.

    Each head knows less than the one before; the default chances are an assumption.
    """

    tokens: Tokens = 4
    acceptance: Share = 0.6
    by_position: ByPosition = (0.7, 0.6, 0.5, 0.45)
    concentration: Concentration = 0.0
    candidates: Annotated[int, Field(ge=0, le=256, description="tokens of the tree [token]")] = 32
    length: Lengths = "fixed"
    largest_batch: Limit = 32

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        given = self.by_position[: self.tokens]
        return SpeculationRules(
            source="heads",
            tokens=self.tokens,
            acceptance=positions(self.tokens, self.acceptance, given),
            concentration=self.concentration,
            length=self.length,
            largest_batch=self.largest_batch,
            candidates=self.candidates,
        )


@speculation("lookahead")
@dataclass(frozen=True)
class Lookahead:
    """The target guesses n-grams in parallel and verifies a pool of them. Use it without drafts.

    A step computes (window + pool) x (n - 1) more tokens (arXiv:2402.02057, section 3).
    """

    tokens: Tokens = 4
    acceptance: Share = 0.4
    by_position: ByPosition = ()
    concentration: Concentration = 0.0
    window: Annotated[int, Field(ge=1, le=64, description="positions guessed at once [token]")] = 7
    pool: Annotated[int, Field(ge=1, le=64, description="n-grams verified [1]")] = 7
    length: Lengths = "fixed"
    largest_batch: Limit = 32

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        return SpeculationRules(
            source="free",
            tokens=self.tokens,
            acceptance=positions(self.tokens, self.acceptance, self.by_position),
            concentration=self.concentration,
            length=self.length,
            largest_batch=self.largest_batch,
            candidates=(self.window + self.pool) * self.tokens,
        )


@speculation("prompt-lookup")
@dataclass(frozen=True)
class PromptLookup:
    """What followed the same words in the prompt is the draft. Use it where answers quote prompts.

    Nothing is run for it ("inference with reference", arXiv:2304.04487).
    """

    tokens: Tokens = 5
    acceptance: Share = 0.5
    by_position: ByPosition = ()
    concentration: Concentration = 0.0
    length: Lengths = "fixed"
    largest_batch: Limit = 32

    def rules(self) -> SpeculationRules:
        """Return the rules of every decode step."""
        return SpeculationRules(
            source="free",
            tokens=self.tokens,
            acceptance=positions(self.tokens, self.acceptance, self.by_position),
            concentration=self.concentration,
            length=self.length,
            largest_batch=self.largest_batch,
        )
