"""Refusals and properties of accelerator and node specs."""

import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardware
from formats import InputError
from formats.files import check
from hardware.catalog import load_accelerator, load_node
from hardware.specs import (
    PRECISIONS,
    AcceleratorSpec,
    Host,
    Memory,
    NodeSpec,
    OnChip,
    Peaks,
    Port,
    Power,
    ScaleUp,
    Storage,
)

DATA = Path(hardware.__file__).parent / "data"
H200 = tomllib.loads((DATA / "accelerators" / "h200-sxm.toml").read_text())
HGX = tomllib.loads((DATA / "nodes" / "hgx-h200.toml").read_text())


def refused(change: Callable[[dict[str, Any]], Any], model=AcceleratorSpec, base=H200) -> str:
    data = deepcopy(base)
    change(data)
    with pytest.raises(InputError) as caught:
        check(data, model, "part.toml")
    return str(caught.value)


def set_bf16(**fields):
    return lambda d: d["peaks"]["bf16"].update(fields)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda d: d.update(tdp=3), ["part.toml: tdp is not a known key"]),
        (lambda d: d["peaks"].update(bf17=1), ["peaks.bf17", "did you mean 'bf16'"]),
        (set_bf16(vale=1), ["peaks.bf16.vale", "did you mean 'value'"]),
        (lambda d: d["peaks"]["bf16"].pop("source"), ["peaks.bf16.source is missing"]),
        (set_bf16(source=""), ["peaks.bf16.source"]),
        (set_bf16(value=-1), ["peaks.bf16.value", "got -1"]),
        (set_bf16(value=float("nan")), ["peaks.bf16.value", "finite"]),
        (set_bf16(value=float("inf")), ["peaks.bf16.value", "finite"]),
        (set_bf16(value=0), ["peaks.bf16: 0 FLOP/s is outside"]),
        (set_bf16(value=989), ["989 FLOP/s is outside 1e+09 .. 1e+18", "1 TFLOP/s is 1e12"]),
        (set_bf16(value=1e21), ["1e+21 FLOP/s is outside"]),
        (set_bf16(unit="TFLOP/s"), ["unit 'TFLOP/s' must be 'FLOP/s'"]),
        (set_bf16(kind="guess"), ["peaks.bf16.kind", "got 'guess'"]),
        (lambda d: d["peaks"].clear(), ["at least one precision", "bf16"]),
        (lambda d: d["on_chip"]["compute_units"].update(value=1.5), ["1.5 must be a whole"]),
        (lambda d: d["power"]["idle_w"].update(value=800), ["idle 800 W must be below tdp_w 700"]),
        (lambda d: d["power"]["idle_context_w"].update(value=701), ["idle 701 W"]),
        (lambda d: d.update(year=1985), ["year", "got 1985"]),
        (lambda d: d.update(kind="gpgpu"), ["kind", "'tpu'", "got 'gpgpu'"]),
        (lambda d: d.update(schema_version=2), ["schema_version", "got 2"]),
        (lambda d: d["links"]["scale_up"]["domain"].update(value=0), ["0 1 is outside 1 .."]),
    ],
)
def test_bad_input_is_refused_by_name_and_value(change, parts):
    message = refused(change)
    for part in parts:
        assert part in message


def test_every_fault_is_reported_at_once():
    message = refused(lambda d: (d.update(year=1), d["peaks"]["bf16"].update(value=1)))
    assert "year" in message
    assert "peaks.bf16" in message


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_is_accepted_in_range_or_refused_clearly(value):
    data = deepcopy(H200)
    data["memory"]["bytes_per_s"]["value"] = value
    if 1e6 <= value <= 1e17:
        assert check(data, AcceleratorSpec, "x").memory_bytes_per_s == value
    else:
        with pytest.raises(InputError, match=r"memory\.bytes_per_s"):
            check(data, AcceleratorSpec, "x")


def test_peak_returns_the_stated_value_and_refuses_the_rest():
    a100 = load_accelerator("a100-sxm")
    assert a100.peak("int8") == 624e12
    with pytest.raises(InputError, match=r"has no fp8 peak \(allowed: fp64, fp32, .*int4\)"):
        a100.peak("fp8")
    with pytest.raises(InputError, match="did you mean 'bf16'"):
        a100.peak("bf61")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_peak_of_every_precision_is_a_value_or_a_clear_error(precision):
    spec = load_accelerator("b200-sxm")
    if precision == "int4":
        with pytest.raises(InputError):
            spec.peak(precision)
    else:
        assert spec.peak(precision) > 1e12


@pytest.mark.parametrize(
    ("name", "expected"),
    [("h200-sxm", 67e12), ("mi250x", 47.9e12), ("tpu-v5e", 197e12 / 16), ("t4", 8.1e12)],
)
def test_vector_rate_is_stated_or_a_sixteenth(name, expected):
    assert load_accelerator(name).vector_flops_per_s == expected


@pytest.mark.parametrize(("name", "expected"), [("t4", 65e12), ("h20", 148e12)])
def test_half_rate_falls_back_on_fp16(name, expected):
    assert load_accelerator(name).half_flops_per_s == expected


def test_specs_are_frozen_and_usable_as_written():
    spec = load_accelerator("h200-sxm")
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"  # type: ignore[misc]
    assert spec.memory.second_bytes is None


def test_node_is_checked_like_a_part():
    assert "count: 2.5 must be" in refused(lambda d: d["count"].update(value=2.5), NodeSpec, HGX)
    assert "storage is missing" in refused(lambda d: d.pop("storage"), NodeSpec, HGX)
    assert "overhead_w: 1e+07 W is outside" in refused(
        lambda d: d["overhead_w"].update(value=1e7), NodeSpec, HGX
    )


def test_node_counts():
    assert load_node("gb200-nvl72").accelerators == 72
    assert load_node("hgx-h200").scale_up_domain.value == 8


@pytest.mark.parametrize("section", [Peaks, Memory, OnChip, ScaleUp, Port, Power, Host, Storage])
def test_every_number_tells_its_unit(section):
    for name, field in section.model_fields.items():
        if "Quantity" in str(field.annotation):
            assert str(field.description).endswith("]"), name
