"""What ``list`` and ``show`` know: kinds of entries, their rows, and where an entry stands."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

__all__ = ["KINDS", "Kind", "kinds"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of entries.

    Attributes
    ----------
    entries : callable
        Returns name -> loader of the entry.
    row : callable
        (name, entry) -> the columns of its line in a list; numbers in SI units.
    units : mapping
        Column -> unit, for people.
    read : callable or None
        Reads an entry from a file of the user's.
    """

    entries: Callable[[], Mapping[str, Callable[[], Any]]]
    row: Callable[[str, Any], Row]
    units: Mapping[str, str]
    read: Callable[[str], Any] | None = None


def _catalog(module: str, attribute: str) -> Mapping[str, Callable[[], Any]]:
    """Return the entries of a `formats.Catalog`."""
    from importlib import import_module

    catalog = getattr(import_module(module), attribute)
    return {name: partial(catalog.load, name) for name in catalog}


def _of_catalog(
    module: str, attribute: str, row: Callable[[str, Any], Row], units: Mapping[str, str]
) -> Kind:
    """Return the kind whose entries are those of a `formats.Catalog`."""
    return Kind(partial(_catalog, module, attribute), row, units, partial(_read, module, attribute))


def _read(module: str, attribute: str, path: str) -> Any:  # noqa: ANN401
    from importlib import import_module

    return getattr(import_module(module), attribute).load(path)


def _accelerator(name: str, spec: Any) -> Row:  # noqa: ANN401
    return {
        "accelerator": name,
        "name": spec.name,
        "kind": spec.kind,
        "memory": spec.memory_bytes,
        "bandwidth": spec.memory_bytes_per_s,
        "16-bit peak": spec.half_flops_per_s,
        "power": spec.tdp_w,
        "kernels": "measured" if spec.calibration else "datasheet",
    }


def _node(name: str, node: Any) -> Row:  # noqa: ANN401
    return {
        "node": name,
        "name": node.name,
        "accelerator": node.accelerator,
        "count": node.accelerators,
        "scale-up domain": round(node.scale_up_domain.value),
        "network": node.network.bytes_per_s.value,
    }


def _model(name: str, model: Any) -> Row:  # noqa: ANN401
    from workloads.counts import kv_bytes_per_token
    from workloads.parameters import parameters

    counts = parameters(model)
    return {
        "model": name,
        "name": model.name,
        "parameters": float(counts.total),
        "active": float(counts.active),
        "layers": model.layers,
        "attention": model.attention,
        "context": model.max_context,
        "KV per token": kv_bytes_per_token(model),
        "weights": model.weights,
    }


def _workload(name: str, workload: Any) -> Row:  # noqa: ANN401
    objectives = workload.objectives
    return {
        "workload": name,
        "arrivals": workload.arrivals.kind,
        "lengths": workload.lengths if isinstance(workload.lengths, str) else "its own",
        "TTFT": objectives.ttft_s,
        "TPOT": objectives.tpot_s,
        "kind": workload.kind,
        "description": workload.description,
    }


def _lengths(name: str, lengths: Any) -> Row:  # noqa: ANN401
    from workloads.lengths import describe_lengths

    seen = lengths.statistics or describe_lengths(lengths)
    return {
        "lengths": name,
        "prompt mean": seen.prompt_mean,
        "prompt p99": seen.prompt_p99,
        "output mean": seen.output_mean,
        "output p99": seen.output_p99,
        "kind": lengths.kind,
        "description": lengths.description or lengths.name,
    }


def _engine(name: str, profile: Any) -> Row:  # noqa: ANN401
    return {"engine": name, "name": profile.name, "note": profile.note}


def _policies() -> Mapping[str, Callable[[], Any]]:
    import policies  # the package registers all of them

    found: dict[str, Callable[[], Any]] = {}
    for axis, registry in sorted(policies.registries.items()):
        if axis != "example":
            found |= {f"{axis}/{name}": partial(_policy_entry, axis, name) for name in registry}
    return found


@dataclass(frozen=True)
class PolicyEntry:
    """A policy as `show` prints it."""

    axis: str
    name: str
    summary: str
    parameters: list[Row]


def _policy_entry(axis: str, name: str) -> PolicyEntry:
    import policies

    registry = policies.registries[axis]
    parameters = [
        {"parameter": p.name, "default": p.default, "what": p.description}
        for p in registry.parameters(name)
    ]
    return PolicyEntry(axis, name, registry.summary(name), parameters)


def _in_short(parameter: Row) -> str:
    """Return name, default and unit of a parameter.

    Examples
    --------
    >>> _in_short({"parameter": "ttl_s", "default": "300.0", "what": "time to live [s]"})
    'ttl_s = 300.0 s'
    """
    unit = re.search(r"\[([^\]]*)\]$", str(parameter["what"]))
    words = [parameter["parameter"], "=", parameter["default"]]
    return " ".join(map(str, words + ([unit[1]] if unit and unit[1] != "1" else [])))


def _policy(name: str, policy: PolicyEntry) -> Row:
    keys = ", ".join(map(_in_short, policy.parameters))
    return {
        "axis": policy.axis,
        "policy": policy.name,
        "what": policy.summary,
        "parameters": keys,
    }


def _metrics() -> Mapping[str, Callable[[], Any]]:
    from sim.metrics import by_group

    return {m.name: partial(_same, m) for m in by_group()}


def _same(entry: object) -> object:
    return entry


def _metric(name: str, metric: Any) -> Row:  # noqa: ANN401
    return {
        "metric": name,
        "unit": metric.unit,
        "group": metric.group,
        "what": metric.description,
    }


_SPEC = {"memory": "byte", "bandwidth": "byte/s", "16-bit peak": "FLOP/s", "power": "W"}
_COUNTS = {"parameters": "", "active": "", "KV per token": "byte", "context": "token"}
_OBJECTIVES = {"TTFT": "s", "TPOT": "s"}
_TOKENS = dict.fromkeys(("prompt mean", "prompt p99", "output mean", "output p99"), "token")

KINDS: dict[str, Kind] = {
    "accelerators": _of_catalog("hardware.catalog", "accelerators", _accelerator, _SPEC),
    "nodes": _of_catalog("hardware.catalog", "nodes", _node, {"network": "byte/s"}),
    "models": _of_catalog("workloads.models", "models", _model, _COUNTS),
    "workloads": _of_catalog("workloads.named", "workloads", _workload, _OBJECTIVES),
    "lengths": _of_catalog("workloads.lengths", "length_distributions", _lengths, _TOKENS),
    "engines": _of_catalog("sim.engines", "engines", _engine, {}),
    "policies": Kind(_policies, _policy, {}),
    "metrics": Kind(_metrics, _metric, {}),
}


def kinds(name: str | None = None) -> Iterator[tuple[str, Kind]]:
    """Yield all kinds, or the one asked for.

    Raises
    ------
    InputError
        No such kind.
    """
    from formats import InputError, did_you_mean

    if name is not None and name not in KINDS:
        raise InputError(f"nothing of kind {name!r} to list", repair=did_you_mean(name, KINDS))
    yield from ((key, kind) for key, kind in KINDS.items() if name in (None, key))
