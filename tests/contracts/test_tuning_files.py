"""The tuning under examples/: its files are good, and its report fits them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from sim.scenario import load_scenario
from sim.tuning import load_space
from sim.tuning.flags import ENGINES, deployable
from sim.tuning.space import applied, check_space

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tuning"
REPORT = FOLDER / "report"


def test_space_and_scenario_fit_each_other():
    scenario, space = load_scenario(FOLDER / "azure-conv.toml"), load_space(FOLDER / "space.toml")
    check_space(space, scenario)
    size = space.size()
    assert f"80 of {size:,} settings" in (FOLDER / "README.md").read_text()


def test_the_report_is_one_of_these_files():
    scenario, space = load_scenario(FOLDER / "azure-conv.toml"), load_space(FOLDER / "space.toml")
    found = json.loads((REPORT / "tune.json").read_text())
    setting = found["best"]["setting"]
    assert all(value in space.knobs[key] for key, value in setting.items())
    assert load_scenario(REPORT / "scenario.toml") == applied(scenario, setting)[0]
    assert len(pd.read_csv(REPORT / "trials.csv")) == found["settings_tried"] == 80
    assert found["best"]["seen"]["gains"]["goodput_per_s"]["low"] > 0
    assert found["best"]["later"]["gains"]["goodput_per_s"]["low"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_report_deploys_what_was_found(engine):
    flags = deployable(load_scenario(REPORT / "scenario.toml"), engine)
    for name, content in flags.files().items():
        assert (REPORT / "deploy" / engine / name).read_text() == content


def test_the_report_names_no_place_of_its_maker():
    for path in REPORT.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not any(place in text for place in ("/" + "tmp/", "/" + "work/", "/" + "root/"))
