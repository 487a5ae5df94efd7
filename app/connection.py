"""Connections that ask for nothing, or read nothing, are closed: uvicorn itself waits for both forever.

What it has a limit for is the idle time between two requests, which any byte that comes ends. The body is a matter of
`app.middleware.BodyLimit`, which can still answer.
"""

import asyncio
import logging
import socket
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_log = logging.getLogger("app.connection")

# Linux has it: how long what was sent may stay unread, after which the connection is lost as if the client had left.
# The system alone knows: what uvicorn and asyncio hold is out of their hands long before a client reads it.
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


def impatient(headers_timeout_s: float, send_timeout_s: float) -> type[asyncio.Protocol]:
    """Make a protocol for uvicorn's option `http`.

    It closes a connection whose next request has not all of its headers within `headers_timeout_s` of the connection's
    start, or of the first byte after the answer before, and one whose client takes nothing of an answer, or almost
    nothing, for `send_timeout_s`.
    """

    class Impatient(AutoHTTPProtocol):
        transport: asyncio.Transport
        cycle: Any  # the latest request and its answer
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            stream: socket.socket | None = transport.get_extra_info("socket")
            if _USER_TIMEOUT is not None and stream is not None and stream.family != socket.AF_UNIX:
                stream.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(send_timeout_s * 1e3))
            self._hurry()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stay()
            elif self._closing is None:
                self._hurry()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stay()
            if isinstance(exc, TimeoutError):
                _log.info("a client read nothing of its answer for %g s", send_timeout_s)
            super().connection_lost(exc)

        def _hurry(self) -> None:
            self._closing = asyncio.get_running_loop().call_later(headers_timeout_s, self.transport.close)

        def _stay(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return Impatient
