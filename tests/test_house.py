"""The house rules that a test can hold: sizes, layout, exports."""

import ast
import importlib
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("formats", "hardware", "workloads", "policies", "sim", "validation", "ui")
MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "collect" not in path.parts and "data" not in path.parts
)
LONGEST_FUNCTION, LONGEST_MODULE, MEDIAN_BODY, P90_BODY = 60, 400, 8, 25


def bodies(path: Path) -> list[tuple[str, int]]:
    """Name and lines of code of every function body, without its docstring."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            found.append((f"{path.name}:{node.name}", body[-1].end_lineno - body[0].lineno + 1))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_this_projects(package):
    # The import names are common words: a stranger's package of that name must not be used.
    assert Path(importlib.import_module(package).__file__).is_relative_to(ROOT)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_is_short_and_says_its_purpose(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    assert ast.get_docstring(ast.parse(text)), "a module opens with its purpose"
    assert [name for name, lines in bodies(path) if lines > LONGEST_FUNCTION] == []


def test_functions_are_short():
    lines = sorted(n for path in MODULES for _, n in bodies(path))
    assert statistics.median(lines) <= MEDIAN_BODY
    assert lines[int(0.9 * len(lines))] <= P90_BODY


@pytest.mark.parametrize(
    "path", [p for p in MODULES if "pages" not in p.parts], ids=lambda p: str(p.relative_to(ROOT))
)
def test_exports_exist_and_are_sorted(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert path.name == "__init__.py", "a module says what it exports"
        return
    assert all(hasattr(module, word) for word in exported)
    assert len(set(exported)) == len(exported)


def test_no_file_ships_a_path_or_host_of_one_machine():
    words = ("/work" + "/", "/root" + "/", "localhost:8", "pypi." + "org")
    tracked = [*MODULES, *sorted(ROOT.glob("*.md")), ROOT / "constraints.txt"]
    hits = [str(p) for p in tracked if p.exists() and any(w in p.read_text() for w in words)]
    assert hits == []
