"""A package is a registry and a file is an entry: this is how the entries are found."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any


class RegistryError(RuntimeError):
    """A module of a registry package lacks its constant, or two modules claim one name."""


def scan(package: ModuleType, constant: str) -> dict[str, Any]:
    """Import every public module of `package` and collect its `constant`, keyed by the entry's `name`.

    Modules whose name starts with an underscore are helpers and are skipped.

    Raises:
        RegistryError: if a module has no such constant, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            continue
        path = f"{package.__name__}.{info.name}"
        entry = getattr(importlib.import_module(path), constant, None)
        if entry is None:
            raise RegistryError(
                f"{path}: expected a constant {constant}, found none; define it or start the name with _"
            )
        if entry.name in found:
            raise RegistryError(f"{path}: the name {entry.name!r} is taken by another module of {package.__name__}")
        found[entry.name] = entry
    return found
