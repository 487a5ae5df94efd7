"""Keeps the event loop free and abandoned calls cheap: large bodies go to a thread, a departed client's call ends."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

# Below this a codec takes less than a millisecond or two, which is what a thread costs under load.
INLINE_BYTES = 64 * 1024

# The same for what is only copied: arrays as raw bytes, or in base64.
INLINE_RAW_BYTES = 512 * 1024

# Codecs hold the interpreter lock for much of their time: more threads would not be faster, and each of them
# that waits for the lock delays the event loop by one more switch interval.
_THREADS = 2


class Offload:
    """Runs a codec inline or, when there is much to do, in one of a few threads of its own."""

    def __init__(self) -> None:
        # Not anyio's threads: its back end is imported at the first use, which alone blocks the loop for 0.1 s.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="codec")

    async def __call__(self, size: int, function: Callable[[], T], *, raw: bool = False) -> T:
        """Run `function`, which handles `size` bytes; with `raw` it only copies them."""
        if size <= (INLINE_RAW_BYTES if raw else INLINE_BYTES):
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


# Nobody who leaves earlier than this is noticed before: watching costs more than a small call.
_GRACE_S = 0.02


async def while_connected(request: Request, work: Coroutine[None, None, T]) -> T:
    """Await `work`, and cancel it when the client leaves first.

    The request's body must have been read: this takes over its receive channel.

    Raises:
        ClientDisconnect: if the client left before `work` was done.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # inside a coroutine there is one
    watch = _Watch(request, task)
    start = asyncio.get_running_loop().call_later(_GRACE_S, watch.start)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.left and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        start.cancel()
        watch.stop()


class _Watch:
    """Cancels a task when the client of a request leaves."""

    def __init__(self, request: Request, task: "asyncio.Task[object]") -> None:
        self._request, self._task = request, task
        self._departure: asyncio.Task[None] | None = None
        self.left = False

    def start(self) -> None:
        self._departure = asyncio.ensure_future(self._wait())

    def stop(self) -> None:
        if self._departure is not None:
            self._departure.cancel()

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()
