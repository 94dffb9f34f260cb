"""Finding accelerators and nodes: shipped, in the user's folders, by path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hardware
from formats import InputError
from hardware.catalog import VARIABLE, accelerators, load_accelerator, load_node, nodes

DATA = Path(hardware.__file__).parent / "data"


@pytest.fixture
def mine(tmp_path):
    """A user's folder with a part of its own and a faster H200."""
    (tmp_path / "accelerators").mkdir()
    source = (DATA / "accelerators" / "h200-sxm.toml").read_text()
    (tmp_path / "accelerators" / "dream.toml").write_text(source.replace("141GB", "dream"))
    (tmp_path / "accelerators" / "h200-sxm.toml").write_text(source.replace("4.8e12", "9.6e12"))
    return tmp_path


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_names_are_the_file_stems_in_order():
    names = list(accelerators)
    assert names == sorted(p.stem for p in (DATA / "accelerators").glob("*.toml"))
    assert len(accelerators) == len(names)
    assert "hgx-h200" in nodes


def test_unknown_name_gets_the_closest():
    hint = "no accelerator named 'h200'; did you mean 'h200-nvl' or 'h200-sxm'"
    with pytest.raises(InputError, match=hint):
        load_accelerator("h200")
    with pytest.raises(InputError, match="no node named 'hgx-b20'; did you mean 'hgx-b200'"):
        load_node("hgx-b20")


def test_an_entry_is_read_once():
    assert load_accelerator("l4") is load_accelerator("l4")


def test_a_path_works_too(tmp_path):
    path = tmp_path / "mine.toml"
    shutil.copy(DATA / "accelerators" / "l4.toml", path)
    assert load_accelerator(str(path)).name == "NVIDIA L4 24GB"
    with pytest.raises(InputError, match="no such file"):
        load_accelerator(str(tmp_path / "absent.toml"))


def test_a_bad_file_names_itself(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("name = ")
    with pytest.raises(InputError, match=r"bad\.toml: is not valid TOML"):
        load_accelerator(str(path))


def test_user_folders_add_and_replace(mine):
    code = """
from hardware.catalog import accelerators, load_accelerator, load_node
print(load_accelerator("dream").name, load_accelerator("h200-sxm").memory_bytes_per_s / 1e12)
print(len(accelerators), load_node("hgx-h200").accelerator)
"""
    done = python(code, **{VARIABLE: str(mine)})
    assert done.stderr == ""
    expected = f"NVIDIA H200 SXM dream 9.6\n{len(accelerators) + 1} h200-sxm\n"
    assert done.stdout == expected


def test_a_missing_user_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(tmp_path), str(tmp_path / "absent")]))
    with pytest.raises(InputError, match=f"{VARIABLE}: no such folder: .*absent"):
        load_accelerator("h200-sxm")


def test_with_folders_searches_one_more(mine):
    more = accelerators.with_folders(mine / "accelerators")
    assert more.load("dream").compute_units == 132
    assert "dream" not in accelerators
