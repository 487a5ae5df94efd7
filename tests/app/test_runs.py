"""Turns on the compute thread: one program each, and no more than one block of an array."""

import asyncio

import numpy as np

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
