"""Deployments of a candidate, each built once for all its trials.

A trial's longest request is rounded up to a power of two: the grids of the step tables are powers
of two as well, so longer tables hold the shorter ones, and hardly any trial needs tables of its
own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pandas as pd

from formats import InputError
from sim.deployment import Deployment, deploy
from sim.fleets.pool import pool_scenarios
from sim.scenario import Scenario

__all__ = ["Ready", "room"]

Key = tuple[str, int, float | None]


def room(longest: int) -> int:
    """Return the power of two that holds a request [token].

    Examples
    --------
    >>> room(1), room(4096), room(4097)
    (1, 4096, 8192)
    """
    return 1 << (max(longest, 1) - 1).bit_length()


@dataclass
class Ready:
    """Deployments of the pools of one design, by pool, longest request and power limit."""

    _made: dict[Key, Deployment | None] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave the tables behind: a rating that goes to another process has no more trials."""
        return {"_made": {}}

    def of(self, scenario: Scenario, requests: pd.DataFrame) -> Mapping[str, Deployment]:
        """Return what serves a table of requests, by name of pool.

        Parameters
        ----------
        scenario : Scenario
            The design; only the number of its replicas and the power limit may differ between
            calls.
        requests : DataFrame
            Columns prompt_tokens and output_tokens.

        Raises
        ------
        InputError
            The model or the longest request does not fit.
        """
        longest = int((requests["prompt_tokens"] + requests["output_tokens"]).max())
        return {s.name: self._one(s.name, own, longest) for s, own in pool_scenarios(scenario)}

    def _one(self, name: str, scenario: Scenario, longest: int) -> Deployment:
        found = self._rounded(name, scenario, longest)
        if found is not None:
            return found
        key = name, longest, scenario.hardware.power_cap_w
        if key not in self._made:
            self._made[key] = deploy(scenario, longest)
        return cast("Deployment", self._made[key])

    def _rounded(self, name: str, scenario: Scenario, longest: int) -> Deployment | None:
        """Return a deployment with room for the next power of two, None where that is too long."""
        key = name, room(longest), scenario.hardware.power_cap_w
        if key not in self._made:
            try:
                self._made[key] = deploy(scenario, key[1])
            except InputError:
                self._made[key] = None
        return self._made[key]
