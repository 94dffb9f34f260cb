"""Forms from schemas, figures with the digits that their band justifies."""

import pytest

from policies.base import registries
from sim.exploring.bands import Band
from sim.scenario import Hardware, Scenario, Slo
from ui.schema import keys_of, policy_keys
from ui.words import shown, span
from ui.workload_inputs import SIMPLE, _source
from workloads.named import WorkloadSpec


def test_a_key_has_the_range_and_unit_of_the_schema():
    keys = {key.name: key for key in keys_of(Hardware)}
    tp, cap = keys["tp"], keys["power_cap_w"]
    assert (tp.kind, tp.low, tp.high, tp.default, tp.unit) == ("int", 1, 1024, 1, "accelerator")
    assert (cap.kind, cap.optional, cap.low, cap.low_open, cap.unit) == (
        "float",
        True,
        0,
        True,
        "W",
    )
    assert "Range: above 0 to 100,000 W" in cap.help
    assert [key.unit for key in keys_of(Slo)][:3] == ["s", "s", "s"]


def test_every_key_of_a_scenario_says_what_it_is():
    sections = [f.annotation for f in Scenario.model_fields.values()]
    models = [s for s in sections if hasattr(s, "model_json_schema") and s is not WorkloadSpec]
    assert [k.name for m in models for k in keys_of(m) if not k.text and k.kind != "other"] == []


@pytest.mark.parametrize("axis", sorted(registries))
def test_every_policy_has_a_form(axis):
    for name in registries[axis]:
        listed = [p.name for p in registries[axis].parameters(name)]
        assert [key.name for key in policy_keys(registries[axis].cls(name))] == listed


def test_arrivals_with_numbers_only_have_controls():
    assert {"poisson", "gamma", "constant", "burst", "closed-loop"} <= set(SIMPLE)
    assert "piecewise" not in SIMPLE


@pytest.mark.parametrize(
    ("content", "source"),
    [
        ({"named": "chat"}, "named"),
        ({"named": "chat", "priority": 1}, "as in the file"),
        ({"mix": [{"named": "chat"}]}, "as in the file"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 1}, "lengths": "rag"}, "drawn"),
        ({"requests": "trace.csv"}, "as in the file"),
    ],
)
def test_a_workload_is_shown_by_controls_that_keep_all_of_it(content, source):
    assert _source(WorkloadSpec.model_validate(content)) == source


@pytest.mark.parametrize(
    ("band", "unit", "text", "range_"),
    [
        (Band(0.0451, 0.040, 0.050), "s", "45 ms", "40 to 50 ms"),
        (Band(0.0451, 0.0449, 0.0453), "s", "45.1 ms", "44.9 to 45.3 ms"),
        (Band(1682.2, 1500, 1900), "token/s", "1,700 token/s", "1,500 to 1,900 token/s"),
        (Band(2_400.0, 2_000.0, 2_900.0), "W", "2.4 kW", "2.0 to 2.9 kW"),
        (Band(0.97, 0.8, 1.2), "1", "97 %", "80 to 100 %"),
        (Band(0.0, 0.0, 0.0), "1", "0 %", ""),
    ],
)
def test_figures_have_the_digits_that_their_band_justifies(band, unit, text, range_):
    assert shown(band, unit) == text
    assert span(band, unit) == range_
