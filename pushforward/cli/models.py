"""`pushforward models`: what the server has."""

from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from pushforward.cli._command import LOCAL, Command, Key, Url, connect

_GROUPS = ("inputs", "outputs", "states", "hidden", "parameters")


def models(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Show the arrays of this one.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """List the models, or the arrays of one."""
    with connect(context, url, key) as client:
        found: Any = client.models() if name is None else client.model(name)
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    Console(soft_wrap=True).print(_listing(found) if name is None else _arrays(found))


def _listing(models: list[dict[str, Any]]) -> Table:
    table = Table("name", "version", "dtype", "summary")
    for model in models:
        table.add_row(model["name"], str(model["version"]), model.get("dtype", ""), model.get("summary", ""))
    return table


def _arrays(model: dict[str, Any]) -> Table:
    stepwise = "step by step" if model.get("stepwise") else f"not step by step: {model.get('obstacle')}"
    table = Table(title=f"{model['name']}@{model['version']}, {stepwise}")
    for title in ("array", "what", "shape", "dtype"):
        table.add_column(title, overflow="fold")
    for group in _GROUPS:
        for array in model[group]:
            sizes = zip(array["axes"], array["shape"], strict=True)
            shape = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in sizes)
            table.add_row(array["name"], group, f"({shape})", array["dtype"])
    return table


COMMAND = Command("models", models)
