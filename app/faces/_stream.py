"""Answers with an array that is computed while it is sent: a Jacobian may be larger than the memory."""

import asyncio
import math
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.calls import Streamed
from app.faces._work import Offload, while_connected
from app.problems import request_id_of
from app.settings import Settings, variable
from pushforward import errors
from pushforward.wire import Codec, Message, json, safetensors
from pushforward.wire._arrays import Array, portable

# The server copies all it is given before it makes anybody wait for a slow client, so it gets a block in pieces.
_PIECE = 2**20

_UNITS = ("kB", "MB", "GB", "TB", "PB")


class CutShort(Exception):
    """An answer failed after its start, when it is too late for a problem document.

    No handler knows this class, so it reaches the server, which logs it and closes the connection: the client gets
    fewer bytes than were announced.
    """


def check_streamed(streamed: Streamed, writer: Codec, settings: Settings) -> None:
    """Refuse what is too large for a format, before any of it is computed.

    Raises:
        TooLarge: with the size, and what would do instead.
    """
    limit, setting = _limit(writer, settings)
    size = streamed.nbytes
    if size <= limit:
        return
    instead = "a smaller slice of `of` or `wrt`, or a product along a direction with POST /jvp or /vjp"
    if writer is not safetensors.CODEC:
        largest = _human(settings.max_stream_bytes)
        instead = f"Accept: {safetensors.CODEC.media_type}, {instead}; safetensors goes up to {largest}"
    raise errors.TooLarge(
        f"{streamed.field} of shape {list(streamed.shape)} has {size} bytes ({_human(size)}), as {writer.name} at most "
        f"{limit} ({_human(limit)}) are sent; ask for {instead}; or have {variable(setting)} raised on the server",
        expected=f"at most {limit} bytes",
        received=f"{size} bytes",
    )


async def gather(request: Request, streamed: Streamed, offload: Offload) -> Array:
    """Wait for all blocks and make one array of them, for formats that can't be written piece by piece."""
    blocks = _Blocks(streamed)
    found = [np.empty(0, streamed.dtype)]

    async def collect() -> None:
        while (block := await blocks.next()) is not None:
            found.append(block)

    await while_connected(request, collect())
    return await offload(streamed.nbytes, lambda: np.concatenate(found).reshape(streamed.shape))


class Stream(Response):
    """An answer as safetensors: its length is sent at once, its last array block by block as it is computed.

    The first block is waited for before anything is sent, so that an error until then is answered as any other. The
    last bytes are sent when the blocks have ended without an error, so that no failed answer is complete.
    """

    def __init__(self, reply: Message, streamed: Streamed, settings: Settings) -> None:
        super().__init__(media_type=safetensors.CODEC.media_type, headers={"Vary": "Accept"})
        self._reply = reply
        self._streamed = streamed
        self._settings = settings
        self._sent: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; when the client leaves, stop computing it."""
        request = Request(scope, receive)
        try:
            check_streamed(self._streamed, safetensors.CODEC, self._settings)
            await while_connected(request, self._send(send))
        except ClientDisconnect:
            if self._sent is None:
                raise
        except Exception as error:
            if self._sent is None:
                raise
            raise CutShort(
                f"request {request_id_of(request)} failed after {self._sent} of {self.headers['Content-Length']} bytes "
                f"of its answer: {error}"
            ) from error
        finally:
            await self._streamed.blocks.aclose()

    async def _send(self, send: Send) -> None:
        head = _head(self._reply, self._streamed)
        blocks = _Blocks(self._streamed)
        block = await blocks.next()
        self.headers["Content-Length"] = str(len(head) + self._streamed.nbytes)
        self._sent = 0
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send_bytes(send, head, more=True)
        last = b""
        while block is not None:
            data = block.view(np.uint8)
            for start in range(0, data.size, _PIECE):
                piece = data[start : start + _PIECE].tobytes()
                if blocks.left == 0 and start + _PIECE >= data.size:
                    last = piece
                else:
                    await self._send_bytes(send, piece, more=True)
            block = await blocks.next()
        # Nothing may be awaited after this: for a server, the end of an answer is a departure, too.
        await self._send_bytes(send, last, more=False)

    async def _send_bytes(self, send: Send, content: bytes, *, more: bool) -> None:
        await send({"type": "http.response.body", "body": content, "more_body": more})
        self._sent = (self._sent or 0) + len(content)
        if more:
            # `send` returns at once while the client is fast enough, and the server has others to attend to.
            await asyncio.sleep(0)


class _Blocks:
    """The blocks of an array, flat, each checked against what was announced."""

    def __init__(self, streamed: Streamed) -> None:
        self._streamed = streamed
        self.left = math.prod(streamed.shape)

    async def next(self) -> Array | None:
        """Wait for the next block; None after the last.

        Raises:
            InternalError: if the blocks are not the array that was announced.
        """
        block: np.ndarray | None = await anext(self._streamed.blocks, None)
        if block is None:
            if self.left:
                raise self._wrong(f"ended {self.left} numbers early")
            return None
        if block.dtype.name != self._streamed.dtype:
            raise self._wrong(f"came as {block.dtype}")
        self.left -= block.size
        if self.left < 0:
            raise self._wrong(f"went on for {-self.left} numbers more")
        return portable(block, self._streamed.field).reshape(-1)

    def _wrong(self, what: str) -> errors.InternalError:
        it = self._streamed
        return errors.InternalError(f"{it.field} was announced as {it.dtype} of shape {list(it.shape)}, but {what}")


def _limit(writer: Codec, settings: Settings) -> tuple[int, str]:
    if writer is safetensors.CODEC:
        return settings.max_stream_bytes, "max_stream_mb"
    whole = (settings.max_response_bytes, "max_response_mb")
    return min(whole, (settings.max_json_bytes, "max_json_mb")) if writer is json.CODEC else whole


def _head(reply: Message, streamed: Streamed) -> bytes:
    # Wide dtypes first, as the codec does: what follows is aligned if it is no wider than they are.
    arrays = sorted(reply.arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    layout: dict[str, tuple[Any, tuple[int, ...]]] = {path: (array.dtype, array.shape) for path, array in arrays}
    try:
        first = safetensors.prefix(reply.envelope, layout | {streamed.field: (streamed.dtype, streamed.shape)})
        return b"".join([first, *(portable(array, path).tobytes() for path, array in arrays)])
    except errors.PushforwardError as error:
        raise errors.InternalError("the answer can't be written as safetensors") from error


def _human(size: int) -> str:
    power = min(max((len(str(size)) - 1) // 3, 1), len(_UNITS))
    return f"{size / 1000**power:.1f} {_UNITS[power - 1]}"
