"""Power: watts from activity under a cap, and the temperature that follows.

While a kernel runs, watts = base + a x FLOP/s + b x byte/s, at most the cap; between kernels an
accelerator with a context draws its idle watts.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from formats import InputError, Quantity, read_toml
from hardware.specs import AcceleratorSpec

__all__ = ["PowerModel", "power_model"]

SHARES = Path(__file__).parent / "data" / "power.toml"


class PowerShares(BaseModel):
    """Power relative to TDP of sustained work, fitted on a measured accelerator [1]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    base: Quantity
    flops: Quantity
    bytes: Quantity
    cap: Quantity


@lru_cache(maxsize=1)
def _shares() -> PowerShares:
    return read_toml(SHARES, PowerShares)


def power_model(spec: AcceleratorSpec, cap_w: float | None = None) -> "PowerModel":
    """Return the power model of an accelerator: shares of its TDP, peak rate and bandwidth.

    Parameters
    ----------
    spec : AcceleratorSpec
        TDP, idle watts, peak rate and bandwidth.
    cap_w : float, optional
        A lower power limit than the TDP [W].

    Raises
    ------
    InputError
        The limit is at or below the idle watts, or above the TDP.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> round(power_model(load_accelerator("h200-sxm")).watts(0.0, 3.7e12), -1)
    550.0
    """
    shares, tdp = _shares(), spec.tdp_w
    idle = spec.power.idle_context_w or spec.power.idle_w
    limit = tdp if cap_w is None else cap_w
    if not idle.value < limit <= tdp:
        what = f"a power cap of {limit:g} W cannot hold on {spec.name}"
        raise InputError(what, "[hardware] power_cap_w", f"above {idle.value:g}, up to {tdp:g} W")
    base = min(max(shares.base.value * tdp, idle.value), 0.9 * limit)
    return PowerModel(
        idle.value,
        base,
        shares.flops.value * tdp / spec.half_flops_per_s,
        shares.bytes.value * tdp / spec.memory_bytes_per_s,
        shares.cap.value * limit,
    )


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Watts of one accelerator [W].

    Attributes
    ----------
    idle_w : float
        With a context, no kernel running.
    base_w : float
        While kernels run, before their activity.
    w_per_flops, w_per_bytes : float
        Joules per FLOP and per byte moved.
    cap_w : float
        Power limit that the clock is lowered to meet.
    """

    idle_w: float
    base_w: float
    w_per_flops: float
    w_per_bytes: float
    cap_w: float

    def watts(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Return watts at an activity.

        Examples
        --------
        >>> PowerModel(125, 320, 0.587e-12, 61.3e-12, 692).watts(0.0, 3.7e12)
        546.81
        """
        dynamic = self.w_per_flops * flops_per_s + self.w_per_bytes * bytes_per_s
        return min(self.cap_w, self.base_w + dynamic)
