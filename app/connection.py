"""Connections that ask for nothing are closed: uvicorn itself waits forever for the headers of a request.

What it has a limit for is the idle time between two requests, which any byte that comes ends. The body is a matter of
`app.middleware.BodyLimit`, which can still answer.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def impatient(headers_timeout_s: float) -> type[asyncio.Protocol]:
    """Make a protocol for uvicorn's option `http`.

    It closes a connection whose next request has not all of its headers within `headers_timeout_s` of the connection's
    start, or of the first byte after the answer before.
    """

    class Impatient(AutoHTTPProtocol):
        transport: asyncio.Transport
        cycle: Any  # the latest request and its answer
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._hurry()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stay()
            elif self._closing is None:
                self._hurry()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stay()
            super().connection_lost(exc)

        def _hurry(self) -> None:
            self._closing = asyncio.get_running_loop().call_later(headers_timeout_s, self.transport.close)

        def _stay(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return Impatient
