"""The space of a tuning: which scenario keys may move, and between what."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from formats import read_toml
from sim.scenario import Scenario
from sim.sweeping.keys import Span, Value

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["DEFAULT_SPACE", "Space", "load_space"]


class Space(BaseModel):
    """A space file: dotted scenario key -> list of values, or a range {low, high, log, whole}.

    Examples
    --------
    >>> space = Space(knobs={"policies.batching.max_num_seqs": {"low": 16, "high": 512}})
    >>> space.size() is None
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    knobs: dict[str, list[Value] | Span] = Field(min_length=1, description="key -> values")

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """Return a setting that a trial proposes."""
        return {key: _suggest(trial, key, values) for key, values in self.knobs.items()}

    def size(self) -> int | None:
        """Return the number of settings, None where a range has no end of them."""
        total = 1
        for values in self.knobs.values():
            if isinstance(values, Span):
                return None
            total *= len(values)
        return total

    def default(self, scenario: Scenario) -> dict[str, Any]:
        """Return what the scenario has at the knobs, where it says so."""
        data = scenario.model_dump()
        found = {}
        for key in self.knobs:
            place: Any = data
            for part in key.split("."):
                place = place.get(part) if isinstance(place, dict) else None
            if place is not None:
                found[key] = place
        return found


def _suggest(trial: "Trial", key: str, values: list[Value] | Span) -> Any:  # noqa: ANN401
    if isinstance(values, Span):
        if values.whole:
            return trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
        return trial.suggest_float(key, values.low, values.high, log=values.log)
    return values[trial.suggest_categorical(key, list(range(len(values))))]


def load_space(path: Path) -> Space:
    """Read a space file."""
    return read_toml(path, Space)


DEFAULT_SPACE = Space.model_validate(
    {
        "knobs": {
            "policies.batching.max_num_seqs": [16, 32, 64, 128, 256, 512],
            "policies.batching.max_num_batched_tokens": [512, 1024, 2048, 4096, 8192, 16384],
        }
    }
)
