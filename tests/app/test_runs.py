"""Turns on the compute thread: one program each, and no more than one block of an array."""

import asyncio

import numpy as np
import pytest

from app.metrics import Metrics
from app.operators._operator import Work
from app.runs import Runs, Usage


class Model:
    name = "m"


class Programs:
    def __init__(self):
        self.runs = 0

    def run(self, model, operator, work):
        self.runs += 1
        return {"n": np.full(1, self.runs)}, False


WORK = Work("key", lambda: None, {}, {}, 1, "scan", ())


def collect(steps):
    """The items of each turn, by counting how often the thread was asked."""

    async def main():
        runs = Runs(0, Metrics())
        runs.programs = Programs()
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
        runs = Runs(0, Metrics())
        runs.programs = Programs()
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
