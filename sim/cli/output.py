"""What commands print: progress on stderr, tables and JSON on stdout."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain_table", "print_json", "print_table", "progress_bar"]

MAX_WIDTH = 400  # of a table that goes into a file or a pipe [character]


def print_json(data: object) -> None:
    """Print JSON and nothing else on stdout."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=str))


@contextmanager
def progress_bar(title: str, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr while the block runs; give the function that moves it to a share [1].

    Nothing is shown where stderr is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=quiet or not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None)

        def move(share: float) -> None:
            bar.update(task, total=1.0, completed=share)

        yield move


def plain_table(columns: list[str], rows: list[list[str]], title: str = "") -> "Table":
    """Return a Rich table; columns of numbers stand right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[i]) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] == "-"


def print_table(columns: list[str], rows: list[list[Any]], title: str = "") -> None:
    """Print a table on stdout, as wide as its content where stdout is no terminal."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    texts = [[escape(str(cell)) for cell in row] for row in rows]
    table = plain_table(columns, texts, title)
    if console.is_terminal:
        console.print(table)
        return
    wide = Console(width=MAX_WIDTH, record=True, file=StringIO())
    wide.print(table)
    typer.echo("\n".join(line.rstrip() for line in wide.export_text().splitlines()))
