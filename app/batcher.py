"""The queue before a device: whoever waits for the same program is run together, the others in the order they came.

Group commit, without a timer: a lone item starts at once, and what comes while a batch runs forms the next. The thread
of the device takes from the queue itself, so there is one hand-over to it, and one back, for a whole batch.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(eq=False)
class _Entry:
    item: Any
    run: Run
    key: Hashable | None
    rows: int
    future: "asyncio.Future[Any]"


class Batcher:
    """Runs items on a thread of its own, those of one key together.

    Args:
        max_rows: how many rows are run together at most; an item that has more is run alone.
        wait_s: how long an item that could be joined waits for others to come. With 0 it does not.
        name: of the thread.
    """

    def __init__(self, max_rows: int = 64, wait_s: float = 0.0, name: str = "compute") -> None:
        self._max_rows, self._wait_s = max_rows, wait_s
        self._queue: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._running: Sequence[_Entry] = ()
        self._closed = False
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait, without those that are run."""
        with self._changed:
            return sum(not entry.future.done() for entry in self._queue)

    @property
    def orphans(self) -> int:
        """How many items are run although nobody waits for them any more."""
        return sum(entry.future.cancelled() for entry in self._running)

    async def submit(self, item: Any, run: Run, key: Hashable | None = None, rows: int = 1) -> Any:
        """Have an item run, and return what comes out of it.

        An item whose caller is cancelled before it is run never is; the others of a batch do not notice.

        Args:
            item: what is to be run.
            run: runs items of one key, the same for all of them; returns a result for each, or the exception that is to
                be raised for it. What it raises itself is raised for all.
            key: what items must have in common to be run together; None for one that is run alone.
            rows: how many rows it counts for.
        """
        loop = asyncio.get_running_loop()
        entry = _Entry(item, run, key, rows, loop.create_future())
        self._unfinished += 1
        self._idle.clear()
        with self._changed:
            self._queue.append(entry)
            self._changed.notify()
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._drop(entry)
            raise

    async def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        await self._idle.wait()
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            dropped = [entry for entry in batch if entry.future.done()]
            alive = [entry for entry in batch if not entry.future.done()]
            results: Sequence[Any] = ()
            self._running = alive
            if alive:
                try:
                    results = alive[0].run([entry.item for entry in alive])
                except Exception as error:
                    results = [error] * len(alive)
            self._running = ()
            loop = batch[0].future.get_loop()
            if not loop.is_closed():  # then nobody waits any more
                loop.call_soon_threadsafe(self._deliver, alive, results, len(dropped))

    def _take(self) -> list[_Entry] | None:
        """Wait for an item and return it with all that can be run with it; None when there is nothing more to come."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
            first = self._queue.popleft()
            if first.key is None:
                return [first]
            end = time.monotonic() + self._wait_s
            batch = self._joined(first)
            while sum(entry.rows for entry in batch) < self._max_rows and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
                batch = self._joined(*batch)
            return batch

    def _joined(self, *batch: _Entry) -> list[_Entry]:
        """Take what fits to a batch out of the queue."""
        found, rows = list(batch), sum(entry.rows for entry in batch)
        rest: deque[_Entry] = deque()
        for entry in self._queue:
            if entry.key == found[0].key and rows + entry.rows <= self._max_rows:
                found.append(entry)
                rows += entry.rows
            else:
                rest.append(entry)
        self._queue = rest
        return found

    def _deliver(self, alive: Sequence[_Entry], results: Sequence[Any], dropped: int) -> None:
        for entry, result in zip(alive, results, strict=True):
            if entry.future.done():
                continue
            if isinstance(result, BaseException):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)
        self._finish(len(alive) + dropped)

    def _drop(self, entry: _Entry) -> None:
        # Its arrays must not stay until its turn comes: clients that leave at once would fill the memory.
        with self._changed:
            if entry not in self._queue:
                return  # It is part of a batch, and is counted when that is delivered.
            self._queue.remove(entry)
        self._finish(1)

    def _finish(self, count: int) -> None:
        self._unfinished -= count
        if self._unfinished == 0:
            self._idle.set()
