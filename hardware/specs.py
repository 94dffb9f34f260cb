"""What an accelerator and a node are: checked numbers with unit, kind and source.

All numbers are in SI base units (FLOP/s, byte, byte/s, Hz, W, s); peaks are dense. An integer
operation counts as a FLOP. Bandwidths of links are per direction.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from formats import InputError, Quantity, did_you_mean

__all__ = [
    "PRECISIONS",
    "AcceleratorSpec",
    "Host",
    "Links",
    "Memory",
    "NodeSpec",
    "OnChip",
    "Peaks",
    "Port",
    "Power",
    "ScaleUp",
    "Storage",
]

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "int4", "fp4")
AcceleratorKind = Literal["gpu", "tpu", "npu", "asic", "cpu", "edge"]


def _bounded(unit: str, low: float, high: float, hint: str) -> Callable[[Quantity], Quantity]:
    """Return a check that a quantity has `unit` and lies in low..high."""

    def check(quantity: Quantity) -> Quantity:
        if quantity.unit != unit:
            raise ValueError(f"unit {quantity.unit!r} must be {unit!r} (SI base units)")
        if not low <= quantity.value <= high:
            raise ValueError(
                f"{quantity.value:g} {unit} is outside {low:g} .. {high:g} {unit}; {hint}"
            )
        return quantity

    return check


def _whole(quantity: Quantity) -> Quantity:
    if quantity.value != round(quantity.value):
        raise ValueError(f"{quantity.value:g} must be a whole number")
    return quantity


def _rule(unit: str, low: float, high: float, hint: str = "was a prefix lost?") -> AfterValidator:
    return AfterValidator(_bounded(unit, low, high, hint))


Flops = Annotated[Quantity, _rule("FLOP/s", 1e9, 1e18, "1 TFLOP/s is 1e12")]
Bytes = Annotated[Quantity, _rule("byte", 1e3, 1e18, "1 GB is 1e9")]
Bandwidth = Annotated[Quantity, _rule("byte/s", 1e6, 1e17, "1 GB/s is 1e9")]
Hertz = Annotated[Quantity, _rule("Hz", 1e7, 2e10, "1 MHz is 1e6")]
Watts = Annotated[Quantity, _rule("W", 0.01, 1e6, "1 kW is 1e3")]
Seconds = Annotated[Quantity, _rule("s", 1e-9, 1e5, "1 us is 1e-6")]
Count = Annotated[Quantity, _rule("1", 1, 1e7, "count them"), AfterValidator(_whole)]
Bits = Annotated[Quantity, _rule("bit", 8, 65536, "a SIMD register of AVX-512 has 512")]
Celsius = Annotated[Quantity, _rule("degC", 40, 130, "chips throttle at 80 .. 110 degC")]
Resistance = Annotated[Quantity, _rule("K/W", 1e-4, 50, "temperature rise per watt")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Peaks(_Strict):
    """Dense peak rates per precision; what a part cannot do is absent."""

    fp64: Flops | None = Field(None, description="matrix or vector, the larger [FLOP/s]")
    fp32: Flops | None = Field(None, description="full fp32 inputs [FLOP/s]")
    tf32: Flops | None = Field(None, description="fp32 with a 10-bit mantissa [FLOP/s]")
    fp16: Flops | None = Field(None, description="fp16 inputs, fp32 sums [FLOP/s]")
    bf16: Flops | None = Field(None, description="bf16 inputs, fp32 sums [FLOP/s]")
    fp8: Flops | None = Field(None, description="fp8 inputs [FLOP/s]")
    int8: Flops | None = Field(None, description="int8 inputs, int32 sums [FLOP/s]")
    fp6: Flops | None = Field(None, description="fp6 inputs [FLOP/s]")
    int4: Flops | None = Field(None, description="int4 inputs [FLOP/s]")
    fp4: Flops | None = Field(None, description="fp4 inputs (mxfp4, nvfp4) [FLOP/s]")

    @model_validator(mode="after")
    def _some(self) -> "Peaks":
        if not self.given():
            raise ValueError(f"at least one precision is needed ({', '.join(PRECISIONS)})")
        return self

    def given(self) -> dict[str, Quantity]:
        """Return precision -> quantity of those stated."""
        found = {name: getattr(self, name) for name in PRECISIONS}
        return {name: quantity for name, quantity in found.items() if quantity is not None}


class Memory(_Strict):
    """Main memory of one accelerator, and a slower second tier where there is one."""

    bytes: Bytes = Field(description="usable capacity [byte]")
    bytes_per_s: Bandwidth = Field(description="peak bandwidth [byte/s]")
    technology: str = Field(min_length=2, description="such as HBM3e, GDDR6, LPDDR5X, SRAM")
    second_bytes: Bytes | None = Field(None, description="capacity of the second tier [byte]")
    second_bytes_per_s: Bandwidth | None = Field(None, description="its bandwidth [byte/s]")
    second_technology: str = Field("", description="such as DDR5")


class OnChip(_Strict):
    """Compute units, their clock and the memories beside them."""

    compute_units: Count = Field(description="SMs, CUs, cores or tiles [1]")
    clock_hz: Hertz = Field(description="highest sustained clock without a power cap [Hz]")
    l2_bytes: Bytes = Field(description="last cache or buffer shared by all units [byte]")
    sram_bytes: Bytes = Field(description="software-managed or first-level SRAM per unit [byte]")
    l2_bytes_per_s: Bandwidth | None = Field(None, description="bandwidth of it [byte/s]")
    exponentials_per_clock: Count | None = Field(
        None, description="exponentials (special functions) per clock of one unit [1]"
    )
    simd_bits: Bits | None = Field(None, description="width of a vector register [bit]")
    simd_pipes: Count | None = Field(None, description="vector multiply-add pipes per unit [1]")


class ScaleUp(_Strict):
    """Links between accelerators that share a fast domain."""

    bytes_per_s: Bandwidth = Field(description="per accelerator and direction [byte/s]")
    domain: Count = Field(description="largest number of accelerators in one domain [1]")
    technology: str = Field(min_length=2, description="such as NVLink4")
    latency_s: Seconds | None = Field(None, description="of one small message [s]")


class Port(_Strict):
    """One link of an accelerator or node to something else."""

    bytes_per_s: Bandwidth = Field(description="per direction [byte/s]")
    technology: str = Field(min_length=2, description="such as PCIe5 x16")
    latency_s: Seconds | None = Field(None, description="of one small message [s]")


class Links(_Strict):
    """Ways out of an accelerator."""

    host: Port = Field(description="to the host's memory")
    scale_up: ScaleUp | None = Field(None, description="to its neighbours, if any")
    network: Port | None = Field(None, description="to other nodes, if on the chip or its board")


class Power(_Strict):
    """Electrical and thermal limits of one accelerator with its memory."""

    tdp_w: Watts = Field(description="sustained limit [W]")
    idle_w: Watts = Field(description="powered, nothing loaded [W]")
    idle_context_w: Watts | None = Field(None, description="idle with a program loaded [W]")
    throttle_temperature_c: Celsius | None = Field(None, description="clock falls there [degC]")
    thermal_resistance_k_per_w: Resistance | None = Field(
        None, description="chip over inlet air or water, per watt [K/W]"
    )
    thermal_time_constant_s: Seconds | None = Field(None, description="of that rise [s]")

    @model_validator(mode="after")
    def _order(self) -> "Power":
        idle = max(q.value for q in (self.idle_w, self.idle_context_w) if q is not None)
        if idle >= self.tdp_w.value:
            raise ValueError(f"idle {idle:g} W must be below tdp_w {self.tdp_w.value:g} W")
        return self


class AcceleratorSpec(_Strict):
    """One accelerator: a chip, card or CPU socket that runs an engine or a share of one.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> h200 = load_accelerator("h200-sxm")
    >>> h200.memory_bytes_per_s
    4800000000000.0
    >>> h200.compute_units
    132
    """

    schema_version: Literal[1]
    name: str = Field(min_length=2, description="as people call it")
    vendor: str = Field(min_length=2, description="maker")
    kind: AcceleratorKind = Field(description="gpu, tpu, npu, asic, cpu or edge")
    architecture: str = Field(min_length=2, description="such as Hopper")
    year: int = Field(ge=2010, le=2040, description="first sold")
    note: str = Field("", description="conflicts between sources, outliers, what is uncertain")
    structured_sparsity: bool = Field(
        False, description="2:4 sparse matrix units at twice the rate"
    )
    calibration: str | None = Field(None, description="name of its fitted coefficients")
    peaks: Peaks
    vector: Peaks | None = Field(None, description="rates outside the matrix units [FLOP/s]")
    memory: Memory
    on_chip: OnChip
    links: Links
    power: Power

    def peak(self, precision: str) -> float:
        """Return the dense peak rate of a precision in FLOP/s.

        Raises
        ------
        InputError
            No such precision, or this part does not have it.

        Examples
        --------
        >>> from hardware.catalog import load_accelerator
        >>> load_accelerator("h200-sxm").peak("bf16") / 1e12
        989.4
        """
        given = self.peaks.given()
        if precision in given:
            return given[precision].value
        known = ", ".join(given)
        if precision in PRECISIONS:
            what = f"{self.name} has no {precision} peak"
            raise InputError(what, "precision", known, "choose one of these")
        hint = did_you_mean(precision, PRECISIONS)
        raise InputError(f"no precision named {precision!r}", "precision", known, hint)

    @property
    def vector_flops_per_s(self) -> float:
        """Rate of fp32 vector work [FLOP/s]: stated, else fp32, else 1/16 of the 16-bit peak.

        The last is a rule of thumb: 16-bit matrix over fp32 vector is 15 .. 30 on A100 to B200
        and 4 on L40S.
        """
        stated = self.vector.given() if self.vector else {}
        if stated:
            return stated.get("fp32", next(iter(stated.values()))).value
        return self.peaks.fp32.value if self.peaks.fp32 else self.half_flops_per_s / 16

    @property
    def half_flops_per_s(self) -> float:
        """Dense 16-bit peak [FLOP/s]: bf16, else fp16, else the largest of all."""
        given = self.peaks.given()
        stated = given.get("bf16") or given.get("fp16")
        return stated.value if stated else max(q.value for q in given.values())

    @property
    def memory_bytes(self) -> float:
        """Capacity of main memory [byte]."""
        return self.memory.bytes.value

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak bandwidth of main memory [byte/s]."""
        return self.memory.bytes_per_s.value

    @property
    def compute_units(self) -> int:
        """Number of SMs, CUs, cores or tiles."""
        return round(self.on_chip.compute_units.value)

    @property
    def l2_bytes(self) -> float:
        """Last shared cache or buffer [byte]."""
        return self.on_chip.l2_bytes.value

    @property
    def clock_hz(self) -> float:
        """Highest clock without a power cap [Hz]."""
        return self.on_chip.clock_hz.value

    @property
    def tdp_w(self) -> float:
        """Sustained power limit [W]."""
        return self.power.tdp_w.value

    @property
    def idle_w(self) -> float:
        """Power with nothing loaded [W]."""
        return self.power.idle_w.value


class Host(_Strict):
    """CPUs and main memory of one node."""

    cpu: str = Field(min_length=2, description="processor, by name")
    sockets: Count = Field(description="processors per node [1]")
    memory_bytes: Bytes = Field(description="DRAM of the node [byte]")
    memory_bytes_per_s: Bandwidth = Field(description="of all sockets together [byte/s]")


class Storage(_Strict):
    """Local storage of one node."""

    bytes: Bytes = Field(description="capacity [byte]")
    read_bytes_per_s: Bandwidth = Field(description="sequential, all drives together [byte/s]")
    write_bytes_per_s: Bandwidth = Field(description="sequential, all drives together [byte/s]")
    technology: str = Field(min_length=2, description="such as 8 x NVMe PCIe5")


class NodeSpec(_Strict):
    """A board, server, rack or pod that carries accelerators.

    Examples
    --------
    >>> from hardware.catalog import load_node
    >>> hgx = load_node("hgx-h200")
    >>> hgx.accelerators
    8
    """

    schema_version: Literal[1]
    name: str = Field(min_length=2, description="as people call it")
    vendor: str = Field(min_length=2, description="maker")
    note: str = Field("", description="conflicts between sources, what is uncertain")
    accelerator: str = Field(min_length=2, description="name in the accelerator catalog")
    count: Count = Field(description="accelerators per node [1]")
    scale_up_domain: Count = Field(description="accelerators in one fast domain [1]")
    host_link: Port = Field(description="host to each accelerator")
    network: Port = Field(description="node to other nodes, all ports together")
    overhead_w: Watts = Field(description="node without its accelerators, under load [W]")
    overhead_idle_w: Watts | None = Field(None, description="the same, idle [W]")
    rated_w: Watts | None = Field(None, description="rated power of the whole node [W]")
    rack_units: Count | None = Field(None, description="height, or places it fills [1]")
    host: Host
    storage: Storage

    @property
    def accelerators(self) -> int:
        """Accelerators per node."""
        return round(self.count.value)
