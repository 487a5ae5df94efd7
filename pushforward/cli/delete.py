"""`pushforward delete`: a model, or a version of it, from the server."""

from typing import Annotated

import typer

from pushforward.cli._command import LOCAL, Command, Key, Url, connect


def delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The model, without a version.", show_default=False)],
    version: Annotated[int | None, typer.Option(min=1, help="Only this version.")] = None,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Remove a model, or one version of it."""
    with connect(context, url, key) as client:
        client.delete(name, version)


COMMAND = Command("delete", delete)
