"""Folders of TOML files as catalogs: shipped entries first, then the user's own folders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from formats.errors import InputError, did_you_mean
from formats.files import read_toml

__all__ = ["Catalog"]

Entry = TypeVar("Entry", bound=BaseModel)


@dataclass(frozen=True)
class Catalog(Generic[Entry]):
    """Entries of one kind, one TOML file each, found by file name without the ending.

    Parameters
    ----------
    noun : str
        What an entry is called in messages, such as "accelerator".
    model : type of BaseModel
        What a file must hold.
    folders : sequence of Path
        Searched in order; a name in a later folder replaces an earlier one.
    """

    noun: str
    model: type[Entry]
    folders: Sequence[Path]
    _loaded: dict[str, Entry] = field(default_factory=dict, repr=False, compare=False)

    def with_folders(self, *folders: Path) -> "Catalog[Entry]":
        """Return the same catalog that also searches the given folders."""
        return Catalog(self.noun, self.model, [*self.folders, *folders])

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Name -> file, sorted by name."""
        found = {p.stem: p for folder in self.folders for p in sorted(folder.glob("*.toml"))}
        return dict(sorted(found.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, name: str) -> Entry:
        """Return an entry by name, or from a path that ends in .toml.

        Raises
        ------
        InputError
            No such entry, or its file is bad.
        """
        if name.endswith(".toml"):
            return read_toml(Path(name), self.model)
        if name not in self.paths:
            hint = did_you_mean(name, self.paths)
            raise InputError(f"no {self.noun} named {name!r}", repair=hint)
        if name not in self._loaded:
            self._loaded[name] = read_toml(self.paths[name], self.model)
        return self._loaded[name]
