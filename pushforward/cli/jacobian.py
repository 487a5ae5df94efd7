"""`pushforward jacobian`: a block of the Jacobian of every sample, from a file to a file, as it is computed."""

import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer

from pushforward import Jacobian
from pushforward.cli._bars import bars
from pushforward.cli._command import LOCAL, Command, Fault, Key, Model, Timeout, Url, connect, read, replacing


def jacobian(
    context: typer.Context,
    name: Model,
    file: Annotated[Path, typer.Argument(help="An `.npz` with `inputs.NAME`.", show_default=False)],
    of: Annotated[str, typer.Option(help="What to differentiate, such as `y[-1, :]`.", show_default=False)],
    wrt: Annotated[str, typer.Option(help="With respect to what, such as `x[10:20, 0]`.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A `.npy`, or an `.npz` for `jacobian` with its axes.")
    ] = None,
    mode: Annotated[str, typer.Option(help="`auto`, `forward` or `reverse`.")] = "auto",
    plan: Annotated[bool, typer.Option("--plan", help="Only tell its shape, size and time.")] = False,
    timeout: Timeout = None,
    url: Url = LOCAL,
    key: Key = None,
) -> None:
    """Compute a block of the Jacobian of every sample; it goes to the disk as it comes."""
    inputs = read(file, "inputs")["inputs"]
    with connect(context, url, key) as client:
        if plan:
            planned = client.plan(name, inputs, of=of, wrt=wrt, mode=mode, timeout_s=timeout)
            typer.echo(
                f"{planned.shape}, {planned.bytes} bytes, {planned.mode} ({planned.why}), {planned.passes} passes, "
                f"about {planned.seconds:.3g} s"
            )
            return
        if out is None or out.suffix not in (".npy", ".npz"):
            raise Fault("--out: expected the path of an .npy or .npz file")
        with tempfile.TemporaryDirectory(dir=out.resolve().parent, prefix=f".{out.name}.") as directory:
            path = Path(directory) / "jacobian.npy"
            found = client.jacobian(name, inputs, of=of, wrt=wrt, mode=mode, timeout_s=timeout, out=path, progress=bars)
            with replacing(out) as part:
                if out.suffix == ".npy":
                    path.replace(part)
                else:
                    _pack(path, part, found)
    typer.echo(f"jacobian {found.jacobian.shape}, axes {', '.join(found.axes)} in {out}")


def _pack(path: Path, archive: Path, found: Jacobian) -> None:
    envelope = {"model": found.model, "version": found.version, "info": found.info, "axes": found.axes}
    envelope |= {} if found.order is None else {"order": found.order}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        with packed.open("envelope.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array(orjson.dumps(envelope).decode()), allow_pickle=False)
        packed.write(path, "jacobian.npy")


COMMAND = Command("jacobian", jacobian)
