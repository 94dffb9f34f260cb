"""The README's recipes for an accelerator, a model and a workload, done as it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHORT = ["--duration", "3", "--json"]


@pytest.fixture
def folder(tmp_path):
    copies = {
        "accelerators/mine.toml": "hardware/data/accelerators/h200-sxm.toml",
        "models/mine.toml": "workloads/data/models/llama-3.2-1b.toml",
        "workloads/mine.toml": "workloads/data/workloads/chat.toml",
    }
    for target, source in copies.items():
        (tmp_path / target).parent.mkdir()
        text = (ROOT / source).read_text()
        if "accelerators" in target:
            text = text.replace('calibration = "h200-sxm"\n', "")
        (tmp_path / target).write_text(text)
    return tmp_path


@pytest.mark.parametrize("words", [["--accelerator", "mine"], ["--workload", "mine"]])
def test_a_file_of_ones_own_is_found(words, folder):
    environment = {**os.environ, "ROOFCAST_CATALOG": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "sim", "simulate", *words, *SHORT, "--out", str(folder / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "summary.json").is_file()


def test_a_model_file_serves(folder):
    words = ["simulate", "--model", str(folder / "models/mine.toml"), *SHORT]
    done = subprocess.run(
        [sys.executable, "-m", "sim", *words, "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
