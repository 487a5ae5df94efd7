"""The models of the server as methods: what there is, and what comes and goes."""

import importlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pushforward._connection import Connection
from pushforward._responses import read_json


class Catalogue:
    """The part of a client that lists, registers and removes models."""

    _connection: Connection

    def models(self) -> list[dict[str, Any]]:
        """List the registered models."""
        return read_json(self._connection.fetch("GET", "models"))

    def model(self, name: str) -> dict[str, Any]:
        """Describe a model: its inputs, states, parameters and outputs, strategies and version."""
        return read_json(self._connection.fetch("GET", f"models/{quote(name, safe='@')}"))

    def register(
        self,
        name: str,
        model: Any,
        *,
        dtype: str | None = None,
        replace: bool = True,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Register a Keras model: a new version under this name, which is checked before it goes live.

        Args:
            name: What requests call it.
            model: The path of a `.keras` archive, which is sent from the disk as it is, or a `keras.Model`, which is
                saved to a temporary archive first.
            dtype: `float32` or `float64`, to have the same weights computed with in that precision; the model's own if
                None.
            replace: Whether a model of this name may be there already; the new version is then the one that `name`
                stands for, and older ones remain as `name@version`.
            timeout_s: Wait this long for the answer; the check compiles the model.

        Returns:
            The model's description with its `version`, `notes` and `adjoint_error`.

        Raises:
            AlreadyRegistered: if `replace` is False and the name is taken.
            UnsafeModel: if the model holds what can't be loaded or differentiated; the text names the layer.
            Unauthorized: if the server wants a key and gets none.
            Forbidden: if the key is not an administrator's, or the server takes no models.
            TypeError: if `model` is neither a path nor a Keras model.
            OSError: if the archive can't be read.
        """
        headers = {"Content-Type": "application/zip"} | ({} if replace else {"If-None-Match": "*"})
        params = {} if dtype is None else {"dtype": dtype}
        with _archive(model) as path, path.open("rb") as file:
            answer = self._connection.fetch(
                "PUT", _address(name), content=file, params=params, headers=headers, timeout_s=timeout_s
            )
        return read_json(answer)

    def delete(self, name: str, version: int | None = None) -> None:
        """Remove a model, or one version of it; requests under way still finish.

        Args:
            name: The model's name, without a version.
            version: The version to remove; all of them if None.

        Raises:
            UnknownModel: if it is not there.
            Unauthorized: if the server wants a key and gets none.
            Forbidden: if the key is not an administrator's, or the server lets no models be removed.
        """
        self._connection.fetch("DELETE", _address(name), params={} if version is None else {"version": str(version)})


def _address(name: str) -> str:
    return f"models/{quote(name, safe='')}"


@contextmanager
def _archive(model: Any) -> Generator[Path, None, None]:
    """Give the path of the model's archive."""
    if isinstance(model, str | os.PathLike):
        yield Path(cast("os.PathLike[str]", model))
        return
    # Keras is large, and whoever has a model has imported it.
    if not callable(getattr(model, "save", None)) or not isinstance(model, importlib.import_module("keras").Model):
        raise TypeError(f"model: expected the path of a .keras archive or a keras.Model, got {type(model).__name__}")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.keras"
        model.save(path)
        yield path
