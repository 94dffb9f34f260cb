"""Power: watts from activity under a cap, and the temperature that follows.

While kernels run, watts = base + a x FLOP/s + b x byte/s, at most the cap; streaming the KV cache
costs more per byte than streaming weights, and a FLOP costs in proportion to the bits of its
operands. With nothing to do, an accelerator with a context draws its idle watts.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from formats import InputError, Quantity, read_toml
from hardware.specs import AcceleratorSpec

__all__ = ["PowerModel", "PowerShares", "power_model", "power_shares", "precision_scale"]

SHARES = Path(__file__).parent / "data" / "power.toml"


class PowerShares(BaseModel):
    """Power relative to TDP of sustained work, fitted on a measured accelerator [1]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    base: Quantity
    weights: Quantity
    kv: Quantity
    experts: Quantity
    flops: Quantity
    cap: Quantity
    window: Quantity
    clock_free: Quantity
    full_clock_gain: Quantity
    capped_gain: Quantity
    power_exponent: Quantity
    time_exponent: Quantity
    memory_exponent: Quantity


def precision_scale(precision: str) -> float:
    """Return the energy of a FLOP relative to a 16-bit one: the bits of its operands over 16.

    Examples
    --------
    >>> precision_scale("fp8"), precision_scale("bf16"), precision_scale("w4a16")
    (0.5, 1.0, 1.0)
    """
    bits = {"fp32": 32, "tf32": 19, "fp8": 8, "int8": 8, "fp6": 6, "fp4": 4, "int4": 4}
    return bits.get(precision, 16) / 16


@lru_cache(maxsize=1)
def power_shares() -> PowerShares:
    """Return the constants of the power model, each with kind and source."""
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
    >>> round(power_model(load_accelerator("h200-sxm")).watts(0.0, 3.1e12) / 470, 1)
    1.0
    """
    shares, tdp = power_shares(), spec.tdp_w
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
        shares.weights.value * tdp / spec.memory_bytes_per_s,
        shares.kv.value * tdp / spec.memory_bytes_per_s,
        shares.cap.value * limit,
        shares.window.value,
        shares.clock_free.value,
        shares.full_clock_gain.value,
        shares.capped_gain.value,
        shares.experts.value,
        shares.cap.value * tdp,
        shares.power_exponent.value,
        shares.time_exponent.value,
        shares.memory_exponent.value,
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
    j_per_flop, j_per_weight_byte, j_per_kv_byte : float
        Joules per 16-bit FLOP, per byte of weights and of KV cache moved.
    cap_w : float
        Power limit that the clock is lowered to meet.
    window_s : float
        Time constant of the power average that is held under the limit [s].
    clock_free, full_clock_gain, capped_gain : float
        Share of the limit up to which the clock is always full; time saved against the kernel
        tables, which were taken near the limit, at the full clock and at the limit [1].
    expert_factor : float
        Joules per byte of a mixture of experts over those of dense weights [1].
    full_cap_w : float
        Sustained watts at the TDP; `cap_w` is lower where the limit is [W].
    power_exponent, time_exponent, memory_exponent : float
        Dynamic watts go with clock^power_exponent; time with clock^-time_exponent where compute
        binds and with clock^-memory_exponent where memory does [1].
    """

    idle_w: float
    base_w: float
    j_per_flop: float
    j_per_weight_byte: float
    j_per_kv_byte: float
    cap_w: float
    window_s: float = 0.08
    clock_free: float = 0.8
    full_clock_gain: float = 0.135
    capped_gain: float = 0.03
    expert_factor: float = 1.0
    full_cap_w: float = inf
    power_exponent: float = 1.38
    time_exponent: float = 0.6
    memory_exponent: float = 0.15

    def watts(self, flops_per_s: float, bytes_per_s: float, kv_bytes_per_s: float = 0.0) -> float:
        """Return watts at an activity.

        Examples
        --------
        >>> PowerModel(125, 200, 0.5e-12, 88e-12, 170e-12, 688).watts(0.0, 3.0e12, 1.0e12)
        634.0
        """
        dynamic = self.j_per_flop * flops_per_s + self.j_per_weight_byte * bytes_per_s
        dynamic += self.j_per_kv_byte * kv_bytes_per_s
        return min(self.cap_w, self.base_w + dynamic)
