"""`pushforward register`: a Keras model to the server."""

from pathlib import Path
from typing import Annotated

import typer

from pushforward.cli._command import LOCAL, Command, Key, Timeout, Url, connect


def register(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What requests call it.", show_default=False)],
    path: Annotated[Path, typer.Argument(help="The `.keras` archive.", show_default=False)],
    dtype: Annotated[str | None, typer.Option(help="Compute in `float32` or `float64`.")] = None,
    replace: Annotated[
        bool, typer.Option(help="Whether there may be one of this name, which stays as `name@N`.")
    ] = True,
    timeout: Timeout = None,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Register a `.keras` archive as a model's next version."""
    with connect(context, url, key) as client:
        found = client.register(name, path, dtype=dtype, replace=replace, timeout_s=timeout)
    typer.echo(f"{name}@{found['version']}, {found.get('dtype')}: {found.get('summary', '')}".rstrip(": "))
    for note in found.get("notes", ()):
        typer.echo(f"note: {note}")


COMMAND = Command("register", register)
