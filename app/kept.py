"""The versions that a store kept, as the registry knows them: read when they are needed, the latest of each at once."""

import logging
from collections.abc import Callable
from typing import Any

from app.registry import Version
from app.store import Damaged, Store, Stored
from models.loader import Limits, load
from models.model import Model
from pushforward.errors import PushforwardError, UnsafeModel

_log = logging.getLogger(__name__)

SUMMARY = "registered from a .keras archive"


def versions(store: Store, limits: Limits, taken: Callable[[str], bool]) -> tuple[list[Version], list[str]]:
    """Find what can be served, with the latest version of each model loaded: the others wait until they are asked for.

    Args:
        store: where they are.
        limits: what an archive may hold.
        taken: tells whether another model has a name.

    Returns:
        The versions, the oldest of each model first, and of each that can't be served why not.
    """
    found, damaged = store.versions()
    skipped = [str(error) for error in damaged]
    served: list[Version] = []
    for name in dict.fromkeys(stored.record.name for stored in found):
        if taken(name):
            skipped.append(f"{name} is kept on disk, but also the name of a built-in model, which is served")
            continue
        of_name = [_version(stored, limits) for stored in found if stored.record.name == name]
        while of_name and (why := _failure(of_name[-1])):
            skipped.append(why)
            of_name.pop()
        served += of_name
    return served, skipped


def shown(stored: Stored) -> dict[str, Any]:
    """Return what is told of a version besides its signature."""
    record = stored.record
    return {"registered": record.registered, "sha256": record.sha256, "bytes": record.size}


def _failure(version: Version) -> str:
    try:
        version.model()
    except PushforwardError as error:
        return f"{version.name}@{version.number} can't be loaded: {error}"
    return ""


def _version(stored: Stored, limits: Limits) -> Version:
    record = stored.record

    def read() -> Model:
        try:
            stored.check()
        except Damaged as error:
            _log.error("%s", error)
            raise UnsafeModel(
                f"{record.name}@{record.version} is damaged on the server's disk; register it again"
            ) from error
        model = load(record.name, stored.archive, version=record.version, dtype=record.dtype, limits=limits)
        # A later release may have more to tell of a model, which is no difference.
        described = model.signature.describe()
        if any(described.get(key) != value for key, value in record.signature.items()):
            _log.warning("%s@%d has another signature than when it was registered", record.name, record.version)
        return model

    return Version(record.name, record.version, read, SUMMARY, shown(stored))
