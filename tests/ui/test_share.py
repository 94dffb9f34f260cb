"""Scenarios in addresses, downloads and uploads."""

import base64
import tomllib
import zlib

import pytest

from formats import InputError, parse_toml
from sim.scenario import Scenario
from ui.share import compact, from_link, scenario_toml, to_link

SCENARIOS = {
    "defaults": {},
    "named": {"workload": {"named": "chat", "duration_s": 60}, "hardware": {"tp": 2}},
    "drawn": {
        "workload": {
            "arrivals": {"kind": "gamma", "rate_per_s": 3, "cv": 2},
            "lengths": {
                "prompt": {"kind": "constant", "tokens": 512},
                "output": {"kind": "constant", "tokens": 64},
            },
            "duration_s": 30,
        },
        "policies": {"batching": {"name": "chunked-prefill", "max_num_seqs": 64}},
        "run": {"warmup": "mser", "seed": 7},
    },
    "mixed": {
        "name": 'quotes " and umlauts ü',
        "workload": {"mix": [{"named": "chat"}, {"named": "rag"}], "duration_s": 30},
        "slo": {"ttft_s": 0.5},
    },
}


@pytest.mark.parametrize("content", SCENARIOS.values(), ids=SCENARIOS)
def test_a_link_gives_the_same_scenario(content):
    scenario = Scenario.model_validate(content)
    word = to_link(scenario)
    assert from_link(word) == scenario
    assert word.replace("-", "").replace("_", "").isalnum(), "it stands in an address as it is"


@pytest.mark.parametrize("content", SCENARIOS.values(), ids=SCENARIOS)
def test_a_download_reads_back_equal(content):
    scenario = Scenario.model_validate(content)
    assert parse_toml(scenario_toml(scenario).encode(), Scenario, "scenario.toml") == scenario


def test_a_link_is_short_because_defaults_are_left_out():
    assert compact(Scenario()) == {}
    assert len(to_link(Scenario())) < 20
    assert compact(Scenario(hardware={"tp": 2})) == {"hardware": {"tp": 2}}


@pytest.mark.parametrize("word", ["x", "not*base64", to_link(Scenario(hardware={"tp": 2}))[:-9]])
def test_a_broken_link_says_so(word):
    with pytest.raises(InputError, match="address: the scenario in it cannot be read"):
        from_link(word)


def test_a_link_that_expands_without_end_is_refused():
    packed = zlib.compress(b"#" * (8 << 20), 9)
    with pytest.raises(InputError, match="too long or cut off"):
        from_link(base64.urlsafe_b64encode(packed).decode())


def test_messages_are_those_of_the_command_line(tmp_path):
    text = "[hardware]\ntpp = 2\n"
    path = tmp_path / "bad.toml"
    path.write_text(text)
    from sim.scenario import load_scenario

    with pytest.raises(InputError) as of_file:
        load_scenario(path)
    with pytest.raises(InputError) as of_page:
        parse_toml(text, Scenario, str(path))
    assert str(of_page.value) == str(of_file.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a = ", b"[run]\nseed = -1\n", b"x = 1"])
def test_bad_uploads_are_input_errors(content):
    with pytest.raises(InputError, match=r"bad\.toml"):
        parse_toml(content, Scenario, "bad.toml")


def test_a_download_is_a_scenario_file():
    data = tomllib.loads(scenario_toml(Scenario()))
    assert data["schema_version"] == 1
    assert set(data) <= set(Scenario.model_fields)
