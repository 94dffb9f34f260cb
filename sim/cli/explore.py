"""``roofcast explore``: the what-if page in a browser."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["explore"]


def explore(
    port: Annotated[int, typer.Option(help="Port on this machine.", min=1, max=65535)] = 8501,
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
) -> None:
    """Open the what-if page; it is reachable from this machine only."""
    page = _page()
    options = {
        "server.address": "localhost",
        "server.port": str(port),
        "server.headless": str(not browser).lower(),
        "browser.gatherUsageStats": "false",
    }
    flags = [f"--{key}={value}" for key, value in options.items()]
    command = [sys.executable, "-m", "streamlit", "run", str(page), *flags]
    raise typer.Exit(subprocess.call(command))


def _page() -> Path:
    """Return the page's entry file, or say that it is not installed."""
    from importlib.util import find_spec

    from formats import InputError

    spec = find_spec("ui")
    page = Path(spec.origin).parent / "app.py" if spec and spec.origin else Path("ui/app.py")
    if not page.is_file():
        raise InputError("the page is missing", str(page), repair="install the whole project")
    return page
