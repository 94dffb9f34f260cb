"""Collectives: closed forms, NVIDIA's measurements, published figures, every link file."""

from pathlib import Path

import numpy as np
import pytest

from formats import InputError
from hardware import collectives
from hardware.catalog import load_accelerator
from hardware.collectives import Curve
from hardware.interconnect import (
    all_reduce_s,
    collective_s,
    exposed_s,
    hierarchical_s,
    link_for,
    load_link,
    make_link,
    send_s,
)
from hardware.links import links

SIZES = np.geomspace(256, 2**31, 200)
OPERATIONS = list(collectives.OPERATIONS)
TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "silicon"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="NVIDIA's tables are not at hand")


def bus(op, nbytes, ranks, link):
    return collectives.wire(op, ranks) * nbytes / float(collective_s(op, nbytes, ranks, link))


@pytest.mark.parametrize("name", list(links))
def test_every_link_times_every_operation(name):
    link = load_link(name)
    ranks = min(link.ranks, 8)
    for op in OPERATIONS:
        seconds = collective_s(op, SIZES, ranks, link)
        assert np.all(np.diff(seconds) >= -1e-15), op
        assert 1e-6 < seconds[0] < 1e-3
        band = link.residuals(op)
        assert band.p10 < band.p50 < band.p90


@pytest.mark.parametrize("name", list(links))
def test_no_link_beats_its_datasheet(name):
    """Wire bytes at the datasheet rate bound every ring; a switch that adds may beat a ring."""
    link = load_link(name)
    ranks = min(link.ranks, 8)
    for op in ("all_gather", "all_to_all", "send"):
        seconds = float(collective_s(op, 2**30, ranks, link))
        assert seconds >= collectives.wire(op, ranks) * 2**30 / link.bytes_per_s.value
    reduced = float(collective_s("all_reduce", 2**30, ranks, link))
    least = min(2 * (ranks - 1) / ranks, (ranks + 1) / ranks)
    assert reduced >= least * 2**30 / link.bytes_per_s.value


def test_measured_bus_bandwidths():
    """Largest buffers of the tables: 460, 445, 222 and 704 GB/s over 8 GPUs."""
    expected = {"h200": 460, "h100": 445, "a100": 222, "b200": 704}
    generation = {"h200": "nvlink4", "h100": "nvlink4", "a100": "nvlink3", "b200": "nvlink5"}
    for gpu, gb in expected.items():
        found = bus("all_reduce", 2**29, 8, f"{generation[gpu]}-{gpu}") / 1e9
        assert found == pytest.approx(gb, rel=0.05)


def test_published_all_reduces():
    """Figures of stas00/ml-engineering, network README: none was used in a fit."""
    assert bus("all_reduce", 2**34, 8, "nvlink4-h200") / 1e9 == pytest.approx(482.3, rel=0.08)
    assert bus("all_reduce", 2**32, 8, "infinity-fabric-mi300x") / 1e9 == pytest.approx(
        312.9, rel=0.15
    )
    assert bus("all_reduce", 2**32, 2, "infinity-fabric-mi300x") / 1e9 == pytest.approx(
        47.7, rel=0.2
    )
    ring = 1.75 * 2**34 / float(all_reduce_s("ring", 2**34, 8, "nvlink4-h200")) / 1e9
    assert ring == pytest.approx(367.6, rel=0.15)


def test_custom_all_reduce_is_faster_when_small_and_the_same_when_large():
    small = [float(collective_s(op, 2**14, 8, "nvlink4-h200")) for op in OPERATIONS[:3]]
    assert small[1] < 0.5 * small[0]
    assert small[2] > 3 * small[1]
    large = [float(collective_s(op, 2**29, 8, "nvlink4-h200")) for op in OPERATIONS[:2]]
    assert large[1] == pytest.approx(large[0], rel=0.1)


def test_link_without_custom_kernels_uses_nccl():
    custom = collective_s("custom_all_reduce", SIZES, 4, "pcie4-l40s")
    assert np.array_equal(custom, collective_s("all_reduce", SIZES, 4, "pcie4-l40s"))
    wide = collective_s("custom_all_reduce", SIZES, 16, "nvlink5-gb200")
    assert np.array_equal(wide, collective_s("all_reduce", SIZES, 16, "nvlink5-gb200"))


@pytest.mark.parametrize("op", OPERATIONS[:6])
def test_one_rank_or_no_byte_takes_no_time(op):
    assert float(collective_s(op, 1e6, 1, "nvlink4-h100")) == 0
    assert float(collective_s(op, 0, 8, "nvlink4-h100")) == 0


def test_shapes_broadcast():
    seconds = collective_s("all_gather", [[1e3], [1e6]], [2, 4, 8], "nvlink4-h100")
    assert seconds.shape == (2, 3)
    assert seconds[1, 2] == float(collective_s("all_gather", 1e6, 8, "nvlink4-h100"))


def test_three_ranks_lie_between_two_and_four():
    two, three, four = (collective_s("all_gather", 1e7, n, "nvlink4-h100") for n in (2, 3, 4))
    assert two < three < four


def test_nvl72_domain_grows_with_ranks():
    seconds = collective_s("all_reduce", 1e5, [4, 8, 16, 32, 72], "nvlink5-gb200")
    assert np.all(np.diff(seconds) > 0)


def test_rings_agree_with_hand_arithmetic():
    """8 ranks, 8 MB, 1 us per hop, 100 GB/s: 14 us + 1.75 x 80 us."""
    ring = collectives.algorithm_seconds("ring", 8e6, 8, 0.0, 1e-6, 100e9)
    assert float(ring) == pytest.approx(14e-6 + 140e-6)
    tree = collectives.algorithm_seconds("tree", 8e6, 8, 0.0, 1e-6, 100e9)
    assert float(tree) == pytest.approx(6e-6 + 160e-6)
    nvls = collectives.algorithm_seconds("nvls", 8e6, 8, 0.0, 1e-6, 100e9)
    assert float(nvls) == pytest.approx(2e-6 + 90e-6)
    one = collectives.algorithm_seconds("one_shot", 8e3, 8, 0.0, 1e-6, 100e9)
    assert float(one) == pytest.approx(1e-6 + 0.56e-6)


def test_algorithms_switch_with_size():
    def fastest(nbytes):
        forms = ("ring", "tree", "nvls", "one_shot", "two_shot")
        return min(forms, key=lambda f: float(all_reduce_s(f, nbytes, 8, "nvlink4-h200")))

    assert fastest(1e3) == "one_shot"
    assert fastest(1e9) == "nvls"
    with pytest.raises(InputError, match="does not add"):
        all_reduce_s("nvls", 1e6, 8, "nvlink3-a100")


def test_curve_never_falls():
    curve = Curve("send", 2, np.array([0.0, 100.0]), np.array([5.0, 1.0]), np.array([0.1, 0.01]))
    assert curve.seconds([99, 100, 101, 2000]).tolist() == [14.9, 15.0, 15.0, 21.0]


def test_send_is_half_an_exchange_of_two():
    assert float(send_s(1e7, "nvlink4-h200")) == pytest.approx(
        float(collective_s("all_to_all", 2e7, 2, "nvlink4-h200"))
    )
    assert send_s(1e9, "infiniband-ndr", ports=2) < 0.51 * send_s(1e9, "infiniband-ndr")


def test_send_over_ndr_by_hand():
    """8.4 us + 14 us + 1 GB / (0.94 x 50 GB/s)."""
    expected = 22.4e-6 + 1e9 / 47e9
    assert float(send_s(1e9, "infiniband-ndr")) == pytest.approx(expected)


def test_small_network_all_reduce_meets_its_source():
    """nccl-tests issue 150: 19 us for 8 byte over two nodes."""
    assert float(collective_s("all_reduce", 8, 2, "infiniband-hdr")) == pytest.approx(
        19e-6, rel=0.1
    )


def test_hierarchy_by_its_parts():
    whole = hierarchical_s("all_reduce", 1e8, 8, 4, "nvlink4-h200", "infiniband-ndr")
    parts = (
        collective_s("reduce_scatter", 1e8, 8, "nvlink4-h200")
        + collective_s("all_reduce", 1e8 / 8, 4, "infiniband-ndr")
        + collective_s("all_gather", 1e8, 8, "nvlink4-h200")
    )
    assert float(whole) == pytest.approx(float(parts))
    one = hierarchical_s("all_to_all", 1e8, 8, 1, "nvlink4-h200", "infiniband-ndr")
    assert float(one) == float(collective_s("all_to_all", 1e8, 8, "nvlink4-h200"))


def test_exchange_over_nodes_is_bound_by_the_network():
    """Of 16 ranks on 2 nodes half of each buffer leaves: 1 GB / 2 / 47 GB/s."""
    seconds = hierarchical_s("all_to_all", 1e9, 8, 2, "nvlink4-h200", "infiniband-ndr")
    assert float(seconds) == pytest.approx(0.5e9 / 47e9 + 22.4e-6)


def test_imbalance_scales_the_bytes():
    even = collective_s("all_to_all", 2e8, 8, "nvlink5-b200")
    skewed = collective_s("all_to_all", 1e8, 8, "nvlink5-b200", imbalance=2.0)
    assert float(even) == float(skewed)


def test_mesh_and_torus_shares():
    assert collectives.usable_share("mesh", "all_reduce", 8, 8) == 1
    assert collectives.usable_share("mesh", "send", 8, 8) == pytest.approx(1 / 7)
    assert collectives.usable_share("torus", "all_gather", 8, 256, dims=2, wrap=16) == 0.5
    assert collectives.usable_share("torus", "send", 8, 256, dims=2, wrap=16) == 0.25
    cube = collectives.usable_share("torus", "all_to_all", 64, 8960, dims=3, wrap=4)
    assert cube == pytest.approx((63 / 64) / 3)


def test_more_bandwidth_is_never_slower():
    slow, fast = (make_link("new", rate, 8) for rate in (200e9, 800e9))
    for op in OPERATIONS:
        assert np.all(collective_s(op, SIZES, 8, fast) <= collective_s(op, SIZES, 8, slow))


def test_exposed_part():
    assert float(exposed_s(4.0, 10.0, 0.75)) == 1.0
    assert float(exposed_s(4.0, 1.0, 1.0)) == 3.0
    with pytest.raises(InputError, match=r"0 \.\. 1"):
        exposed_s(1.0, 1.0, 1.5)


def test_links_of_accelerators():
    assert link_for("h200-sxm").fitted == "nvlink4-h200"
    assert link_for("a-chip-that-is-not") is None
    owners = [a for name in links for a in load_link(name).accelerators]
    assert len(owners) == len(set(owners))


def test_links_agree_with_the_accelerator_catalog():
    for name in links:
        link = load_link(name)
        for accelerator in link.accelerators:
            own = load_accelerator(accelerator).links
            port = own.scale_up or own.host
            assert link.bytes_per_s.value == pytest.approx(port.bytes_per_s.value, rel=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: collective_s("allreduce", 1, 2, "nvlink4-h100"), "did you mean 'all_reduce'"),
        (lambda: collective_s("all_reduce", 1, 16, "nvlink4-h100"), "1 .. 8"),
        (lambda: collective_s("all_reduce", -1, 2, "nvlink4-h100"), "0 or more"),
        (lambda: collective_s("all_reduce", np.nan, 2, "nvlink4-h100"), "0 or more"),
        (lambda: collective_s("all_reduce", 1, 2, "nvlink-4"), "did you mean"),
        (lambda: collective_s("all_to_all", 1, 2, "nvlink4-h100", imbalance=0.5), "1 or more"),
        (lambda: send_s(1, "nvlink4-h100", ports=0), "above 0"),
        (lambda: make_link("new", -1.0, 8), "bytes_per_s"),
        (lambda: hierarchical_s("send", 1, 8, 2, "nvlink4-h100", "infiniband-ndr"), "2 nodes"),
        (lambda: all_reduce_s("ring", 1, 2, "infiniband-ndr"), "no measured kin"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


@needs_tables
def test_held_out_sizes_within_a_tenth():
    from hardware.fit_interconnect import held_out_table

    table = held_out_table(TABLES)
    assert len(table) == 46
    assert table["median"].max() < 0.10
    assert table["median"].median() < 0.05
    assert table["p90"].median() < 0.15


@needs_tables
def test_committed_coefficients_are_what_the_script_makes():
    from hardware.fit_interconnect import fit_link, samples
    from hardware.links import coefficients

    fresh = fit_link(samples(TABLES, "h200-sxm"), (0.4, "lower"))
    kept = coefficients("nvlink4-h200").curves
    assert [(c.op, c.ranks) for c in fresh] == [(c.op, c.ranks) for c in kept]
    for a, b in zip(fresh, kept, strict=True):
        assert a.latency_s == pytest.approx(b.latency_s, rel=1e-3)
        assert a.start_bytes == pytest.approx(b.start_bytes, rel=1e-6)
