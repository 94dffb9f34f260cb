"""From the options of a command line to changes of a scenario."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario import Scenario

__all__ = ["KEYS", "load_plugin", "make_scenario"]

# option -> dotted key of the scenario
KEYS = {
    "name": "name",
    "accelerator": "hardware.accelerator",
    "replicas": "hardware.replicas",
    "tp": "hardware.tp",
    "pp": "hardware.pp",
    "power_cap": "hardware.power_cap_w",
    "model": "model.name",
    "weights": "model.weights",
    "kv": "model.kv",
    "engine": "engine.profile",
    "max_batched_tokens": "policies.batching.max_num_batched_tokens",
    "max_seqs": "policies.batching.max_num_seqs",
    "kv_blocks": "policies.memory.kv_blocks",
    "trace_format": "workload.format",
    "lengths": "workload.lengths",
    "duration": "workload.duration_s",
    "count": "workload.count",
    "slo_ttft": "slo.ttft_s",
    "slo_tpot": "slo.tpot_s",
    "slo_e2e": "slo.e2e_s",
    "seed": "run.seed",
    "horizon": "run.horizon_s",
    "every_step": "run.every_step",
}
KEYS_OF_SOURCES = {
    "rate": "workload.arrivals.poisson.rate_per_s",
    "concurrency": "workload.arrivals.closed-loop.concurrency",
    "warmup": "run.warmup",
}
FLAGS = {"trace_format": "--format"}  # where the flag is not the name with dashes
POLICIES = ("batching", "ordering", "memory", "routing")
DEFAULT_LENGTHS, DEFAULT_DURATION_S = "azure-conv", 60.0


def make_scenario(
    file: Path | None, options: Mapping[str, Any], settings: list[str]
) -> "tuple[Scenario, Path]":
    """Return the scenario of a file with options over it, and the folder of its relative paths.

    Parameters
    ----------
    file : Path or None
        A scenario file; None = the defaults.
    options : mapping
        Option -> value, None where it was not given.
    settings : list of str
        ``key=value`` with a dotted key of the scenario and a TOML value.

    Raises
    ------
    InputError
        The file, an option or a setting is wrong.
    """
    from formats import InputError, check
    from sim.scenario import Scenario, load_scenario

    base = file.parent if file else Path()
    scenario = load_scenario(file) if file else Scenario()
    changes = dict([*_changes(options, scenario), *map(_setting, settings)])
    if not changes:
        return scenario, base
    data = scenario.model_dump()
    for key, value in changes.items():
        _put(data, key, value)
    try:
        return check(data, Scenario, f"{file} with the options given" if file else ""), base
    except InputError as e:
        raise InputError(_with_option_names(e.what, options), e.where) from None


def _with_option_names(faults: str, options: Mapping[str, Any]) -> str:
    """Return faults with the option in place of the key that it sets."""
    for name, key in {**KEYS, **KEYS_OF_SOURCES}.items():
        if options.get(name) is not None:
            faults = faults.replace(key, FLAGS.get(name, f"--{name.replace('_', '-')}"))
    return faults


def _changes(options: Mapping[str, Any], scenario: "Scenario") -> Iterator[tuple[str, Any]]:
    given = {name: value for name, value in options.items() if value is not None}
    for axis in POLICIES:
        if axis in given:
            yield f"policies.{axis}", {"name": given[axis]}
    if "prefix_caching" in given:
        yield "policies.caching", {"name": "prefix-lru" if given["prefix_caching"] else "none"}
    yield from _workload(given, scenario)
    if "warmup" in given:
        yield "run.warmup", _number_or_word(given["warmup"])
    for name, key in KEYS.items():
        if name in given:
            yield key, given[name]


def _workload(given: Mapping[str, Any], scenario: "Scenario") -> Iterator[tuple[str, Any]]:
    """Yield the source of requests; one given as an option replaces that of the file."""
    from formats import InputError

    sources = [name for name in ("requests", "workload", "rate", "concurrency") if name in given]
    if len(sources) > 1:
        named = " and ".join(f"--{name}" for name in sources)
        raise InputError(f"{named} are given", "options", repair="keep one of them")
    if "requests" in given:
        yield "workload", {"requests": str(Path(given["requests"]).absolute())}
    if "workload" in given:
        yield "workload", {"named": given["workload"]}
    if "rate" in given:
        arrivals = {"kind": "poisson", "rate_per_s": given["rate"]}
        yield "workload", _drawn(arrivals, given, scenario)
    if "concurrency" in given:
        users = {"kind": "closed-loop", "concurrency": given["concurrency"]}
        yield "workload", _drawn(users, given, scenario)


def _drawn(
    arrivals: dict[str, Any], given: Mapping[str, Any], scenario: "Scenario"
) -> dict[str, Any]:
    """Return drawn requests with the lengths and limits of the file, else the usual ones."""
    old = scenario.workload.model_dump()
    kept = {key: old[key] for key in ("lengths", "duration_s", "count") if old[key] is not None}
    usual: dict[str, Any] = {"lengths": DEFAULT_LENGTHS}
    if "count" in given:
        kept.pop("duration_s", None)
    elif "count" not in kept:
        usual["duration_s"] = DEFAULT_DURATION_S
    return usual | kept | {"arrivals": arrivals}


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _setting(text: str) -> tuple[str, Any]:
    from formats import InputError

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{text!r} is not KEY=VALUE", "--set", "such as run.seed=3")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _put(data: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key in nested dictionaries."""
    from formats import InputError

    *path, last = key.split(".")
    place: Any = data
    for part in path:
        if place.get(part) is None:
            place[part] = {}
        place = place[part]
        if not isinstance(place, dict):
            raise InputError(f"{key!r}: {part!r} is a value, not a section", "--set")
    place[last] = value


def load_plugin(path: Path) -> None:
    """Run a Python file that registers policies.

    Raises
    ------
    InputError
        The file is missing, or raises an error.
    """
    import importlib.util
    import sys

    from formats import InputError, RoofcastError

    if not path.is_file():
        raise InputError("no such file", f"--plugin {path}", repair="name a Python file")
    name = f"roofcast_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("is not a Python file", f"--plugin {path}", "a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RoofcastError as e:
        raise InputError(str(e), f"--plugin {path}") from None
    except Exception as e:
        what = f"raises {type(e).__name__}: {e}{_line(e, path)}"
        raise InputError(what, f"--plugin {path}", repair="mend the file") from None


def _line(error: Exception, path: Path) -> str:
    """Return where in the file an error was raised."""
    lines, trace = [getattr(error, "lineno", None)], error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f" (line {lines[-1]})" if lines[-1] else ""
