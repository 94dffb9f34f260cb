"""Controls of what is asked: a named workload, drawn requests, or what an uploaded file says."""

from typing import Any

import streamlit as st
from pydantic import TypeAdapter

from ui.labels import CHOICES, choice_label
from ui.schema import Key, keys_of
from ui.state import generation
from workloads import arrival_specs
from workloads.lengths import length_distributions
from workloads.named import WorkloadSpec, workloads

__all__ = ["workload_form"]

NAMED, DRAWN, FILE = "named", "drawn", "as in the file"
RATES = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100)
DURATIONS = (10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600)
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
VARIATIONS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
FIXED = "fixed lengths"
CONTROLLED = {"named", "arrivals", "lengths", "rate_scale", "duration_s", "count"}
SLIDERS = {
    "rate_per_s": ("arrivals [request/s]", RATES),
    "rate_scale": ("load [times the workload's own]", RATES),
    "concurrency": ("users at once", USERS),
    "duration_s": ("requests arrive for [s]", DURATIONS),
    "cv": ("burstiness (1 = Poisson)", VARIATIONS),
    "think_s": ("pause after an answer [s]", (0, 1, 2, 5, 10, 20, 30, 60, 120)),
    "count": ("requests", (1, 10, 30, 100, 300, 1000, 3000, 10000)),
}
Data = dict[str, Any]


def _simple_arrivals() -> dict[str, type[Any]]:
    """Return the kinds of arrivals that have nothing but numbers."""
    union = TypeAdapter(arrival_specs.Arrivals).json_schema()["discriminator"]["mapping"]
    found = {}
    for kind, place in union.items():
        cls = getattr(arrival_specs, place.rsplit("/", 1)[-1])
        if all(key.kind in ("int", "float") for key in keys_of(cls) if key.name != "kind"):
            found[kind] = cls
    return found


SIMPLE = _simple_arrivals()


def workload_form(spec: WorkloadSpec, everything: bool) -> Data:
    """Draw the controls of a workload and return what they say.

    Parameters
    ----------
    spec : WorkloadSpec
        Where the controls start.
    everything : bool
        Show rare settings too.
    """
    present = _source(spec)
    options = [NAMED, DRAWN] if present != FILE else [NAMED, DRAWN, FILE]
    name = _seed("workload.source", present)
    source = st.segmented_control(
        "requests",
        options,
        key=name,
        required=True,
        help="Named: a workload of the catalog with its lengths and objectives. Drawn: arrivals "
        "and lengths chosen here.",
    )
    if source == FILE:
        st.caption("The workload of the file, which has no simple controls.")
        return spec.model_dump()
    kept: Data = {"count": spec.count} if source == present else {}
    made = _named(spec) if source == NAMED else _drawn(spec)
    return kept | made | _limits(spec, everything, bool(made.get("arrivals")))


def _source(spec: WorkloadSpec) -> str:
    """Return which controls show a workload; those that cannot show all of it are not used."""
    usual = WorkloadSpec(named="chat")
    rest = set(WorkloadSpec.model_fields) - CONTROLLED
    if any(getattr(spec, name) != getattr(usual, name) for name in rest):
        return FILE
    if spec.named:
        return NAMED if spec.arrivals is None and spec.lengths is None else FILE
    simple = spec.arrivals is not None and spec.arrivals.kind in SIMPLE
    return DRAWN if simple and (isinstance(spec.lengths, str) or _fixed(spec)) else FILE


def _fixed(spec: WorkloadSpec) -> bool:
    if spec.lengths is None or isinstance(spec.lengths, str):
        return False
    return {spec.lengths.prompt.kind, spec.lengths.output.kind} == {"constant"}


def _seed(path: str, value: object) -> str:
    name = f"{generation()}/{path}"
    if name not in st.session_state and value is not None:
        st.session_state[name] = value
    return name


def _slider(name: str, value: float, text: str) -> Any:  # noqa: ANN401 - whole or not
    label, steps = SLIDERS[name]
    path = f"workload.{name}"
    options = sorted({*map(float, steps), float(value)})
    if all(float(o).is_integer() for o in options):
        whole = [int(o) for o in options]
        return st.select_slider(label, whole, key=_seed(path, int(value)), help=text)
    return st.select_slider(
        label, options, key=_seed(path, float(value)), help=text, format_func=lambda v: f"{v:g}"
    )


def _named(spec: WorkloadSpec) -> Data:
    path = "workload.named"
    options = list(dict.fromkeys([*CHOICES[path], spec.named or "chat"]))
    chosen = st.selectbox(
        "workload",
        options,
        key=_seed(path, spec.named or "chat"),
        format_func=lambda v: choice_label(path, v),
        help="Who asks what, how often, and how fast it must be.",
    )
    if chosen in workloads:
        found = workloads.load(chosen)
        st.caption(f"{found.description} {found.kind.title()}: {found.source}.")
    scale = _slider("rate_scale", spec.rate_scale, "Times the rate of the workload's arrivals [1].")
    return {"named": chosen, "rate_scale": float(scale)}


def _drawn(spec: WorkloadSpec) -> Data:
    present = spec.arrivals.kind if spec.arrivals and spec.arrivals.kind in SIMPLE else "poisson"
    kind = st.selectbox(
        "arrivals",
        list(SIMPLE),
        key=_seed("workload.arrivals.kind", present),
        format_func=lambda v: f"{v.replace('-', ' ')}: {_first_line(SIMPLE[v])}",
        help="How requests come.",
    )
    given = spec.arrivals.model_dump() if spec.arrivals and spec.arrivals.kind == kind else {}
    arrivals: Data = {"kind": kind}
    for key in keys_of(SIMPLE[kind]):
        if key.name in SLIDERS:
            arrivals[key.name] = _slider(key.name, given.get(key.name, _start(key)), key.help)
    return {"arrivals": given | arrivals, "lengths": _lengths(spec), "rate_scale": spec.rate_scale}


def _first_line(cls: type[Any]) -> str:
    text = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _start(key: Key) -> float:
    usual = {"rate_per_s": 4.0, "concurrency": 16.0, "cv": 2.0, "count": 100.0}
    return usual.get(key.name, float(key.default or 0.0))


def _lengths(spec: WorkloadSpec) -> str | Data:
    path = "workload.lengths"
    present = (
        spec.lengths if isinstance(spec.lengths, str) else FIXED if _fixed(spec) else "azure-conv"
    )
    names = [n for n in CHOICES[path] if n != "constant"]
    chosen = st.selectbox(
        "lengths of prompts and outputs",
        list(dict.fromkeys([FIXED, *names, present])),
        key=_seed(path, present),
        format_func=lambda v: v if v == FIXED else choice_label(path, v),
        help="How long prompts and outputs are.",
    )
    if chosen != FIXED:
        if chosen in length_distributions:
            found = length_distributions.load(chosen)
            st.caption(f"{found.description} {found.kind.title()}: {found.source}.")
        return str(chosen)
    given = spec.lengths if not isinstance(spec.lengths, str) and spec.lengths else None
    both = {}
    for part, start in (("prompt", 512), ("output", 128)):
        now = int(getattr(getattr(given, part, None), "tokens", start))
        tokens = st.select_slider(
            f"{part} [token]",
            sorted({*TOKENS, now}),
            key=_seed(f"workload.lengths.{part}", now),
            help=f"Every {part} has so many tokens.",
        )
        both[part] = {"kind": "constant", "tokens": float(tokens)}
    return both


def _limits(spec: WorkloadSpec, everything: bool, drawn: bool) -> Data:
    """Draw when arrivals stop."""
    found: Data = {}
    if spec.duration_s is not None or spec.count is None:
        known = spec.named is not None and spec.named in workloads
        named = workloads.load(str(spec.named)).duration_s if known else 120.0
        text = "Arrivals stop then; longer runs have less noise and take longer to simulate [s]."
        found["duration_s"] = float(_slider("duration_s", spec.duration_s or named, text))
    if everything and drawn:
        found["rate_scale"] = float(_slider("rate_scale", spec.rate_scale, "Times the rate [1]."))
    return found
