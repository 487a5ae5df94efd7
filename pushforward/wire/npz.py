"""npz, the archive that `numpy.savez` and `numpy.savez_compressed` write and `numpy.load` reads."""

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pushforward.errors import MalformedBody, TooLarge
from pushforward.wire import MAX_BYTES, Message
from pushforward.wire._arrays import DTYPES, Array, from_buffer, portable
from pushforward.wire._envelope import check_depth, dump_envelope, load_envelope

_ENVELOPE = "envelope"
_ENTRY = b"PK\x01\x02"  # what each entry of a zip archive's directory starts with
_MAX_ENTRIES = 4096  # far more than arrays in a message; zipfile makes an object of a kilobyte for each
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same message is the same bytes

# Version 3 differs from 2 in the names of structured dtypes only, which are refused.
_HEADERS: dict[tuple[int, int], Callable[[io.BytesIO], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}
# What zipfile raises, depending on which byte is wrong; NotImplementedError is a RuntimeError.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, OverflowError)


class _Npz:
    name = "npz"
    media_type = "application/x-npz"

    def encode(self, message: Message) -> bytes:
        buffer = io.BytesIO()
        arrays = {path: portable(array, path) for path, array in message.arrays.items()}
        # Stored, not deflated: numbers hardly shrink, and zipping them takes longer than most networks.
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for path, array in {_ENVELOPE: np.array(dump_envelope(message.envelope).decode()), **arrays}.items():
                with archive.open(zipfile.ZipInfo(f"{path}.npy", _EPOCH), "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
        return buffer.getvalue()

    def decode(self, body: bytes, *, max_bytes: int = MAX_BYTES) -> Message:
        envelope: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        seen: set[str] = set()
        if (count := body.count(_ENTRY)) > _MAX_ENTRIES:
            raise MalformedBody(f"npz: the archive has {count} entries, at most {_MAX_ENTRIES} are allowed")
        try:
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                entries = archive.infolist()
                # Declared sizes, so that nothing has been decompressed yet; reading stops at the declared size.
                if (total := sum(entry.file_size for entry in entries)) > max_bytes:
                    raise TooLarge(
                        f"npz: unpacks to {total} bytes, the limit is {max_bytes}; send fewer rows at a time"
                    )
                for entry in entries:
                    path = entry.filename.removesuffix(".npy")
                    if path in seen:
                        raise MalformedBody("npz: the archive has this entry twice", path=path[:100])
                    seen.add(path)
                    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise MalformedBody(
                            "npz: compressed otherwise than numpy.savez_compressed does", path=path[:100]
                        )
                    with archive.open(entry) as file:
                        data = file.read(entry.file_size)
                    if len(data) != entry.file_size:
                        raise MalformedBody(
                            f"npz: {entry.file_size} bytes declared, {len(data)} found", path=path[:100]
                        )
                    if path == _ENVELOPE:
                        envelope = check_depth(load_envelope(_text(data)))
                    else:
                        arrays[path] = _array(data, path)
        except _UNREADABLE as error:
            raise MalformedBody(f"npz: not a readable archive: {error or 'truncated'}") from None
        return Message(envelope, arrays)


def _array(data: bytes, path: str) -> Array:
    shape, fortran, dtype, start = _header(data, path)
    if dtype.hasobject:
        raise MalformedBody(
            "npz: the entry is a pickled object, which is never loaded; save an array of numbers", path=path[:100]
        )
    if dtype.name not in DTYPES:
        raise MalformedBody(f"npz: dtype {dtype} can't be read; use one of {', '.join(DTYPES)}", path=path[:100])
    try:
        array = from_buffer(memoryview(data)[start:], dtype, shape[::-1] if fortran else shape)
    except ValueError as error:
        raise MalformedBody(f"npz: the header does not fit the data: {error}", path=path[:100]) from None
    return np.asarray(array.T, order="C") if fortran else array


def _text(data: bytes) -> str:
    shape, _, dtype, start = _header(data, _ENVELOPE)
    if shape != () or dtype.kind != "U" or len(data) - start != dtype.itemsize:
        raise MalformedBody("npz: expected a 0-d string array", path=_ENVELOPE)
    return str(np.frombuffer(data, dtype, 1, start)[0])


def _header(data: bytes, path: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, dtype, and where the numbers start."""
    file = io.BytesIO(data)
    try:
        read = _HEADERS[np.lib.format.read_magic(file)]
        shape, fortran, dtype = read(file)
    except Exception as error:  # the header is a Python literal, and NumPy's parser for it raises almost anything
        raise MalformedBody(f"npz: not a .npy entry: {error}", path=path[:100]) from None
    return shape, fortran, dtype, file.tell()


CODEC = _Npz()
