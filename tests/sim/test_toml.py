"""TOML that is written reads back equal."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import check
from sim import Scenario
from sim.scenario_template import scenario_template
from sim.toml import scenario_toml, to_toml

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_table_reads_back(data):
    assert tomllib.loads(to_toml(data)) == data


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": 'a "quoted"\nname with \\ and é', "run.horizon_s": 1e6},
        {"workload": {"named": "chat"}, "slo.ttft_s": 0.25},
        {"workload": {"mix": [{"named": "chat", "traffic_class": "a"}, {"named": "azure-code"}]}},
        {"policies.batching": {"name": "chunked-prefill", "max_num_seqs": 64}},
    ],
)
def test_scenarios_read_back(changes):
    scenario = Scenario().changed(changes)
    assert check(tomllib.loads(scenario_toml(scenario)), Scenario, "text") == scenario


def test_the_template_is_the_default_scenario():
    text = scenario_template()
    assert check(tomllib.loads(text), Scenario, "template") == Scenario()


def test_the_template_names_every_key_with_unit_and_range():
    text = scenario_template()
    for section in ("hardware", "model", "engine", "workload", "slo", "run"):
        assert f"\n[{section}]" in text
        for key in type(getattr(Scenario(), section)).model_fields:
            assert f"\n{key} = " in text or f"\n# {key} =" in text, key
    assert "# tensor-parallel ranks of a replica [accelerator], >= 1, <= 1024" in text
    assert "# max_num_batched_tokens = 8192" in text
