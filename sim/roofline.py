"""Roofs of an accelerator: what arithmetic and each level of memory could do at most."""

from hardware.kernels import load_kernels
from hardware.specs import AcceleratorSpec

__all__ = ["memory_roofs", "peak_roofs"]

L2_SHARE = 0.4  # part of the cache that the copy behind its roof moves


def peak_roofs(spec: AcceleratorSpec) -> dict[str, float]:
    """Return precision -> dense peak of an accelerator [FLOP/s].

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> peak_roofs(load_accelerator("h200-sxm"))["bf16"]
    989400000000000.0
    """
    return {name: quantity.value for name, quantity in spec.peaks.given().items()}


def memory_roofs(spec: AcceleratorSpec) -> dict[str, float]:
    """Return level of memory -> bandwidth [byte/s], the fastest first.

    Main memory, second tier and host link as in the catalog; the shared cache at the rate of a
    copy inside it (read and written bytes), which is measured where the kernels are.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> list(memory_roofs(load_accelerator("h200-sxm")))
    ['cache (L2)', 'HBM3e', 'host (PCIe5 x16)']
    """
    moved = spec.l2_bytes * L2_SHARE
    cache = moved / float(load_kernels(spec).copy(moved, "l2"))
    found = {"cache (L2)": cache, spec.memory.technology: spec.memory_bytes_per_s}
    if spec.memory.second_bytes_per_s:
        found[spec.memory.second_technology or "second tier"] = spec.memory.second_bytes_per_s.value
    return found | {f"host ({spec.links.host.technology})": spec.links.host.bytes_per_s.value}
