"""What happens to every request before any protocol sees it; pure ASGI, so that arrays just pass through."""

import asyncio
import logging
import random
import re
import time
from contextvars import ContextVar

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import telemetry
from app.headers import header
from app.problems import problem
from app.settings import variable
from pushforward.errors import InternalError, TooLarge, TooSlow

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

# Ids need to differ, not to be secret; the system's source of random numbers would give up the interpreter's lock.
_ids = random.Random()

# How long a client that was answered before its body's end may go on sending it: several long round trips.
LINGER_S = 2.0

# A body of up to so many bytes, of which the rest comes within so many seconds, is let in and dropped instead: the
# connection stays, and a client that is to send its request again later need not open another.
_SHORT, _MOMENT_S = 1_000_000, 0.1

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class RequestIdFilter(logging.Filter):
    """Gives each log record the `request_id` of the request in whose context it was written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.request_id = request_id.get()
        return True


class Exchange:
    """Gives each request an id, continues its trace, and has it logged and counted once its answer has been sent.

    The id is taken from X-Request-Id, or made, and sent back in the same header. Those inside find it in the request's
    state, where `begun` tells them whether an answer has.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        identity = given if _REQUEST_ID.fullmatch(given) else f"{_ids.getrandbits(128):032x}"
        state = scope.setdefault("state", {})
        state["request_id"], state["begun"] = identity, False
        # Not reset afterwards: the context is the request's own, and the server's log comes last.
        request_id.set(identity)
        status: int | None = None
        failure: str | None = None
        start = time.perf_counter()
        lines, trace = telemetry.follow(scope)

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, state["begun"] = message["status"], True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identity.encode()), *lines]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            telemetry.tell(scope, status, time.perf_counter() - start, failure)
            telemetry.leave(trace)


class Unhandled:
    """Turns an exception that nobody handled into a 500 that tells no more than the request's id, and logs it once."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http" or scope["state"]["begun"]:
                raise
            internal = InternalError(f"{type(error).__name__} in {scope['method']} {scope['path']}")
            internal.__cause__ = error
            await problem(internal, scope["state"]["request_id"])(scope, receive, send)


class BodyLimit:
    """Bounds a request's body in size and in time.

    Too large: refused by its Content-Length at once, without one as soon as too much has come. Too slow: refused when
    its time is over. When something is answered before the body's end, what is left of a short one is let in and
    dropped. After any other the connection is closed: what the client still sends is let in for a moment, so that it
    comes to read the answer, and then cut off.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        chunked = header(scope, b"transfer-encoding") != ""
        # To take a body that waits for 100 Continue would be to ask for it.
        unasked = not chunked and header(scope, b"expect") == ""
        short = unasked and declared.isdecimal() and int(declared) <= min(_SHORT, self.max_bytes)
        body = _Body(self, declared not in ("", "0") or chunked, short, receive, send)
        if declared.isdecimal() and int(declared) > self.max_bytes:
            error = body_too_large(f"{int(declared)} bytes", self.max_bytes)
            await problem(error, scope["state"]["request_id"])(scope, receive, body.send)
            return
        await self.app(scope, body.receive, body.send)


class _Body:
    """One request's body as it is read, and the answer as it is sent."""

    def __init__(self, limit: BodyLimit, has_body: bool, short: bool, receive: Receive, send: Send) -> None:
        self._ended = not has_body
        self._short = short
        self._closing = False
        self._size = 0
        self._limit = limit
        self._deadline = asyncio.get_running_loop().time() + limit.timeout_s
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive_more()
        except TimeoutError:
            raise self._too_slow() from None
        if self._size > self._limit.max_bytes:
            raise body_too_large(f"at least {self._size} bytes", self._limit.max_bytes)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._ended:
            if self._short:
                await self._let_in(min(asyncio.get_running_loop().time() + _MOMENT_S, self._deadline))
            if not self._ended:
                self._closing = True
                MutableHeaders(scope=message)["Connection"] = "close"
        if not self._closing or message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        await self._linger()
        await self._send({"type": "http.response.body"})

    async def _receive_more(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)  # also when it says that the client left
        return message

    async def _linger(self) -> None:
        # Closed at once, with bytes unread, the system would reset the connection, and with it the answer.
        await self._let_in(asyncio.get_running_loop().time() + LINGER_S)

    async def _let_in(self, end: float) -> None:
        enough = 2 * self._limit.max_bytes
        try:
            async with asyncio.timeout_at(end):
                while not self._ended and self._size < enough:
                    await self._receive_more()
        except TimeoutError:
            return

    def _too_slow(self) -> TooSlow:
        return TooSlow(
            f"expected all of it within {self._limit.timeout_s:g} s, got {self._size} bytes; send less at once or a "
            f"binary format, or have {variable('body_timeout_s')} raised on the server",
            path="body",
            expected=f"within {self._limit.timeout_s:g} s",
            received=f"{self._size} bytes",
        )


def body_too_large(received: str, max_bytes: int) -> TooLarge:
    """Say that a body is over the limit, of which `received` is known."""
    return TooLarge(
        f"expected at most {max_bytes} bytes, got {received}; send fewer rows at once or a binary format, "
        f"or have {variable('max_body_mb')} raised on the server",
        path="body",
        expected=f"at most {max_bytes} bytes",
        received=received,
    )
