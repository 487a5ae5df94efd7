"""The models that are served, by name and version."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import models.zoo
from app.settings import variable
from models.model import Model
from pushforward._registry import scan
from pushforward.errors import UnknownModel


class Version:
    """A version of a model, which is loaded when it is first needed.

    Args:
        name: of the model.
        number: of the version.
        load: makes the model. May raise UnsafeModel.
        summary: a line about it.
        record: further members of its description, such as when it was registered.
    """

    def __init__(
        self, name: str, number: int, load: Callable[[], Model], summary: str, record: Mapping[str, Any]
    ) -> None:
        self.name, self.number, self.summary, self.record = name, number, summary, record
        self._load, self._lock = load, threading.Lock()
        self._model: Model | None = None

    @classmethod
    def of(cls, model: Model, summary: str, record: Mapping[str, Any]) -> "Version":
        """Make the version of a model that is loaded."""
        version = cls(model.name, model.version, lambda: model, summary, record)
        version._model = model
        return version

    @property
    def loaded(self) -> Model | None:
        """The model, if it is loaded."""
        return self._model

    def model(self) -> Model:
        """Return the model; the first time, load it, which takes a second or more.

        Raises:
            UnsafeModel: if it can't be loaded.
        """
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    def describe(self) -> dict[str, Any]:
        """Describe the model: its signature and its strategies."""
        model = self.model()
        head = {"name": self.name, "version": self.number, "summary": self.summary, "notes": list(model.notes)}
        return {**head, **model.signature.describe()}


@dataclass(frozen=True)
class _Named:
    """The versions of one name, at least one, by number; the last of them is what the bare name means."""

    versions: Mapping[int, Version]
    built_in: bool = False

    @cached_property
    def latest(self) -> Version:
        return self.versions[max(self.versions)]


class Registry:
    """Holds the registered models. Any thread may read it; one at a time may change it."""

    def __init__(self) -> None:
        # Never changed in place, so that whoever reads sees it before or after, but not between.
        self._names: Mapping[str, _Named] = {}

    @property
    def models(self) -> Mapping[str, Model]:
        """The latest version of each model, by name, as far as it is loaded."""
        latest = {name: named.latest.loaded for name, named in self._names.items()}
        return {name: model for name, model in latest.items() if model is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def holds(self, model: Model) -> bool:
        """Tell whether a model is still registered."""
        named = self._names.get(model.name)
        version = None if named is None else named.versions.get(model.version)
        return version is not None and version.loaded is model

    def built_in(self, name: str) -> bool:
        """Tell whether a name belongs to a built-in model."""
        return name in self._names and self._names[name].built_in

    def add_built_in(self, names: Sequence[str] | None) -> None:
        """Register built-in models, all of them if none is named.

        Raises:
            UnknownModel: if there is none of that name.
        """
        entries = scan(models.zoo, "MODEL")
        for name in entries if names is None else names:
            if name not in entries:
                raise UnknownModel(f"{variable('models')} names {name!r}; built in are: {', '.join(entries)}")
            version = Version.of(entries[name].load(), entries[name].summary, {})
            self._names = {**self._names, name: _Named({1: version}, built_in=True)}

    def add(self, version: Version) -> None:
        """Register a version of a model whose name is not that of a built-in one."""
        before = self.versions(version.name) if version.name in self._names else []
        versions = {v.number: v for v in (*before, version)}
        self._names = {**self._names, version.name: _Named(versions)}

    def remove(self, version: Version) -> None:
        """Remove a version; calls that have it go on with it."""
        rest = {number: v for number, v in self._names[version.name].versions.items() if v is not version}
        names = {name: named for name, named in self._names.items() if name != version.name}
        self._names = {**names, version.name: _Named(rest)} if rest else names

    def versions(self, name: str) -> list[Version]:
        """List the versions of a model, the oldest first.

        Raises:
            UnknownModel: if there is no such model.
        """
        if name not in self._names:
            raise UnknownModel(
                f"{name[:80]!r} is not registered; there are: {', '.join(self._names)}",
                path="model",
                expected=list(self._names),
            )
        versions = self._names[name].versions
        return [versions[number] for number in sorted(versions)]

    def find(self, name: str) -> Version:
        """Look a model up by its name, which means its latest version, or by `name@version`.

        Raises:
            UnknownModel: if there is no such model or version.
        """
        base, at, number = name.partition("@")
        named = self._names.get(base)
        if named is not None and not at:
            return named.latest
        versions = self.versions(base)
        found = next((v for v in versions if str(v.number) == number), None)
        if found is None:
            numbers = [v.number for v in versions]
            raise UnknownModel(
                f"{base!r} has no version {number[:20]!r}; it has: {', '.join(map(str, numbers))}",
                path="model",
                expected=numbers,
            )
        return found

    def listing(self) -> list[dict[str, Any]]:
        """Sum up the latest version of each registered model that is loaded."""
        return [
            {
                "name": m.name,
                "version": m.version,
                "dtype": m.dtype,
                "summary": self._names[m.name].latest.summary,
                "versions": sorted(self._names[m.name].versions),
            }
            for m in self.models.values()
        ]

    def describe(self, name: str) -> dict[str, Any]:
        """Describe one version of a model, loaded if need be, and list all of its versions.

        Raises:
            UnknownModel: if there is no such model or version.
            UnsafeModel: if it can't be loaded.
        """
        version = self.find(name)
        versions = [{"version": v.number, **v.record} for v in self.versions(version.name)]
        return {**version.describe(), "versions": versions}
