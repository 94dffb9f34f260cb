"""The command line ``roofcast``: thin commands around the Python interface.

A command is a function with Typer annotations. One in this package is added to `COMMANDS` in
`sim.cli.app`; one in a package above or in another distribution is declared in its pyproject.toml::

    [project.entry-points."roofcast.commands"]
    validate = "validation.command:validate"

so that nothing here imports it. Its value is a function or a ``typer.Typer`` group; the first line
of its docstring is its help. Modules of commands import only typer at their top: everything else
is imported inside the function, so that ``roofcast --help`` is quick. Errors that a person can
repair (`formats.RoofcastError`, `OSError`, pydantic's ValidationError) are printed as one message
on stderr, exit code 2; ``typer.Exit(1)`` says that an objective was missed.
"""

from sim.cli.app import build_app, main, run

__all__ = ["build_app", "main", "run"]
