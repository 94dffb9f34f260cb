"""Every study of examples/ is run as its README says, and gives the tables beside it."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sim.cli.app import build_app

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
STUDIES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
TABLES = {"compare": "differences.csv", "sweep": "sweep.csv", "plan": "plan.csv"}


def commands(study):
    text = (EXAMPLES / study / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.strip().splitlines()]


def with_tables():
    """Return (study, arguments, expected table) of every command whose table is kept."""
    for study in STUDIES:
        for arguments in commands(study):
            name = Path(arguments[arguments.index("--out") + 1]).name
            expected = EXAMPLES / study / f"{name}.csv"
            if expected.exists():
                yield pytest.param(arguments, expected, id=name)


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_says_what_it_covers_and_how_it_is_run(study):
    text = (EXAMPLES / study / "README.md").read_text()
    assert "*covers*: " in text
    assert "*scenario*: " in text
    assert commands(study)
    assert f"({study}/)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "expected"), list(with_tables()))
def test_a_command_gives_its_table(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    place = arguments.index("--out") + 1
    ran = CliRunner().invoke(build_app(), [*arguments[:place], str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    found, kept = pd.read_csv(tmp_path / TABLES[arguments[0]]), pd.read_csv(expected)
    pd.testing.assert_frame_equal(found[list(kept.columns)], kept, rtol=1e-6)
