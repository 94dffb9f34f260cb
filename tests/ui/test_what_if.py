"""The page What if: inputs move outputs the right way, bad input harms nothing."""

import pytest

from formats import parse_toml
from sim.metrics import summary
from sim.scenario import Scenario
from sim.simulation import simulate
from tests.ui.conftest import figures, number, settle
from ui.share import from_link, scenario_toml, to_link

SMALL = Scenario(name="small", workload={"named": "chat", "duration_s": 20})


@pytest.fixture
def app(open_page):
    return settle(open_page("what_if", to_link(SMALL)))


def control(app, part):
    """Return the one control whose key ends with a path."""
    every = [*app.select_slider, *app.selectbox, *app.text_input, *app.number_input]
    (found,) = [c for c in every if c.key and c.key.endswith(f"/{part}")]
    return found


def test_it_shows_every_figure_with_its_unit(app):
    assert not app.exception
    assert not app.error
    shown = figures(app)
    units = {
        "TTFT p50": "ms",
        "TPOT mean": "ms",
        "E2E p50": "ms",
        "output": "token/s",
        "goodput": "request/s",
        "power": "W",
        "per million tokens": "USD",
        "MFU": "%",
        "MBU": "%",
    }
    assert {name: shown[name].split(" ", 1)[1] for name in units} == units


def test_the_figures_are_those_of_the_simulation(app):
    expected = summary(simulate(SMALL))
    assert number(figures(app)["TPOT mean"]) == pytest.approx(expected["tpot_mean_s"], rel=0.05)
    assert number(figures(app)["power"]) == pytest.approx(expected["power_mean_w"], rel=0.05)


def test_it_says_that_decoding_is_memory_bound(app):
    assert any("memory-bound" in info.value for info in app.info)


def test_more_load_costs_latency_and_gives_output(app):
    before = figures(app)
    control(app, "workload.rate_scale").set_value(8.0)
    after = figures(settle(app.run()))
    assert number(after["TPOT mean"]) > number(before["TPOT mean"])
    assert number(after["output"]) > 4 * number(before["output"])
    assert number(after["per million tokens"]) < number(before["per million tokens"])


def test_a_slower_chip_is_slower(app):
    before = figures(app)
    control(app, "hardware.accelerator").set_value("a100-sxm")
    after = figures(settle(app.run()))
    assert number(after["TPOT mean"]) > number(before["TPOT mean"])


def test_the_address_follows_the_controls(app):
    control(app, "hardware.tp").set_value(2)
    app.run()
    word = app.query_params["s"]
    link = from_link(word[0] if isinstance(word, list) else word)
    assert link.hardware.tp == 2
    assert link.workload == SMALL.workload


def test_a_broken_link_is_told_and_the_page_works(open_page):
    app = open_page("what_if", "broken!")
    assert "address: the scenario in it cannot be read" in app.error[0].value
    assert not app.exception
    assert len(app.metric) > 0


def test_what_does_not_fit_is_told_as_on_the_command_line(open_page):
    large = Scenario(model={"name": "llama-3.1-405b"}, workload=SMALL.workload)
    app = open_page("what_if", to_link(large))
    assert not app.exception
    assert "does not fit" in app.error[0].value
    with pytest.raises(ValueError, match="does not fit") as told:
        simulate(large)
    assert app.error[0].value == str(told.value)


def test_the_download_gives_the_same_numbers(app):
    text = scenario_toml(app.session_state["scenario"])
    again = summary(simulate(parse_toml(text, Scenario, "scenario.toml")))
    assert again == summary(simulate(app.session_state["scenario"]))


def test_two_visitors_do_not_see_each_other(open_page):
    first = open_page("what_if", to_link(SMALL))
    second = open_page("what_if", to_link(Scenario(name="other", workload=SMALL.workload)))
    control(first, "hardware.tp").set_value(2)
    first.run()
    second.run()
    assert first.session_state["scenario"].hardware.tp == 2
    assert second.session_state["scenario"].hardware.tp == 1
    assert second.session_state["scenario"].name == "other"


def test_the_next_best_change_was_run_and_can_be_applied(app):
    settle(app, "advice")
    assert any("Next best change" in text.value for text in app.markdown)
    apply = [button for button in app.button if button.key == "apply"]
    if apply:
        apply[0].click()
        app.run()
        assert app.session_state["scenario"] != SMALL
