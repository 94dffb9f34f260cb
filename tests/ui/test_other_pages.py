"""Every other page opens, and its inputs move its outputs."""

import pytest
from pydantic import BaseModel
from streamlit.testing.v1 import AppTest

from sim.scenario import Scenario
from tests.ui.conftest import PATIENCE_S, settle
from ui.share import to_link
from ui.views import PAGES

SMALL = Scenario(name="small", workload={"named": "chat", "duration_s": 20})
LINK = to_link(SMALL)


@pytest.mark.parametrize("one", PAGES, ids=lambda p: p.path)
def test_it_opens_without_an_error(one, open_page):
    app = open_page(one.module.rsplit(".", 1)[-1], LINK)
    assert not app.exception
    assert not app.error


def test_compare_holds_all_to_the_same_requests(open_page):
    pins = {"two ranks": SMALL.changed({"hardware.tp": 2, "name": "two ranks"})}
    app = settle(open_page("compare", LINK, pins=pins), "compare")
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table.columns) == ["two ranks", "small"]
    assert "▼" in table.loc["TPOT mean", "small"]
    assert any("the same" in text.value for text in app.caption)


def test_inside_a_run_can_be_zoomed(open_page):
    app = settle(open_page("inside", LINK))
    (window,) = [s for s in app.slider if s.label.startswith("part of the run")]
    before = [text.value for text in app.markdown if text.value.startswith("Here")]
    window.set_value((5.0, 6.0))
    app.run()
    after = [text.value for text in app.markdown if text.value.startswith("Here")]
    assert before != after
    assert not app.exception


def test_a_larger_batch_does_more_arithmetic_for_each_byte(open_page):
    app = open_page("roofline", LINK)
    table = app.dataframe[0].value
    (batch,) = [s for s in app.select_slider if s.key == "roof batch"]
    batch.set_value(256)
    app.run()
    decode = [
        t[t["phase"] == "decode"].set_index("operator") for t in (table, app.dataframe[0].value)
    ]
    one, many = (float(t.loc["down", "FLOP/byte"].replace(",", "")) for t in decode)
    assert many > 10 * one
    assert not app.exception


def test_a_plan_is_checked_before_it_is_computed(open_page):
    app = open_page("plan")
    (how,) = [c for c in app.get("button_group") if c.key == "plan as"]
    how.set_value("file")
    app.run()
    (text,) = app.text_area
    text.set_value(text.value.replace("schema_version = 1", "schema_version = 1\nquarter = 3"))
    app.run()
    assert "quarter is not a known key" in app.error[0].value
    assert not app.exception


def test_the_catalog_lists_every_entry_with_sources(open_page):
    from hardware.catalog import accelerators

    app = open_page("catalog")
    listed, numbers = app.dataframe[0].value, app.dataframe[1].value
    assert set(listed["id"]) == set(accelerators)
    assert (numbers["source"].str.len() > 2).all()
    assert set(numbers["kind"]) <= {"datasheet", "measured", "fitted", "assumption"}


def test_every_section_of_a_scenario_has_controls(open_page):
    app = open_page("roofline", LINK, **{"all settings": True})
    assert not app.exception
    assert not app.error
    titles = {one.label.lower().replace(" ", "_") for one in app.expander}
    nested = {name for name, _ in SMALL if isinstance(getattr(SMALL, name), BaseModel)}
    named = {"slo": "objectives"}
    assert {named.get(name, name) for name in nested} <= titles


def pressed(app, words):
    (button,) = [one for one in app.button if words in (one.label, one.key)]
    return button.click().run()


def test_a_pin_goes_back_into_the_controls_or_away(open_page):
    pins = {"two ranks": SMALL.changed({"hardware.tp": 2, "name": "two ranks"})}
    app = pressed(open_page("compare", LINK, pins=pins), "Edit")
    assert app.session_state["scenario"] == pins["two ranks"]
    assert pressed(app, "Remove").session_state["pins"] == {}
    assert not app.exception


def test_an_entry_of_the_catalog_goes_into_the_scenario(open_page):
    other = SMALL.changed({"hardware.accelerator": "b200-sxm"})
    app = pressed(open_page("catalog", scenario=other), "use hardware.accelerator")
    taken = app.session_state["scenario"].hardware.accelerator
    assert taken != "b200-sxm"
    assert app.toast[0].value == f"The scenario now has {taken}."


def test_a_press_outlives_a_run_of_the_page_that_was_overtaken(open_page):
    # What a press leaves stays until a run gets as far as the button, with the controls of then.
    app = open_page("plan", **{"plan pressed": True})
    assert "plan asked" in app.session_state
    assert "plan pressed" not in app.session_state
    (job,) = app.session_state["jobs of plan"].values()
    job.stop()


def test_an_entry_without_a_usable_id_is_refused(monkeypatch):
    from ui.views import catalog

    told = []
    monkeypatch.setattr(catalog, "fault", told.append)
    catalog._checked("My chip", SMALL, None, {})
    assert told == ["id: id 'My chip' is not usable (allowed: small letters, digits, - . _)"]


def test_the_frame_opens_its_first_page():
    app = AppTest.from_file("../../ui/app.py", default_timeout=PATIENCE_S).run()
    assert not app.exception
    assert app.title[0].value == "What if"
