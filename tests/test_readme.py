"""Every block of the README runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sim.contract import check_policy

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHELL = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]
COMMANDS = [line for line in SHELL if line.startswith("roofcast")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: b.split("\n")[0])
def test_python_block_runs(block, folder, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, folder):
    words = [sys.executable, "-m", "sim", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_policy_of_the_readme_serves(folder):
    (folder / "mine.py").write_text(PYTHON[1])
    words = shlex.split(
        "simulate --plugin mine.py --set policies.ordering.name=shortest-prompt-first --duration 5"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sim", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_policy_of_the_readme_is_short_and_keeps_the_contract():
    assert len(PYTHON[1].strip().splitlines()) <= 15
    exec(compile(PYTHON[1], "README.md", "exec"), {"__name__": "readme"})
    check_policy("ordering", {"name": "shortest-prompt-first"})


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [line.split()[1] for line in SHELL if line.startswith("make ")]
    assert set(named) <= set(targets)
