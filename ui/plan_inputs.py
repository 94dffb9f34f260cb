"""Controls of a plan: demand, candidates, site and money; more keys from the schemas."""

from typing import Any, get_args

import streamlit as st

from formats import InputError
from hardware.catalog import accelerators
from hardware.costs import cost, costs
from sim.planning import PlanFile
from sim.planning.supply import Acquisition
from ui.inputs import control
from ui.labels import choice_label
from ui.schema import Key, keys_of
from workloads.models import models
from workloads.named import workloads

__all__ = ["plan_form", "started"]

START = {
    "name": "Assistant",
    "traffic": [
        {
            "name": "chat",
            "users": 20000,
            "sessions_per_user_day": 2,
            "requests_per_session": 10,
            "workload": "chat",
            "growth_per_year": 0.4,
        }
    ],
    "candidates": [{"accelerator": ["h200-sxm", "h100-sxm"], "tp": 1}],
    "search": {"requests": 1000, "caps": [0.7]},
    "uncertainty": {"samples": 128},
}
WAYS = list(get_args(Acquisition))
VOLUMES = {"users": "users", "requests_per_s": "requests per second, mean"}
MORE = ("horizon", "service", "site", "money", "uncertainty", "search")
Data = dict[str, Any]


def started() -> PlanFile:
    """Return the plan that a visitor starts with."""
    return PlanFile.model_validate(START)


def plan_form(file: PlanFile) -> Data:
    """Draw the controls of a plan and return what they say, unchecked.

    Parameters
    ----------
    file : PlanFile
        Where the controls start.
    """
    data = file.model_dump()
    left, middle, right = st.columns(3, gap="medium")
    with left, st.container(border=True):
        st.markdown("**Demand**")
        data["name"] = st.text_input("title", file.name, key="plan/name")
        data["model"] = {"name": _choice("model.name", "model", list(models), file.model.name)}
        data["traffic"] = [_traffic(data["traffic"][0]), *data["traffic"][1:]]
    with middle, st.container(border=True):
        st.markdown("**Candidates**")
        data["candidates"] = _candidates(data["candidates"])
    with right, st.container(border=True):
        st.markdown("**Place and money**")
        _place(data)
    with st.expander("All settings"):
        for name in MORE:
            st.markdown(f"**{name.title()}**")
            data[name] = _section(name, getattr(file, name), data[name])
    return data


def _choice(path: str, label: str, options: list[str], value: str) -> str:
    listed = options if value in options else [*options, value]
    chosen = st.selectbox(
        label,
        listed,
        index=listed.index(value),
        key=f"plan/{path}",
        format_func=lambda v: choice_label(path, v),
    )
    return str(chosen)


def _traffic(now: Data) -> Data:
    """Draw who asks for what."""
    found = dict(now)
    named = now["workload"] or "chat"
    found["workload"] = _choice("workload.named", "workload", list(workloads), named)
    given = "users" if now["users"] is not None else "requests_per_s"
    volume = st.selectbox(
        "volume by",
        list(VOLUMES),
        index=list(VOLUMES).index(given),
        key="plan/volume",
        format_func=lambda v: VOLUMES[v],
    )
    for name in ("requests_per_s", "requests_per_day", "users", "trace"):
        found[name] = None
    if volume == "users":
        found["users"] = float(
            st.number_input("users", 1, 10**9, int(now["users"] or 20000), 1000, key="plan/users")
        )
        for name, label in (
            ("sessions_per_user_day", "sessions per user and day"),
            ("requests_per_session", "requests in a session"),
        ):
            found[name] = st.number_input(
                label, 0.01, 1e4, float(now[name]), format="%g", key=f"plan/{name}"
            )
    else:
        start = float(now["requests_per_s"] or 5.0)
        found["requests_per_s"] = st.number_input(
            "requests per second", 0.001, 1e6, start, format="%g", key="plan/rps"
        )
    growth = round(100 * float(now["growth_per_year"]))
    found["growth_per_year"] = (
        st.slider("growth [% per year]", -50, 300, growth, 10, key="plan/growth") / 100
    )
    return found


def _candidates(specs: list[Data]) -> list[Data]:
    """Draw the first candidate entry, which may stand for several; keep the others."""
    first = dict(specs[0])
    chips = (
        first["accelerator"] if isinstance(first["accelerator"], list) else [first["accelerator"]]
    )
    ranks = first["tp"] if isinstance(first["tp"], list) else [first["tp"]]
    first["accelerator"] = (
        st.multiselect(
            "accelerators",
            list(dict.fromkeys([*accelerators, *chips])),
            chips,
            key="plan/accelerators",
            format_func=lambda v: choice_label("hardware.accelerator", v),
            help="Each is simulated under this load.",
        )
        or chips
    )
    first["tp"] = (
        st.multiselect(
            "tensor parallel (TP) [accelerators]",
            sorted({1, 2, 4, 8, 16, *ranks}),
            ranks,
            key="plan/tp",
            help="Accelerators that share one replica; each size is a candidate.",
        )
        or ranks
    )
    weights = st.selectbox(
        "format of weights",
        [None, "fp8", "w4a16", "bf16"],
        key="plan/weights",
        format_func=lambda v: choice_label("model.weights", v),
    )
    first["weights"] = weights
    first["acquire"] = (
        st.multiselect(
            "ways to have them",
            WAYS,
            first["acquire"],
            key="plan/ways",
            help="Bought, rented by the hour, reserved, spot, or a base with rent on top.",
        )
        or first["acquire"]
    )
    return [first, *specs[1:]]


def _items(group: str) -> list[str]:
    names = costs()["item"]
    return sorted(n.removeprefix(f"{group}.") for n in names if n.startswith(f"{group}."))


def _costed(key: str, group: str, label: str, value: str) -> str:
    """Draw the choice of an item of the cost table, each with its value; return its name."""
    listed = _items(group)
    chosen = st.selectbox(
        label,
        listed if value in listed else [*listed, value],
        index=listed.index(value) if value in listed else len(listed),
        key=f"plan/{key}",
        format_func=lambda v: _item_words(group, v),
        help="From the cost table, with source and date in the list of assumptions below a plan.",
    )
    return str(chosen)


def _item_words(group: str, name: str) -> str:
    try:
        found = cost(f"{group}.{name}")
    except InputError:
        return name
    unit = "" if found.unit in ("1", "") else f" {found.unit}"
    return f"{name.replace('-', ' ')}: {found.value:.3g}{unit}"


def _place(data: Data) -> None:
    """Draw site, horizon and rates; change the data in place."""
    site, horizon, money = dict(data["site"]), dict(data["horizon"]), dict(data["money"])
    horizon["quarters"] = st.slider(
        "plan ahead [quarter]", 1, 20, int(horizon["quarters"]), key="plan/quarters"
    )
    for key, group, label in (
        ("electricity", "electricity", "electricity tariff of"),
        ("pue", "pue", "facility over IT energy (PUE) of"),
        ("region", "carbon", "carbon of the grid of"),
    ):
        if isinstance(site[key], str):
            site[key] = _costed(key, group, label, site[key])
    limit = st.number_input(
        "site power limit [kW]",
        0.0,
        1e6,
        None,
        format="%g",
        placeholder="none",
        key="plan/limit",
        help="Most IT power that the site has.",
    )
    site["power_limit_w"] = site["power_limit_w"] if limit is None else 1e3 * limit or None
    rate = st.number_input(
        "discount rate [% per year]",
        0.0,
        100.0,
        None,
        format="%g",
        key="plan/rate",
        placeholder="from the cost table",
        help="Cost of capital.",
    )
    money["discount_rate"] = money["discount_rate"] if rate is None else rate / 100
    data["site"], data["horizon"], data["money"] = site, horizon, money


def _section(name: str, section: object, data: Data) -> Data:
    """Draw the simple keys of a section that have no control above."""
    done = {
        "site": ("region", "power_limit_w"),
        "horizon": ("quarters",),
        "money": ("discount_rate",),
    }
    found = dict(data)
    keys: list[Key] = [k for k in keys_of(type(section)) if k.kind != "other"]  # type: ignore[arg-type]
    places = st.columns(3)
    for i, key in enumerate(k for k in keys if k.name not in done.get(name, ())):
        with places[i % 3]:
            found[key.name] = control(key, f"plan.{name}.{key.name}", data[key.name])
    return found
