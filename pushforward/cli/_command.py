"""What commands share: their options, the connection, and the files of arrays."""

import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from pushforward.client import Client
from pushforward.errors import PushforwardError
from pushforward.wire import Message, codecs
from pushforward.wire._arrays import Array

_NO_LIMIT = 2**63


@dataclass(frozen=True)
class Command:
    """A command: its name, and the function whose arguments and documentation are its options and help."""

    name: str
    run: Callable[..., None]


class Fault(Exception):
    """The command can't be carried out.

    Attributes:
        code: The exit code.
    """

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


Url = Annotated[str, typer.Option("--url", envvar="PUSHFORWARD_URL", help="Where the server is.")]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="PUSHFORWARD_API_KEY", show_envvar=True, help="The API key, if it wants one."),
]
Model = Annotated[str, typer.Argument(help="The model, as `name` or `name@version`.", show_default=False)]
Timeout = Annotated[float | None, typer.Option("--timeout", help="Give up a request after this many seconds.")]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, help="Send the sequence in pieces of this many steps.")]

LOCAL = "http://127.0.0.1:8000"


def connect(context: typer.Context, url: str, key: str | None) -> Client:
    """Open a client; over the transport that the context's object is, if there is one."""
    try:
        return Client(url, api_key=key or None, transport=context.find_root().obj)
    except ValueError as error:
        raise Fault(str(error)) from None


def read(path: Path, *fields: str) -> dict[str, dict[str, Any]]:
    """Read the arrays `<field>.<name>` of an npz archive.

    Args:
        path: The file.
        fields: Those that there must be.

    Raises:
        Fault: if there are others, or it is no such file.
        OSError: if it can't be read.
    """
    try:
        message = codecs()["npz"].decode(path.read_bytes(), max_bytes=_NO_LIMIT)
    except PushforwardError as error:
        raise Fault(f"{path}: {error}") from None
    wanted = f"{path}: expected arrays named {' and '.join(f'{field}.NAME' for field in fields)}, such as inputs.x"
    for name in message.arrays:
        field, dot, rest = name.partition(".")
        if field not in fields or not dot or not rest:
            raise Fault(f"{wanted}; got one named {name[:80]!r}")
    found = message.by_field()
    for field in fields:
        if field not in found:
            raise Fault(f"{wanted}; got none of {field}")
    return cast("dict[str, dict[str, Any]]", found)


def write(path: Path, envelope: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Array]]) -> None:
    """Write the arrays of each field as `<field>.<name>`, and what is not an array as the entry `envelope`.

    Raises:
        OSError: if the file can't be written; an older one is then still there.
    """
    flat = {f"{field}.{name}": array for field, named in arrays.items() for name, array in named.items()}
    with replacing(path) as part:
        part.write_bytes(codecs()["npz"].encode(Message(dict(envelope), flat)))
    typer.echo(", ".join(f"{name} {array.shape}" for name, array in flat.items()) + f" in {path}")


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """Give the path of a file that takes the place of another once it is whole."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
