"""`pushforward vjp`: the cotangents of inputs, states and weights, from a file to a file."""

from pathlib import Path
from typing import Annotated

import typer

from pushforward.cli._bars import bars
from pushforward.cli._command import LOCAL, Chunk, Command, Key, Model, Timeout, Url, connect, read, write


def vjp(
    context: typer.Context,
    name: Model,
    file: Annotated[
        Path, typer.Argument(help="An `.npz` with `inputs.NAME` and `cotangents.NAME`.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="An `.npz` for `cotangents.NAME`, and `outputs.NAME`.")],
    wrt: Annotated[
        list[str] | None, typer.Option(help="An input, state or weight; may be repeated. Every input if not given.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="`auto`, `scan` or `unrolled`.")] = "auto",
    chunk: Chunk = None,
    timeout: Timeout = None,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Pull cotangents back: those of inputs, states and weights; in pieces without the outputs."""
    arrays = read(file, "inputs", "cotangents")
    inputs, cotangents, names = arrays["inputs"], arrays["cotangents"], wrt or None
    with connect(context, url, key) as client:
        if chunk is None:
            answer = client.vjp(name, inputs, cotangents, wrt=names, strategy=strategy, timeout_s=timeout)
            envelope = {"model": answer.model, "version": answer.version, "info": answer.info}
            found = {"outputs": answer.outputs, "cotangents": answer.cotangents}
        else:
            long = client.chunked(name, inputs, size=chunk)
            pulled = long.vjp(cotangents, wrt=names, strategy=strategy, timeout_s=timeout, progress=bars)
            envelope = {"model": pulled.model, "version": pulled.version, "pieces": pulled.pieces}
            found = {"cotangents": pulled.cotangents}
    write(out, envelope, found)


COMMAND = Command("vjp", vjp)
