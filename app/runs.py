"""How checked calls are run: turn by turn on one thread of their own, so that the calls of all clients take turns.

A turn is one program: a whole JVP, or one chunk of a Jacobian. Between two chunks whoever came meanwhile has a turn,
and a call that nobody waits for any more gets none.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from app.metrics import Metrics
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


@dataclass
class _Turns:
    """The generator of a call, and what it waits for."""

    steps: Generator[Item, Arrays, None]
    pending: Work | None = None
    done: bool = False


class Runs:
    """Runs the steps of calls on the compute thread.

    Args:
        compiled_shapes: how many shapes of one program are compiled.
        metrics: where turns are counted.
    """

    def __init__(self, compiled_shapes: int, metrics: Metrics) -> None:
        self.programs = Programs(compiled_shapes=compiled_shapes)
        self._metrics = metrics
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.orphans = 0
        """Turns that are still running, although their callers have left."""
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._speed = _FIRST_SPEED

    async def close(self) -> None:
        """Wait for the turns that were begun, and end the thread."""
        await self._idle.wait()
        await asyncio.to_thread(self._compute.shutdown, wait=True)

    async def on_thread(self, function: Callable[[], T]) -> T:
        """Run a function on the compute thread; if its caller leaves before it has begun, it never runs."""
        loop = asyncio.get_running_loop()
        left: list[bool] = []
        self._running += 1
        self._idle.clear()
        future = self._compute.submit(function)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended, left))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():
                self.orphans += 1
                left.append(True)
            raise

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
                self._metrics.abandoned.labels(operator, model.name).inc()
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
                self._metrics.chunks.labels(operator, model.name).inc()
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

    def _ended(self, left: list[bool]) -> None:
        self.orphans -= len(left)
        self._running -= 1
        if self._running == 0:
            self._idle.set()
