"""The shipped accelerators and nodes, and those in the user's own folders.

``ROOFCAST_CATALOG=folder[:folder]`` names folders with sub-folders ``accelerators/`` and
``nodes/``; a file there adds an entry or replaces a shipped one of the same name.
"""

import os
from pathlib import Path

from formats import Catalog, InputError
from hardware.specs import AcceleratorSpec, NodeSpec

__all__ = ["accelerators", "load_accelerator", "load_node", "nodes", "user_folders"]

VARIABLE = "ROOFCAST_CATALOG"
_DATA = Path(__file__).parent / "data"


def user_folders() -> list[Path]:
    """Return the folders that the environment variable names, in order.

    Examples
    --------
    >>> os.environ["ROOFCAST_CATALOG"] = "/a" + os.pathsep + "/b"
    >>> [str(folder) for folder in user_folders()]
    ['/a', '/b']
    >>> del os.environ["ROOFCAST_CATALOG"]
    """
    return [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def _folders(kind: str) -> list[Path]:
    return [_DATA / kind, *(folder / kind for folder in user_folders())]


accelerators = Catalog("accelerator", AcceleratorSpec, _folders("accelerators"))
nodes = Catalog("node", NodeSpec, _folders("nodes"))


def load_accelerator(name: str) -> AcceleratorSpec:
    """Return an accelerator by name, or from a path that ends in .toml.

    Raises
    ------
    InputError
        No such accelerator, its file is bad, or a user folder does not exist.

    Examples
    --------
    >>> load_accelerator("h200-sxm").tdp_w
    700.0
    >>> load_accelerator("h200-smx")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    formats.errors.InputError: no accelerator named 'h200-smx'; did you mean 'h200-sxm'? (...)
    """
    _check_user_folders()
    return accelerators.load(name)


def load_node(name: str) -> NodeSpec:
    """Return a node by name, or from a path that ends in .toml.

    Raises
    ------
    InputError
        No such node, its file is bad, or a user folder does not exist.

    Examples
    --------
    >>> load_node("hgx-h200").accelerator
    'h200-sxm'
    """
    _check_user_folders()
    return nodes.load(name)


def _check_user_folders() -> None:
    for folder in user_folders():
        if not folder.is_dir():
            raise InputError(f"no such folder: {folder}", VARIABLE, repair="mend the variable")
