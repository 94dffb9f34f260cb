from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def trace_folder() -> Path:
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("the public traces are not beside the checkout")
    return folder
