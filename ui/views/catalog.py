"""Catalog: accelerators and models with every number's source; entries of one's own."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from pydantic import BaseModel

from formats import InputError, RoofcastError, parse_toml
from hardware.catalog import accelerators
from hardware.specs import AcceleratorSpec
from sim.toml import to_toml
from ui import state
from ui.catalog_tables import accelerator_rows, edited, model_rows, numbers, values
from ui.frame import act
from ui.theme import fault, heading
from workloads.models import ModelSpec, load_model

__all__ = ["page"]

ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
KINDS = ["datasheet", "measured", "fitted", "assumption"]
FORMS = {
    "bandwidth [TB/s]": "%.2f",
    "rent [USD/h]": "%.2f",
    "parameters [billion]": "%.1f",
    "active [billion]": "%.1f",
    "KV cache [kB/token]": "%.1f",
}  # others: whole numbers
HIDDEN = ("id", "vendor", "kind", "year", "publisher")  # said above the numbers of an entry
WIDTHS = {
    "kernels": 92,
    "memory [GB]": 98,
    "bandwidth [TB/s]": 122,
    "16-bit [TFLOP/s]": 122,
    "fp8 [TFLOP/s]": 104,
    "fp4 [TFLOP/s]": 104,
    "ridge [FLOP/byte]": 124,
    "power [W]": 80,
    "rent [USD/h]": 96,
    "parameters [billion]": 142,
    "active [billion]": 110,
    "layers": 62,
    "attention": 80,
    "experts": 72,
    "KV cache [kB/token]": 142,
    "context [token]": 114,
    "weights": 88,
    "licence": 165,
}  # pixel, as wide as the head; the name takes the rest
HINTS = {
    "kernels": "measured: timed on this part; carried over: from measured parts of its kind.",
    "16-bit [TFLOP/s]": "Dense peak of fp16 or bf16 matrix products.",
    "ridge [FLOP/byte]": "16-bit peak over bandwidth: below it memory decides, above arithmetic.",
    "rent [USD/h]": "On demand, for one accelerator; source in the cost table.",
    "attention": "mha: keys and values for each head; gqa, mqa: shared by a group or by all heads; "
    "mla: kept as one compressed vector.",
    "weights": "Number format of the published weights.",
    "active [billion]": "Parameters that one token passes through.",
    "experts": "Routed experts of a mixture-of-experts layer.",
    "KV cache [kB/token]": "Keys and values that each token leaves in memory.",
}


def page() -> None:
    """Draw the page."""
    st.title("Catalog", anchor=False)
    chips, nets = st.tabs(["Accelerators", "Models"])
    with chips:
        _accelerators()
    with nets:
        _models()


def _own(model: type[BaseModel]) -> dict[str, Any]:
    """Return the visitor's entries of a kind, by file name."""
    mine: dict[str, Any] = st.session_state.get("own entries", {})
    return {name: entry for name, entry in mine.items() if isinstance(entry, model)}


def _accelerators() -> None:
    mine = _own(AcceleratorSpec)
    chosen = _table(accelerator_rows(mine), "accelerators", "h200-sxm")
    spec = mine[chosen] if chosen in mine else accelerators.load(chosen)
    heading(spec.name)
    st.markdown(
        f"{spec.vendor} {spec.architecture}, {spec.kind}, {spec.year}; id `{chosen}`. "
        + (f"Kernel times measured: `{spec.calibration}`." if spec.calibration else "")
    )
    if spec.note:
        st.caption(spec.note)
    _sources(numbers(spec))
    _use("hardware.accelerator", chosen)
    with st.expander("Add an accelerator", icon=":material/add:"):
        _upload(AcceleratorSpec, "accelerator")
        _form(chosen, spec)


def _models() -> None:
    mine = _own(ModelSpec)
    chosen = _table(model_rows(mine), "models", "llama-3.1-8b")
    spec = mine[chosen] if chosen in mine else load_model(chosen)
    heading(spec.name)
    st.markdown(f"{spec.publisher}; id `{chosen}`. Architecture: {spec.source}.")
    if spec.note:
        st.caption(spec.note)
    _sources(_architecture(spec))
    _use("model.name", chosen)
    with st.expander("Add a model", icon=":material/add:"):
        _upload(ModelSpec, "model")
        _model_form(chosen, spec)


def _table(rows: pd.DataFrame, name: str, first: str) -> str:
    """Draw a table to sort and choose from; return the id of the chosen row."""
    formats: dict[str, Any] = {
        c: st.column_config.NumberColumn(
            format=FORMS.get(c, "%.0f"), help=HINTS.get(c), width=WIDTHS.get(c)
        )
        if rows[c].dtype.kind in "fi"
        else st.column_config.Column(help=HINTS.get(c), width=WIDTHS.get(c))
        for c in rows.columns
    }
    seen = st.dataframe(
        rows,
        hide_index=True,
        height=380,
        key=name,
        on_select="rerun",
        selection_mode="single-row",
        column_order=[c for c in rows.columns if c not in HIDDEN],
        placeholder="–",
        column_config=formats,
    )
    st.caption("Click a head to sort; mark a row to see every number with its source.")
    marked = seen["selection"]["rows"]
    ids = rows["id"].tolist()
    return str(ids[marked[0]]) if marked and marked[0] < len(ids) else first


def _sources(table: pd.DataFrame) -> None:
    st.dataframe(
        table,
        hide_index=True,
        column_config={
            "note": st.column_config.Column(width="medium"),
            "kind": st.column_config.TextColumn(
                help="datasheet: as published; measured: on the part; fitted: to measurements; "
                "assumption: a rule, said in the source."
            ),
        },
    )


def _architecture(spec: ModelSpec) -> pd.DataFrame:
    """Return every number of a model with its meaning and source."""
    rows = []
    for name, field in ModelSpec.model_fields.items():
        value = getattr(spec, name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or name == "schema_version"
        ):
            continue
        published = name.startswith("published")
        source = spec.published_source if published else spec.source
        source = spec.checkpoint_source if name == "checkpoint_params" else source
        rows.append(
            (name, f"{value:,g}" if value < 1e6 else f"{value:.4g}", source, field.description)
        )
    return pd.DataFrame(rows, columns=["number", "value", "source", "meaning"])


def _use(key: str, chosen: str) -> None:
    """Draw the button that puts an entry into the scenario."""
    act("Use in the scenario", _take, key, chosen, key=f"use {key}", icon=":material/done:")


def _take(key: str, chosen: str) -> None:
    state.replace(state.current().changed({key: chosen}))
    st.toast(f"The scenario now has {chosen}.")


def _keep(name: str, text: str, entry: BaseModel) -> None:
    state.keep_own(name, text)
    st.session_state.setdefault("own entries", {})[name] = entry
    st.success(
        f"Added `{name}` for this visit. Choose it in the table or in the controls; keep the file "
        "beside your scenario for the command line."
    )


def _upload(model: type[BaseModel], noun: str) -> None:
    given = st.file_uploader(
        f"{noun} file (TOML), checked as the catalog's", type=["toml"], key=noun
    )
    if given is None or st.session_state.get(f"taken {noun}") == given.file_id:
        return
    st.session_state[f"taken {noun}"] = given.file_id
    try:
        entry = parse_toml(given.getvalue(), model, given.name)
    except RoofcastError as e:
        fault(str(e))
        return
    _keep(Path(given.name).name, given.getvalue().decode("utf-8-sig"), entry)
    st.button("Show it", key=f"show {noun}")


def _form(start: str, spec: AcceleratorSpec) -> None:
    """Draw every number of an accelerator to be changed, and keep the result under a new id."""
    st.markdown(f"Or start from **{spec.name}** and change what differs:")
    with st.form("new accelerator", border=False):
        left, right = st.columns(2)
        name = left.text_input("name", f"{spec.name} (mine)", key=f"name {start}")
        word = right.text_input(
            "id", "my-accelerator", help="Small letters, digits, '-', '.' and '_'."
        )
        table = st.data_editor(
            values(spec),
            hide_index=True,
            disabled=["number", "unit"],
            key=f"edit {start}",
            column_config={"kind": st.column_config.SelectboxColumn(options=KINDS, required=True)},
        )
        if st.form_submit_button("Check and add"):
            changes = {"name": name, "calibration": None, "note": f"changed from {start}"}
            _checked(word, spec, table, changes)
    _offer("accelerator")


def _model_form(start: str, spec: ModelSpec) -> None:
    st.markdown(f"Or start from **{spec.name}** and change what differs:")
    whole = {
        k: v for k, v in spec.model_dump(exclude_none=True).items() if isinstance(v, int | str)
    }
    fixed = ("schema_version", "name", "note")
    rows = [(k, str(v)) for k, v in whole.items() if k not in fixed and not isinstance(v, bool)]
    with st.form("new model", border=False):
        left, right = st.columns(2)
        name = left.text_input("name", f"{spec.name} (mine)", key=f"model name {start}")
        word = right.text_input("id", "my-model", help="Small letters, digits, '-', '.' and '_'.")
        table = st.data_editor(
            pd.DataFrame(rows, columns=["key", "value"]),
            hide_index=True,
            disabled=["key"],
            key=f"edit model {start}",
        )
        if st.form_submit_button("Check and add"):
            given = dict(zip(table["key"], table["value"], strict=True))
            changes = {k: _like(whole[k], v) for k, v in given.items()} | {"name": name}
            _checked(word, spec, values(spec), changes | {"note": f"changed from {start}"})
    _offer("model")


def _like(old: int | str, text: str) -> int | str:
    """Return a text as the kind of value that it replaces."""
    try:
        return int(text) if isinstance(old, int) else str(text)
    except ValueError:
        return text


def _checked(word: str, spec: BaseModel, table: pd.DataFrame, changes: dict[str, Any]) -> None:
    try:
        if not ID.fullmatch(word):
            raise InputError(f"id {word!r} is not usable", "id", "small letters, digits, - . _")
        data = edited(spec, table, changes)
        text = to_toml({k: v for k, v in data.items() if v is not None})
        _keep(f"{word}.toml", text, parse_toml(text, type(spec), f"{word}.toml"))
    except RoofcastError as e:
        fault(str(e))
    else:
        st.session_state["new file"] = (f"{word}.toml", text)


def _offer(kind: str) -> None:
    """Draw the download of the entry that was made last."""
    if "new file" in st.session_state:
        name, text = st.session_state["new file"]
        st.download_button(
            f"Download {name}", text, file_name=name, on_click="ignore", key=f"get {kind}"
        )
