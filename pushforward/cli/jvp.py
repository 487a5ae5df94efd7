"""`pushforward jvp`: outputs and their tangents, from a file to a file."""

from pathlib import Path
from typing import Annotated

import typer

from pushforward.cli._bars import bars
from pushforward.cli._command import LOCAL, Chunk, Command, Key, Model, Timeout, Url, connect, read, write


def jvp(
    context: typer.Context,
    name: Model,
    file: Annotated[Path, typer.Argument(help="An `.npz` with `inputs.NAME` and `tangents.NAME`.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="An `.npz` for `outputs.NAME` and `tangents.NAME`.")],
    outputs: Annotated[list[str] | None, typer.Option("--output", help="An output; may be repeated.")] = None,
    strategy: Annotated[str, typer.Option(help="`auto`, `scan`, `unrolled` or `reverse`.")] = "auto",
    chunk: Chunk = None,
    timeout: Timeout = None,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Push tangents forward: outputs and their tangents."""
    arrays = read(file, "inputs", "tangents")
    inputs, tangents, names = arrays["inputs"], arrays["tangents"], outputs or None
    with connect(context, url, key) as client:
        if chunk is None:
            answer = client.jvp(name, inputs, tangents, outputs=names, strategy=strategy, timeout_s=timeout)
            envelope = {"model": answer.model, "version": answer.version, "info": answer.info}
            found = {"outputs": answer.outputs, "tangents": answer.tangents}
        else:
            long = client.chunked(name, inputs, size=chunk)
            pieces = long.jvp(tangents, outputs=names, strategy=strategy, timeout_s=timeout)
            whole = pieces.collect(progress=bars)
            envelope = {"model": long.name, "version": long.version, "info": whole.info, "pieces": long.pieces}
            found = {"outputs": whole.outputs, "tangents": whole.tangents}
    write(out, envelope, found)


COMMAND = Command("jvp", jvp)
