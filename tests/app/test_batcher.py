"""The queue: in what order, how many together, and what happens to those who leave and to those who fail."""

import asyncio
import threading

import pytest

from app.batcher import Batcher


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


class Log:
    """Runs items by returning them, and keeps what was run together."""

    def __init__(self):
        self.batches, self.threads = [], set()

    def __call__(self, items):
        self.batches.append(list(items))
        self.threads.add(threading.current_thread().name)
        return list(items)


async def behind(batcher, submit, log=None):
    """Submit while the thread is busy."""
    busy = threading.Event()
    blocker = asyncio.create_task(batcher.submit(None, lambda items: [busy.wait()]))
    await asyncio.sleep(0.01)
    tasks = [asyncio.create_task(t) for t in submit]
    await asyncio.sleep(0.01)
    return busy, tasks, blocker


def test_those_of_one_key_go_together_and_the_rest_in_order():
    async def main():
        batcher, log = Batcher(), Log()
        keys = ["a", "b", None, "a", None, "b", "a"]
        busy, tasks, blocker = await behind(batcher, [batcher.submit(i, log, key) for i, key in enumerate(keys)])
        assert batcher.waiting == 7
        busy.set()
        assert await asyncio.gather(*tasks) == list(range(7))
        assert log.batches == [[0, 3, 6], [1, 5], [2], [4]]
        assert log.threads == {"compute"}
        await blocker
        await batcher.close()

    run(main())


def test_a_lone_item_starts_at_once_whatever_the_key():
    async def main():
        batcher, log = Batcher(), Log()
        for i in range(3):
            assert await batcher.submit(i, log, "a") == i
        assert log.batches == [[0], [1], [2]]
        await batcher.close()

    run(main())


def test_a_wait_gathers_those_who_come_meanwhile():
    async def main():
        batcher, log = Batcher(max_rows=3, wait_s=20), Log()
        tasks = [asyncio.create_task(batcher.submit(0, log, "a"))]
        await asyncio.sleep(0.05)
        tasks += [asyncio.create_task(batcher.submit(i, log, "a")) for i in (1, 2)]  # full, so that nobody waits longer
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert log.batches == [[0, 1, 2]]
        await batcher.close()

    run(main())


def test_each_gets_its_own_error():
    async def main():
        batcher = Batcher()
        blame = lambda items: [ValueError(i) if i == 1 else i for i in items]  # noqa: E731
        busy, tasks, blocker = await behind(batcher, [batcher.submit(i, blame, "a") for i in range(3)])
        busy.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert (found[0], found[2], str(found[1])) == (0, 2, "1")
        await blocker
        await batcher.close()

    run(main())


def test_an_error_of_the_run_is_everyones_and_the_thread_lives_on():
    def fail(items):
        raise MemoryError

    async def main():
        batcher, log = Batcher(), Log()
        with pytest.raises(MemoryError):
            await batcher.submit(0, fail)
        assert await batcher.submit(1, log) == 1
        await batcher.close()

    run(main())


def test_who_leaves_before_the_run_is_not_run_and_who_leaves_during_it_is_an_orphan():
    async def main():
        batcher, log = Batcher(), Log()
        busy, tasks, blocker = await behind(batcher, [batcher.submit(i, log) for i in range(2)])
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert (batcher.waiting, batcher.orphans) == (1, 0)
        blocker.cancel()
        await asyncio.sleep(0)
        assert (batcher.waiting, batcher.orphans) == (1, 1)
        busy.set()
        assert await tasks[1] == 1
        assert log.batches == [[1]]
        assert batcher.orphans == 0
        await batcher.close()

    run(main())


def test_what_nobody_waits_for_any_more_is_not_kept_until_its_turn():
    async def main():
        batcher, log = Batcher(), Log()
        busy, tasks, blocker = await behind(batcher, [batcher.submit(i, log) for i in range(3)])
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert [entry.item for entry in batcher._queue] == [0, 2]
        for task in tasks:
            task.cancel()
        busy.set()
        await batcher.close()  # Only what is run is waited for.
        assert log.batches == []
        await blocker

    run(main())


def test_closing_finishes_what_was_submitted():
    async def main():
        batcher, log = Batcher(), Log()
        busy, tasks, _ = await behind(batcher, [batcher.submit(i, log) for i in range(3)])
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        busy.set()
        await closing
        assert [task.result() for task in tasks] == [0, 1, 2]
        assert not batcher._thread.is_alive()

    run(main())
