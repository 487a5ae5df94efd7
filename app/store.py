"""Versions of models on disk: there whole or not at all, whatever moment the process ends at, and checked when read.

A version is a directory `<name>/<version>` with the archive and a record of it. It is written elsewhere, then renamed,
which is one step; what is removed is renamed away first. A file `<name>/last` keeps numbers from being given twice.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pushforward.errors import InvalidRequest

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"[1-9][0-9]{0,9}")

ARCHIVE = "model.keras"
_RECORD = "record.json"
_LAST = "last"
_WORK = ".work"
_LOCK = ".lock"


class Damaged(Exception):
    """A version on disk is not what was written."""


@dataclass(frozen=True)
class Record:
    """What is known of a version besides its archive.

    Attributes:
        name: of the model.
        version: 1, 2, 3, ...
        sha256: of the archive.
        size: of the archive, in bytes.
        registered: when, in UTC, as in ISO 8601.
        dtype: what its weights were converted to; None if they are as in the archive.
        signature: of the model, when it was registered.
    """

    name: str
    version: int
    sha256: str
    size: int
    registered: str
    dtype: str | None
    signature: Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """A version on disk."""

    record: Record
    archive: Path

    def check(self) -> None:
        """Compare the archive with what was written.

        Raises:
            Damaged: if it differs, or can't be read.
        """
        try:
            found = digest(self.archive)
        except OSError as error:
            raise Damaged(f"{self.archive}: {error.strerror}") from error
        if found != self.record.sha256:
            raise Damaged(f"{self.archive}: its SHA-256 is {found}, not {self.record.sha256} as recorded")


def check_name(name: str) -> None:
    """Raise InvalidRequest if a model can't be named so."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "expected up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit, got "
            f"{name[:100]!r}; choose another name",
            path="name",
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Store:
    """The versions in a directory that no other process writes to.

    Args:
        directory: made if it is missing; None for one that is gone when the store is closed.

    Raises:
        BlockingIOError: if another process uses it.
    """

    def __init__(self, directory: Path | None) -> None:
        self.lasting = directory is not None
        self._root = directory or Path(tempfile.mkdtemp(prefix="pushforward-"))
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = (self._root / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise BlockingIOError(error.errno, "another server uses this directory of models", str(directory)) from None
        # What an earlier process had begun to write, or had not finished removing.
        shutil.rmtree(self._root / _WORK, ignore_errors=True)
        (self._root / _WORK).mkdir()

    def close(self) -> None:
        """Let others use the directory."""
        if not self.lasting:
            shutil.rmtree(self._root, ignore_errors=True)
        self._lock.close()

    def versions(self) -> tuple[list[Stored], list[Damaged]]:
        """Read what there is, by name and version; damaged versions are left alone, and listed apart."""
        found: list[Stored] = []
        damaged: list[Damaged] = []
        for directory in sorted(self._root.iterdir()):
            if not _NAME.fullmatch(directory.name) or not directory.is_dir():
                continue
            for version in sorted(_numbers(directory)):
                try:
                    stored = _read(directory / str(version))
                    stored.check()
                    found.append(stored)
                except Damaged as error:
                    damaged.append(error)
        return found, damaged

    @contextmanager
    def workspace(self) -> Generator[Path]:
        """Make a directory for a version that comes in, on the same disk; it is gone afterwards."""
        directory = Path(tempfile.mkdtemp(dir=self._root / _WORK))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def next(self, name: str) -> int:
        """Return the number of the next version: no number is given twice, also after versions were removed."""
        directory = self._root / name
        return max([_last(directory), *_numbers(directory)]) + 1

    def put(self, archive: Path, record: Record) -> Stored:
        """Keep an archive as a version. Once this returns, it outlasts a crash of the process or the machine.

        Args:
            archive: a file in a workspace, which moves.
            record: of a version that is not there yet.
        """
        model = self._root / record.name
        if not model.is_dir():
            model.mkdir()
            _sync(self._root)
        with self.workspace() as directory:
            whole = directory / "version"
            whole.mkdir()
            archive.rename(whole / ARCHIVE)
            (whole / _RECORD).write_text(json.dumps(asdict(record), indent=1))
            for path in (whole / ARCHIVE, whole / _RECORD, whole):
                _sync(path)
            whole.rename(model / str(record.version))
        _sync(model)
        return Stored(record, model / str(record.version) / ARCHIVE)

    def remove(self, name: str, version: int) -> None:
        """Remove a version; its number stays taken."""
        model = self._root / name
        with self.workspace() as directory:
            if version > _last(model):
                (directory / _LAST).write_text(str(version))
                _sync(directory / _LAST)
                (directory / _LAST).replace(model / _LAST)
                _sync(model)
            (model / str(version)).rename(directory / "version")
            _sync(model)


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()]


def _last(directory: Path) -> int:
    try:
        return int((directory / _LAST).read_text())
    except FileNotFoundError:
        return 0


def _read(directory: Path) -> Stored:
    path = directory / _RECORD
    try:
        record = Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise Damaged(f"{path}: {error}") from error
    if (record.name, str(record.version)) != (directory.parent.name, directory.name):
        raise Damaged(f"{path}: it belongs to {record.name}@{record.version}")
    return Stored(record, directory / ARCHIVE)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
