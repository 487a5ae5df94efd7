"""What happens to every request before any protocol sees it; pure ASGI, so that arrays just pass through."""

import logging
import random
import re
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.problems import problem
from app.settings import variable
from pushforward.errors import InternalError, TooLarge

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

# Ids need to differ, not to be secret; the system's source of random numbers would give up the interpreter's lock.
_ids = random.Random()

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class RequestIdFilter(logging.Filter):
    """Gives each log record the `request_id` of the request in whose context it was written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.request_id = request_id.get()
        return True


class RequestId:
    """Takes the request's id from X-Request-Id, or makes one, and sends it back in the same header."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if _REQUEST_ID.fullmatch(given) else f"{_ids.getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = identity
        # Not reset afterwards: the context is the request's own, and the server's access log comes last.
        request_id.set(identity)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = identity
            await send(message)

        await self.app(scope, receive, send_with_id)


class Unhandled:
    """Turns an exception that nobody handled into a 500 that tells no more than the request's id, and logs it once."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            internal = InternalError(f"{type(error).__name__} in {scope['method']} {scope['path']}")
            internal.__cause__ = error
            await problem(internal, scope["state"]["request_id"])(scope, receive, send)


class BodyLimit:
    """Refuses a body over the limit: by its Content-Length at once, without one as soon as too much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_bytes:
            error = self._too_large(f"{int(declared)} bytes")
            await problem(error, scope["state"]["request_id"])(scope, receive, send)
            return
        so_far = 0

        async def receive_within_limit() -> Message:
            nonlocal so_far
            message = await receive()
            if message["type"] == "http.request":
                so_far += len(message.get("body", b""))
                if so_far > self.max_bytes:
                    raise self._too_large(f"at least {so_far} bytes")
            return message

        await self.app(scope, receive_within_limit, send)

    def _too_large(self, received: str) -> TooLarge:
        return TooLarge(
            f"expected at most {self.max_bytes} bytes, got {received}; send fewer rows at once or a binary format, "
            f"or have {variable('max_body_mb')} raised on the server",
            path="body",
            expected=f"at most {self.max_bytes} bytes",
            received=received,
        )
