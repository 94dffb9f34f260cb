"""The application: the commands of this package and those that entry points declare."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer

from sim.cli.guard import guarded

__all__ = ["COMMANDS", "GROUP", "build_app", "main", "run"]

GROUP = "roofcast.commands"
Command = Callable[..., Any]

# name -> module and function; the order is that of the help
COMMANDS = {
    "simulate": "sim.cli.simulate:simulate",
    "compare": "sim.cli.compare:compare",
    "explain": "sim.cli.explain:explain",
    "plan": "sim.cli.plan:plan",
    "sweep": "sim.cli.sweep:sweep",
    "tune": "sim.cli.tune:tune",
    "calibrate": "sim.cli.calibrate:calibrate",
    "import": "sim.cli.import_tables:import_tables",
    "explore": "sim.cli.explore:explore",
    "list": "sim.cli.catalog:list_entries",
    "show": "sim.cli.catalog:show",
    "new": "sim.cli.new:new",
}


def build_app() -> typer.Typer:
    """Return the application with all commands."""
    app = typer.Typer(
        name="roofcast",
        help="Simulate and plan AI-inference hardware: latency, throughput, watts and money.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, command in [*_own(), *_declared()]:
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(guarded(command))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"roofcast {version('roofcast')}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Take the options that stand before a command."""


def _own() -> Iterator[tuple[str, Command]]:
    for name, place in COMMANDS.items():
        module, function = place.split(":")
        yield name, getattr(import_module(module), function)


def _declared() -> Iterator[tuple[str, Any]]:
    """Yield commands of other packages; one that cannot be imported says so when it is used."""
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            yield point.name, point.load()
        except (ImportError, AttributeError) as e:
            yield point.name, _unavailable(point.value, e)


def _unavailable(place: str, error: Exception) -> Command:
    def command() -> None:
        from formats import InputError

        raise InputError(f"cannot be loaded from {place}: {error}", repair="install it again")

    command.__doc__ = f"Not available: {error}."
    return command


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code: 0 done, 1 objective missed, 2 bad input.

    Examples
    --------
    >>> run(["list", "nonsense"])
    2
    """
    try:
        code = build_app()(arguments, standalone_mode=False, prog_name="roofcast")
    except typer.Abort:
        return 130
    except Exception as e:  # usage errors of the parser, whatever its class is called
        format_message = getattr(e, "format_message", None)
        if format_message is None:
            raise
        typer.echo(_usage(e, format_message()), err=True)
        return 2
    return code if isinstance(code, int) else 0


def _usage(error: Exception, message: str) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "roofcast"
    if type(error).__name__ == "NoArgsIsHelpError":
        return message
    return f"Error: {message.rstrip('.')}; see {path} --help"


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
