"""The zip file: three members by name, of bounded size, and nothing else is looked at."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.archive._limits import Limits
from pushforward.errors import MalformedBody, UnsafeModel

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"

_HDF5 = b"\x89HDF\r\n\x1a\n"
_CONVERT = 'load it where it comes from with keras.models.load_model and save it with model.save("name.keras")'
_ENCRYPTED = 0x1
_SHOWN = 80
_PIECE = 2**20


@dataclass(frozen=True)
class Members:
    """What was in the archive.

    Attributes:
        config: the configuration, as text.
        weights: the file of weights, written here.
    """

    config: bytes
    weights: Path


def read(archive: Path, directory: Path, limits: Limits) -> Members:
    """Take an archive apart.

    Args:
        archive: the file.
        directory: where the weights are written.
        limits: what may be in it.

    Raises:
        MalformedBody: if it is no whole archive.
        UnsafeModel: if it is another kind of file, or holds what it may not.
    """
    with archive.open("rb") as file:
        if file.read(len(_HDF5)) == _HDF5:
            raise UnsafeModel(f"this is an HDF5 file, whatever its name, and not a .keras archive; {_CONVERT}")
    try:
        with zipfile.ZipFile(archive) as found:
            members = _check(found.infolist(), limits)
            config = b"".join(_pieces(found, members[CONFIG], limits.config_bytes))
            weights = directory / WEIGHTS
            with weights.open("wb") as target:
                for piece in _pieces(found, members[WEIGHTS], limits.weights_bytes):
                    target.write(piece)
            return Members(config, weights)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, RuntimeError) as error:
        # Whatever zipfile and zlib say of a file that is damaged.
        raise MalformedBody(
            f"this is no whole .keras archive ({str(error)[:_SHOWN] or type(error).__name__}); save the model again "
            'with model.save("name.keras") and send the file as it is'
        ) from error


def _check(infos: list[zipfile.ZipInfo], limits: Limits) -> dict[str, zipfile.ZipInfo]:
    names = [info.filename for info in infos]
    if any(name.rpartition("/")[2] == "saved_model.pb" for name in names):
        raise UnsafeModel(f"this is a SavedModel, which holds a program; {_CONVERT}")
    for info in infos:
        if info.filename not in (CONFIG, METADATA, WEIGHTS):
            raise UnsafeModel(
                f"the archive holds {info.filename[:_SHOWN]!r}; expected {CONFIG}, {METADATA} and {WEIGHTS} only: "
                "layers that read files of their own can't be served"
            )
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnsafeModel(f"{info.filename} is encrypted or compressed in an unusual way; save the model again")
        most = limits.weights_bytes if info.filename == WEIGHTS else limits.config_bytes
        if info.file_size > most:
            raise UnsafeModel(f"{info.filename} has {info.file_size} bytes, the limit is {most}; use a smaller model")
    if len(set(names)) != len(names):
        raise UnsafeModel("the archive holds two members of one name; save the model again")
    if missing := {CONFIG, WEIGHTS} - set(names):
        raise MalformedBody(
            f"this zip file is no .keras archive: it holds no {' and no '.join(sorted(missing))}; save the model with "
            'model.save("name.keras") and send that file as it is'
        )
    return {info.filename: info for info in infos}


def _pieces(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
    """Unpack a member, no more of it than it may have, whatever the archive declares."""
    left = most
    with archive.open(info) as file:
        while piece := file.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise UnsafeModel(f"{info.filename} is larger than it says; save the model again")
            yield piece
