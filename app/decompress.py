"""Bodies with `Content-Encoding: gzip`, inflated while they are read, so that no protocol has to know."""

import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.faces._work import Offload
from app.headers import header
from app.middleware import body_too_large
from pushforward.errors import MalformedBody, UnsupportedMediaType

_NAMES = ("gzip", "x-gzip")  # RFC 9110, 8.4.1.3: the same
_WITH_HEADER = 16 + zlib.MAX_WBITS
_PIECE = 4096  # bytes fed at once: of what follows a member, zlib makes a copy
_CHUNK = 256 * 1024  # bytes inflated at once, whatever little they come from


class Decompress:
    """Inflates a body while it is read, never further than the limit; the other encodings are refused when it is."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.offload = Offload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        encoding = ""
        if scope["type"] == "http":
            encoding = header(scope, b"content-encoding").strip().lower()
        if encoding in ("", "identity"):
            await self.app(scope, receive, send)
            return
        body = _Inflated(self, receive) if encoding in _NAMES else _Refused(encoding)
        await self.app(scope, body.receive, send)


class _Refused:
    """A body that can't be read; its request may be wrong in other ways, which are told first."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding[:100]

    async def receive(self) -> Message:
        raise UnsupportedMediaType(
            f"expected gzip or none, got {self._encoding!r}; send the body gzipped once or as it is",
            path="Content-Encoding",
            expected=["gzip", "identity"],
            received=self._encoding,
        )


class _Inflated:
    """The body of one request."""

    def __init__(self, limit: Decompress, receive: Receive) -> None:
        self._limit = limit
        self._receive = receive
        self._gunzip = Gunzip()
        self._more = True
        self._ended = False
        self._read = 0
        self._size = 0

    async def receive(self) -> Message:
        while not self._ended:
            if found := await self._limit.offload(self._read + self._size, self._gunzip.read):
                self._size += len(found)
                if self._size > self._limit.max_bytes:
                    raise body_too_large(f"at least {self._size} bytes once decompressed", self._limit.max_bytes)
                return {"type": "http.request", "body": found, "more_body": True}
            if not self._more:
                self._gunzip.finish()
                self._ended = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._more = message.get("more_body", False)
            self._read += len(message.get("body", b""))
            self._gunzip.feed(message.get("body", b""))
        return await self._receive()


class Gunzip:
    """Inflates gzip members (RFC 1952), one after the other, in steps of bounded size and time.

    Not `gzip.GzipFile`: it pulls from a file where a body is pushed, and takes zeros between members for nothing.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_WITH_HEADER)
        self._left = memoryview(b"")
        self._good = 0  # bytes that have been inflated

    def feed(self, data: bytes) -> None:
        """Take more compressed bytes; the last ones must have been read to the end."""
        self._left = memoryview(data)

    def read(self) -> bytes:
        """Inflate the next bytes, at most 256 KB; none if that takes more compressed ones.

        Raises:
            MalformedBody: if this is not gzip.
        """
        found: list[bytes] = []
        room = _CHUNK
        while room and self._left:
            if self._member.eof:
                self._member = zlib.decompressobj(_WITH_HEADER)
            piece = self._left[:_PIECE]
            try:
                data = self._member.decompress(piece, room)
            except zlib.error as error:
                reason = str(error).partition(": ")[2]
                raise MalformedBody(
                    f"gzip: damaged, or something else follows, after byte {self._good}: {reason}", path="body"
                ) from None
            # At a member's end zlib may give what is left as both.
            used = len(piece) - len(self._member.unused_data if self._member.eof else self._member.unconsumed_tail)
            self._left = self._left[used:]
            self._good += used
            room -= len(data)
            found.append(data)
        return b"".join(found)

    def finish(self) -> None:
        """Check that the last member is whole.

        Raises:
            MalformedBody: if it is not.
        """
        if not self._member.eof:
            raise MalformedBody(f"gzip: truncated, ends at byte {self._good} within a member", path="body")
