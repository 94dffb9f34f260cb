"""Reading files with one clear message for each way they can be bad, and writing them whole."""

import csv
import gzip
import io
import os
import tempfile
import tomllib
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import pandas as pd
from pydantic import BaseModel, ValidationError

from formats.errors import InputError, did_you_mean

__all__ = ["atomic_write", "check", "parse_toml", "read_table", "read_text", "read_toml"]

MAX_TEXT_BYTES = 2 << 30
EMPTY_CELLS = ["", "NA", "N/A", "nan", "NaN", "null", "NULL", "None"]
Model = TypeVar("Model", bound=BaseModel)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, plain or gzip-compressed.

    Parameters
    ----------
    path : Path
        The file; a name that ends in ``.gz`` is decompressed.

    Returns
    -------
    str
        The whole text.

    Raises
    ------
    InputError
        The file is missing, a folder, unreadable, truncated, not UTF-8, or expands to over 2 GiB.
    """
    try:
        return _read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        hint = _neighbours(path)
        raise InputError("no such file", str(path), repair=hint) from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", str(path), repair="name a file") from None
    except PermissionError:
        raise InputError("cannot be read", str(path), repair="check its permissions") from None
    except InputError:
        raise
    except UnicodeDecodeError as e:
        raise _not_utf8(e, str(path)) from None
    except (EOFError, OSError, zlib.error, ValueError) as e:
        raise InputError(f"cannot be read: {e}", str(path), repair="fetch it again") from None


def _read_bytes(path: Path) -> bytes:
    parts, size = [], 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while part := file.read(1 << 24):
            size += len(part)
            if size > MAX_TEXT_BYTES:
                raise InputError("text is larger than 2 GiB", str(path), repair="split it")
            parts.append(part)
    return b"".join(parts)


def _neighbours(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return did_you_mean(path.name, names) if names else "check the folder's name"


def read_toml(path: Path, model: type[Model]) -> Model:
    """Read a TOML file and check it against a pydantic model.

    Parameters
    ----------
    path : Path
        The file.
    model : type of BaseModel
        What it must hold; unknown keys are refused where the model says so.

    Returns
    -------
    BaseModel
        The checked content.

    Raises
    ------
    InputError
        The file cannot be read, is not TOML, or a value is wrong: one line per fault.
    """
    return parse_toml(read_text(path), model, str(path))


def parse_toml(text: str | bytes, model: type[Model], where: str) -> Model:
    """Check a TOML text, or the bytes of an uploaded file, against a pydantic model.

    Raises
    ------
    InputError
        It is not UTF-8, not TOML, or a key or value is wrong; `where` names it in the message.
    """
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as e:
        raise _not_utf8(e, where) from None
    try:
        data = tomllib.loads(plain)
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"is not valid TOML: {e}", where, repair="mend that line") from None
    return check(data, model, where)


def _not_utf8(error: UnicodeDecodeError, where: str) -> InputError:
    return InputError(f"is not UTF-8 text (byte {error.start})", where, repair="save it as UTF-8")


def check(data: dict[str, Any], model: type[Model], where: str) -> Model:
    """Check a dictionary against a pydantic model; every fault becomes one line.

    Raises
    ------
    InputError
        Something is missing, misspelt, of the wrong type or out of range.
    """
    try:
        return model.model_validate(data)
    except ValidationError as e:
        faults = [_fault(dict(err), model) for err in e.errors()]
        raise InputError("; ".join(faults), where) from None


def _fault(err: dict[str, Any], model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in err["loc"]) or "file"
    message = str(err["msg"]).removeprefix("Value error, ")
    if err["type"] == "extra_forbidden":
        known = _known_keys(model, err["loc"][:-1])
        return f"{key} is not a known key, {did_you_mean(str(err['loc'][-1]), known)}"
    if err["type"] == "missing":
        return f"{key} is missing, add it"
    given = err.get("input")
    shown = f", got {given!r}" if isinstance(given, (int, float, str, bool)) else ""
    return f"{key}: {message}{shown}"


def _known_keys(model: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    """Return the keys that a (nested) pydantic model knows at a location."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = _model_in(field.annotation)
    return list(getattr(current, "model_fields", {}))


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the pydantic model inside an annotation such as ``Model | None``, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def read_table(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), *, text: Sequence[str] = ()
) -> pd.DataFrame:
    """Read a CSV file (plain or .gz) with known columns.

    Parameters
    ----------
    path : Path
        The file, with a header line.
    required, optional : sequence of str
        Columns that must, and that may, be there. An unknown column is refused.
    text : sequence of str
        Columns taken as they are written ("007" and "NA" stay so), not as numbers.

    Returns
    -------
    pandas.DataFrame
        One row per line, columns in file order.

    Raises
    ------
    InputError
        The file is unreadable, empty, has missing, unknown or doubled columns, or ragged lines.
    """
    content = read_text(path)
    _check_header(content, path, list(required), list(optional))
    numeric = [c for c in [*required, *optional] if c not in text]
    options: dict[str, Any] = {
        "dtype": dict.fromkeys(text, str),
        "na_values": dict.fromkeys(numeric, EMPTY_CELLS),
        "keep_default_na": False,
        "index_col": False,
        "low_memory": False,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # more fields than the header
            table: pd.DataFrame = pd.read_csv(io.StringIO(content), **options)
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as e:
        what = f"is not a proper CSV table: {str(e).strip()}"
        raise InputError(what, str(path), repair="mend that line") from None
    return table


def _check_header(text: str, path: Path, required: list[str], optional: list[str]) -> None:
    try:
        header = next(csv.reader(text[: text.find("\n") + 1 or None].splitlines()), [])
    except csv.Error as e:
        raise InputError(f"has a bad header line: {e}", str(path), repair="mend it") from None
    if not header:
        raise InputError("is empty", str(path), repair=f"it needs columns {','.join(required)}")
    doubled = sorted({c for c in header if header.count(c) > 1})
    missing = [c for c in required if c not in header]
    unknown = [c for c in header if c not in [*required, *optional]]
    allowed = ",".join([*required, *optional])
    if doubled:
        raise InputError(f"column {doubled[0]!r} stands twice", str(path), repair="remove one")
    if missing:
        raise InputError(f"column {missing[0]!r} is missing", str(path), allowed, "add it")
    if unknown:
        hint = did_you_mean(unknown[0], [*required, *optional])
        raise InputError(f"column {unknown[0]!r} is not known", str(path), repair=hint)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` when the block ends well.

    Raises
    ------
    InputError
        The folder cannot be made or written.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a" / "b.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as e:
        raise InputError(
            f"cannot be written: {e.strerror}", str(path), repair="choose another folder"
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
