"""One array of any size, from the answer straight to where it shall lie: new memory, an array, or a file.

The bytes are copied once, a block at a time, and counted: what is not whole is never given back.
"""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from pushforward._progress import Bars, Progress, bars
from pushforward._responses import address, unreadable
from pushforward.errors import ConnectionFailed, DeadlineExceeded, MalformedBody, UnsupportedMediaType
from pushforward.wire import codecs
from pushforward.wire._arrays import Array
from pushforward.wire._negotiate import for_content_type
from pushforward.wire.safetensors import Head, head_size, read_head

Out = str | os.PathLike[str] | Array | None
"""Where an array goes: a `.npy` file's path, an array of its shape and dtype, or new memory if None."""

_Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]


def download(
    name: str, answer: AbstractContextManager[httpx2.Response], out: Out, *, progress: Progress
) -> tuple[dict[str, Any], Array]:
    """Read the envelope of a safetensors answer, and its array of this name into `out`.

    Args:
        name: The array's path.
        answer: Sends the request on entry. What can be known to be wrong with `out` is said before that.
        out: Where the array goes.
        progress: Whether to show a bar, or what makes it.

    Returns:
        The envelope, and the array: `out` itself, or a read-only map of the file, or a new array.

    Raises:
        ConnectionFailed: if the answer is shorter or longer than announced; `out` is then a file that was not touched,
            or an array with undefined contents.
        DeadlineExceeded: if the answer stops coming.
        PushforwardError: if it can't be read.
        ValueError: if `out` is an array that does not fit.
        OSError: if `out` is a file that can't be written.
        ImportError: if there is no tqdm to draw the bar.
    """
    bar = bars(progress)
    if out is None:
        return _receive(name, answer, np.empty, bar)
    if isinstance(out, np.ndarray):
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out: expected a C-contiguous array that can be written to; got one that is not")
        return _receive(name, answer, partial(_given, out), bar)
    path = Path(out).resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "out: expected the path of a file, got a directory's", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.touch(exist_ok=False)
        envelope = _receive_file(name, answer, temporary, bar)
        temporary.replace(path)
    finally:
        # Windows keeps a file that a traceback's frames have mapped; its name says that it is not whole.
        with suppress(PermissionError):
            temporary.unlink(missing_ok=True)
    return envelope, np.lib.format.open_memmap(path, mode="r")


def _receive_file(name: str, answer: AbstractContextManager[httpx2.Response], path: Path, bar: Bars) -> dict[str, Any]:
    # A function of its own, so that the writable map is closed before the file is renamed, which Windows demands.
    envelope, array = _receive(name, answer, partial(_mapped, path), bar)
    if isinstance(array, np.memmap):
        array.flush()
    return envelope


def _receive(
    name: str, answer: AbstractContextManager[httpx2.Response], allocate: _Allocate, bar: Bars
) -> tuple[dict[str, Any], Array]:
    with answer as response:
        body = _Body(response)
        head = body.head()
        if name not in head.entries:
            raise unreadable(response, f"it has no array {name!r}")
        entry = head.entries[name]
        array = allocate(entry.shape, entry.dtype)
        # Not a memoryview of the array itself: that can't be cast to bytes if an axis is empty.
        target = np.asarray(array).reshape(-1).view(np.uint8).data
        body.skip(entry.start)
        with bar(total=len(target), desc=name, unit="B", unit_scale=True) as shown:
            done = 0
            for piece in body.pieces(len(target)):
                target[done : done + len(piece)] = piece
                done += len(piece)
                if shown is not None:
                    shown.update(len(piece))
        body.skip(head.size - entry.stop)
        body.end()
    return head.envelope, array


class _Body:
    """A response's bytes as they come, counted against what was announced."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._blocks = response.iter_bytes()
        self._rest: memoryview = memoryview(b"")
        self._received = 0
        # The length of what was compressed on the way says nothing.
        length = "" if "Content-Encoding" in response.headers else response.headers.get("Content-Length", "")
        self._announced = int(length) if length.isdecimal() else None

    def head(self) -> Head:
        """Parse the head.

        Raises:
            ConnectionFailed: if the answer ends before it does, or is announced with another length than it.
            PushforwardError: if this is no head of a safetensors body.
        """
        codec, length = codecs()["safetensors"], self._announced
        try:
            if for_content_type(self._response.headers.get("Content-Type")) is not codec:
                raise MalformedBody(f"it is not {codec.media_type}, which was asked for")
            size = head_size(self._take(8 if length is None else min(8, length)))
            if length is not None and length < 8 + size:
                raise MalformedBody(f"a header of {size} bytes is announced in an answer of {length}")
            head = read_head(self._take(size))
        except (MalformedBody, UnsupportedMediaType) as error:
            raise unreadable(self._response, error) from error
        self._announced = 8 + size + head.size
        if length is not None and length != self._announced:
            raise ConnectionFailed(
                f"{address(self._response.url)} sends {length} of {self._announced} bytes: Content-Length and the "
                "header of the answer contradict each other; check what stands between"
            )
        return head

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, in pieces.

        Raises:
            ConnectionFailed: if fewer come.
            DeadlineExceeded: if they stop coming.
        """
        while size:
            if not self._rest and not self._read():
                raise self._lost("it ended")
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def skip(self, size: int) -> None:
        """Read over the next `size` bytes; raises what `pieces` does."""
        for _ in self.pieces(size):
            pass

    def end(self) -> None:
        """Read to the end, which must be here.

        Raises:
            ConnectionFailed: if more comes, or the connection is not ended properly.
            DeadlineExceeded: if nothing comes.
        """
        if self._rest or self._read():
            raise ConnectionFailed(
                f"{address(self._response.url)} sent {self._received} bytes or more, of {self._announced} bytes "
                "that the header of the answer announces; check what stands between"
            )

    def _take(self, size: int) -> bytes:
        return b"".join(self.pieces(size))

    def _read(self) -> bool:
        """Wait for the next bytes; whether there are any."""
        try:
            while not self._rest:
                self._rest = memoryview(next(self._blocks))
        except StopIteration:
            return False
        except httpx2.ReadTimeout:
            limit = self._response.request.extensions["timeout"]["read"]
            raise DeadlineExceeded(
                f"{address(self._response.url)} sent {self._count()} and then nothing for {limit} s; "
                "allow more with timeout_s"
            ) from None
        except httpx2.RequestError as error:
            raise self._lost(str(error) or type(error).__name__) from error
        self._received += len(self._rest)
        return True

    def _lost(self, reason: str) -> ConnectionFailed:
        return ConnectionFailed(f"lost {address(self._response.url)} after {self._count()} of the answer: {reason}")

    def _count(self) -> str:
        return f"{self._received} bytes" if self._announced is None else f"{self._received} of {self._announced} bytes"


def _given(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if (out.shape, out.dtype) != (shape, dtype):
        raise ValueError(f"out: expected shape {shape} of {dtype}, got shape {out.shape} of {out.dtype}")
    return out


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    # The map of a sparse file kills the process when the disk turns out to be full: take the space now, or fail now.
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # others: a file system without this
                    raise
    return array
