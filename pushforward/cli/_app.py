"""The application, put together from the commands."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import typer

from pushforward import cli
from pushforward._registry import scan
from pushforward.cli._command import Command, Fault
from pushforward.errors import PushforwardError

_HELP = """Derivatives of recurrent TensorFlow models, from a Pushforward server.

Exit codes: 0 done, 1 a check failed, 2 the command line or a file is wrong, 3 the server refused, failed or was not
reached.
"""


def make_app() -> typer.Typer:
    """Make the application."""
    app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    # Without this, an application of one command would be that command.
    app.callback()(_nothing)
    commands: list[Command] = list(scan(cli, "COMMAND").values())
    for command in commands:
        app.command(command.name, no_args_is_help=False)(_told(command.run))
    return app


def _nothing() -> None:
    pass


def _told(run: Callable[..., None]) -> Callable[..., None]:
    """Run a command; what goes wrong is told in a line."""

    @functools.wraps(run)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            run(*args, **kwargs)
        except PushforwardError as error:
            _fail(" ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]), 3)
        except Fault as error:
            _fail(str(error), error.code)
        except OSError as error:
            _fail(str(error), 2)

    return told


def _fail(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)
