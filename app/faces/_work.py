"""Keeps the event loop free and abandoned calls cheap: large bodies go to a thread, a departed client's call ends."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

# Below this a codec takes less than a millisecond or two, which is what a thread costs under load.
INLINE_BYTES = 64 * 1024

# Codecs hold the interpreter lock for much of their time: more threads would not be faster, and each of them
# that waits for the lock delays the event loop by one more switch interval.
_THREADS = 2


class Offload:
    """Runs a codec inline or, when there is much to do, in one of a few threads of its own."""

    def __init__(self) -> None:
        # Not anyio's threads: its back end is imported at the first use, which alone blocks the loop for 0.1 s.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="codec")

    async def __call__(self, size: int, function: Callable[[], T]) -> T:
        """Run `function`, which handles `size` bytes."""
        if size <= INLINE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def while_connected(request: Request, work: Coroutine[None, None, T]) -> T:
    """Await `work`, and cancel it when the client leaves first.

    The request's body must have been read: this takes over its receive channel.

    Raises:
        ClientDisconnect: if the client left before `work` was done.
    """
    task = asyncio.ensure_future(work)
    departure = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait((task, departure), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        departure.cancel()
        await asyncio.gather(task, departure, return_exceptions=True)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
