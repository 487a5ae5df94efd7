"""How checked calls are run: turn by turn on the compute thread, so that the calls of all clients take turns.

A turn is one program: the works of several calls joined, or one chunk of a Jacobian. Between two chunks whoever came
meanwhile has a turn, and a call that nobody waits for any more gets none.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from app.batcher import Batcher
from app.metrics import Metrics, labelled
from app.operators._operator import Arrays, Item, Steps, Work
from app.programs import Programs
from models.model import Model

T = TypeVar("T")

# Operations per second that an estimate assumes before anything was measured, and the weight of each measurement.
_FIRST_SPEED = 5e9
_WEIGHT = 0.3
_MEASURABLE_S = 0.01


@dataclass
class Usage:
    """What a call has taken so far, in seconds."""

    submitted: float = field(default_factory=time.perf_counter)
    queued: float | None = None
    computed: float = 0.0
    compiled: bool = False
    batch_rows: int = 0
    """Rows of the batch that it was part of."""


@dataclass
class _Turns:
    """The generator of a call, and what it waits for."""

    steps: Generator[Item, Arrays, None]
    pending: Work | None = None
    done: bool = False


@dataclass(frozen=True)
class _Outcome:
    """What came out of a work, and how it was run."""

    arrays: Arrays
    compiled: bool
    began: float
    ended: float
    rows: int


class Runs:
    """Runs the steps of calls on the compute thread.

    Args:
        programs: what runs a work.
        batcher: the queue before the compute thread.
        metrics: where turns are counted, and the queue and the programs are shown.
    """

    def __init__(self, programs: Programs, batcher: Batcher, metrics: Metrics) -> None:
        self.programs = programs
        self._batcher, self._metrics = batcher, metrics
        self._speed = _FIRST_SPEED
        for name, documentation, read in (
            ("queue_length", "Programs and chunks that wait for the device.", lambda: batcher.waiting),
            ("programs_graph", "Programs for all sizes that are kept.", lambda: programs.counts["graph"]),
            ("programs_compiled", "Programs compiled by XLA that are kept.", lambda: programs.counts["compiled"]),
            ("compiles", "Programs that XLA has compiled since the start.", lambda: programs.compiled.count),
        ):
            metrics.watch(name, documentation, read)

    @property
    def orphans(self) -> int:
        """Turns that are still running, although their callers have left."""
        return self._batcher.orphans

    async def close(self) -> None:
        """Wait for the turns that were begun, and end the thread."""
        await self._batcher.close()
        await asyncio.to_thread(self.programs.close)

    async def on_thread(self, function: Callable[[], T]) -> T:
        """Run a function on the compute thread; if its caller leaves before it has begun, it never runs."""
        return await self._batcher.submit(function, _call)

    async def work(self, model: Model, operator: str, work: Work, usage: Usage) -> Arrays:
        """Run a single work, joined with those of other calls if it can be.

        Raises:
            asyncio.CancelledError: if the caller leaves; the others do not notice.
        """
        key = None if work.alike is None else (model, operator, work.alike)
        run = partial(self._group, model, operator)
        try:
            outcome: _Outcome = await self._batcher.submit(work, run, key, work.rows)
        except asyncio.CancelledError:
            labelled(self._metrics.abandoned, operator, model.name).inc()
            raise
        usage.queued = outcome.began - usage.submitted
        usage.computed += outcome.ended - outcome.began
        usage.compiled, usage.batch_rows = outcome.compiled, outcome.rows
        return outcome.arrays

    async def items(
        self, model: Model, operator: str, steps: Steps, usage: Usage, limit: Callable[[], float | None] = lambda: None
    ) -> AsyncGenerator[Any, None]:
        """Yield what the steps of a call yield besides works, which are run, one a turn.

        Args:
            model: the model.
            operator: the operator's name.
            steps: the call's steps.
            usage: what they took is added here.
            limit: asked before each turn: the seconds that it may take.

        Raises:
            TimeoutError: if a turn takes longer.
        """
        turns = _Turns(steps())
        try:
            while not turns.done:
                async with asyncio.timeout(limit()):
                    found = await self.on_thread(lambda: self._turn(model, operator, turns, usage))
                for item in found:
                    yield item
        except (asyncio.CancelledError, GeneratorExit, TimeoutError):
            if not turns.done:
                labelled(self._metrics.abandoned, operator, model.name).inc()
            raise

    async def gather(self, model: Model, operator: str, steps: Steps, usage: Usage) -> list[Any]:
        """Return all that `items` yields."""
        async with aclosing(self.items(model, operator, steps, usage)) as items:
            return [item async for item in items]

    def seconds(self, flops: float) -> float:
        """Estimate how long so many floating-point operations take here."""
        return flops / self._speed

    def learn(self, flops: float, usage: Usage) -> None:
        """Improve estimates by what a call took."""
        if flops and usage.computed > _MEASURABLE_S:
            self._speed += _WEIGHT * (flops / usage.computed - self._speed)

    def _turn(self, model: Model, operator: str, turns: _Turns, usage: Usage) -> list[Any]:
        begin = time.perf_counter()
        if usage.queued is None:
            usage.queued = begin - usage.submitted
        found: list[Any] = []
        item, turns.pending = turns.pending or next(turns.steps, None), None
        ran = False
        while item is not None:
            if isinstance(item, Work) and ran:
                turns.pending = item
                break
            if isinstance(item, Work):
                arrays, compiled = self.programs.run(model, operator, item)
                labelled(self._metrics.chunks, operator, model.name).inc()
                usage.compiled |= compiled
                ran = True
                try:
                    item = turns.steps.send(arrays)
                except StopIteration:
                    item = None
                continue
            found.append(item)
            if isinstance(item, np.ndarray):  # a block, which may be large even if nothing was run for it
                break
            item = next(turns.steps, None)
        turns.done = item is None
        usage.computed += time.perf_counter() - begin
        return found

    def _group(self, model: Model, operator: str, works: Sequence[Work]) -> list[_Outcome | Exception]:
        began = time.perf_counter()
        try:
            found, compiled = self.programs.run_group(model, operator, works)
        except Exception as error:
            if len(works) == 1:
                return [error]
            # One of them is to blame, and only one is to hear of it.
            return [outcome for work in works for outcome in self._group(model, operator, [work])]
        ended, rows = time.perf_counter(), sum(work.rows for work in works)
        labelled(self._metrics.batch_rows, operator, model.name).observe(rows)
        return [_Outcome(arrays, compiled, began, ended, rows) for arrays in found]


def _call(functions: Sequence[Callable[[], T]]) -> list[T]:
    (function,) = functions
    return [function()]
