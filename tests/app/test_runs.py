"""Turns on the compute thread: one program each, and no more than one block of an array."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from app.batcher import Batcher
from app.metrics import Metrics
from app.operators._operator import Work
from app.operators._rows import Layout
from app.runs import Runs, Usage


class Model:
    name = "m"


class Programs:
    counts = {"graph": 0, "compiled": 0}  # noqa: RUF012
    compiled = SimpleNamespace(count=0)

    def __init__(self):
        self.runs = 0

    def run(self, model, operator, work):
        self.runs += 1
        return {"n": np.full(1, self.runs)}, False

    def close(self):
        pass


WORK = Work("key", lambda: None, {}, {}, 1, "scan", ())


def collect(steps):
    """The items of each turn, by counting how often the thread was asked."""

    async def main():
        runs = Runs(Programs(), Batcher(), Metrics())
        turns = []
        turn = runs._turn
        runs._turn = lambda *arguments: turns.append(turn(*arguments)) or turns[-1]
        items = await runs.gather(Model, "jacobian", steps, Usage())
        page = runs._metrics.page().decode()
        await runs.close()
        return items, turns, runs.programs.runs, page

    return asyncio.run(main())


def test_a_single_work_takes_one_turn():
    def steps():
        found = yield WORK
        yield {"outputs.y": found["n"]}

    items, turns, ran, _ = collect(steps)
    assert (len(items), len(turns), ran) == (1, 1, 1)


def test_each_work_takes_a_turn_of_its_own():
    def steps():
        first = yield WORK
        second = yield WORK
        yield {"a": first["n"], "b": second["n"]}

    items, turns, ran, page = collect(steps)
    assert [{k: v.item() for k, v in item.items()} for item in items] == [{"a": 1, "b": 2}]
    assert (len(turns), ran) == (2, 2)
    assert 'pushforward_chunks_total{model="m",operator="jacobian"} 2.0' in page
    assert "abandoned_total{" not in page


def test_blocks_that_take_no_work_do_not_pile_up():
    """Known zeros are made as fast as they are asked for, and a client may read slowly."""

    def steps():
        for i in range(5):
            yield np.full(3, i)
        found = yield WORK
        yield found["n"]

    items, turns, ran, _ = collect(steps)
    assert len(items) == 6
    assert max(map(len, turns)) == 1
    assert ran == 1


def abandoned(spoil):
    """How many calls count as abandoned after `spoil(runs, items)`."""

    def steps():
        yield WORK
        yield np.zeros(3)
        yield WORK
        yield np.zeros(3)

    async def main():
        runs = Runs(Programs(), Batcher(), Metrics())
        await spoil(runs, runs.items(Model, "jacobian", steps, Usage()))
        page = runs._metrics.page().decode()
        await runs.close()
        return "abandoned_total{" in page

    return asyncio.run(main())


def test_a_call_that_is_given_up_counts_as_abandoned():
    async def leave(_, items):
        await anext(items)
        await items.aclose()

    assert abandoned(leave)


def test_a_call_that_fails_does_not():
    async def fail(runs, items):
        runs.programs.run = None
        with pytest.raises(TypeError):
            await anext(items)

    async def finish(_, items):
        assert len([item async for item in items]) == 2

    assert not abandoned(fail)
    assert not abandoned(finish)


class Rows(Programs):
    """Doubles rows, unless one of them is negative."""

    def __init__(self):
        super().__init__()
        self.groups = []

    def run_group(self, model, operator, works):
        self.groups.append([len(work.feeds["inputs.x"]) for work in works])
        if any((work.feeds["inputs.x"] < 0).any() for work in works):
            raise ValueError("negative")
        return [{"outputs.y": 2 * work.feeds["inputs.x"]} for work in works], True


LAYOUT = Layout({"inputs.x": ("batch", "feature")}, {"outputs.y": ("batch", "feature")}, padded=False)


def work(x, key="key", layout=LAYOUT):
    return Work(key, lambda: None, {"inputs.x": x}, {}, len(x), "scan", (), layout=layout)


def together(works, leave=()):
    """Submit works while the thread is busy; what came out of each, and which were run together."""

    async def main():
        programs, busy = Rows(), threading.Event()
        runs = Runs(programs, Batcher(max_rows=8), Metrics())
        blocker = asyncio.create_task(runs.on_thread(busy.wait))
        await asyncio.sleep(0.01)
        usages = [Usage() for _ in works]
        tasks = [asyncio.create_task(runs.work(Model, "jvp", w, usage)) for w, usage in zip(works, usages, strict=True)]
        await asyncio.sleep(0.01)
        for i in leave:
            tasks[i].cancel()
        await asyncio.sleep(0.01)
        busy.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await blocker
        await runs.close()
        return found, usages, programs.groups

    return asyncio.run(main())


def test_works_of_one_program_are_run_together():
    given = [work(np.full((rows, 2), float(rows))) for rows in (1, 2, 3)]
    found, usages, groups = together(given)
    for w, arrays in zip(given, found, strict=True):
        np.testing.assert_array_equal(arrays["outputs.y"], 2 * w.feeds["inputs.x"])
    assert groups == [[1, 2, 3]]
    assert [usage.batch_rows for usage in usages] == [6, 6, 6]
    assert all(usage.compiled and usage.queued > 0 and usage.computed > 0 for usage in usages)


def test_what_differs_is_not_run_together():
    ones = np.ones((1, 2))
    _, _, groups = together(
        [work(ones), work(ones, "other"), work(np.ones((1, 3))), work(ones.astype("f")), work(ones, layout=None)]
    )
    assert groups == [[1]] * 5


def test_no_more_rows_than_may_be_are_run_together():
    _, _, groups = together([work(np.ones((rows, 2))) for rows in (3, 4, 5, 1, 20)])
    assert groups == [[3, 4, 1], [5], [20]]


@pytest.mark.parametrize("bad", range(4))
def test_one_that_fails_does_so_alone(bad):
    found, _, groups = together([work(np.full((1, 2), -1.0 if i == bad else 1.0)) for i in range(4)])
    assert groups == [[1, 1, 1, 1], [1], [1], [1], [1]]
    assert [isinstance(f, ValueError) for f in found] == [i == bad for i in range(4)]


@pytest.mark.parametrize("gone", range(4))
def test_one_that_leaves_does_so_alone(gone):
    found, _, groups = together([work(np.full((1, 2), float(i))) for i in range(4)], leave=[gone])
    assert groups == [[1, 1, 1]]
    for i, arrays in enumerate(found):
        if i == gone:
            assert isinstance(arrays, asyncio.CancelledError)
        else:
            np.testing.assert_array_equal(arrays["outputs.y"], np.full((1, 2), 2.0 * i))


def test_nothing_is_run_for_those_who_all_left():
    _, _, groups = together([work(np.ones((1, 2)))] * 3, leave=range(3))
    assert groups == []
