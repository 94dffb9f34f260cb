"""One place where errors become messages and exit codes."""

import functools
from collections.abc import Callable
from typing import Any

import typer

__all__ = ["BAD_INPUT", "INTERRUPTED", "MISSED", "explain", "guarded"]

MISSED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with repairable errors as one message on stderr and exit code 2.

    An interrupt ends it with 130; errors that nobody can repair keep their traceback.
    """

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("Interrupted: nothing was left half-written.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # Typer ends quietly when the reader of a pipe has gone
        except Exception as e:
            message = explain(e)
            if message is None:
                raise
            typer.echo(f"Error: {message}", err=True)
            raise typer.Exit(BAD_INPUT) from None

    return run


def explain(error: Exception) -> str | None:
    """Return what a person should read about an error, or None for a fault of the program."""
    from pydantic import ValidationError

    from formats import RoofcastError

    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, e['loc'])) or error.title}: {e['msg']}" for e in error.errors()
        )
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; check its path, permissions and free space"
    if isinstance(error, MemoryError):
        return "out of memory; simulate fewer requests, or without --every-step"
    return str(error) if isinstance(error, RoofcastError) else None
