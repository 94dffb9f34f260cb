"""Every accelerator, node and cost in the shipped data: units, sources, physical sanity."""

from collections.abc import Iterator
from math import prod

import pytest
from pydantic import BaseModel

from formats import Quantity
from hardware.catalog import accelerators, load_accelerator, load_node, nodes
from hardware.costs import Cost, cost, costs
from hardware.specs import AcceleratorSpec

NAMES, NODES = list(accelerators), list(nodes)

# ratio of 16-bit peak to memory bandwidth [FLOP/byte], peak per watt [FLOP/s/W], price per peak
# [USD/(TFLOP/s)]: lowest and highest of a kind
INTENSITY = {"gpu": (70, 450), "tpu": (150, 350), "npu": (150, 350), "asic": (120, 600)}
INTENSITY |= {"cpu": (25, 400), "edge": (15, 500)}
PER_WATT = {"gpu": (0.18e12, 2.6e12), "tpu": (1e12, 2.7e12), "npu": (0.5e12, 2e12)}
PER_WATT |= {"asic": (0.4e12, 2e12), "cpu": (0.03e12, 0.6e12), "edge": (0.02e12, 2.1e12)}
PRICE = {"gpu": (7, 60), "tpu": (10, 80), "npu": (20, 60), "asic": (7, 60)}
PRICE |= {"cpu": (40, 900), "edge": (10, 350)}

OUTLIERS = {
    ("intensity", "groq-lpu"): "memory is SRAM only",
    ("intensity", "wse-3"): "memory is SRAM only",
    ("intensity", "h20"): "export variant with compute cut and memory not",
    ("intensity", "tpu-v6e"): "compute grew 4.7 times over its predecessor, memory twice",
    ("intensity", "jetson-agx-thor"): "data-centre matrix units on laptop memory",
    ("intensity", "cloud-ai-100-pro"): "LPDDR memory and many int8 units",
    ("per_watt", "tpu-v6e"): "TDP is a guess from the maker's claim of better energy use",
    ("price", "h20"): "export variant with compute cut and price not",
    ("price", "groq-lpu"): "sold as systems, memory is SRAM only",
    ("price", "wse-3"): "a whole wafer with its system",
}

# multiple of the 16-bit peak that a precision has where nothing else is known
RATIO = {"fp16": 1, "tf32": 0.5, "fp8": 2, "int8": 2, "fp6": 2, "fp4": 4, "int4": 4}

GEFORCE = "the maker halves matrix rates with fp32 sums"
ULTRA = "the chip gave up int8 units for fp4"
FLAT = "the matrix units have no faster path"
BLOCK = "16-bit work needs more passes of an 8-bit unit"
ODD_RATIOS = {
    ("b300-sxm", "int8"): (0.0682, ULTRA),
    ("b300-sxm", "fp4"): (6.22, ULTRA),
    ("gb300", "int8"): (0.066, ULTRA),
    ("gb300", "fp4"): (6, ULTRA),
    ("rtx-3090", "int8"): (4, GEFORCE),
    ("rtx-3090", "int4"): (8, GEFORCE),
    ("rtx-4090", "int8"): (4, GEFORCE),
    ("rtx-4090", "int4"): (8, GEFORCE),
    ("rtx-5090", "int8"): (4, GEFORCE),
    ("rtx-5090", "fp4"): (8, GEFORCE),
    ("l40s", "int4"): (2.02, "printed equal to int8"),
    ("mi250x", "int8"): (1, FLAT),
    ("mi355x", "fp6"): (4.04, "fp6 runs at the fp4 rate"),
    ("rx-7900-xtx", "int8"): (1, FLAT),
    ("rx-7900-xtx", "int4"): (2, FLAT),
    ("ryzen-ai-max-395", "int8"): (1, FLAT),
    ("sn40l", "int8"): (1, "not published"),
    ("tpu-v4", "int8"): (1, FLAT),
    ("tpu-v6e", "fp8"): (1, FLAT),
    ("inferentia2", "tf32"): (1, FLAT),
    ("inferentia2", "fp8"): (1, FLAT),
    ("trainium1", "tf32"): (1, FLAT),
    ("trainium1", "fp8"): (1, FLAT),
    ("trainium2", "tf32"): (1, FLAT),
    ("trainium2", "int8"): (1, FLAT),
    ("trainium3", "tf32"): (1, FLAT),
    ("trainium3", "fp8"): (3.75, "printed"),
    ("trainium3", "fp4"): (3.75, "printed, as fp8"),
    ("gaudi3", "fp16"): (0.274, "bf16 runs at the fp8 rate"),
    ("gaudi3", "tf32"): (0.274, "bf16 runs at the fp8 rate"),
    ("gaudi3", "fp8"): (1, "bf16 runs at the fp8 rate"),
    ("grace-cpu", "fp16"): (0.5, "matrix instruction for bf16 only"),
    ("groq-lpu", "int8"): (4, BLOCK),
    ("cloud-ai-100-pro", "int8"): (3, "printed"),
    ("cloud-ai-100-ultra", "int8"): (3, "printed"),
    ("wormhole-n150", "fp8"): (3.54, BLOCK),
    ("wormhole-n300", "fp8"): (3.56, BLOCK),
    ("blackhole-p150a", "fp8"): (4, BLOCK),
}
LIST_PRICED = {"a10g": "rent is of a whole instance of a large cloud"}


def quantities(model: BaseModel) -> Iterator[tuple[str, Quantity]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Quantity):
            yield name, value
        elif isinstance(value, BaseModel):
            yield from ((f"{name}.{key}", q) for key, q in quantities(value))


def measures(name: str) -> dict[str, float]:
    spec = load_accelerator(name)
    peak = spec.half_flops_per_s
    return {
        "intensity": peak / spec.memory_bytes_per_s,
        "per_watt": peak / spec.tdp_w,
        "price": cost(f"purchase.{name}").value / (peak / 1e12),
    }


def test_catalog_covers_every_kind():
    kinds = {load_accelerator(name).kind for name in NAMES}
    assert kinds == {"gpu", "tpu", "npu", "asic", "cpu", "edge"}
    assert len(NAMES) >= 45
    assert len(NODES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_every_number_says_where_it_is_from(name):
    for key, quantity in quantities(load_accelerator(name)):
        assert len(quantity.source) > 3, key
        assert "/work" not in quantity.source + quantity.note, key
        if quantity.kind == "assumption":
            assert len(quantity.note) > 8, f"{key} is assumed by no stated rule"
            assert quantity.note != quantity.source, key


@pytest.mark.parametrize("name", NAMES)
def test_runnable(name):
    spec = load_accelerator(name)
    assert spec.half_flops_per_s > 0
    assert spec.vector_flops_per_s > 0
    assert spec.compute_units >= 1
    assert spec.power.idle_w.value < spec.tdp_w
    for key, quantity in quantities(spec):
        assert quantity.value > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_peaks_stand_in_ratios_that_hardware_has(name):
    spec = load_accelerator(name)
    given = spec.peaks.given()
    for precision in RATIO.keys() & given:
        ratio = given[precision].value / spec.half_flops_per_s
        expected, _ = ODD_RATIOS.get((name, precision), (RATIO[precision], ""))
        assert ratio == pytest.approx(expected, rel=0.03), precision
    assert "fp64" not in given or given["fp64"].value <= spec.half_flops_per_s * 0.6
    if "fp32" in given and "tf32" in given:
        assert given["fp32"].value <= given["tf32"].value * 1.001


@pytest.mark.parametrize("name", NAMES)
def test_vector_rate_is_below_the_matrix_rate(name):
    spec = load_accelerator(name)
    assert spec.vector_flops_per_s <= spec.half_flops_per_s * 1.001


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("measure", "ranges"), [("intensity", INTENSITY), ("per_watt", PER_WATT), ("price", PRICE)]
)
def test_within_the_range_of_its_kind_or_a_known_outlier(name, measure, ranges):
    spec = load_accelerator(name)
    low, high = ranges[spec.kind]
    value = measures(name)[measure]
    inside = low <= value <= high
    if (measure, name) in OUTLIERS:
        assert not inside, f"{value:g} is no outlier any more, drop it from the list"
    else:
        assert inside, f"{measure} of {name} is {value:g}, its kind has {low:g} .. {high:g}"


@pytest.mark.parametrize(
    "name", sorted({name for _, name in OUTLIERS} | {name for name, _ in ODD_RATIOS})
)
def test_outliers_are_explained_in_their_files(name):
    assert len(load_accelerator(name).note) > 20


@pytest.mark.parametrize("name", NAMES)
def test_caches_are_smaller_than_memory(name):
    spec = load_accelerator(name)
    assert spec.l2_bytes <= spec.memory_bytes
    assert spec.on_chip.sram_bytes.value * spec.compute_units <= spec.memory_bytes * 1.01


@pytest.mark.parametrize("name", [n for n in NAMES if load_accelerator(n).kind == "cpu"])
def test_cpu_peaks_follow_from_cores_width_and_clock(name):
    spec = load_accelerator(name)
    bits, pipes = spec.on_chip.simd_bits, spec.on_chip.simd_pipes
    assert bits is not None
    assert pipes is not None
    lanes = bits.value / 32
    peak = prod([spec.compute_units, lanes, pipes.value, 2, spec.clock_hz])
    assert spec.peak("fp32") == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize("name", [n for n in NAMES if load_accelerator(n).structured_sparsity])
def test_peaks_are_dense(name):
    """A sparse number in place of a dense one would double the rate per unit and clock."""
    spec = load_accelerator(name)
    per_unit = spec.half_flops_per_s / spec.compute_units / spec.clock_hz
    limits = {"Ampere": 2100, "Ada Lovelace": 1100, "Hopper": 4300, "Blackwell": 8300}
    limits |= {"CDNA3": 2100, "CDNA4": 4200, "Blackwell Ultra": 8300}
    assert per_unit <= limits[spec.architecture]


def test_measured_values_of_the_h200():
    spec = load_accelerator("h200-sxm")
    context = spec.power.idle_context_w
    assert (spec.compute_units, spec.l2_bytes, spec.clock_hz) == (132, 60 * 2**20, 1.98e9)
    assert (spec.memory_bytes, spec.tdp_w) == (150_109_880_320, 700)
    assert context is not None
    assert (round(spec.idle_w), context.value) == (79, 125)


@pytest.mark.parametrize("name", NODES)
def test_node(name):
    node = load_node(name)
    assert node.accelerator in NAMES
    spec = load_accelerator(node.accelerator)
    for key, quantity in quantities(node):
        assert quantity.kind != "assumption" or len(quantity.note) > 8, key
    total = spec.tdp_w * node.accelerators + node.overhead_w.value
    if node.rated_w is not None:
        assert 0.75 * node.rated_w.value <= total <= node.rated_w.value * 1.001
    assert node.overhead_w.value <= 2 * spec.tdp_w * node.accelerators
    assert node.scale_up_domain.value == 1 or spec.links.scale_up or node.accelerators > 1
    assert node.host_link.bytes_per_s.value <= spec.links.host.bytes_per_s.value * 1.01


@pytest.mark.parametrize("name", NODES)
def test_domain_of_a_node_fits_its_part(name):
    node = load_node(name)
    link = load_accelerator(node.accelerator).links.scale_up
    if link is not None and node.scale_up_domain.value > 1:
        assert node.scale_up_domain.value <= link.domain.value


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_a_price_and_a_rent(name):
    price, rent = cost(f"purchase.{name}"), cost(f"rent.{name}")
    for one in (price, rent):
        assert one.kind != "assumption" or one.source.startswith("rule: ")
    # of a life of 5 years at full use, rent pays between 3 and 14 purchases
    inside = 3 <= rent.value * 8760 * 5 / price.value <= 14.5
    assert inside != (name in LIST_PRICED)


def test_costs_name_no_part_that_is_not_in_the_catalog():
    items = [i for i in costs()["item"] if i.split(".", 1)[0] in ("purchase", "rent")]
    parts = {i.split(".", 1)[1] for i in items}
    rules = {"reserved-share", "spot-share", "spot-interruptions", "spot-lost-hours"}
    assert parts - rules == set(NAMES)


RANGES = {"pue": (1, 2), "carbon": (0, 1100), "electricity": (0.02, 0.6), "hosting": (80, 400)}
RANGES |= {"life": (2, 10), "api": (0.01, 100)}


@pytest.mark.parametrize("group", RANGES)
def test_costs_of_a_group_are_plausible(group):
    low, high = RANGES[group]
    rows = costs()
    values = rows.loc[rows["item"].str.startswith(group + "."), "value"]
    assert len(values) >= 1
    assert values.between(low, high).all()


def test_output_tokens_are_never_listed_cheaper_than_input():
    rows = costs().set_index("item")["value"]
    for item in rows.index[rows.index.str.startswith("api.") & rows.index.str.endswith(".input")]:
        assert rows[item.removesuffix("input") + "output"] >= rows[item]


def test_monetary_costs_have_a_currency():
    for row in costs().itertuples(index=False):
        assert ("USD" in str(row.unit) or "EUR" in str(row.unit)) == bool(row.currency), row.item


def test_every_cost_row_is_a_cost():
    row = cost("hosting.us")
    assert isinstance(row, Cost)
    assert row.price_year == 2025


def test_calibration_names_the_part_itself():
    for name in NAMES:
        spec: AcceleratorSpec = load_accelerator(name)
        assert spec.calibration in (None, name)
