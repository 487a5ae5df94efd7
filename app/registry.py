"""The models that are served, by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import models.zoo
from app.settings import variable
from models.loader import load_directory
from models.model import Model
from pushforward._registry import scan
from pushforward.errors import UnknownModel, UnsafeModel
from pushforward.wire._arrays import DTYPES


class Registry:
    """Holds the registered models, each with a line that sums it up."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._summaries: dict[str, str] = {}

    @property
    def models(self) -> Mapping[str, Model]:
        """The registered models by name."""
        return self._models

    def load(self, built_in: Sequence[str] | None, directory: Path | None) -> None:
        """Register built-in models, all of them if none is named, and the archives of a directory.

        Raises:
            UnknownModel: if there is no built-in model of that name.
            NotADirectoryError: if the directory is none.
            UnsafeModel: if a model can't be served.
        """
        entries = scan(models.zoo, "MODEL")
        for name in entries if built_in is None else built_in:
            if name not in entries:
                raise UnknownModel(f"{variable('models')} names {name!r}; built in are: {', '.join(entries)}")
            self.add(entries[name].load(), entries[name].summary)
        if directory is None:
            return
        if not directory.is_dir():
            raise NotADirectoryError(f"{variable('models_dir')} is {str(directory)!r}, which is no directory")
        for model in load_directory(directory):
            self.add(model, "loaded from a .keras archive")

    def add(self, model: Model, summary: str) -> None:
        """Register one model.

        Raises:
            ValueError: if its name is taken.
            UnsafeModel: if it holds arrays that no format can carry.
        """
        if model.name in self._models:
            raise ValueError(f"two models are named {model.name!r}; rename one")
        signature = model.signature
        arrays = (*signature.inputs, *signature.states, *signature.hidden, *signature.parameters, *signature.outputs)
        foreign = next((a for a in arrays if a.dtype not in DTYPES), None)
        if foreign is not None:
            raise UnsafeModel(
                f"model {model.name!r}: {foreign.name} holds {foreign.dtype}, which no format can carry; save it with "
                "the dtype policy float32 or mixed_float16"
            )
        self._models[model.name] = model
        self._summaries[model.name] = summary

    def find(self, name: str) -> Model:
        """Look a model up by its name, or by `name@version`.

        Raises:
            UnknownModel: if there is no such model or version.
        """
        base, at, version = name.partition("@")
        model = self._models.get(base)
        if model is None:
            raise UnknownModel(
                f"{base[:80]!r} is not registered; there are: {', '.join(self._models)}",
                path="model",
                expected=list(self._models),
            )
        if at and version != str(model.version):
            raise UnknownModel(
                f"{base!r} has no version {version[:20]!r}; it has: {model.version}",
                path="model",
                expected=[model.version],
            )
        return model

    def listing(self) -> list[dict[str, Any]]:
        """Sum up each registered model."""
        return [
            {"name": m.name, "version": m.version, "dtype": m.dtype, "summary": self._summaries[m.name]}
            for m in self._models.values()
        ]

    def describe(self, name: str) -> dict[str, Any]:
        """Describe one model, named with or without its version: its signature and its strategies."""
        model = self.find(name)
        head = {"name": model.name, "version": model.version, "summary": self._summaries[model.name]}
        return {**head, **model.signature.describe()}
