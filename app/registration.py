"""How archives become versions of models while the server runs, and how they go: one at a time, whole or not at all.

An archive is proved in a process of its own, loaded, kept, and only then found under its name. It is kept before it is
answered for, so that what a client was told outlasts a crash.
"""

import asyncio
import gc
import logging
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app import kept
from app.registry import Registry, Version
from app.settings import Settings, variable
from app.store import Record, Store, Stored, check_name, digest
from app.watch import Watch
from models.loader import Limits, load, prove
from models.model import Model
from pushforward.errors import AlreadyRegistered, Overloaded, PushforwardError, ReservedName

_log = logging.getLogger(__name__)

# How many registrations may wait for one another: each takes seconds.
_MOST_WAITING = 16


@dataclass(frozen=True)
class Hooks:
    """What the engine does when models come and go.

    Attributes:
        come: makes a model's programs, before it is found under its name.
        gone: forgets a model that is no longer registered.
    """

    come: Callable[[Model], Awaitable[None]]
    gone: Callable[[Model], Awaitable[None]]


class Registration:
    """Registers and removes versions of models.

    Args:
        registry: where they are found.
        store: where they are kept.
        watch: a directory whose archives are registered when they come or change; None if there is none.
        limits: what an archive may hold and take.
        hooks: what else is to be done.
    """

    def __init__(self, registry: Registry, store: Store, watch: Watch | None, limits: Limits, hooks: Hooks) -> None:
        self._registry, self._store, self._watch = registry, store, watch
        self._limits, self._hooks = limits, hooks
        self._turn, self._waiting = asyncio.Lock(), 0
        self._watching: asyncio.Task[None] | None = None
        self.skipped = 0
        """Archives and versions found on disk that could not be served."""

    @classmethod
    def from_settings(cls, settings: Settings, registry: Registry, hooks: Hooks) -> "Registration":
        """Make what the settings ask for.

        Raises:
            BlockingIOError: if another process uses the directory of models.
        """
        watch = None if settings.watch_dir is None else Watch(settings.watch_dir, settings.watch_s)
        limits = Limits(
            parameters=settings.max_parameters,
            seconds=settings.register_s,
            memory_bytes=int(settings.register_mb * 1e6),
            allowed=settings.allow_classes,
        )
        return cls(registry, Store(settings.model_dir), watch, limits, hooks)

    async def start(self) -> None:
        """Register what is kept and what lies in the watched directory; go on watching."""
        await asyncio.to_thread(self._restore)
        for model in self._registry.models.values():
            if not self._registry.built_in(model.name):
                await self._hooks.come(model)
        if self._watch is not None:
            await self._take_all(self._watch.all())
            self._watching = asyncio.create_task(self._go_on(self._watch), name="watch")

    async def close(self) -> None:
        """Finish what was begun."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        async with self._turn:
            self._store.close()

    def workspace(self) -> AbstractContextManager[Path]:
        """Make a directory for an archive that comes in, on the disk of the store; it is gone afterwards."""
        return self._store.workspace()

    async def put(self, name: str, archive: Path, *, dtype: str | None, replace: bool) -> dict[str, Any]:
        """Register an archive as the next version of a model.

        Args:
            name: of the model.
            archive: a file that is moved, on the disk of the store.
            dtype: what its weights are converted to.
            replace: whether there may be versions already.

        Returns:
            The version's description.

        Raises:
            InvalidRequest: if a model can't be named so.
            ReservedName: if a built-in model has the name.
            AlreadyRegistered: if there are versions and `replace` is false.
            MalformedBody: if the archive is none.
            UnsafeModel: if it is not safe to load or can't be differentiated; the message names the layer.
            Overloaded: if too many wait for their registration.
        """
        check_name(name)
        if self._registry.built_in(name):
            raise ReservedName(
                f"{name!r} is the name of a built-in model; choose another name, or have the model left out with "
                f"{variable('models')} on the server",
                path="name",
            )
        async with self._alone():
            if not replace and name in self._registry:
                number = self._registry.find(name).number
                raise AlreadyRegistered(
                    f"{name!r} is registered, its latest version is {number}; choose another name, or leave out "
                    "If-None-Match: * to add a version",
                    path="name",
                    received=number,
                )
            return await self._put(name, archive, dtype)

    async def delete(self, name: str, number: int | None) -> None:
        """Remove one version of a model, or all of them.

        Raises:
            UnknownModel: if there is no such model or version.
            ReservedName: if it is built in.
        """
        async with self._alone():
            if self._registry.built_in(name):
                raise ReservedName(
                    f"{name!r} is built in; have it left out with {variable('models')} on the server", path="name"
                )
            versions = self._registry.versions(name)
            await self._delete(versions if number is None else [self._registry.find(f"{name}@{number}")])

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        if self._waiting >= _MOST_WAITING:
            raise Overloaded(f"{self._waiting} registrations are waiting; try again later", retry_after_s=5)
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    async def _put(self, name: str, archive: Path, dtype: str | None) -> dict[str, Any]:
        report = await asyncio.to_thread(prove, name, archive, dtype=dtype, limits=self._limits)
        number = self._store.next(name)
        model = await asyncio.to_thread(load, name, archive, version=number, dtype=dtype, limits=self._limits)
        await self._hooks.come(model)
        stored = await asyncio.to_thread(self._keep, model, archive, dtype)
        self._registry.add(Version.of(model, kept.SUMMARY, kept.shown(stored)))
        _log.info("registered %s@%d, SHA-256 %s", name, number, stored.record.sha256)
        return {**self._registry.describe(f"{name}@{number}"), "adjoint_error": report.adjoint_error}

    def _keep(self, model: Model, archive: Path, dtype: str | None) -> Stored:
        record = Record(
            name=model.name,
            version=model.version,
            sha256=digest(archive),
            size=archive.stat().st_size,
            registered=datetime.now(UTC).isoformat(timespec="seconds"),
            dtype=dtype,
            signature=model.signature.describe(),
        )
        return self._store.put(archive, record)

    async def _delete(self, versions: Sequence[Version]) -> None:
        for version in versions:
            await asyncio.to_thread(self._store.remove, version.name, version.number)
            self._registry.remove(version)
            _log.info("removed %s@%d", version.name, version.number)
            if version.loaded is not None:
                await self._hooks.gone(version.loaded)
        # Models are circles of references, and the collector would take its time.
        await asyncio.to_thread(gc.collect)

    def _restore(self) -> None:
        versions, skipped = kept.versions(self._store, self._limits, self._registry.built_in)
        for why in skipped:
            self._skip(why)
        for version in versions:
            self._registry.add(version)

    async def _go_on(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(watch.every_s)
            await self._take_all(await asyncio.to_thread(watch.settled))

    async def _take_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                await self._take(path)
            except (PushforwardError, OSError) as error:
                self._skip(f"{path} can't be registered: {error}")

    async def _take(self, path: Path) -> None:
        with self.workspace() as directory:
            # A copy, since whoever put it there may go on writing.
            archive = Path(await asyncio.to_thread(shutil.copyfile, path, directory / path.name))
            known = await asyncio.to_thread(digest, archive)
            versions = self._registry.versions(path.stem) if path.stem in self._registry else []
            if not any(version.record.get("sha256") == known for version in versions):
                await self.put(path.stem, archive, dtype=None, replace=True)

    def _skip(self, why: object) -> None:
        self.skipped += 1
        _log.error("%s", why)
